/* See door.h. */
#include "core/base/door.h"
#include "core/base/base.h"

static const char *const names[TIDE__NKIND] = {
  [TIDE__KIND_CTX] = "a context", [TIDE__KIND_TENSOR] = "a tensor",
  [TIDE__KIND_BACKWARD] = "a backward walk", [TIDE__KIND_COMM] = "a communicator",
  [TIDE__KIND_WORK] = "a work", [TIDE__KIND_GROUP] = "a group", [TIDE__KIND_GRAPH] = "a graph",
  [TIDE__KIND_EVENT] = "an event of a device",
  [TIDE__KIND_BLOB] = "a blob", [TIDE__KIND_JSON] = "a JSON document",
  [TIDE__KIND_FILE] = "a file", [TIDE__KIND_SAVING] = "a saving", [TIDE__KIND_LOCK] = "a lock",
  [TIDE__KIND_TOKENIZER] = "a tokenizer",
};

/* Returns what the object is. It is null, or readable as a head. */
static const char *what_is(const void *object, int kind)
{
  const tide__head *head = object;
  if (!head) return "null";
  if (head->tag == ~TIDE__TAG(kind)) return "one that was released";
  for (int k = 0; k < TIDE__NKIND; k++)
    if (head->tag == TIDE__TAG(k)) return names[k];
  return "something else";
}

/* Returns the context that an object names, alive or released; null without one. */
static tide_ctx *ctx_of(const void *object)
{
  const tide__head *head = object;
  if (!head) return NULL;
  for (int k = 0; k < TIDE__NKIND; k++) {
    if (head->tag != TIDE__TAG(k) && head->tag != ~TIDE__TAG(k)) continue;
    if (k == TIDE__KIND_CTX) return head->tag == TIDE__TAG(k) ? (tide_ctx *)object : NULL;
    return k == TIDE__KIND_GROUP ? NULL : head->ctx;
  }
  return NULL;
}

static tide_ctx *find_ctx(const tide__arg *args, int n)
{
  for (int i = 0; i < n; i++) {
    tide_ctx *ctx = tide__alive(args[i].object, args[i].kind) ? ctx_of(args[i].object) : NULL;
    if (ctx) return ctx;
  }
  for (int i = 0; i < n; i++)
    if (ctx_of(args[i].object)) return ctx_of(args[i].object);
  return NULL;
}

int tide__refuse(const char *func, const tide__arg *args, int n)
{
  int i = 1;
  while (i < n && tide__admits(args, i)) i++;
  const tide__arg *a = &args[i - 1];
  return tide__fail(find_ctx(args, n), TIDE_E_ARG, func + sizeof "tide_" - 1,
                    "argument '%s': expected %s, got %s", a->name, names[a->kind],
                    tide__alive(a->object, a->kind) ? "one of another context"
                                                    : what_is(a->object, a->kind));
}

int tide__refuse_operand(tide_ctx *ctx, const char *op, const char *name, const void *object,
                         int kind)
{
  return tide__fail(ctx ? ctx : ctx_of(object), TIDE_E_ARG, op, "%s: expected %s, got %s", name,
                    names[kind], what_is(object, kind));
}

int tide__check_tensors(tide_ctx *ctx, const char *op, const char *list, int64_t n,
                        tide_tensor *const *xs)
{
  char name[64];
  if (n < 0 || (n > 0 && !xs))
    return tide__fail(ctx, TIDE_E_ARG, op, "argument '%s': expected %lld tensors%s", list,
                      (long long)n, xs ? "" : ", got null");
  for (int64_t i = 0; i < n; i++) {
    bool alive = tide__alive(xs[i], TIDE__KIND_TENSOR);
    if (alive && tide__ctx_of(xs[i], TIDE__KIND_TENSOR) == ctx) continue;
    snprintf(name, sizeof name, "%s[%lld]", list, (long long)i + 1);
    if (!alive) return tide__refuse_operand(ctx, op, name, xs[i], TIDE__KIND_TENSOR);
    return tide__fail(ctx, TIDE_E_ARG, op, "%s: expected a tensor of the call's context, got one "
                      "of another", name);
  }
  return TIDE_OK;
}

int tide__check_ndim(tide_ctx *ctx, const char *op, const char *list, int ndim, const void *dims)
{
  if (ndim < 0 || ndim > TIDE_MAX_DIM)
    return tide__fail(ctx, TIDE_E_SHAPE, op, "ndim: expected 0 to %d, got %d", TIDE_MAX_DIM, ndim);
  if (ndim == 0 || dims) return TIDE_OK;
  return tide__fail(ctx, TIDE_E_ARG, op, "%s: expected a list of %d, got null", list, ndim);
}

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

int tide__read_attrs(void *to, size_t n, const void *from, const void *object, const char *op)
{
  if (tide__options(to, n, from)) return TIDE_OK;
  return tide__fail(ctx_of(object), TIDE_E_ARG, op, "attrs: not initialised (call "
                    "tide_X_attrs_init of its type), or of a newer header with members set that "
                    "this library lacks");
}
