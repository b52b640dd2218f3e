/* A program that exports functions of Lua 5.4: no state is opened with a mixture of both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tide_lua.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void lua_callk(void);
EXPORTED lua_State *luaL_newstate(void);

void lua_callk(void) {}

lua_State *luaL_newstate(void)
{
  puts("a state of the other Lua was opened");
  exit(1);
}

int main(void)
{
  tide_ctx *ctx;
  lua_State *L;
  char msg[512];
  if (tide_ctx_new(&ctx, NULL, msg, sizeof msg) < 0) return puts(msg), 1;
  int rc = tide_lua_open(&L, ctx, NULL, msg, sizeof msg);
  tide_ctx_release(ctx);
  if (rc == TIDE_E_HOST && !L && strstr(msg, "other_lua' hides LuaJIT")) return 0;
  printf("%d: %s\n", rc, msg);
  return 1;
}
