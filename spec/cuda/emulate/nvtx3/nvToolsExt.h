/* The part of NVTX that kernels/cuda uses: see nvtx.cpp for what is kept of it. Spec only. */
#pragma once

int nvtxRangePushA(const char *name);
int nvtxRangePop(void);
