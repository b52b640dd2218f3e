/* Every public declaration of tide, and nothing else.
 *
 * This file has no preprocessor line. The text is compiled as C99 and as C++, embedded in the
 * library (tide_abi_text) and passed to LuaJIT's ffi.cdef, so declaration and code cannot differ.
 *
 * Rules that hold everywhere:
 *   - A function that can fail returns int: 0 done, negative an error, TIDE_MORE a second normal
 *     outcome. tide_error(ctx) then holds code, function and message until the next failing call.
 *   - Out-parameters come first. What they return is owned by the caller (release it);
 *     a pointer returned directly is borrowed from its parent. On failure outs are set to null.
 *   - Release accepts null and cannot fail. Objects keep alive what they need; any order is fine,
 *     and any thread may call it, but for tide_ctx_release. On a thread that does not own the
 *     context the object waits until the owner next runs an op or makes an object.
 *   - dims count from 0 here, and a negative dim counts from the end. Sizes are in elements
 *     unless a name says bytes. A null tensor argument marked "may be null" means absent.
 *   - Ops never write to their inputs; functions whose name ends in _ do, and say so.
 *   - tide_X_init fills in the size of a struct of options or attributes and the defaults that its
 *     members name; the others are 0. A struct that was not initialised is refused with E_ARG. One
 *     of an older header, which is shorter, is taken with defaults for the rest; one of a newer
 *     header, if the members that this library lacks are 0.
 *   - Every function has a comment above it or beside it, but for _init and _release, which the
 *     rules above explain. A comment that ends in a colon is about all functions up to the next
 *     empty line. A comment without a verb names what the function returns.
 *
 * Sections, in this order ("---- name" begins one):
 *   library and context; parameters; trace; dtypes and devices; tensors; elementwise; reductions;
 *   movement; index; products; normalisation, rotary positions, activations; attention;
 *   index maps of sharded sequences; state-space layers; losses; random numbers; optimiser steps;
 *   autograd; captured steps; time on a device; files; JSON; safetensors; images; tokenizers;
 *   ranks; the list of ops, for specs and tools
 */

typedef struct tide_ctx      tide_ctx;      /* owns all state; one user thread at a time */
typedef struct tide_tensor   tide_tensor;   /* small handle: storage + shape + strides + dtype */
typedef struct tide_backward tide_backward; /* a reverse walk that can stop and resume */
typedef struct tide_comm     tide_comm;     /* this rank's handle of a group of ranks */
typedef struct tide_group    tide_group;    /* the shared state of the ranks of one process */
typedef struct tide_saving   tide_saving;   /* a file being written by a thread */
typedef struct tide_file     tide_file;     /* an open safetensors file, checked */
typedef struct tide_tokenizer tide_tokenizer; /* text to ids */

enum { TIDE_ABI = 1, TIDE_MAX_DIM = 8 };

/* Status codes, by what the caller can do about them. */
enum {
  TIDE_OK = 0, TIDE_MORE = 1,
  TIDE_E_ARG = -1, TIDE_E_SHAPE = -2, TIDE_E_DTYPE = -3, TIDE_E_DEVICE = -4, TIDE_E_NOMEM = -5,
  TIDE_E_UNSUPPORTED = -6, TIDE_E_GONE = -7, TIDE_E_STATE = -8, TIDE_E_IO = -9,
  TIDE_E_FORMAT = -10, TIDE_E_COMM = -11, TIDE_E_TIMEOUT = -12, TIDE_E_PEER = -13,
  TIDE_E_HOST = -14, TIDE_E_INTERNAL = -15, TIDE_E_INTERRUPT = -16
};

/* Element types. BOOL is one byte, 0 or 1. */
enum {
  TIDE_F32 = 0, TIDE_F64 = 1, TIDE_BF16 = 2, TIDE_F16 = 3, TIDE_I64 = 4, TIDE_I32 = 5,
  TIDE_U8 = 6, TIDE_BOOL = 7, TIDE_NDTYPE = 8
};

/* Devices. REF defines every op in plain loops, CPU is fast, NULL has shapes without bytes. */
enum { TIDE_DEV_REF = 0, TIDE_DEV_CPU = 1, TIDE_DEV_CUDA = 2, TIDE_DEV_NULL = 3, TIDE_NDEV = 4 };

enum { TIDE_LOG_ERROR = 0, TIDE_LOG_WARN = 1, TIDE_LOG_INFO = 2, TIDE_LOG_DEBUG = 3 };

/* Host options. Fill with tide_opts_init; null members mean the default. A hook returns: a C++
 * exception or a longjmp that leaves one is undefined behaviour, here and in tide_give. */
typedef struct tide_opts {
  uint32_t size;
  int32_t  nthread;   /* threads for kernels, 1 to 1024; 0: every core that the process may use */
  int32_t  read_env;  /* 1: TIDE_<PARAM> environment variables may override parameters */
  void  *(*resize)(void *user, void *ptr, size_t nold, size_t nnew); /* nnew 0 frees */
  /* Log lines, up to the level of parameter log; called on the context's thread, must not call the
   * context. error: a communicator has failed for good. warn: memory was short and cached memory
   * was returned; the system refused threads, and ops compute with those that it started; a
   * collective took more than half of its timeout. info: devices beyond libtide's,
   * MPI and NCCL: opened or why not. debug: the context itself. */
  void   (*log)(void *user, int32_t level, const char *text);
  void    *user;      /* first argument of all hooks */
  const char *params; /* "check=1 memory=4g"; see tide_param_name; may be null */
  int32_t  abi;       /* TIDE_ABI of the header that the host was compiled with, which tide.h fills
                         in; E_ARG unless it is the library's. 0: unknown, not checked */
  /* Memory of tensors on 'cpu' and 'ref', and scratch of their ops; both null: the library's own.
   * tensor_alloc returns size bytes aligned to align (64), contents undefined, or null: the call
   * fails with E_NOMEM. tensor_free gets the same size. device: TIDE_DEV_*. Called on the context's
   * thread, must not call the context. The caching allocator asks for segments of some megabytes
   * and cuts tensors from them; it gives free ones back in tide_cache_trim, when an allocation
   * fails and when the context ends, or, with parameter cache=0, has one for each storage. Memory
   * of a GPU and pinned memory are the driver's. */
  void *(*tensor_alloc)(void *user, size_t size, size_t align, int32_t device);
  void  (*tensor_free)(void *user, void *ptr, size_t size, int32_t device);
} tide_opts;

/* Counters of a context. Borrowed, changes with every call, read it freely. */
typedef struct tide_stats {
  int64_t live;    /* bytes of live storages, without those of the null device */
  int64_t peak;    /* the maximum of live since tide_stats_reset_peak */
  int64_t cached;  /* bytes held free in the caching allocator */
  int64_t debt;    /* bytes allocated since tide_debt_settle */
  int64_t ntensor; /* live tensor handles */
  int64_t nnode;   /* live tape nodes */
  int64_t nop;     /* ops dispatched so far */
  int64_t nhost;   /* bytes of bookkeeping memory through the resize hook */
  int64_t since;      /* live and planned bytes that were handed out since tide_stats_mark */
  int64_t since_peak; /* the most since has been */
  int64_t planned; /* bytes that live tensors of the null device would have elsewhere */
  int64_t nref;    /* what keeps the context alive: its handle and the objects made from it */
} tide_stats;

/* The last failure of a context. Borrowed until the next failing call. */
typedef struct tide_error_record {
  int32_t     code;
  const char *name;    /* "E_SHAPE" */
  const char *op;      /* public function that failed, e.g. "matmul" */
  const char *message; /* which argument, what was expected, what was given, what to do */
} tide_error_record;

/* ---- library and context ------------------------------------------------------------------ */

/* Returns the text of this file, null-terminated. Static. */
const char *tide_abi_text(void);
/* Returns the version, "0.1.0". Static. */
const char *tide_version(void);
/* Returns a few lines on this build, fixed at build time: version, compiler, devices, libraries
 * that it opens at run time. Static. */
const char *tide_build_info(void);
void tide_opts_init(tide_opts *opts);
/* Makes a context, owned by the calling thread. opts may be null. On failure msg (may be null)
 * receives up to nmsg bytes of text, which tide_error(NULL) returns, too. */
int  tide_ctx_new(tide_ctx **out, const tide_opts *opts, char *msg, size_t nmsg);
/* Releases the handle; the context ends when the last object made from it is released. A second
 * release does nothing while such an object lives. The owner's thread only (see
 * tide_ctx_attach). */
void tide_ctx_release(tide_ctx *ctx);
/* Makes the calling thread the owner of a context. The previous owner must not call it meanwhile.
 * Completes the releases of other threads. */
int  tide_ctx_attach(tide_ctx *ctx);
/* Claims a context for one Lua state (on 1), or gives it up (0), as tide_lua_open and lua_close do.
 * E_STATE: it is claimed already. */
int  tide_ctx_claim(tide_ctx *ctx, int on);
/* Returns the last failure; code 0 and empty texts before the first. Calls that succeed leave it
 * unchanged. ctx null: the last failure on this thread of a call without a valid context or object
 * (null, or not made by tide). */
const tide_error_record *tide_error(tide_ctx *ctx);
const char *tide_status_name(int status); /* "E_SHAPE"; "E_UNKNOWN" for another number. Static. */
const char *tide_status_text(int status); /* what the status means, one line. Static. */
/* Returns the counters; the pointer stays the same for the life of the context. */
const tide_stats *tide_ctx_stats(tide_ctx *ctx);
void tide_stats_reset_peak(tide_ctx *ctx); /* sets peak to live */
/* Sets since and since_peak to 0: they count what is allocated from now on, so that releases of
 * earlier memory do not look like a saving. */
void tide_stats_mark(tide_ctx *ctx);
/* Sets debt to 0: a host with a garbage collector calls it after deciding whether to collect (see
 * the parameter debt, which the library itself does not read). */
void tide_debt_settle(tide_ctx *ctx);
/* Returns cached free memory to the system. */
void tide_cache_trim(tide_ctx *ctx);
/* Requests a stop of the calls on ctx with E_INTERRUPT. Any thread, also a signal handler. */
void tide_interrupt(tide_ctx *ctx);
/* Returns the flag that tide_interrupt sets, 0 or 1, and clears it. */
int  tide_interrupted(tide_ctx *ctx);
/* Sets the number of threads for kernels of this context, from the next op on. 1 to 1024, else
 * E_ARG. */
int  tide_set_nthread(tide_ctx *ctx, int n);
int  tide_nthread(tide_ctx *ctx); /* their current number */

/* ---- parameters: every tunable in one table (core/base/param.def) ------------------------- */

int         tide_param_count(void);      /* rows of the table */
const char *tide_param_name(int index);  /* null beyond the table */
const char *tide_param_doc(int index);   /* one line of help; null beyond the table */
/* Sets a parameter from the next call that reads it. value: a whole number in decimal; sizes may
 * end in k, m or g (powers of 1024). E_ARG: an unknown parameter, not a number, or out of range;
 * the message gives the range. */
int  tide_param_set(tide_ctx *ctx, const char *name, const char *value);
/* Returns the current value as text, borrowed until the next call; null: no such parameter. */
const char *tide_param_get(tide_ctx *ctx, const char *name);

/* ---- trace: a ring of named spans ---------------------------------------------------------- */

/* Adds a span to the ring. cat: "op" a kernel's launch, "comm" a collective, "mem" memory taken
 * from a device, "grad" the derivative of one op in backward, "user" the caller's own; another is
 * E_ARG. The library writes the first four while parameter trace is 1. name: cut to 103 bytes, what
 * JSON would escape is '_'. t0, t1: seconds of tide_trace_clock. */
int    tide_trace_span(tide_ctx *ctx, const char *cat, const char *name, double t0, double t1);
double tide_trace_clock(void); /* seconds now, from an arbitrary start, never backwards */
/* Writes the ring as a Chrome trace (opens in Perfetto). E_IO. */
int    tide_trace_dump(tide_ctx *ctx, const char *path);

/* ---- dtypes and devices -------------------------------------------------------------------- */

const char *tide_dtype_name(int dtype); /* "f32"; null if unknown */
int tide_dtype_size(int dtype);         /* bytes; 0 if unknown */
const char *tide_device_name(int device); /* "cpu"; null if unknown */
/* Returns 1 if the device can be used in ctx, else 0 with the reason in tide_error. */
int tide_device_available(tide_ctx *ctx, int device);
/* Returns the number of devices of this kind in the machine (parameter cuda_device is one of them),
 * 1 on the host; 0 with the reason in tide_error if it cannot be used. Opens none of them. */
int tide_device_count(tide_ctx *ctx, int device);

/* ---- tensors ------------------------------------------------------------------------------- */

