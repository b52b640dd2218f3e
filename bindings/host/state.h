/* A Lua state on a context, for tide_lua_open and for ranks. */
#pragma once

#include "ranks.h"

/* As tide_lua_open (tide_lua.h), with the table that the state loads through; null: none. */
int host_state_open(lua_State **out, tide_ctx *ctx, const char *root, tide_host_chunks *chunks,
                    char *msg, size_t n);

/* The key in the registry of a function that collects all garbage. */
extern const char host_collect_key[];

/* A function of Lua: returns the text of an error value. May raise. */
int host_error_text(lua_State *L);
