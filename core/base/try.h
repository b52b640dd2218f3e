/* Passes a negative status on. */
#pragma once

#define TIDE_TRY(expr)                   \
  do {                                   \
    int tide_rc_ = (expr);               \
    if (tide_rc_ < 0) return tide_rc_;   \
  } while (0)