/* Makes a tensor with undefined contents. ndim 0 is a scalar; sizes may be 0. E_SHAPE, E_NOMEM. */
int  tide_empty(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                const int64_t *shape);
/* Makes a tensor with every element set to value. E_DTYPE: an integer dtype and a value that is not
 * an integer of its range. */
int  tide_full(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
               const int64_t *shape, double value);
/* Makes a 1-D tensor of the n values start, start + step, ... E_ARG: one outside the range of an
 * integer dtype. */
int  tide_arange(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int64_t n, double start,
                 double step);
/* Makes a tensor from a copy of nbytes of row-major data, exactly the tensor's size. */
int  tide_from_bytes(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                     const int64_t *shape, const void *data, size_t nbytes);
typedef void (*tide_give)(void *user, void *data);
/* Makes a tensor over nbytes of row-major memory of the host on 'cpu' or 'ref': nothing is copied,
 * in-place ops write there, and statistics do not count it. data is a multiple of the size of an
 * element. give (may be null) gets the memory back once, on the context's thread, when the last
 * handle or the scope drops the bytes; it must not call the context. An empty tensor gives it back
 * at once. On failure give is not called. */
int  tide_from_memory(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                      const int64_t *shape, void *data, size_t nbytes, tide_give give, void *user);
/* Copies the elements, row-major, into data; nbytes must be exactly the tensor's size. */
int  tide_to_bytes(tide_tensor *t, void *data, size_t nbytes);
/* Copies the n elements, converted to f64, into data. A NaN is returned as the plain NAN. */
int  tide_to_doubles(tide_tensor *t, double *data, int64_t n);
/* Returns the only element of a tensor, a NaN as the plain NAN. E_SHAPE: more elements, or none. */
int  tide_item(tide_tensor *t, double *value);
/* Adds a reference to the handle, which needs one more release. The owner's thread only. Always
 * returns 0, so that a function which passes a tensor on can end with it. */
int  tide_tensor_retain(tide_tensor *t);
/* Releases one reference. Any thread may call it (see the rules above). */
void tide_tensor_release(tide_tensor *t);
/* Spends the caller's reference: it no longer keeps the bytes, which are freed with the last other
 * reference (the tape's, a plain one); using the handle is then E_GONE. A spent reference is
 * released by tide_tensor_release_spent in place of tide_tensor_release. For hosts whose garbage
 * collector would keep a temporary long after its last use. At most one reference of a handle is
 * spent. TIDE_MORE: unchanged, since another is spent or the handle is kept (tide_tensor_keep).
 * E_NOMEM: unchanged, too. */
int  tide_tensor_spend(tide_tensor *t);
void tide_tensor_release_spent(tide_tensor *t); /* any thread, as tide_tensor_release */
/* Makes tide_tensor_spend leave this handle unchanged: more than the caller refer to it. */
void tide_tensor_keep(tide_tensor *t);
/* Frees the bytes now; the handle stays valid, and using it is E_GONE. E_STATE: a collective in
 * progress uses them. */
int  tide_tensor_drop(tide_tensor *t);
/* Allocates dropped bytes again, contents undefined: every view of them and every reference that
 * the tape saved has bytes again. Counts as a write, so a backward that saved the tensor before
 * the drop refuses it, unless tide_tensor_refilled follows. Does nothing if the bytes exist.
 * E_NOMEM. */
int  tide_tensor_restore(tide_tensor *t);
/* Declares, after tide_tensor_restore and after filling the bytes, that the whole storage holds
 * again what it held at the drop: its version is that at the drop, and saved references are valid.
 * E_GONE: still absent; E_STATE: not restored since the last drop. */
int  tide_tensor_refilled(tide_tensor *t);
/* Read the handle, whose bytes may be gone; these functions cannot fail: */
tide_ctx *tide_tensor_ctx(const tide_tensor *t);       /* borrowed; also of a released one, while
                                                          its context lives */
int  tide_tensor_ndim(const tide_tensor *t);
int64_t tide_tensor_dim(const tide_tensor *t, int dim); /* -1 if out of range */
int64_t tide_tensor_stride(const tide_tensor *t, int dim); /* in elements; -1 if out of range */
int64_t tide_tensor_numel(const tide_tensor *t);
int  tide_tensor_dtype(const tide_tensor *t);          /* TIDE_F32, ... */
int  tide_tensor_device(const tide_tensor *t);         /* TIDE_DEV_CPU, ... */
/* Returns 1 if the debt of t's context has reached this many bytes, else 0: one call for hosts that
 * ask after each op. */
int  tide_tensor_debt_reaches(const tide_tensor *t, int64_t bytes);
/* Returns a number that is unique in the context; use it as a key. It is a whole number below 2^53,
 * as a double: LuaJIT boxes 64-bit integers, and a box cannot be the key of a table. */
double tide_tensor_id(const tide_tensor *t);
int  tide_tensor_is_contiguous(const tide_tensor *t);  /* 1: row-major without gaps */
int  tide_tensor_is_gone(const tide_tensor *t);        /* 1: the bytes were dropped */
int  tide_tensor_same_storage(const tide_tensor *a, const tide_tensor *b); /* 1: the same bytes */
/* Returns the address of the first element; null on the null device or when gone. Host devices
 * only. */
void *tide_tensor_data(tide_tensor *t);
int64_t tide_tensor_version(const tide_tensor *t);     /* counts in-place writes */
/* Copies t to a device; returns a second handle if it is there already. Not recorded. */
int  tide_to_device(tide_tensor **out, tide_tensor *t, int device);
/* Copies as tide_to_device without waiting, on a stream of its own after the work enqueued so far.
 * To a GPU: t must be in pinned memory (E_ARG). To the host: the result is in pinned memory. The
 * next use of either tensor waits for the copy: the host for its bytes, the GPU's later work for
 * its own. Between host devices: as tide_to_device. E_STATE while a step is captured. */
int  tide_to_device_async(tide_tensor **out, tide_tensor *t, int device);
/* Returns a copy on 'cpu' in pinned memory, or t itself (new handle) if it is pinned. E_DEVICE: t
 * is not on 'cpu', or there is no CUDA device. Not recorded. */
int  tide_pin_memory(tide_tensor **out, tide_tensor *t);
int  tide_is_pinned(const tide_tensor *t); /* 1: lies in pinned memory */
/* Blocks until the device has completed its work; returns an error that a kernel found. */
int  tide_sync(tide_ctx *ctx, int device);
/* Returns t itself (new handle) if contiguous, else a contiguous copy. Recorded. */
int  tide_contiguous(tide_tensor **out, tide_tensor *t);
/* Returns a contiguous copy. Recorded. */
int  tide_clone(tide_tensor **out, tide_tensor *t);
/* Writes the tensor as text into buf, at most n bytes with the final zero. with_data: 1 adds the
 * elements on host devices, of long dims the first and the last three. */
int  tide_tensor_format(tide_tensor *t, char *buf, size_t n, int with_data);

/* Step scopes: the bytes of tensors made inside and not kept are freed at the pop. Scopes nest. */
/* Begins a scope. Returns its depth, 1 for the outermost. */
int  tide_scope_push(tide_ctx *ctx);
/* Ends the innermost scope, which must be the one of this depth: E_STATE if scopes interleave. */
int  tide_scope_pop(tide_ctx *ctx, int depth, tide_tensor *const *keep, int64_t nkeep);

/* ---- elementwise --------------------------------------------------------------------------- */
/* Binary ops broadcast as NumPy does and promote dtypes (bool < u8 < i32 < i64 < f16/bf16 < f32 <
 * f64; f16 with bf16 gives f32). Comparisons give bool. Floating results of integer inputs
 * (div, exp, ...) are f32. */

/* Compute a op b. Integers wrap; minimum and maximum give NaN where one side is NaN; the logical
 * ones take any number but 0 for true: */
