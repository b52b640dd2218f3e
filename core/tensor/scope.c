/* Step scopes: prompt release of bytes while handles stay valid.
 *
 * The garbage collector of a scripting language sees a pointer, not the gigabyte behind it. The end
 * of a scope frees the bytes of everything that was made inside and not kept. Kept tensors, and
 * gradients of leaves, move to the enclosing scope or out of all scopes.
 */
#include "core/tensor/tensor.h"

int tide_scope_push(tide_ctx *ctx)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  struct tide__scope *s = tide__alloc(ctx, sizeof *s);
  if (!s) return tide__fail(ctx, TIDE_E_NOMEM, "scope_push", "no host memory for a scope");
  s->outer = ctx->scope;
  s->depth = s->outer ? s->outer->depth + 1 : 1;
  ctx->scope = s;
  return s->depth;
}

int tide_scope_pop(tide_ctx *ctx, int depth, tide_tensor *const *keep, int64_t nkeep)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  TIDE_TRY(tide__check_tensors(ctx, "scope_pop", "keep", nkeep, keep));
  struct tide__scope *s = ctx->scope;
  if (!s) return tide__fail(ctx, TIDE_E_STATE, "scope_pop", "no scope is open");
  if (s->depth != depth)
    return tide__fail(ctx, TIDE_E_STATE, "scope_pop", "the scope of depth %d cannot end while that "
                      "of depth %d is open; scopes of coroutines must not interleave", depth,
                      s->depth);
  for (int64_t i = 0; i < nkeep; i++) {
    tide__storage *storage = keep[i]->storage;
    if (storage->scope != s) continue;
    tide__scope_escape(storage);
    if (s->outer) tide__scope_link(s->outer, storage);
  }
  while (s->first) {
    tide__storage *storage = s->first;
    tide__scope_escape(storage);
    tide__storage_drop(storage);
  }
  ctx->scope = s->outer;
  tide__free(ctx, s, sizeof *s);
  return TIDE_OK;
}
