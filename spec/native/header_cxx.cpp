// The public headers as C++11: they compile and link with C linkage, that of LuaJIT included.
#include "tide/tide.h"

#ifdef TIDE_SPEC_HOST
#include "tide_lua.h"
#include "ranks.h"

static bool opens_lua()
{
  tide_ctx *ctx;
  lua_State *L;
  if (tide_ctx_new(&ctx, nullptr, nullptr, 0) < 0) return false;
  bool opened = tide_lua_open(&L, ctx, nullptr, nullptr, 0) == TIDE_OK;
  if (opened) lua_close(L);
  tide_ctx_release(ctx);
  tide_host_ranks_free(nullptr);
  return opened;
}
#else
static bool opens_lua() { return true; }
#endif

#include <cstring>

int main()
{
  tide_attention_attrs attrs;
  tide_attention_attrs_init(&attrs);
  bool same = attrs.size == sizeof attrs && std::strstr(tide_abi_text(), "tide_ctx_new");
  return same && opens_lua() ? 0 : 1;
}
