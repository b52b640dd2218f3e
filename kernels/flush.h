/* Denormals as cpu kernels see them, for host code that is to agree with their results.
 */
#ifndef TIDE_KERNELS_FLUSH_H
#define TIDE_KERNELS_FLUSH_H

/* Calls fn(arg) on this thread with denormals taken for zeros; then the thread's floating-point
 * state is as it was. */
void k_cpu_flushed(void (*fn)(void *arg), void *arg);

#endif
