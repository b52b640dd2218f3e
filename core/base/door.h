/* The door of a public function: are its objects alive and of the kind that it wants?
 *
 * A function that takes objects begins with TIDE_DOOR, or hands them to tide__begin (op/op.h),
 * which checks the operands of an op. Code behind the door trusts them.
 */
#pragma once

#include "core/base/ctx.h"

/* First word of a living object. A released one holds the complement. */
#define TIDE__TAG(kind) (UINT32_C(0x71de0000) + (uint32_t)(kind))

/* What every object begins with. */
typedef struct tide__head {
  uint32_t tag;
  int32_t  other;
  tide_ctx *ctx;   /* of contexts and groups: something else */
} tide__head;

/* An object as an argument: may_be_null is set where null means absent. */
typedef struct tide__arg {
  const void *object;
  const char *name;
  int kind;
  bool may_be_null;
} tide__arg;

static inline bool tide__alive(const void *object, int kind)
{
  return object && ((const tide__head *)object)->tag == TIDE__TAG(kind);
}

/* Returns the context of a living object; null for a group, which has none. */
static inline const tide_ctx *tide__ctx_of(const void *object, int kind)
{
  if (kind == TIDE__KIND_CTX) return object;
  return kind == TIDE__KIND_GROUP ? NULL : ((const tide__head *)object)->ctx;
}

/* Returns whether each argument is alive, of its kind, and of the context of those before it. */
static inline bool tide__admits(const tide__arg *args, int n)
{
  const tide_ctx *ctx = NULL;
  for (int i = 0; i < n; i++) {
    if (!args[i].object && args[i].may_be_null) continue;
    if (!tide__alive(args[i].object, args[i].kind)) return false;
    const tide_ctx *own = tide__ctx_of(args[i].object, args[i].kind);
    if (ctx && own && own != ctx) return false;
    if (!ctx) ctx = own;
  }
  return true;
}

/* Records E_ARG about the first argument that is not admitted, in the context of another argument
 * or of the object itself, else in the thread's record (tide_error(NULL)). func: __func__ of the
 * public function. Returns E_ARG. */
int tide__refuse(const char *func, const tide__arg *args, int n);
/* Records the same about one operand: "argument 2 was released". ctx may be null. */
int tide__refuse_operand(tide_ctx *ctx, const char *op, const char *name, const void *object,
                         int kind);

/* Fails unless xs holds n >= 0 living tensors of ctx. The message says list[i]. */
int tide__check_tensors(tide_ctx *ctx, const char *op, const char *list, int64_t n,
                        tide_tensor *const *xs);

/* Fails unless ndim is 0 to TIDE_MAX_DIM and there is a list of as many sizes or dims. */
int tide__check_ndim(tide_ctx *ctx, const char *op, const char *list, int ndim, const void *dims);

/* Structs of options and attributes of hosts that were compiled with another version of the header
 * begin with their size. Members are only ever added at the end, so a shorter one is the same with
 * the rest at its defaults; a longer one is the same where the rest is zero.
 *
 * Copies the host's struct over `to`, which holds n bytes of defaults. from null: leaves them.
 * Returns whether the struct was initialised (tide_X_init) and asks for nothing that is unknown
 * here. */
bool tide__options(void *to, size_t n, const void *from);
/* Does the same for the attributes of an op, `from`; a refusal is recorded in the context of
 * `object` and returns E_ARG. */
int tide__read_attrs(void *to, size_t n, const void *from, const void *object, const char *op);

#define TIDE_OBJECT(KIND, x) {(x), #x, TIDE__KIND_##KIND, false}
#define TIDE_MAYBE(KIND, x)  {(x), #x, TIDE__KIND_##KIND, true}

/* Leaves the function with `value` unless every argument is admitted. */
#define TIDE_DOOR_OR(value, ...)                                              \
  do {                                                                        \
    const tide__arg tide_args_[] = {__VA_ARGS__};                             \
    enum { TIDE_NARG_ = sizeof tide_args_ / sizeof tide_args_[0] };           \
    if (!tide__admits(tide_args_, TIDE_NARG_)) {                              \
      tide__refuse(__func__, tide_args_, TIDE_NARG_);                         \
      return value;                                                           \
    }                                                                         \
  } while (0)
#define TIDE_DOOR(...) TIDE_DOOR_OR(TIDE_E_ARG, __VA_ARGS__)
/* The door of a function that makes *out: it is null after every failure. */
#define TIDE_DOOR_OUT(out, ...)                                               \
  do {                                                                        \
    *(out) = NULL;                                                            \
    TIDE_DOOR(__VA_ARGS__);                                                   \
  } while (0)

/* The door of a function of one object, as a condition: whether x is admitted. */
#define TIDE_IS(KIND, x) tide__is(__func__, (tide__arg)TIDE_OBJECT(KIND, x))
static inline bool tide__is(const char *func, tide__arg arg)
{
  return tide__admits(&arg, 1) || tide__refuse(func, &arg, 1) == TIDE_OK;
}

/* ---- object.c -------------------------------------------------------------------------------- */

/* What every object behind a public handle begins with: its kind, its context, its releases.
 *
 * The kind lets a public function refuse a handle that is null, released or of another kind. So the
 * memory of a released object stays with its context, where the next object of its kind reuses it,
 * until the context ends: a stale handle never points at freed memory while its context lives.
 *
 * A release on a thread that does not own the context changes nothing but a lock-free stack of the
 * context. The owner settles what lies on it when it next makes a call of tide that looks (every
 * op, every collective, tide_ctx_attach, tide_ctx_release). Tensors have a stack of their own
 * (core/tensor/tensor.c). */

/* An object that any thread may release. It is the first member of every public object but tensors,
 * groups and contexts, which begin with the same two: tag and, where there is one, context. */
typedef struct tide__object {
  uint32_t tag;                    /* TIDE__TAG of its kind, its complement once released */
  atomic_int count;                /* releases by other threads that are not settled */
  tide_ctx *ctx;                   /* counted */
  struct tide__object *next;       /* on the stack, or among the free ones of its kind */
  void (*release)(struct tide__object *o, int n); /* n releases, on the owner's thread */
  uint32_t kind, size;             /* TIDE__KIND_*, bytes */
} tide__object;

/* Returns a released or new object of the kind, zeroed but for the header, which holds the context;
 * null without memory. The owner's thread. */
void *tide__object_new(tide_ctx *ctx, int kind, size_t size,
                       void (*release)(tide__object *o, int n));
/* Marks the handle as released: public functions refuse it from here on. The owner's thread. */
void tide__object_retire(tide__object *o);
/* Gives the memory to the next object of the kind and drops the context. The owner's thread. */
void tide__object_free(tide__object *o);
/* Frees the memory of released objects, at the end of the context. */
void tide__objects_close(tide_ctx *ctx);

/* Releases the object once, now on the owner's thread, else when the owner settles. A handle that
 * is null, released or of another kind is ignored. Thread-safe. */
void tide__object_release(void *object, int kind);
/* Settles. The owner's thread. */
void tide__objects_settle(tide_ctx *ctx);
