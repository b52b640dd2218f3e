/* Structs of options and attributes of hosts that were compiled with another version of the header.
 *
 * Such a struct begins with its size. Members are only ever added at the end, so a shorter one is
 * the same with the rest at its defaults; a longer one is the same where the rest is zero.
 */
#ifndef TIDE_BASE_OPTIONS_H
#define TIDE_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* Copies the host's struct over `to`, which holds n bytes of defaults. from null: leaves them.
 * Returns whether the struct was initialised (tide_X_init) and asks for nothing that is unknown
 * here. */
bool tide__options(void *to, size_t n, const void *from);

#endif
