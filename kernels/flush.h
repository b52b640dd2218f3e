/* Runs host code with the CPU kernels' treatment of denormals, so that its results agree with
 * theirs. */
#pragma once

/* Calls fn(arg) on this thread with denormals flushed to zero, then restores the thread's
 * floating-point state. */
void k_cpu_flushed(void (*fn)(void *arg), void *arg);
