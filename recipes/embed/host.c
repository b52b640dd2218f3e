/* A program with tide inside: one context for sums in C, one that trains in Lua.
 *
 *   cc host.c $(pkg-config --cflags --libs tide-host) -o host && ./host
 *
 * The first context takes the memory of its tensors from the program and writes its log lines
 * through the program. The second runs train.lua a few milliseconds at a time, between the events
 * of the program's loop. It prints the losses of both, and what is left at the end: nothing.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tide/tide_lua.h>

/* ---- hooks ----------------------------------------------------------------------------------- */

typedef struct memory { long blocks, total; } memory;

static void *take(void *user, size_t size, size_t align, int32_t device)
{
  memory *m = user;
  void *p = aligned_alloc(align, (size + align - 1) / align * align);
  (void)device;
  if (p) m->blocks++, m->total++;
  return p; /* null: the call fails with E_NOMEM, and everything goes on */
}

static void give(void *user, void *p, size_t size, int32_t device)
{
  (void)size;
  (void)device;
  ((memory *)user)->blocks--;
  free(p);
}

static void log_line(void *user, int32_t level, const char *text)
{
  (void)user;
  printf("log (%d): %s\n", level, text);
}

/* ---- a training step in C -------------------------------------------------------------------- */

static void check(tide_ctx *ctx, int status)
{
  if (status >= 0) return;
  const tide_error_record *e = tide_error(ctx);
  fprintf(stderr, "%s: %s (%s)\n", e->op, e->message, e->name);
  exit(1);
}

/* Takes one step of gradient descent on the mean of (x w - y)^2. Returns the loss before it. */
static double step_in_c(tide_ctx *ctx, tide_tensor *x, tide_tensor *y, tide_tensor *w)
{
  tide_tensor *p, *d, *sq, *loss, *g;
  double value;
  check(ctx, tide_matmul(&p, x, w));
  check(ctx, tide_sub(&d, p, y));
  check(ctx, tide_square(&sq, d));
  check(ctx, tide_mean(&loss, sq, 0, NULL, false));
  check(ctx, tide_backward_run(loss, NULL));
  check(ctx, tide_grad(&g, w));
  int recorded = tide_set_recording(ctx, false); /* the update is not part of the graph */
  check(ctx, tide_axpy_(w, g, -0.1));
  tide_set_recording(ctx, recorded == 1);
  check(ctx, tide_set_grad(w, NULL));
  check(ctx, tide_item(loss, &value));
  tide_tensor *made[] = {p, d, sq, loss, g};
  for (size_t i = 0; i < sizeof made / sizeof *made; i++) tide_tensor_release(made[i]);
  return value;
}

static tide_tensor *matrix(tide_ctx *ctx, int64_t rows, int64_t columns, const float *data)
{
  tide_tensor *t;
  const int64_t shape[] = {rows, columns};
  check(ctx, tide_from_bytes(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape, data,
                             (size_t)(rows * columns) * sizeof *data));
  return t;
}

static int train_in_c(void)
{
  const float xs[] = {1, 0, 0, 1, 1, 1, 2, 1}, ys[] = {2, -1, 1, 3}, zero[] = {0, 0};
  memory used = {0};
  tide_opts opts;
  tide_ctx *ctx;
  char msg[256];
  tide_opts_init(&opts);
  opts.tensor_alloc = take;
  opts.tensor_free = give;
  opts.log = log_line;
  opts.user = &used;
  if (tide_ctx_new(&ctx, &opts, msg, sizeof msg) < 0) return fprintf(stderr, "%s\n", msg), 1;
  tide_tensor *x = matrix(ctx, 4, 2, xs), *y = matrix(ctx, 4, 1, ys), *w = matrix(ctx, 2, 1, zero);
  check(ctx, tide_set_needs_grad(w, true));
  double loss = 0;
  for (int i = 0; i < 100; i++) loss = step_in_c(ctx, x, y, w);
  printf("in C: loss %.2g after 100 steps\n", loss);
  tide_tensor *bad;
  if (tide_matmul(&bad, x, x) < 0) printf("in C: %s\n", tide_error(ctx)->message);
  tide_tensor_release(x);
  tide_tensor_release(y);
  tide_tensor_release(w);
  tide_ctx_release(ctx);
  printf("in C: %ld of %ld blocks are left\n", used.blocks, used.total);
  return 0;
}

/* ---- training in Lua, between events --------------------------------------------------------- */

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs a piece of Lua. Returns its text, borrowed until the next one; null after an error. */
static const char *lua(lua_State *L, const char *code)
{
  if (tide_lua_run_string(L, code, strlen(code), "host", 0, NULL) == 0)
    return tide_lua_result(L, NULL);
  fprintf(stderr, "%s\n", tide_lua_message(L));
  return NULL;
}

static int train_in_lua(const char *path)
{
  tide_ctx *ctx;
  lua_State *L;
  char msg[512];
  if (tide_ctx_new(&ctx, NULL, msg, sizeof msg) < 0) return fprintf(stderr, "%s\n", msg), 1;
  if (tide_lua_open(&L, ctx, NULL, msg, sizeof msg) < 0) return fprintf(stderr, "%s\n", msg), 1;
  if (tide_lua_run_file(L, path, 0, NULL) < 0)
    return fprintf(stderr, "%s\n", tide_lua_message(L)), 1;
  long events = 0;
  const char *text = "more";
  for (double end = now() + 60; text && strcmp(text, "more") == 0 && now() < end; events++) {
    poll(NULL, 0, 0);                        /* the program's own events have their turn here */
    text = lua(L, "return task:step(5) and 'more' or task.value"); /* about 5 ms of training */
  }
  if (text) printf("in Lua: %s, between %s events\n", text, events > 1 ? "many" : "no");
  lua_close(L);
  tide_ctx_release(ctx); /* after the state, which borrows it */
  return text ? 0 : 1;
}

int main(int argc, char **argv)
{
  int failed = train_in_c();
  return failed ? failed : train_in_lua(argc > 1 ? argv[1] : "train.lua");
}
