/* What the CPU kernels of a thread report about the threads that they compute with. */
#pragma once

/* Returns the size of a team that the system refused to the calling thread, and in *got the size
 * that teams have since; 0 if it refused none. Each refusal is returned once. */
int tide__pool_refused(int *got);
