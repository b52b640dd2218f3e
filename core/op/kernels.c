/* The kernels of this build: the rows of kernels/kernel.def, indexed once per context, and those of
 * a device plugin, added at its first use.
 *
 * A row is chosen by op, device and the dtype of the op's key operand; later rows win, so a fast
 * kernel for one dtype may follow a general one. There is no silent fallback: no row, no result.
 */
#include "core/op/kernels.h"
#include "core/op/op.h"
#include "kernels/plugin_row.h"

static const tide__kernel rows[] = {
#define K(op, device, fn, dtypes, layout) \
  {TIDE_OP_##op, TIDE_DEV_##device, fn, NULL, dtypes, layout},
#define KW(op, device, fn, work, dtypes, layout) \
  {TIDE_OP_##op, TIDE_DEV_##device, fn, work, dtypes, layout},
#include "kernels/kernel.def"
#undef K
#undef KW
};

enum { NROW = sizeof rows / sizeof rows[0] };

/* row: 1 + the index in rows; beyond NROW, in added. */
struct tide__kernel_index {
  int16_t row[TIDE__NOP][TIDE_NDEV][TIDE_NDTYPE];
  bool looked[TIDE_NDEV];          /* the plugin's rows are indexed */
  tide__kernel *added;             /* copies of a plugin's rows with op numbers */
  int nadded;
};

static void enter(struct tide__kernel_index *index, const tide__kernel *k, int slot)
{
  for (int t = 0; t < TIDE_NDTYPE; t++)
    if (k->dtypes >> t & 1) index->row[k->op][k->device][t] = (int16_t)(slot + 1);
}

int tide__kernels_open(tide_ctx *ctx)
{
  struct tide__kernel_index *index = tide__alloc(ctx, sizeof *index);
  if (!index) return tide__fail(ctx, TIDE_E_NOMEM, "ctx_new", "no memory for the kernel index");
  for (int i = 0; i < NROW; i++) enter(index, &rows[i], i);
  ctx->kernels = index;
  return TIDE_OK;
}

void tide__kernels_close(tide_ctx *ctx)
{
  struct tide__kernel_index *index = ctx->kernels;
  tide__free(ctx, index->added, (size_t)index->nadded * sizeof *index->added);
  tide__free(ctx, index, sizeof *index);
  ctx->kernels = NULL;
}

static int op_by_name(const char *name)
{
  for (int op = 0; op < TIDE__NOP; op++)
    if (strcmp(tide__op_get(op)->name, name) == 0) return op;
  return -1;
}

/* Indexes the rows of a plugin, once. Skips an op that this library does not have, which cannot
 * happen with equal versions. */
static void add_plugin(tide_ctx *ctx, int device)
{
  struct tide__kernel_index *index = ctx->kernels;
  const tide__plugin *p = ctx->devices->device[device].plugin;
  index->looked[device] = true;
  if (!p || index->added) return;
  index->added = tide__alloc(ctx, (size_t)p->nrow * sizeof *index->added);
  if (!index->added) return;
  index->nadded = p->nrow;
  for (int i = 0; i < p->nrow; i++) {
    const k_row *r = &p->rows[i];
    int op = op_by_name(r->op);
    index->added[i] = (tide__kernel){op, device, r->fn, r->work, r->dtypes, r->layout};
    if (op >= 0) enter(index, &index->added[i], NROW + i);
  }
}

const tide__kernel *tide__kernel_find(tide_ctx *ctx, int op, int device, int dtype)
{
  struct tide__kernel_index *index = ctx->kernels;
  int i = index->row[op][device][dtype];
  if (!i && !index->looked[device]) {
    add_plugin(ctx, device);
    i = index->row[op][device][dtype];
  }
  if (!i) return NULL;
  return i <= NROW ? &rows[i - 1] : &index->added[i - 1 - NROW];
}

/* Returns whether the plugin has the kernel, without opening the device. */
static int plugin_supports(int op, int device, int dtype)
{
  char why[TIDE__OPEN_MSG];
  const tide__plugin *p = tide__plugin_find(device, why, sizeof why);
  for (int i = 0; p && i < p->nrow; i++)
    if (p->rows[i].dtypes >> dtype & 1 && strcmp(p->rows[i].op, tide__op_get(op)->name) == 0)
      return 1;
  return 0;
}

int tide_op_supported(int op, int device, int dtype)
{
  if (op < 0 || op >= TIDE__NOP || dtype < 0 || dtype >= TIDE_NDTYPE) return 0;
  if (device == TIDE_DEV_NULL) return 1;
  if (tide__op_get(op)->flags & TIDE_OPF_VIEW) return device >= 0 && device < TIDE_NDEV;
  for (int i = 0; i < NROW; i++)
    if (rows[i].op == op && rows[i].device == device && rows[i].dtypes >> dtype & 1) return 1;
  return plugin_supports(op, device, dtype);
}
