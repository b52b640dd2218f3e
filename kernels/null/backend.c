/* The null device: tensors have shapes and no bytes; every op infers shapes and computes nothing.
 * Plans are priced on it: its memory counters move as on a real device. */
#include "core/device/backend.h"

static void *null_alloc(void *state, size_t size)
{
  (void)state;
  (void)size;
  return NULL;
}

static void null_free(void *state, void *ptr, size_t size)
{
  (void)state;
  (void)ptr;
  (void)size;
}

const tide__backend tide__backend_null = {
  .device = TIDE_DEV_NULL, .host = false, .has_bytes = false, .alloc = null_alloc,
  .free = null_free,
};
