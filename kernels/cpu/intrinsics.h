/* The vector intrinsics of x86; with TIDE_EMULATE, those of AVX-512 as loops. */
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#ifdef TIDE_EMULATE
#include "kernels/cpu/emulated/avx512.h"
#endif
#endif
