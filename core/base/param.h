/* Parameters: the tunables of a context, declared once in param.def.
 *
 * The struct, the table of names and the parser are all made from the same rows.
 */
#ifndef TIDE_BASE_PARAM_H
#define TIDE_BASE_PARAM_H

#include <stdint.h>

#include "tide/tide.h"

typedef struct tide__params {
#define TIDE_PARAM(name, kind, def, lo, hi, doc) int64_t name;
#include "core/base/param.def"
#undef TIDE_PARAM
  char text[32]; /* behind tide_param_get */
} tide__params;

void tide__params_init(tide__params *params);
/* "name=value name=value"; E_ARG names the first bad piece. May be null. */
int tide__params_parse(tide_ctx *ctx, const char *text);
/* TIDE_<NAME> variables. */
int tide__params_env(tide_ctx *ctx);

#endif
