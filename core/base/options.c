/* See options.h. */
#include "core/base/options.h"

#include <stdint.h>
#include <string.h>

enum { SHORTEST = 8, LONGEST = 4096 };

bool tide__options(void *to, size_t n, const void *from)
{
  uint32_t size, own = (uint32_t)n;
  if (!from) return true;
  memcpy(&size, from, sizeof size);
  if (size < SHORTEST || size > LONGEST) return false;
  for (size_t i = n; i < size; i++)
    if (((const char *)from)[i]) return false;
  memcpy(to, from, size < n ? size : n);
  memcpy(to, &own, sizeof own);
  return true;
}