int tide_add(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_sub(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_mul(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_div(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_pow(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_minimum(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_maximum(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_eq(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_ne(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_lt(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_le(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_gt(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_ge(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_logical_and(tide_tensor **out, tide_tensor *a, tide_tensor *b);
int tide_logical_or(tide_tensor **out, tide_tensor *a, tide_tensor *b);

/* Compute a function of each element. sign of NaN is NaN; relu and abs keep NaN; rsqrt is 1 /
 * sqrt(x), silu is x sigmoid(x), softplus log(1 + e^x), reciprocal 1 / x, erf 2 / sqrt(pi) times
 * the integral of exp(-t^2) from 0 to x: */
int tide_neg(tide_tensor **out, tide_tensor *x);
int tide_abs(tide_tensor **out, tide_tensor *x);
int tide_sign(tide_tensor **out, tide_tensor *x);
int tide_floor(tide_tensor **out, tide_tensor *x);
int tide_exp(tide_tensor **out, tide_tensor *x);
int tide_log(tide_tensor **out, tide_tensor *x);
int tide_sqrt(tide_tensor **out, tide_tensor *x);
int tide_rsqrt(tide_tensor **out, tide_tensor *x);
int tide_square(tide_tensor **out, tide_tensor *x);
int tide_reciprocal(tide_tensor **out, tide_tensor *x);
int tide_sin(tide_tensor **out, tide_tensor *x);
int tide_cos(tide_tensor **out, tide_tensor *x);
int tide_tanh(tide_tensor **out, tide_tensor *x);
int tide_sigmoid(tide_tensor **out, tide_tensor *x);
int tide_erf(tide_tensor **out, tide_tensor *x);
int tide_silu(tide_tensor **out, tide_tensor *x);
int tide_gelu(tide_tensor **out, tide_tensor *x);      /* exact, by erf */
int tide_gelu_tanh(tide_tensor **out, tide_tensor *x); /* tanh approximation */
int tide_relu(tide_tensor **out, tide_tensor *x);
int tide_softplus(tide_tensor **out, tide_tensor *x);
int tide_logical_not(tide_tensor **out, tide_tensor *x);
int tide_isfinite(tide_tensor **out, tide_tensor *x);
/* Computes x * mul + add in x's dtype (an integer x needs integral mul and add). */
int tide_affine(tide_tensor **out, tide_tensor *x, double mul, double add);
/* Computes x ^ exponent; an integer x gives f32. */
int tide_pow_scalar(tide_tensor **out, tide_tensor *x, double exponent);
/* Computes min(max(x, lo), hi) in x's dtype; an integer x is clamped to the integers inside the
 * bounds, a float to bounds rounded to its dtype. NaN stays NaN. The gradient passes where lo < x <
 * hi, as in torch. Bounds may be infinite; E_ARG unless lo <= hi. */
int tide_clamp(tide_tensor **out, tide_tensor *x, double lo, double hi);
/* Computes cond ? a : b, broadcast. cond is bool. */
int tide_where(tide_tensor **out, tide_tensor *cond, tide_tensor *a, tide_tensor *b);
/* Converts x to another dtype; returns x itself, a new reference, if it has it already. Floats are
 * rounded to the nearest, ties to even; a float to an integer is truncated toward 0 and clamped to
 * the range, NaN gives 0; an integer to a smaller one wraps; anything but 0 is true. Recorded
 * between floats. E_DTYPE. */
int tide_cast(tide_tensor **out, tide_tensor *x, int dtype);

/* In place. dst must not be broadcast (no stride 0), and neither dst nor src may need a gradient
 * while recording (E_STATE). src broadcasts to dst and is converted to its dtype: */
int tide_copy_(tide_tensor *dst, tide_tensor *src);
int tide_fill_(tide_tensor *dst, double value);
int tide_axpy_(tide_tensor *dst, tide_tensor *src, double alpha); /* dst += alpha * src */
int tide_scale_(tide_tensor *dst, double factor); /* dst *= factor */
/* Copy or add lists, pair after pair: dsts[i] = srcs[i], or dsts[i] += srcs[i]. Pairs whose dsts do
 * not overlap share a launch. srcs[i] has the shape of dsts[i] (E_SHAPE; tide_expand broadcasts),
 * and shares no storage with a dst (E_ARG). Integers take integers and bool only, bool takes no
 * addition (E_DTYPE). Not recorded: E_STATE if one of them needs a gradient: */
int tide_foreach_copy_(tide_ctx *ctx, int64_t n, tide_tensor *const *dsts,
                       tide_tensor *const *srcs);
int tide_foreach_add_(tide_ctx *ctx, int64_t n, tide_tensor *const *dsts,
                      tide_tensor *const *srcs);

/* ---- reductions ---------------------------------------------------------------------------- */
/* ndim 0 reduces every dim. Accumulation is f32 for f32/f16/bf16 in a fixed order, f64 for f64,
 * i64 for integers; sums of integers and bools are i64. Empty sums are 0; empty max is E_SHAPE. */

/* Reduce the given dims, each once; keepdim leaves them with size 1. NaN is the extreme of amax and
 * amin. any and all are bool and take any number but 0 for true: */
int tide_sum(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim);
int tide_mean(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim);
int tide_prod(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim);
int tide_amax(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim);
int tide_amin(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim);
int tide_any(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim);
int tide_all(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim);
/* Return positions along one dim, i64, the first of equal elements; NaN is the extreme: */
int tide_argmax(tide_tensor **out, tide_tensor *x, int dim, bool keepdim);
int tide_argmin(tide_tensor **out, tide_tensor *x, int dim, bool keepdim);
/* Returns the k largest elements along dim (smallest: the k smallest), in order, and their
 * positions, i64; both have size k along dim. NaN counts as larger than every number; of equal
 * elements the first is first. k: 0 to the size of dim. Values get gradients. */
int tide_topk(tide_tensor **values, tide_tensor **index, tide_tensor *x, int64_t k, int dim,
              bool smallest);
/* Computes running sums along dim, in x's shape: out[i] = x[0] + ... + x[i]. Integers and bools
 * give i64. */
int tide_cumsum(tide_tensor **out, tide_tensor *x, int dim);

/* ---- movement: views where strides allow ---------------------------------------------------- */

/* Returns x in another shape: a view, or a copy where strides do not allow one. One size may be -1,
 * which follows from the others. */
int tide_reshape(tide_tensor **out, tide_tensor *x, int ndim, const int64_t *shape);
/* Returns a view whose dim i is x's dim order[i]. ndim must be x's; E_ARG unless order is a
 * permutation. */
int tide_permute(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *order);
/* Returns a view with two dims exchanged. */
int tide_transpose(tide_tensor **out, tide_tensor *x, int dim0, int dim1);
/* Returns a view of elements start, start + step, ... below stop of one dim; negative start/stop
 * count from the end; step >= 1. Out-of-range bounds are E_ARG, start == stop gives size 0. */
int tide_slice(tide_tensor **out, tide_tensor *x, int dim, int64_t start, int64_t stop,
               int64_t step);
int tide_select(tide_tensor **out, tide_tensor *x, int dim, int64_t index); /* drops the dim */
/* Returns a view with a dim of size 1 before dim (ndim: at the end). */
int tide_unsqueeze(tide_tensor **out, tide_tensor *x, int dim);
int tide_squeeze(tide_tensor **out, tide_tensor *x, int dim);               /* size must be 1 */
/* Returns a view of this shape, aligned at the last dim: dims of size 1, and those that x lacks in
 * front, repeat by stride 0. E_SHAPE if another size differs. In-place ops refuse to write to
 * it. */
int tide_expand(tide_tensor **out, tide_tensor *x, int ndim, const int64_t *shape);
/* Copies n >= 1 pieces one after another along dim. E_SHAPE unless they agree in dtype and in all
 * other sizes. */
int tide_cat(tide_tensor **out, tide_tensor *const *xs, int64_t n, int dim);
/* Copies x with value before[d] times before and after[d] times after it along each dim d; negative
 * counts crop. */
int tide_pad(tide_tensor **out, tide_tensor *x, int ndim, const int64_t *before,
             const int64_t *after, double value);
/* Copies x with out[(i + shift) mod n] = x[i] along dim; shift of any sign and size. */
int tide_roll(tide_tensor **out, tide_tensor *x, int dim, int64_t shift);

/* ---- index ---------------------------------------------------------------------------------- */
/* Index tensors are i64 or i32, 0-based; an index out of range is E_ARG and names its position. */

/* Computes out[..i..] = x[..index[..i..]..] along dim; index has as many dims as x. */
int tide_gather(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index);
/* Copies x and adds src at index along dim, in index order. */
int tide_scatter_add(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index,
                     tide_tensor *src);
/* Copies the rows of x at index (1-D) along dim. */
int tide_index_select(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index);
/* Copies x and adds the rows of src along dim at index (1-D). */
int tide_index_add(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index,
                   tide_tensor *src);
/* Computes y[ids..., D] = weight_VD[ids]. */
int tide_embedding(tide_tensor **out, tide_tensor *weight, tide_tensor *ids);
/* Makes out[ids..., nclass] of dtype: 1 at the class, else 0. E_ARG: an id outside [0, nclass). */
int tide_one_hot(tide_tensor **out, tide_tensor *ids, int64_t nclass, int dtype);

/* ---- products ------------------------------------------------------------------------------- */

/* Computes a b as torch.matmul: 1-D operands are vectors, leading dims broadcast. E_SHAPE names
 * both shapes. */
int tide_matmul(tide_tensor **out, tide_tensor *a, tide_tensor *b);
/* Computes dst_MN += a_MK b_KN in place: the sum is rounded once. a and b have one float dtype; dst
 * has it too, or f32 where they have 16 bits. dst as for tide_axpy_. E_SHAPE names the shapes. */
int tide_addmm_(tide_tensor *dst, tide_tensor *a, tide_tensor *b);
/* Computes y[..., N] = x[..., K] w_NK^T (+ bias_N, may be null). */
int tide_linear(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias);
enum { TIDE_MAX_JOINED = 6 };
/* Computes outs[i] = tide_linear(x, ws[i], biases[i]) for n weights, 1 to TIDE_MAX_JOINED; biases,
 * or one of them, may be null. Weights [N_i, K] that are contiguous and follow each other in one
 * storage, as slices of a weight [sum N_i, K] do, with biases that are absent or follow each other
 * too, are one product, and the outs views of one tensor [..., sum N_i]; gradients are products of
 * the joint weight where they can be. Else a product each. */
int tide_linear_joined(tide_tensor **outs, tide_tensor *x, int n, tide_tensor *const *ws,
                       tide_tensor *const *biases);
/* Computes tide_linear with the weight w_NK + scale b_NR a_RK, a change of low rank R (LoRA; bias
 * may be null). In f32 and f64 with many rows the change is added to a copy of w, which is dropped
 * after the product; otherwise x is multiplied by a, then by b. a and b have w's dtype. */
int tide_linear_lora(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias,
                     tide_tensor *a, tide_tensor *b, double scale);
/* Sorts rows by group, as a mixture of experts needs them: ids [n] or [n, k] has the groups that a
 * row is in, 0 to groups - 1; other numbers mean no group. Returns i64 tensors: rows [n k], the row
 * of each slot; place, of the shape of ids, the slot of each choice; offsets [groups + 1]: group g
 * has the slots offsets[g] up to offsets[g + 1], in the order of ids. Slots of none are last. */
int tide_group_rows(tide_tensor **rows, tide_tensor **place, tide_tensor **offsets,
                    tide_tensor *ids, int64_t groups);
/* Multiplies rows of x in groups, each with a weight of its own: y[r] = x[r] w[g]^T for offsets[g]
 * <= r < offsets[g + 1], of x [rows, K], w [groups, N, K] and offsets i64 or i32 [groups + 1] on
 * x's device. A group may be empty; a row in no group has y = 0. Offsets go up from 0 or more to
 * `rows` or less, else E_ARG (on a GPU from a later call, as an index out of range). */
int tide_grouped_linear(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *offsets);
/* Computes dst[g] += a_g^T b_g of the rows of each group, in place: a [rows, M], b [rows, N], dst
 * [groups, M, N] of their dtype, or f32 where they have 16 bits. The sum is rounded once. */
int tide_grouped_addmm_(tide_tensor *dst, tide_tensor *a, tide_tensor *b, tide_tensor *offsets);
enum { TIDE_ACT_RELU = 0, TIDE_ACT_GELU_TANH = 1 };
/* Computes act(x w^T + bias): relu, or gelu by tanh. On a GPU it saves a pass over the result. */
int tide_linear_act(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias,
                    int activation);
/* As tide_linear, with x and w rounded to FP8 (e4m3), each scaled so that its largest magnitude is
 * the largest number of the format; sums are f32, y has x's dtype. In backward dy is rounded to
 * e5m2; dbias is the sum of the unrounded dy. The tape keeps the codes of x and w that backward
 * reads, a byte an element, and neither x nor w. The derivative treats rounding as the identity.
 * f32, bf16, f16, else E_DTYPE; E_UNSUPPORTED on a GPU without FP8. */
int tide_linear_fp8(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias);
/* Computes the same with scales by `scaling`. TENSOR: tide_linear_fp8. BLOCK: one for each 128
 * neighbours of x along K and each 128 x 128 of w; in backward for each 128 of dy along N (dx) and
 * along tokens (dw), of x along tokens, all e4m3; w keeps its codes. Scales are powers of two, of
 * BLOCK_F32 any f32. A GPU needs compute capability 9.0 and cuBLAS 12.9, else E_UNSUPPORTED.
 * keep_weight: the tape keeps w, whose bytes may then be dropped and refilled before backward
 * rounds it again. */
enum { TIDE_FP8_TENSOR = 0, TIDE_FP8_BLOCK = 1, TIDE_FP8_BLOCK_F32 = 2 };
int tide_linear_fp8_scaled(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias,
                           int scaling, bool keep_weight); /* scaling: TIDE_FP8_* */
/* Computes outs[i] = tide_linear_fp8_scaled(x, ws[i], biases[i], ...) for n weights, 1 to
 * TIDE_MAX_JOINED; biases, or one of them, may be null. x is rounded once for all of them. */
int tide_linear_fp8_joined(tide_tensor **outs, tide_tensor *x, int n, tide_tensor *const *ws,
                           tide_tensor *const *biases, int scaling, bool keep_weight);
/* Rounds x (f32, bf16, f16) to NF4 with double quantisation, as bitsandbytes does: blocks of 64
 * elements in row-major order have codes of 4 bits and a magnitude, which is a code of 8 bits. Of
 * n elements, codes: u8 [ceil(n / 2) + ceil(n / 64)]; scale: f32 [1 + ceil(n / 16384)]. Not
 * recorded. A NaN or infinite number makes all of them NaN. E_DTYPE; E_UNSUPPORTED on a GPU. */
int tide_quantize_nf4(tide_tensor **codes, tide_tensor **scale, tide_tensor *x);
/* Returns the n numbers that codes and scale represent, f32 [n]. Not recorded. */
int tide_dequantize_nf4(tide_tensor **out, tide_tensor *codes, tide_tensor *scale, int64_t n);
/* As tide_linear, with a weight [n, K] that tide_quantize_nf4 has rounded. It is read a part at a
 * time, in x's dtype (f32, bf16, f16). x and bias (may be null) get gradients. E_SHAPE, E_DTYPE. */
int tide_linear_nf4(tide_tensor **out, tide_tensor *x, tide_tensor *codes, tide_tensor *scale,
                    tide_tensor *bias, int64_t n);
/* Computes the same with a part of a coded weight. Its row r has the numbers first + r * stride,
 * first + r * stride + 1, .. of the weight (first even; stride even, and the columns too, unless a
 * row is stride numbers). codes: the codes of the part's numbers, two a byte as tide_quantize_nf4
 * has them; then those of the magnitudes: of all blocks from that of `first` on where a row is
 * stride numbers, else for each row of the part those of the blocks from that of its first number
 * on, as many for each: ceil((first % 64 + columns) / 64), or where stride is not a multiple of 64,
 * floor((columns + 62) / 64) + 1. scale: of the whole weight. E_ARG, E_SHAPE, E_DTYPE. */
int tide_linear_nf4_part(tide_tensor **out, tide_tensor *x, tide_tensor *codes, tide_tensor *scale,
                         tide_tensor *bias, int64_t n, int64_t first, int64_t stride);
/* Returns the numbers of such a part, f32 [rows, cols]. Not recorded. E_ARG, E_SHAPE. */
int tide_dequantize_nf4_part(tide_tensor **out, tide_tensor *codes, tide_tensor *scale,
                             int64_t rows, int64_t cols, int64_t first, int64_t stride);
/* Computes tide_grouped_linear with a coded weight [n, K] for each group: row g of codes [groups,
 * bytes] and of scale [groups, ..] is that of group g. Each is the whole weight (first 0, stride K)
 * or the same part of it, as in tide_linear_nf4_part. Weights are read one group or a few at a
 * time, in x's dtype (f32, bf16, f16). x gets a gradient. E_ARG, E_SHAPE, E_DTYPE. */
int tide_grouped_linear_nf4(tide_tensor **out, tide_tensor *x, tide_tensor *codes,
                            tide_tensor *scale, tide_tensor *offsets, int64_t n, int64_t first,
                            int64_t stride);

/* ---- normalisation, rotary positions, activations ------------------------------------------- */
/* Over the last dim, statistics in f32 (f64 for f64). weight and bias may be null. */

/* Computes (x - mean) / sqrt(var + eps) * weight + bias, var without Bessel's correction. weight
 * and bias are [D] in x's dtype. E_SHAPE, E_DTYPE. */
int tide_layer_norm(tide_tensor **out, tide_tensor *x, tide_tensor *weight, tide_tensor *bias,
                    double eps);
/* Computes x / sqrt(mean of x^2 + eps) * (weight + weight_offset). weight_offset: 1 for Gemma, else
 * 0. */
int tide_rms_norm(tide_tensor **out, tide_tensor *x, tide_tensor *weight, double eps,
                  double weight_offset);
/* Computes sum = x + residual and out = rms_norm(sum) in one pass. */
int tide_add_rms_norm(tide_tensor **out, tide_tensor **sum, tide_tensor *x, tide_tensor *residual,
                      tide_tensor *weight, double eps, double weight_offset);
/* Rotates x by its positions (RoFormer, arXiv 2104.09864). x_BTHD; positions i64/i32 [B or 1, T];
 * inv_freq f32 or f64 [R/2], R <= D: the first R channels of a head rotate, the rest pass. An f64 x
 * needs f64 frequencies: f32 ones give angles that are off by up to 6e-8 of their size.
 * interleaved pairs channels (2i, 2i+1); otherwise (i, i + R/2) as Hugging Face does. inverse
 * rotates back. */
int tide_rope(tide_tensor **out, tide_tensor *x, tide_tensor *positions, tide_tensor *inv_freq,
              bool interleaved, bool inverse);
/* Computes outs[i] = tide_rope(xs[i], ...) for n tensors, 1 to TIDE_MAX_JOINED, of one batch and
 * sequence: one launch where their heads follow each other in one storage. reuse: the outs take the
 * memory of the xs, which must not be read afterwards. E_STATE: an x collects a gradient. */
int tide_rope_joined(tide_tensor **outs, int n, tide_tensor *const *xs, tide_tensor *positions,
                     tide_tensor *inv_freq, bool interleaved, bool inverse, bool reuse);
/* Computes e^x / sum e^x along dim, after subtracting the maximum; a row of -inf alone is NaN. */
int tide_softmax(tide_tensor **out, tide_tensor *x, int dim);
/* Computes its logarithm, x - log sum e^x. */
int tide_log_softmax(tide_tensor **out, tide_tensor *x, int dim);
/* Computes silu(gate) * up (arXiv 2002.05202). */
int tide_swiglu(tide_tensor **out, tide_tensor *gate, tide_tensor *up);
/* Computes (u + 1) g sigmoid(alpha g) with g = min(gate, limit) and u = up clamped to [-limit,
 * limit], the activation of gpt-oss. limit and alpha: above 0. */
int tide_swiglu_clamped(tide_tensor **out, tide_tensor *gate, tide_tensor *up, double limit,
                        double alpha);
/* Zeroes elements with probability p and scales the rest by 1/(1-p). The mask is drawn from the
 * context's generator, which advances by the number of elements. p == 0 is the identity. */
int tide_dropout(tide_tensor **out, tide_tensor *x, double p);

/* ---- attention ------------------------------------------------------------------------------ */

/* Which key a query may see is data: query i sees key j iff they carry the same document number,
 * documents are >= 0, position(j) <= until(i) if causal, and with d = position(i) - position(j):
 * d <= window_left if window_left >= 0, -d <= window_right if window_right >= 0. An index may hold
 * until as its third number; without it until(i) is position(i). Tokens of an image that see each
 * other have the position of the last of them there. Without index tensors every token is of
 * document 0, key j has position j and query i position q_start + i. A bias of -inf hides a key,
 * too. A hidden key has no effect, also where its value is NaN or infinite (on 'cuda' in f16 and
 * bf16 it must be finite). */
typedef struct tide_attention_attrs {
  uint32_t size;
  int32_t  causal;       /* 0 or 1 */
  int64_t  window_left;  /* -1 (default): no limit */
  int64_t  window_right; /* -1 (default): no limit */
  int64_t  q_start;      /* position of query 0 when q_index is null */
  double   scale;        /* 0: 1/sqrt(D); rounded to f32 unless the operands are f64 */
  double   softcap;      /* 0: none; else cap * tanh(score / cap) before the mask; likewise */
  tide_tensor *q_index;  /* i32 [B or 1, Tq, 2] of (document, position), or [.., 3] with until;
                          * may be null */
  tide_tensor *k_index;  /* i32 [B or 1, Tk, 2 or 3], whose third number is not read; null iff
                          * q_index is null */
  tide_tensor *bias;     /* additive, broadcastable to [B, H, Tq, Tk]; may be null */
  tide_tensor *q_tiles;  /* tide_attention_tiles of q_index, which saves each call the search; */
  tide_tensor *k_tiles;  /* the same of k_index; each may be null */
  tide_tensor *sinks;    /* float [H]: a score of each head with no value, which takes a share of
                          * the softmax; may be null */
} tide_attention_attrs;
void tide_attention_attrs_init(tide_attention_attrs *attrs);
/* Computes out_BTHD = softmax(scale q k^T + bias, masked) v. q_BTHD, k and v [B, Tk, Hk, D], H % Hk
 * == 0 (query head h reads key head h / (H / Hk)); v may have its own head size. lse (may be null)
 * receives f32 [B, H, Tq], the log of the sum of exponentials, e^sink included. A query that sees
 * nothing gives 0 and lse -inf, or its sink. Memory O(T): scores are never stored (arXiv
 * 2205.14135, 2307.08691). attrs may be null. */
int tide_attention(tide_tensor **out, tide_tensor **lse, tide_tensor *q, tide_tensor *k,
                   tide_tensor *v, const tide_attention_attrs *attrs);
/* Merges attention over one part of the keys into attention over others, in place: out f32 [B, T,
 * H, D] and lse f32 [B, H, T] (f64 if part is f64) hold the result so far (all zero and -inf at the
 * start), part (any float dtype) and part_lse are results of tide_attention with the same queries.
 * Not recorded: E_STATE if one of them needs a gradient. Source: arXiv 2310.01889. */
int tide_attention_merge_(tide_tensor *out, tide_tensor *lse, tide_tensor *part,
                          tide_tensor *part_lse);
/* Computes gradients of q, k and v (owned, in their dtypes) from one part of the keys, given dout,
 * the output and the log-sum-exp over all parts: the parts' dq add up. Not recorded: E_STATE if one
 * of them needs a gradient. attrs as those of the part's forward; a bias is E_UNSUPPORTED, and so
 * are sinks, which the parts of out and lse contain. */
int tide_attention_backward(tide_tensor **dq, tide_tensor **dk, tide_tensor **dv,
                            tide_tensor *dout, tide_tensor *q, tide_tensor *k, tide_tensor *v,
                            tide_tensor *out, tide_tensor *lse, const tide_attention_attrs *attrs);
/* Computes the gradient of sinks [H] (owned, in their dtype) from dout, the output and the
 * log-sum-exp of an attention with these sinks over all its keys. Of a sequence in parts, the sinks
 * are given to the forward of one part of each query. Not recorded: E_STATE if one of them needs a
 * gradient. */
int tide_attention_sinks_backward(tide_tensor **dsinks, tide_tensor *dout, tide_tensor *out,
                                  tide_tensor *lse, tide_tensor *sinks);
/* Returns the shortest run of keys, *first and *count, such that no query sees a key outside it by
 * document and position range (some key inside may be unseen too): the rows that a rank needs of
 * another rank's block. q_index i32 [B or 1, Tq, 2 or 3], k_index i32 [B or 1, Tk, 2 or 3], on the
 * host; of attrs only causal and the window count; null: full. A count of 0 has first 0. */
int tide_attention_rows(tide_tensor *q_index, tide_tensor *k_index,
                        const tide_attention_attrs *attrs, int64_t *first, int64_t *count);
/* Makes what each 64 tokens of an index [B or 1, T, 2 or 3] span, i32 [B or 1, ceil(T / 64), 4]:
 * least and greatest document, least and greatest position (until is one, too), over the tokens of
 * a document >= 0. The least document is complemented where some token has none; {~INT32_MAX, -1,
 * INT32_MAX, INT32_MIN}: all have none. Attention with other tiles than those of its indices is
 * undefined. */
int tide_attention_tiles(tide_tensor **out, tide_tensor *index);
/* Makes (document, position) pairs [1, T, 2] of a packed stream from cumulative lengths: cu i32/i64
 * [ndoc + 1], first 0, not decreasing, last <= T; tokens beyond the last get document -1. */
int tide_document_index(tide_tensor **out, tide_tensor *cu, int64_t ntoken);

/* ---- index maps of sharded sequences --------------------------------------------------------- */
/* Host data, made once per batch and left on the device of the first tensor. Index results are i64
 * or i32 (dtype); E_ARG says which entry broke which rule. cu: i32/i64 [ndoc + 1] cumulative
 * lengths, first 0, not decreasing. Owned results. */

/* Lays every document out head-tail over `size` ranks: each is cut into 2 * size chunks, rank r
 * keeps chunks r and 2 * size - 1 - r, documents in order (zigzag, DualChunkSwap; what Transformer
 * Engine calls the THD partition). out: whole position of each of the rank's tokens; of all ranks,
 * one after another, if rank is -1. Every length must be a multiple of 2 * size. */
int tide_zigzag_index(tide_tensor **out, tide_tensor *cu, int64_t size, int64_t rank, int dtype);
/* Returns the inverse: for each whole position its index among the tokens of all ranks in rank
 * order. */
int tide_zigzag_places(tide_tensor **out, tide_tensor *cu, int64_t size, int dtype);
/* Joins start, start + 1, ... start + length - 1 of each row (start, length) of runs [n, 2]. */
int tide_run_index(tide_tensor **out, tide_tensor *runs, int dtype);
/* Inverts a permutation of 0 .. n - 1; E_ARG if index is not one. Keeps the dtype. */
int tide_inverse_index(tide_tensor **out, tide_tensor *index);
/* As tide_document_index for documents in slots larger than they are: document d begins at
 * cu_slot[d] and has cu_real[d + 1] - cu_real[d] tokens, the rest of its slot is document -1. */
int tide_slot_index(tide_tensor **out, tide_tensor *cu_slot, tide_tensor *cu_real,
                    int64_t ntoken);

/* ---- state-space layers ---------------------------------------------------------------------- */

/* Returns the number of each token's sequence in a packed stream, i32 [1, ntoken], from cumulative
 * lengths: the count of entries of cu[1:] at or below the token's place. cu i32/i64 [n + 1], first
 * 0, not decreasing, last equal to ntoken: tokens of no sequence are E_ARG. */
int tide_sequence_index(tide_tensor **out, tide_tensor *cu, int64_t ntoken);

typedef struct tide_conv1d_attrs {
  uint32_t size;
  int32_t  silu;            /* 1: out goes through silu */
  tide_tensor *initial;     /* [B, K-1, C], the rows before token 0; null: zeros */
  tide_tensor *sequence;    /* i32/i64 [B or 1, T], never decreasing; null: one sequence */
} tide_conv1d_attrs;
void tide_conv1d_attrs_init(tide_conv1d_attrs *attrs);
/* Computes a causal depthwise convolution: out[t] = bias + sum_k weight[k] x[t - (K-1) + k] for
 * each channel. x_BTC, weight_CK with K in 2..4, bias_C or null, all of one dtype. No tap reaches
 * into another sequence; initial belongs to that of token 0. last (may be null) receives [B, K-1,
 * C], the rows that the next call takes as initial. attrs may be null. */
int tide_conv1d(tide_tensor **out, tide_tensor **last, tide_tensor *x, tide_tensor *weight,
                tide_tensor *bias, const tide_conv1d_attrs *attrs);

typedef struct tide_ssd_attrs {
  uint32_t size;
  int32_t  softplus;        /* 1: the step is softplus(dt + dt_bias) */
  int64_t  chunk;           /* tokens per block of products; 0: the library's choice. Results depend
                               on it by rounding only; more than 128 counts as 128 */
  double   dt_min, dt_max;  /* limits of the step; default 0 and infinity */
  tide_tensor *D;           /* [H] or [H, P]; null: none */
  tide_tensor *dt_bias;     /* [H]; null: none */
  tide_tensor *z;           /* [B, T, H, P]: out is multiplied by silu(z); null: none */
  tide_tensor *initial;     /* [B, H, P, N], the state before token 0; null: zeros */
  tide_tensor *sequence;    /* i32/i64 [B or 1, T], never decreasing; null: one sequence */
} tide_ssd_attrs;
void tide_ssd_attrs_init(tide_ssd_attrs *attrs);
/* Computes the recurrence of Mamba-2 by products over chunks (state-space duality, Dao and Gu,
 * arXiv 2405.21060): h_t = exp(d_t A) h_{t-1} + d_t x_t B_t', out_t = h_t C_t + D x_t, where d is
 * dt after bias, softplus and limits. x_BTHP, dt_BTH, A_H, B and C [B, T, G, N] of x's dtype, H a
 * multiple of G; the others of any floating dtype. The state is zero where a sequence begins;
 * initial belongs to that of token 0. last (may be null) receives the final state [B, H, P, N], f32
 * (f64 for f64). Memory is O(T). attrs may be null. */
int tide_ssd_scan(tide_tensor **out, tide_tensor **last, tide_tensor *x, tide_tensor *dt,
                  tide_tensor *A, tide_tensor *B, tide_tensor *C, const tide_ssd_attrs *attrs);

typedef struct tide_gated_delta_attrs {
  uint32_t size;
  int32_t  l2norm;          /* 1: rows of q and k are divided by sqrt(sum of squares + eps) first */
  int64_t  chunk;           /* tokens between the states kept for the backward; 0: the library's
                               choice. Results depend on it by rounding only; more than 256 counts
                               as 256 */
  double   scale;           /* of q; 0: 1/sqrt(Dk) */
  double   eps;             /* of l2norm; default 1e-6 */
  tide_tensor *initial;     /* [B, Hv, Dk, Dv], the state before token 0; null: zeros */
  tide_tensor *sequence;    /* i32/i64 [B or 1, T], never decreasing; null: one sequence */
} tide_gated_delta_attrs;
void tide_gated_delta_attrs_init(tide_gated_delta_attrs *attrs);
/* Computes the gated delta rule (Gated DeltaNet, Yang et al., arXiv 2412.06464) for each value
 * head: R_t = exp(g_t) S_{t-1}, u_t = beta_t (v_t - R_t' k_t), S_t = R_t + k_t u_t', out_t = scale
 * S_t' q_t. q and k [B, T, Hk, Dk], v [B, T, Hv, Dv] of one dtype, Hv a multiple of Hk: value head
 * h reads head h / (Hv / Hk) of q and k. g (the logarithm of the decay) and beta [B, T, Hv] and
 * initial of any floating dtype. The state is zero where a sequence begins; initial belongs to that
 * of token 0. last (may be null) receives the final state [B, Hv, Dk, Dv], f32 (f64 for f64).
 * Memory is O(T). attrs may be null. */
int tide_gated_delta(tide_tensor **out, tide_tensor **last, tide_tensor *q, tide_tensor *k,
                     tide_tensor *v, tide_tensor *g, tide_tensor *beta,
                     const tide_gated_delta_attrs *attrs);
/* Computes a root mean square norm with a gate, over groups of `group` neighbouring channels of the
 * last dim (0: all): norm(x silu(z)) weight, or norm(x) weight silu(z) with gate_last. weight may
 * be null. The norm of Mamba-2. */
int tide_gated_rms_norm(tide_tensor **out, tide_tensor *x, tide_tensor *z, tide_tensor *weight,
                        double eps, int64_t group, bool gate_last);

/* ---- losses --------------------------------------------------------------------------------- */

typedef struct tide_cross_entropy_attrs {
  uint32_t size;
  int32_t  pad;             /* 0: keeps the members at the same place on every compiler */
  int64_t  ignore_index;    /* targets with this value do not count; default -100 */
  double   label_smoothing; /* in [0, 1) */
  double   z_loss;          /* weight of lse^2 (arXiv 2204.02311) */
} tide_cross_entropy_attrs;
void tide_cross_entropy_attrs_init(tide_cross_entropy_attrs *attrs);
/* Computes loss_N (f32), one per token, of logits_NV against targets_N (i64/i32). attrs may be
 * null. */
int tide_cross_entropy(tide_tensor **out, tide_tensor *logits, tide_tensor *targets,
                       const tide_cross_entropy_attrs *attrs);
/* Sums the cross entropy of x_ND w_VD^T (+ bias_V, may be null) over tokens, an f32 scalar. Only a
 * chunk of rows of logits exists at a time; gradients are computed in the same pass. */
int tide_linear_cross_entropy(tide_tensor **out, tide_tensor *x, tide_tensor *w,
                              tide_tensor *bias, tide_tensor *targets,
                              const tide_cross_entropy_attrs *attrs);

/* ---- random numbers ------------------------------------------------------------------------- */
/* Philox4x32-10 (Salmon et al., SC 2011), counter-based: value i of a tensor depends on (seed,
 * stream, offset + i) alone, so every device, mesh and thread count sees the same numbers. */

typedef struct tide_random_attrs {
  uint32_t size;
  int32_t  ndim;             /* 0: i is the row-major index; else i = start + sum coord * stride */
  int64_t  start;            /* index of this tensor's first element in the whole tensor */
  int64_t  stride[TIDE_MAX_DIM]; /* strides of the whole tensor, one for each dim of this one */
  uint64_t seed, stream, offset;
  int32_t  use_ctx;          /* 1 (default): seed, stream and offset come from the context, which
                                advances by the number of elements; 0: from the members above */
} tide_random_attrs;
void tide_random_attrs_init(tide_random_attrs *attrs);
/* Sets the context's generator. A new context starts with seed 0. */
int tide_rng_set(tide_ctx *ctx, uint64_t seed, uint64_t stream, uint64_t offset);
/* Returns the generator's state, the arguments of tide_rng_set that continue from here. Each may be
 * null. */
int tide_rng_get(tide_ctx *ctx, uint64_t *seed, uint64_t *stream, uint64_t *offset);
/* Sets the tensor in which the generator starts (i64 [3]: seed, stream, offset; null: none): ops
 * that draw from the context on its device add, when they run, its values to the context's own
 * numbers. So a captured step, whose constants stay, draws from what is written there before each
 * replay: set the generator to 0, 0, 0 meanwhile; its offset at the end is the advance of one
 * replay. place is held until the next call, and outlives step scopes. E_ARG: another dtype or
 * size, not contiguous. */
int tide_rng_place(tide_ctx *ctx, tide_tensor *place);
/* Fills t in place with uniform numbers in [lo, hi). attrs may be null. Floating dtypes. */
int tide_uniform_(tide_tensor *t, double lo, double hi, const tide_random_attrs *attrs);
/* Fills t in place with normal numbers, std >= 0. A number takes one word of the generator, by the
 * inverse distribution function. */
int tide_normal_(tide_tensor *t, double mean, double std, const tide_random_attrs *attrs);
/* Fills t in place with normal numbers truncated to [mean + std * lo, mean + std * hi], by
 * inversion. */
int tide_trunc_normal_(tide_tensor *t, double mean, double std, double lo, double hi,
                       const tide_random_attrs *attrs);

/* ---- optimiser steps: multi-tensor, in place, never recorded --------------------------------- */

typedef struct tide_adamw_attrs {
  uint32_t size;
  int32_t  maximize;
  double   lr, beta1, beta2, eps, weight_decay; /* decoupled decay (arXiv 1711.05101); defaults
                                                   1e-3, 0.9, 0.999, 1e-8, 0.01 */
  int64_t  step;                                /* 1 (default) for the first update */
  double   grad_scale;                          /* gradients are multiplied by it; default 1 */
} tide_adamw_attrs;
void tide_adamw_attrs_init(tide_adamw_attrs *attrs);
/* Updates p[i], m[i] and v[i] from g[i] for i < n. m, v and master[i] are f32 (f64 with f64
 * parameters); master (may be null, or hold nulls) keeps the exact weights of bf16/f16 p. g_scale
 * (f32 or f64 scalar, may be null) multiplies every gradient: the device-side clip factor. rates
 * (f64 [2], may be null) holds lr and step, which replace those of attrs: a captured step reads the
 * ones of its replay. found_inf (f32 scalar, may be null): unless it is 0, nothing is changed.
 * E_ARG, where the device is read: the step in rates is below 1 (on 'cuda' nothing is changed
 * then). */
int tide_adamw_(tide_ctx *ctx, int64_t n, tide_tensor *const *p, tide_tensor *const *g,
                tide_tensor *const *m, tide_tensor *const *v, tide_tensor *const *master,
                tide_tensor *g_scale, tide_tensor *rates, tide_tensor *found_inf,
                const tide_adamw_attrs *attrs);
/* Updates as tide_adamw_ f32, bf16 and f16 parameters, with moments of 8 bits: m[i] and v[i] are u8
 * of the parameter's shape, m_scale[i] and v_scale[i] f32 [ceil(numel / 256)], a number for each
 * 256 elements. tide_quantize8 makes them and tide_dequantize8 reads them; zeros of both are
 * moments of 0. The weights change by the moments before they are rounded. A block with an infinite
 * number or NaN is NaN from then on. */
int tide_adamw8_(tide_ctx *ctx, int64_t n, tide_tensor *const *p, tide_tensor *const *g,
                 tide_tensor *const *m, tide_tensor *const *v, tide_tensor *const *m_scale,
                 tide_tensor *const *v_scale, tide_tensor *const *master, tide_tensor *g_scale,
                 tide_tensor *rates, tide_tensor *found_inf, const tide_adamw_attrs *attrs);
/* Rounds x (f32) to dynamic 8-bit numbers: codes, u8 of x's shape, and scale, f32
 * [ceil(numel / 256)], a number for each 256 elements in row-major order: the one of the largest
 * magnitude. Not recorded. An element changes by at most 0.45 / 64 of that magnitude, or with
 * is_signed off, for numbers of at least 0, by 0.45 / 128; the largest one does not change, 0 stays
 * 0, and with is_signed off numbers above 0 stay above 0. Blocks below 2^-103 are 0. Rounding the
 * result of tide_dequantize8 again gives the same codes and scales. */
int tide_quantize8(tide_tensor **codes, tide_tensor **scale, tide_tensor *x, bool is_signed);
/* Returns the numbers that codes and scale represent, f32. Not recorded. */
int tide_dequantize8(tide_tensor **out, tide_tensor *codes, tide_tensor *scale, bool is_signed);
typedef struct tide_sgd_attrs {
  uint32_t size;
  int32_t  nesterov, maximize, first; /* first: 1 (default) on the first step, momentum starts as
                                         g */
  double   lr, momentum, dampening, weight_decay, grad_scale; /* lr 1e-2, grad_scale 1 */
} tide_sgd_attrs;
void tide_sgd_attrs_init(tide_sgd_attrs *attrs);
/* Updates p[i] and buf[i], its momentum buffer, from g[i] for i < n. buf may be null when momentum
 * is 0. rates, found_inf: as above; the step is the first where its number is 1. */
int tide_sgd_(tide_ctx *ctx, int64_t n, tide_tensor *const *p, tide_tensor *const *g,
              tide_tensor *const *buf, tide_tensor *const *master, tide_tensor *g_scale,
              tide_tensor *rates, tide_tensor *found_inf, const tide_sgd_attrs *attrs);
/* Returns the norm of all tensors together, a scalar, f64 where one of them is, else f32; p 2, 1,
 * or inf (as HUGE_VAL). n 0 gives 0. squared: the sum of |x|^p without the root, for summing over
 * ranks. */
int tide_norm(tide_tensor **out, tide_ctx *ctx, int64_t n, tide_tensor *const *xs, double p,
              bool squared);
/* Returns min(1, max_norm / (norm + 1e-6)), the factor of gradient clipping: a scalar of norm's
 * dtype. */
int tide_clip_factor(tide_tensor **out, tide_tensor *norm, double max_norm);
/* Computes xs[i] *= factor (f32 or f64 scalar tensor). */
int tide_scale_all_(tide_ctx *ctx, int64_t n, tide_tensor *const *xs, tide_tensor *factor);

/* ---- autograd ------------------------------------------------------------------------------- */

/* Marks t as a leaf that collects a gradient; on false clears the mark. Floating dtypes only;
 * E_STATE if t is the result of a recorded op. */
int  tide_set_needs_grad(tide_tensor *t, bool on);
/* Returns 1 for a marked leaf or the result of a recorded op, else 0. */
int  tide_needs_grad(const tide_tensor *t);
int  tide_requires_grad(tide_tensor *t, bool on); /* deprecated name of tide_set_needs_grad */
int  tide_is_leaf(const tide_tensor *t); /* 1: not the result of a recorded op */
/* Returns the accumulated gradient of a leaf, owned; *out is null without one. */
int  tide_grad(tide_tensor **out, tide_tensor *t);
/* Makes grad the gradient of t, or null: t has none. grad has t's shape, dtype and device; its
 * bytes are shared. Of a bf16 or f16 tensor it may be f32: later gradients are then added up in
 * f32. */
int  tide_set_grad(tide_tensor *t, tide_tensor *grad);
/* Sets the dtype in which backward begins the gradient of leaf t: t's own (the default), or f32 of
 * a bf16 or f16 tensor. Products then write f32 sums, with no rounding between. A gradient that is
 * there keeps its dtype. E_DTYPE: another. */
int  tide_set_grad_dtype(tide_tensor *t, int dtype);
int  tide_grad_dtype(const tide_tensor *t); /* of the gradient that is there or would begin */
/* Clears the gradient of t and frees its bytes now; using another handle of it is then E_GONE.
 * Bytes that another tensor shares, or that a collective is using, stay. */
int  tide_drop_grad(tide_tensor *t);
/* Returns a handle of the same bytes without history. */
int  tide_detach(tide_tensor **out, tide_tensor *t);
/* Switches recording on (1, default) or off (0) in this context; returns the old value. */
int  tide_set_recording(tide_ctx *ctx, bool on);
int  tide_recording(tide_ctx *ctx); /* 1: on */

enum { TIDE_EVENT_DONE = 0, TIDE_EVENT_HOST = 1 };
/* The next task of the host in a walk. tag and nout are those of tide_host_function. */
typedef struct tide_event {
  int32_t kind;
  int32_t nout, nin; /* gradients available / wanted */
  int32_t pad;         /* 0: keeps tag at the same place on every compiler */
  double  tag;         /* a double, since LuaJIT boxes 64-bit integers */
} tide_event;
/* Starts a reverse walk from root. grad may be null if root has one element (then 1). retain keeps
 * saved tensors for a second walk; otherwise they are freed as the walk passes. E_STATE: no
 * gradient path; already walked; saved tensor changed in place (found while walking). */
int  tide_backward_begin(tide_backward **out, tide_tensor *root, tide_tensor *grad, bool retain);
/* Runs to the next host function (TIDE_MORE, event filled), the end (0), or an error. */
int  tide_backward_next(tide_backward *bw, tide_event *event);
/* Returns, at a HOST event, the gradient of output i, owned; *out is null if no gradient reached
 * it. */
int  tide_backward_take(tide_tensor **out, tide_backward *bw, int i);
/* Returns saved input i of the host function (of tide_host_function's xs), owned. */
int  tide_backward_input(tide_tensor **out, tide_backward *bw, int i);
/* Gives, at a HOST event, the gradient of input i (null: it has none). Shape and dtype must be
 * the input's. */
int  tide_backward_give(tide_backward *bw, int i, tide_tensor *grad);
/* Releases a walk, also before its end: gradients in progress are dropped, those of leaves keep
 * their sums so far. */
void tide_backward_release(tide_backward *bw);
/* Runs a whole walk, for hosts without host functions; E_HOST if it meets one. */
int  tide_backward_run(tide_tensor *root, tide_tensor *grad);
/* Records a function that the host has computed: outs[i] (owned copies of handles ys[i], now with
 * history) depend on xs through a backward that the host does when the walk yields tag (a number of
 * the host's choice; a double as in tide_event). save: 1 keeps xs for tide_backward_input.
 * TIDE_MORE: recorded; 0: no history was needed, outs are plain second handles. */
int  tide_host_function(tide_tensor **outs, tide_ctx *ctx, double tag, int nin,
                        tide_tensor *const *xs, int nout, tide_tensor *const *ys, bool save);
/* Fills tags with those of host functions whose nodes were freed since the last call, up to n, and
 * returns how many. The host frees its state of these tags. */
int  tide_host_dropped(tide_ctx *ctx, double *tags, int n);

/* ---- captured steps -------------------------------------------------------------------------- */

/* Work enqueued on a device between begin and end is recorded and not run; replay enqueues all of
 * it again with the same addresses and numbers, at the price of one launch. New input is written
 * into the tensors that the step read; results appear in those that it made. Memory of the step
 * belongs to the graph; tensors that it made live on as long as they are held. Collectives over
 * NCCL are part of the step: every rank of the communicator captures the same ones and replays as
 * often. Each replay is a call of the communicator ("replay" in its history, which begins with the
 * calls of the capture), with its timeout. The graph holds the communicators; when one
 * fails, replays fail with its status. While a step is captured these fail with E_STATE and change
 * nothing: reading a tensor, copies from the host, other collectives, barrier and split, waiting
 * for earlier work, ops on other devices; and what a replay would repeat: random numbers of the
 * context without tide_rng_place, an optimiser's update without rates. E_UNSUPPORTED: the device
 * has no graphs; only 'cuda' has. */
typedef struct tide_graph tide_graph;
/* Starts to capture the device's work. E_STATE: the context already captures a step. */
int  tide_graph_begin(tide_graph **out, tide_ctx *ctx, int device);
/* Ends the capture; the device works as usual again, also if this fails. E_STATE: not being
 * captured; E_DEVICE: the device refused the step, and the graph cannot be replayed. */
int  tide_graph_end(tide_graph *graph);
/* Enqueues the step once more after the work enqueued so far, and does not wait. May be called any
 * number of times. E_STATE: while a step is captured, or if its capture failed. */
int  tide_graph_replay(tide_graph *graph);
/* Releases a graph; ends a capture that has begun. */
void tide_graph_release(tide_graph *graph);

/* ---- time on a device ------------------------------------------------------------------------ */

/* A point in the work of a device, with the time at which the device reaches it. */
typedef struct tide_device_event tide_device_event;
/* Records the event after the work enqueued on the device so far, and does not wait. *event null:
 * makes it, owned; else moves it there. E_STATE: while a step is captured. */
int  tide_device_event_record(tide_device_event **event, tide_ctx *ctx, int device);
/* Returns 1 if the device has reached the event, 0 if not yet. */
int  tide_device_event_done(tide_device_event *event);
/* Blocks until the device has reached the event. E_STATE: while a step is captured. */
int  tide_device_event_wait(tide_device_event *event);
/* Blocks until the device has reached both events; returns the milliseconds from one to the other,
 * negative if it reached `to` first. E_ARG: events of two devices. */
int  tide_device_event_elapsed(double *ms, tide_device_event *from, tide_device_event *to);
void tide_device_event_release(tide_device_event *event);

/* Opens a named range of the calling thread, which profilers of the device show (NVTX); null ends
 * the newest. Does nothing where the device has no ranges or is not open. Parameter `ranges` opens
 * them around each op. */
int  tide_range(tide_ctx *ctx, int device, const char *name);

/* ---- files: every message names the path and the system's reason ----------------------------- */

typedef struct tide_blob tide_blob; /* bytes read or made, owned by the caller */
const char *tide_blob_data(const tide_blob *blob); /* a zero byte follows the last one */
int64_t     tide_blob_size(const tide_blob *blob); /* bytes, without that one */
void        tide_blob_release(tide_blob *blob);

/* Reads the whole of a regular file. limit: most bytes accepted, 0 for no limit. E_IO; E_ARG:
 * longer. */
int tide_path_read(tide_blob **out, tide_ctx *ctx, const char *path, int64_t limit);
/* Replaces or makes a file so that a crash leaves the old one or the new one: temporary file in the
 * same folder, fsync, rename, fsync of the folder. E_IO if the path exists and is not a regular
 * file (a folder, a device, a pipe); the same holds for tide_file_save. */
int tide_path_write(tide_ctx *ctx, const char *path, const void *data, size_t nbytes);
/* Appends to a file, made if absent, in one write that is not synchronised. */
int tide_path_append(tide_ctx *ctx, const char *path, const void *data, size_t nbytes);
/* Makes a file durable by fsync, or the entries of a folder: files created, renamed or removed in
 * it. */
int tide_path_sync(tide_ctx *ctx, const char *path);
/* Renames a file or folder; replaces a file at `to` atomically, where the system allows it. Not
 * synchronised. */
int tide_path_rename(tide_ctx *ctx, const char *from, const char *to);
/* Makes a folder and, if parents, the missing ones above it. TIDE_MORE if it was there already. */
int tide_path_mkdir(tide_ctx *ctx, const char *path, bool parents);
/* Lists the names in a folder, sorted bytewise, without "." and "..", each followed by a zero
 * byte. */
int tide_path_list(tide_blob **out, tide_ctx *ctx, const char *path);
/* Removes a file, a link (not its target) or an empty folder. TIDE_MORE if nothing is there. */
int tide_path_remove(tide_ctx *ctx, const char *path);
/* Makes a symbolic link at path to target, replacing a link or file that is there, atomically. */
int tide_path_link(tide_ctx *ctx, const char *target, const char *path);
enum { TIDE_PATH_NONE = 0, TIDE_PATH_FILE = 1, TIDE_PATH_DIR = 2, TIDE_PATH_OTHER = 3 };
/* Returns the kind of path, links followed: TIDE_PATH_*; size (may be null) receives a file's
 * bytes. */
int tide_path_kind(tide_ctx *ctx, const char *path, int64_t *size);
/* Returns 1 if this process may write the file, or create files in the folder, else 0. */
int tide_path_is_writable(tide_ctx *ctx, const char *path);
typedef struct tide_lock tide_lock;
/* Takes the lock on a file, which is made if absent and stays: TIDE_OK, or TIDE_MORE with *out null
 * while it is held elsewhere, in this process or another. Never blocks. It is released with the
 * handle and with the process in any case (flock). Only the holder may remove the file; a call that
 * opened it before returns TIDE_MORE. The caller owns *out. */
int  tide_path_lock(tide_lock **out, tide_ctx *ctx, const char *path);
void tide_lock_release(tide_lock *lock);
/* Writes the XXH64 (seed 0) of a file's bytes into text: 16 lower-case hex digits and a zero, 17
 * bytes. */
int tide_path_hash(tide_ctx *ctx, const char *path, char *text);
/* Returns the XXH64 of a block of memory. */
uint64_t tide_hash(const void *data, size_t nbytes, uint64_t seed);
/* Returns the offset of the first byte that is not part of valid UTF-8 (no surrogates, no overlong
 * forms, nothing above U+10FFFF), or -1. */
int64_t tide_utf8_check(const char *text, int64_t nbytes);

/* ---- JSON: RFC 8259, depth to 64, no duplicate keys ------------------------------------------ */

typedef struct tide_json tide_json;
enum { TIDE_JSON_NULL = 0, TIDE_JSON_BOOL = 1, TIDE_JSON_INT = 2, TIDE_JSON_NUMBER = 3,
       TIDE_JSON_STRING = 4, TIDE_JSON_ARRAY = 5, TIDE_JSON_OBJECT = 6 };
/* Values in the order of the text. A container is followed by its contents; in an object each
 * member is a STRING node, its key, and then the value. */
typedef struct tide_json_node {
  int32_t kind;
  int32_t count;      /* ARRAY: elements, OBJECT: members, STRING: bytes */
  union { int64_t i;  /* BOOL, INT: the value; STRING: offset in tide_json_text;
                         ARRAY, OBJECT: index of the node after the last one inside */
          double d;   /* NUMBER: not an integer, or one beyond 64 bits */
  } v;
} tide_json_node;
/* Flags of tide_json_parse. NONFINITE: NaN, Infinity and -Infinity are numbers, as Python writes
 * them; without it the text is strict JSON. */
enum { TIDE_JSON_NONFINITE = 1 };
/* Parses a copy of text. name (may be null) is put before messages, usually the path. limit: most
 * bytes accepted, 0 for 1 GiB. E_FORMAT names line and column; E_ARG: an unknown flag. */
int tide_json_parse(tide_json **out, tide_ctx *ctx, const char *text, size_t nbytes,
                    int64_t limit, int flags, const char *name);
void tide_json_release(tide_json *json);
int64_t tide_json_count(const tide_json *json); /* nodes */
/* Returns the nodes, tide_json_count of them, borrowed; node 0 is the whole. */
const tide_json_node *tide_json_nodes(const tide_json *json);
/* Returns the unescaped UTF-8 of the STRING nodes. Borrowed. */
const char *tide_json_text(const tide_json *json);

/* ---- safetensors ----------------------------------------------------------------------------- */

/* Opens and checks a file: sizes, offsets without gap or overlap, names, dtypes, metadata. Nothing
 * is read but the header; no memory mapping. E_IO, E_FORMAT. Entries are sorted by name. */
int  tide_file_open(tide_file **out, tide_ctx *ctx, const char *path);
void tide_file_release(tide_file *file);
int64_t tide_file_count(const tide_file *file);                  /* tensors in it */
const char *tide_file_name(const tide_file *file, int64_t i);    /* null beyond the end */
int64_t tide_file_find(const tide_file *file, const char *name); /* -1: no such tensor */
/* Returns TIDE_F32, ...; -1 if the file's dtype is known to the format but not to tide. */
int  tide_file_dtype(const tide_file *file, int64_t i);
const char *tide_file_dtype_text(const tide_file *file, int64_t i); /* as stored, "BF16" */
int  tide_file_ndim(const tide_file *file, int64_t i);              /* -1: no such tensor */
int64_t tide_file_dim(const tide_file *file, int64_t i, int dim);   /* -1 if out of range */
int64_t tide_file_nbytes(const tide_file *file, int64_t i);         /* -1: no such tensor */
int64_t tide_file_meta_count(const tide_file *file);                /* pairs of text */
const char *tide_file_meta_key(const tide_file *file, int64_t i);   /* null beyond the end */
const char *tide_file_meta_value(const tide_file *file, int64_t i); /* the same */
/* Loads tensor i, whole. E_UNSUPPORTED: a dtype or number of dims that tide does not support. */
int  tide_file_load(tide_tensor **out, tide_file *file, int64_t i, int device);
/* Fills a contiguous t with the elements start, start + 1, ... of tensor i (row-major): a shard, a
 * row, or the whole. Same dtype, or u8 for the codes of a tensor of 8-bit floats, which tide has no
 * dtype for; start + numel <= the stored count. Not recorded. */
int  tide_file_read(tide_tensor *t, tide_file *file, int64_t i, int64_t start);
/* Writes n tensors and nmeta (key, value) pairs as tide_path_write does. Names are unique, valid
 * UTF-8. Any strides and devices; data lie by element size, then name. keys, values may be null
 * when nmeta is 0. */
int  tide_file_save(tide_ctx *ctx, const char *path, int64_t n, const char *const *names,
                    tide_tensor *const *tensors, int64_t nmeta, const char *const *keys,
                    const char *const *values);
/* Saves as tide_file_save in the background: tensors are copied to the host now, a thread writes
 * and hashes the file. They may change as soon as this returns. */
int  tide_file_save_async(tide_saving **out, tide_ctx *ctx, const char *path, int64_t n,
                          const char *const *names, tide_tensor *const *tensors, int64_t nmeta,
                          const char *const *keys, const char *const *values);
int  tide_saving_begin(tide_saving **out, tide_ctx *ctx, const char *path, int64_t n,
                       const char *const *names,
                       tide_tensor *const *tensors); /* deprecated: the same without metadata */
int  tide_saving_test(const tide_saving *s);              /* 1: finished, with success or failure */
/* Blocks until the file is written; returns 16 hex digits and a zero (tide_path_hash) in digits, or
 * the error. */
int  tide_saving_wait(tide_saving *s, char *digits);
void tide_saving_release(tide_saving *s);                 /* blocks until the file is written */

/* ---- images: u8 tensors [height, width, 3] on the host: red, green, blue, row by row --------- */

/* Layouts of pixels that become RGB: RGBA [h, w, 4], whose alpha is dropped; CMYK [h, w, 4],
 * inverted as Adobe's programs write it; RGB16 [h, w, 6], of which the high bytes stay; GREY16
 * [h, w, 2], of which values above 255 become 255, as Pillow does. Numbers of 16 bits are two bytes
 * in the order of the machine. */
enum { TIDE_PIXELS_RGBA = 0, TIDE_PIXELS_CMYK = 1, TIDE_PIXELS_RGB16 = 2, TIDE_PIXELS_GREY16 = 3 };
/* Makes RGB of pixels x of a layout. */
int tide_image_rgb(tide_tensor **out, tide_tensor *x, int layout);
/* Makes pixels as their EXIF orientation (1 to 8) says that they are seen; from 5 on height and
 * width change places. */
int tide_image_orient(tide_tensor **out, tide_tensor *x, int orientation);
/* Filters of a resize. */
enum { TIDE_RESIZE_BICUBIC = 0, TIDE_RESIZE_BILINEAR = 1 };
/* Resizes to [rows, columns, 3] by a filter with antialias: the numbers of PyTorch's interpolate on
 * uint8. */
int tide_image_resize(tide_tensor **out, tide_tensor *x, int64_t rows, int64_t columns, int filter);
/* What a vision tower reads: patches of patch x patch pixels, in blocks of merge x merge patches,
 * of depth frames each (14, 2 and 2 by default). value: the number of each value of a pixel, [3,
 * 256]. */
typedef struct tide_image_patches_attrs {
  uint32_t size;
  int32_t  patch, merge, depth;
  float    value[768];
} tide_image_patches_attrs;
void tide_image_patches_attrs_init(tide_image_patches_attrs *attrs);
/* Writes pixels x into slots first to last (from 0) of the patches of one frame, the one of number
 * `frame` in `to`, f32 [patches, 3 * depth * patch * patch]. Patches lie block by block. */
int tide_image_patches(tide_tensor *to, tide_tensor *x, int64_t frame, int first, int last,
                       const tide_image_patches_attrs *attrs);

/* ---- tokenizers ------------------------------------------------------------------------------ */

/* A tokenizer is made of tables: pieces (tide_tokenizer_new), for BPE merges, added tokens and
 * steps. Then texts are encoded. Raw text is searched for added tokens; what lies between goes
 * through the steps of stage NORMAL, is searched for the added tokens of normalized text, goes
 * through the steps of stage WORDS, and each word that these leave goes to the model. */
enum { TIDE_TOKENIZER_BPE = 0, TIDE_TOKENIZER_UNIGRAM = 1, TIDE_TOKENIZER_WORDPIECE = 2,
       TIDE_TOKENIZER_WORDS = 3 };
/* Flags. BYTES: BPE begins with bytes, else with characters. BYTE_FALLBACK: text that is not a
 * piece becomes pieces <0x00> to <0xFF>. FUSE_UNK: neighbouring unknown characters are one token.
 * IGNORE_MERGES: a word that is a piece is one token. F32_SCORES: a path's sum of scores is kept in
 * f32, and the pieces of bytes match no text, as in sentencepiece; else the sum is in f64, and they
 * match their names, as in tokenizers. Of equal sums the first path found wins. */
enum { TIDE_TOKENIZER_BYTES = 1, TIDE_TOKENIZER_BYTE_FALLBACK = 2, TIDE_TOKENIZER_FUSE_UNK = 4,
       TIDE_TOKENIZER_IGNORE_MERGES = 8, TIDE_TOKENIZER_F32_SCORES = 16 };
/* Makes a tokenizer of n pieces: piece i, whose id is i, is bytes[ends[i - 1], ends[i]); an empty
 * one matches no text. Copies everything. unk: the id of text that is not a piece; -1: such text is
 * dropped. scores (n, may be null): logarithms of probabilities, for UNIGRAM. E_ARG. */
int  tide_tokenizer_new(tide_tokenizer **out, tide_ctx *ctx, int model, int flags, int32_t unk,
                        int64_t n, const char *bytes, const int64_t *ends, const double *scores);
void tide_tokenizer_release(tide_tokenizer *tok);
/* Sets affixes. WORDPIECE: prefix of pieces inside a word, most characters of a word (0: any). BPE:
 * prefix of characters but the first of a word, suffix of the last one. Both may be null. */
int tide_tokenizer_affix(tide_tokenizer *tok, const char *prefix, const char *suffix, int32_t most);
/* Sets the merges of BPE, first ones first: n times left id, right id, id of the result. Once. */
int tide_tokenizer_merges(tide_tokenizer *tok, int64_t n, const int32_t *merges);
/* Sets the merges from the pieces: two pieces merge if their texts make a third, whose rank (lower
 * ones first; -1: it is not made by merging) is ranks[id]; one for each piece. */
int tide_tokenizer_merge_pieces(tide_tokenizer *tok, const int32_t *ranks);
/* Flags of added tokens. SPECIAL: found if TIDE_ENCODE_SPECIAL is given. NORMALIZED: searched in
 * normalized text. WORD: only as a whole word. LSTRIP, RSTRIP: with the white space before it,
 * after it. */
enum { TIDE_ADDED_SPECIAL = 1, TIDE_ADDED_NORMALIZED = 2, TIDE_ADDED_WORD = 4,
       TIDE_ADDED_LSTRIP = 8, TIDE_ADDED_RSTRIP = 16 };
/* Adds a token: this text becomes this id. */
int tide_tokenizer_add(tide_tokenizer *tok, const char *text, int64_t nbytes, int32_t id,
                       int flags);
enum { TIDE_STAGE_NORMAL = 0, TIDE_STAGE_WORDS = 1, TIDE_STAGE_COUNT = 2 };
/* Kinds of steps; `what` is a pattern of PCRE2, `with` a text. SPLIT cuts at `what`, mode
 * TIDE_SPLIT_*. REPLACE puts `with` in place of `what`, mode TIDE_REPLACE_*. PREPEND puts `with`
 * before a text that is not empty, mode TIDE_PREPEND_*. UNICODE: a normal form, mode
 * TIDE_UNICODE_*. LOWER: lower case. BYTES maps each byte to its character in vocabularies of
 * bytes. CHARSMAP: `with` is the table of sentencepiece's normalizer, mode TIDE_CHARSMAP_*. */
enum { TIDE_STEP_SPLIT = 0, TIDE_STEP_REPLACE = 1, TIDE_STEP_PREPEND = 2, TIDE_STEP_UNICODE = 3,
       TIDE_STEP_LOWER = 4, TIDE_STEP_BYTES = 5, TIDE_STEP_CHARSMAP = 6 };
/* What happens to a match: it is dropped, is a part by itself, joins the part before or after it,
 * or is one part with neighbouring matches. INVERT: matches and the rest change places. MODE is the
 * mask of the first five. */
enum { TIDE_SPLIT_REMOVED = 0, TIDE_SPLIT_ISOLATED = 1, TIDE_SPLIT_WITH_PREVIOUS = 2,
       TIDE_SPLIT_WITH_NEXT = 3, TIDE_SPLIT_CONTIGUOUS = 4, TIDE_SPLIT_INVERT = 8,
       TIDE_SPLIT_MODE = 7 };
enum { TIDE_REPLACE_SURROUND = 1 };  /* the match stays, with `with` before and after it */
/* UNLESS: unless the text begins with it. FIRST: only where the text begins. */
enum { TIDE_PREPEND_UNLESS = 1, TIDE_PREPEND_FIRST = 2 };
enum { TIDE_UNICODE_NFC = 0, TIDE_UNICODE_NFD = 1, TIDE_UNICODE_NFKC = 2, TIDE_UNICODE_NFKD = 3 };
/* LONGEST: the longest entry at each place, as sentencepiece; without it as tokenizer.json says. */
enum { TIDE_CHARSMAP_LONGEST = 1 };
/* Appends a step to a stage, before the first text is encoded. E_UNSUPPORTED names the package that
 * is missing (PCRE2 for patterns, utf8proc for UNICODE, LOWER and CHARSMAP); E_FORMAT: an invalid
 * pattern. */
int tide_tokenizer_step(tide_tokenizer *tok, int stage, int kind, int mode, const char *what,
                        int64_t nwhat, const char *with, int64_t nwith);
/* Flags of encode. OFFSETS: records are id, first byte, byte after the last. SPECIAL: special
 * tokens are found in the text. U16: ids of 16 bits. */
enum { TIDE_ENCODE_OFFSETS = 1, TIDE_ENCODE_SPECIAL = 2, TIDE_ENCODE_U16 = 4 };
/* Returns the ids of a text as a blob of int32_t (uint16_t with U16). E_ARG names the first byte
 * that is not UTF-8. */
int tide_tokenizer_encode(tide_blob **out, tide_tokenizer *tok, const char *text, int64_t nbytes,
                          int flags);
/* Encodes n texts on up to nthread threads (0: those of the context; at most 64). The blob is n
 * counts of int64_t, then the ids of all texts. */
int tide_tokenizer_encode_batch(tide_blob **out, tide_tokenizer *tok, int64_t n,
                                const char *const *texts, const int64_t *sizes, int flags,
                                int nthread);

/* ---- ranks: groups and communicators --------------------------------------------------------- */
/* A group is the shared state of N ranks of one process; each rank joins it with its own context on
 * its own thread and gets a communicator. Every rank makes the same collective calls on a
 * communicator in the same order. Calls (operation, reduction, dtypes, counts, root) are compared
 * before any data moves: a difference is E_COMM on every rank, with the call sites that
 * tide_comm_site set; a rank that does not call is E_TIMEOUT, a rank that failed or left E_PEER.
 * After such a failure the communicator is poisoned: each later call returns the same error at
 * once, and a new group must be made, or every rank pauses. Reductions run in rank order for each
 * element, so the result has the same bits for any timing. */

enum { TIDE_SUM = 0, TIDE_MEAN = 1, TIDE_MIN = 2, TIDE_MAX = 3, TIDE_PROD = 4, TIDE_NREDUCE = 5 };

typedef struct tide_work tide_work; /* a collective in progress, or done */

typedef struct tide_group_opts {
  uint32_t size;
  double   timeout; /* seconds that a rank waits for the others; default 600 */
} tide_group_opts;
void tide_group_opts_init(tide_group_opts *opts);
/* Makes a group for ranks that are threads of this process, 1 to 1024. Needs no context: made
 * before the threads start and passed to each. opts may be null; msg (may be null) receives up to
 * nmsg bytes on failure. */
int  tide_group_new(tide_group **out, int nrank, const tide_group_opts *opts, char *msg,
                    size_t nmsg);
/* Adds a reference to a group, which communicators keep, too; any thread. E_ARG: not a live
 * group. */
int  tide_group_retain(tide_group *group);
void tide_group_release(tide_group *group);
int  tide_group_size(const tide_group *group); /* its number of ranks */
/* Reports the end of a rank's program: success (status 0) or a failure (negative, with a message).
 * Ranks that wait for it, now or later, get E_PEER: after a failure at once and on every
 * communicator of the group, with the first failure's message. Any thread. */
void tide_group_leave(tide_group *group, int rank, int status, const char *message);
/* Pauses a rank whose program runs in turns, such as the lines of a prompt: until resume it makes
 * no calls on the group's communicators. Blocks until its asynchronous calls have ended. Ranks that
 * wait for a paused rank get E_COMM within about half a second; the text names the missing ranks.
 * When all ranks have paused, communicators that have failed work again, with calls numbered from
 * 1, unless a rank has left them or a device has failed. ctx: the rank's, on its thread.
 * Idempotent. */
int  tide_group_pause(tide_group *group, int rank, tide_ctx *ctx);
/* Ends the pause of a rank, which may make calls again. */
int  tide_group_resume(tide_group *group, int rank, tide_ctx *ctx);

/* Joins a group: returns this context's communicator, named "world". group null: the only rank of a
 * group of its own. E_STATE: the rank has joined already. */
int  tide_comm_join(tide_comm **out, tide_ctx *ctx, tide_group *group, int rank);
typedef struct tide_mpi_opts {
  uint32_t size;
  int32_t  check;      /* 1 (default): compare calls before data moves; 0: trust them, a round
                          trip less: calls that differ are MPI's errors, wrong numbers or waits
                          until the timeout. The same on every rank. Threads always compare */
  double   timeout;    /* seconds a rank waits for the others; default 600 */
  const char *library; /* file of the MPI library; null: the usual names */
} tide_mpi_opts;
void tide_mpi_opts_init(tide_mpi_opts *opts);
/* Joins the processes of an MPI job as ranks, named "world". Opens libmpi (Open MPI 4 or later, or
 * one of MPICH's binary interface) and initialises MPI if it is not initialised; every process of
 * the job calls it, in the same order. Results have the same bits as those of as many threads. opts
 * may be null. E_UNSUPPORTED: no MPI library. With less than MPI_THREAD_SERIALIZED asynchronous
 * calls are done when they return. */
int  tide_comm_mpi(tide_comm **out, tide_ctx *ctx, const tide_mpi_opts *opts);
/* Pauses a rank as tide_group_pause does, of an MPI job: comm is the world of tide_comm_mpi. All
 * ranks take part in each turn, also those that do nothing in it. Ranks that wait for a paused rank
 * get E_COMM within about half a second. In a turn an interrupt does not stop a collective whose
 * data move. E_PEER: MPI cannot be used any more. */
int  tide_comm_pause(tide_comm *comm);
/* Begins the next turn when all ranks have paused: blocks for them, at most for comm's timeout.
 * Communicators made from comm that have failed work again, with calls numbered from 1, unless a
 * rank has left them. */
int  tide_comm_resume(tide_comm *comm);
typedef struct tide_nccl_opts {
  uint32_t size;
  int32_t  check;      /* 1: compare calls before data moves, a round trip each; 0 (default):
                          trust them, calls that differ are wrong numbers or waits until the
                          timeout */
  const char *library; /* file of NCCL; null: libnccl.so.2 */
} tide_nccl_opts;
void tide_nccl_opts_init(tide_nccl_opts *opts);
/* Makes a communicator of the ranks of `over` (local, MPI or of one rank) for tensors on CUDA
 * devices, by NCCL 2.18 or later, opened at run time. Collective over `over`, which carries the
 * unique id. E_UNSUPPORTED on every rank if one lacks NCCL or a CUDA device; each rank needs a
 * device of its own (parameter cuda_device). Reductions are in NCCL's order. opts may be null. */
int  tide_comm_nccl(tide_comm **out, tide_comm *over, const tide_nccl_opts *opts);
/* Prepares t's memory for many collectives of comm: over NCCL it is registered, which saves copies
 * and lets the network read it. It must not be dropped until comm closes. Elsewhere it does
 * nothing. E_DEVICE: over NCCL, t is not on 'cuda'. */
int  tide_comm_register(tide_comm *comm, tide_tensor *t);
/* For the program that owns the process. running: 1 between MPI's start and end. end: MPI_Finalize,
 * on every process, after the last communicator; it waits until all have called it (or fail), but
 * after a failure of a call at most a moment: TIDE_E_PEER, some have not called it, the process
 * must abort. abort: ends every process of the job with this exit code; returns only if MPI does
 * not run. elect: elects one of the failing processes to report the error and end the job. Each
 * that fails calls it in place of end, after the last communicator and with its output written.
 * cause: 1, it failed by itself; 0, because another did. Waits a moment for the others to end,
 * then: TIDE_MORE, this process reports and aborts; TIDE_OK, another does, and did not end this one
 * in a while; TIDE_E_STATE, the processes cannot communicate. Of those with a cause, else of all,
 * the lowest rank is elected: */
int  tide_mpi_running(void);
int  tide_mpi_end(void);
int  tide_mpi_elect(int cause);
int  tide_mpi_abort(int code);
/* Makes one rank of a simulated nrank: collectives are counted (tide_comm_traffic), nothing moves,
 * and results keep their contents. For null-device tensors too. host_size: ranks that share a
 * host. */
int  tide_comm_simulate(tide_comm **out, tide_ctx *ctx, int nrank, int rank, int host_size);
/* Leaves the group: ranks that still wait for this one get E_PEER. Any thread: from one that does
 * not own the context, the communicator is left when the owner next runs an op or a collective. */
void tide_comm_release(tide_comm *comm);
tide_ctx *tide_comm_ctx(const tide_comm *comm);    /* of this rank, borrowed */
int  tide_comm_rank(const tide_comm *comm);        /* this rank's number, 0 to size - 1 */
int  tide_comm_size(const tide_comm *comm);        /* number of ranks */
const char *tide_comm_name(const tide_comm *comm); /* "world", or that given to split. Borrowed. */
/* Returns "self", "local", "mpi", "nccl" or "sim". Static. */
const char *tide_comm_transport(const tide_comm *comm);
/* Sets how long this rank's later calls wait for the others: more than 0, less than 1e9, else
 * E_ARG. A communicator that is split off inherits it. */
int  tide_comm_set_timeout(tide_comm *comm, double seconds);
/* Sets the call site of the next calls, "train.lua:12", for error messages. Copied, cut to 63
 * bytes. */
void tide_comm_site(tide_comm *comm, const char *text);
/* Splits a communicator: ranks that pass the same color (>= 0) get one of their own, ranked by key,
 * then by rank here. With a negative color a rank gets none: TIDE_MORE and *out null. name may be
 * null. */
int  tide_comm_split(tide_comm **out, tide_comm *comm, int color, int key, const char *name);
/* Poisons the communicator for all its ranks, with E_PEER and this text. Any thread that is sure
 * the handle is alive. */
void tide_comm_abort(tide_comm *comm, const char *reason);
/* Returns 0, or the error that every call on this communicator now returns. */
int  tide_comm_status(tide_comm *comm);

/* Collectives. work null: done on return (on a device: before all later work on it; the host does
 * not wait for it). Else *work is owned, the operands are kept alive and must not be used until
 * tide_work_wait, and the collective proceeds by itself; collectives on one communicator run in the
 * order of the calls. Tensors of collectives in place, and those that are written, must be
 * contiguous and without history; they may be of any dtype and count, 0 included. Other inputs may
 * have any strides. op is TIDE_SUM, ...; MEAN requires a floating dtype, SUM refuses bool. bf16 and
 * f16 are combined in f32 and rounded once; MIN and MAX propagate NaN. */

/* Reduces n tensors (gradients) in place, as one call. */
int  tide_comm_all_reduce(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *ts,
                          int op);
/* Reduces as all_reduce, but only root's tensors change. */
int  tide_comm_reduce(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *ts, int op,
                      int root);
/* Copies n tensors of root to every rank, in place. */
int  tide_comm_broadcast(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *ts,
                         int root);
/* Gathers every rank's in, in rank order: out holds size times in's elements. in may be this rank's
 * part of out itself. */
int  tide_comm_all_gather(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in);
/* Gathers different sizes. counts[r]: elements of rank r, the same list on every rank. */
int  tide_comm_all_gather_v(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                            const int64_t *counts);
/* Reduces and scatters: in holds size times out's elements; out gets this rank's part. out may be
 * this rank's part of in itself. */
int  tide_comm_reduce_scatter(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                              int op);
/* Scatters different sizes. counts[r]: elements that rank r keeps, the same list on every rank. */
int  tide_comm_reduce_scatter_v(tide_work **work, tide_comm *comm, tide_tensor *out,
                                tide_tensor *in, const int64_t *counts, int op);
/* Sends part r of in to rank r and receives part r of out from it. */
int  tide_comm_all_to_all(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in);
/* Receives out_counts[r] elements from rank r, which must send as many, and sends it
 * in_counts[r]. */
int  tide_comm_all_to_all_v(tide_work **work, tide_comm *comm, tide_tensor *out,
                            const int64_t *out_counts, tide_tensor *in, const int64_t *in_counts);
/* Gathers every rank's in, in rank order, into root's out (null elsewhere). */
int  tide_comm_gather(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                      int root);
/* Copies part r of root's in (null elsewhere) into rank r's out. */
int  tide_comm_scatter(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                       int root);
/* Sends n tensors to rank `to` and receives n from rank `from`, each -1 for none (then its list may
 * be null). Every rank calls; what one sends must match what the other receives. Ring shift: to =
 * rank + 1, from = rank - 1, modulo size. outs and ins do not overlap. */
int  tide_comm_send_recv(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *outs,
                         int from, tide_tensor *const *ins, int to);
/* Blocks until every rank has called it. Does not order work that ranks have enqueued on a shared
 * device. */
int  tide_comm_barrier(tide_work **work, tide_comm *comm);

/* Sends a byte string of root, control data, to every rank; data and n are read on root only. */
int  tide_comm_broadcast_bytes(tide_blob **out, tide_comm *comm, const void *data, int64_t n,
                               int root);
/* Gathers every rank's byte string, one after another; sizes (space for size numbers) receives
 * their lengths. */
int  tide_comm_all_gather_bytes(tide_blob **out, tide_comm *comm, const void *data, int64_t n,
                                int64_t *sizes);

/* Waits (on a device: orders later work after it), then releases the operands. Returns the
 * collective's own status; again at once. */
int  tide_work_wait(tide_work *work);
/* Returns 1 if it is done (with success or failure; wait then returns at once), 0 in progress. */
int  tide_work_test(tide_work *work);
/* Returns the seconds of the trace clock at the collective's begin and end; 0 before either. */
void tide_work_times(const tide_work *work, double *begin, double *end);
/* Releases a collective, which still runs if it is not done; its operands are released later. Any
 * thread, as for a communicator. */
void tide_work_release(tide_work *work);

/* One of the last 256 collectives of a communicator. */
typedef struct tide_comm_record {
  int64_t seq, count;      /* number on this communicator, from 1; elements on this rank */
  double  begin, end;      /* trace clock; end 0: not finished */
  int32_t status;          /* TIDE_MORE: in progress */
  int32_t op, reduce, dtype, root; /* op: see tide_coll_name; others -1: unused */
  int32_t async;
  char    site[64];
} tide_comm_record;
/* Returns record i, 0 the oldest kept. TIDE_MORE (record untouched) beyond the last. */
int  tide_comm_history(tide_comm *comm, int64_t i, tide_comm_record *record);
const char *tide_coll_name(int op);      /* "all_reduce"; null if unknown */
const char *tide_reduce_name(int reduce); /* "sum" */

/* What a communicator has moved, or, simulated, would have: counted on this rank by the best known
 * algorithm (ring or direct). Link classes: 0 within a host, 1 between hosts. seconds: spent in
 * blocking collectives and in waits for others, which is not this rank's own computation. */
typedef struct tide_comm_stats {
  int64_t ncall, nmessage[2], nbyte[2];
  double  seconds;
} tide_comm_stats;
/* Returns the counts since the communicator was made. */
int  tide_comm_traffic(tide_comm *comm, tide_comm_stats *stats);

/* ---- the list of ops, for specs and tools ---------------------------------------------------- */

int         tide_op_count(void);  /* ops are numbered from 0 */
const char *tide_op_name(int op); /* "matmul"; null if unknown */
/* Returns a set of TIDE_OPF_*. */
int         tide_op_flags(int op);
enum { TIDE_OPF_VIEW = 1, TIDE_OPF_INPLACE = 2, TIDE_OPF_RANDOM = 4, TIDE_OPF_BACKWARD = 8,
       TIDE_OPF_NOGRAD = 16 };
/* Returns 1 if the device has a kernel for this op and dtype, else 0. */
int         tide_op_supported(int op, int device, int dtype);
