/* Parameters: the tunables of a context, declared once in param.def. The struct, the table of names
 * and the parser are generated from its rows. */
#pragma once

#include "tide/tide.h"

typedef struct tide__params {
#define TIDE_PARAM(name, kind, def, lo, hi, doc) int64_t name;
#include "core/base/param.def"
#undef TIDE_PARAM
  char text[32]; /* result of tide_param_get */
} tide__params;

void tide__params_init(tide__params *params);
/* Parses "name=value name=value"; E_ARG names the first bad piece. text may be null. */
int tide__params_parse(tide_ctx *ctx, const char *text);
/* Applies TIDE_<NAME> environment variables. */
int tide__params_env(tide_ctx *ctx);
