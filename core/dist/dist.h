/* The public declarations that this folder defines are in tide_abi.h. Layer 4. */
#ifndef TIDE_DIST_DIST_H
#define TIDE_DIST_DIST_H

#include "tide/tide.h"

#endif
