/* tide: the one header for hosts.
 *
 * A shell around tide_abi.h: the include guard, the standard headers, C linkage and symbol
 * visibility. tide_abi.h holds every declaration and no preprocessor line, so that the same text is
 * C99, C++ and the LuaJIT cdef.
 *
 * Threads: a context and everything made from it belong to one thread at a time; different contexts
 * share nothing and may run in parallel. Release functions may be called from any thread, except
 * tide_ctx_release; see core/THREADING.md.
 */
#ifndef TIDE_H
#define TIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

#include "tide_abi.h"

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

/* Passes the library the ABI of the header that the host was compiled with. */
#define tide_opts_init(opts) ((tide_opts_init)(opts), (void)((opts)->abi = TIDE_ABI))

#endif
