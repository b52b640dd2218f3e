/* The public header under the strictest C99 flags; nothing else is included before it. */
#include "tide/tide.h"

#include <stdio.h>

int main(void)
{
  tide_opts opts;
  tide_opts_init(&opts);
  if (opts.size != sizeof opts) {
    printf("tide_opts_init: size %u, expected %u\n", (unsigned)opts.size, (unsigned)sizeof opts);
    return 1;
  }
  return tide_abi_text() && tide_version()[0] ? 0 : 1;
}
