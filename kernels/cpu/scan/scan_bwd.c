/* The SSD scan backward. See scan.h.
 *
 * Only the gradient of the state passes from chunk to chunk, and that is one product a chunk; the
 * rest of a chunk follows from the states on its two sides. So chunks are processed in windows, the
 * last first. In each, the gradients of its states are computed head by head, from the last chunk
 * to the first; then its chunks are independent tasks, each with all heads of a group, so C B' and
 * d(C B') are computed once and dB and dC are summed in one place. With g = dy:
 *   dS[t, s] = g_t . u_s;  du = S' g + out * (B dstate');  dstate <- whole dstate + (in g)' C
 *   dC_t += in_t g_t state + ...;  dB_s += out_s u_s dstate + ...
 * and the rest of dB and dC is one product per group: with d(C B') summed over the heads.
 *
 * The gradient of step_j A is the sum of K[t, s] = S dS over the pairs s < j <= t. It is added up
 * from those pairs alone: each decays by step_j A, so every term is as small as the sum may be. A
 * difference of row and column sums would need the same operations, but loses all digits where a
 * large step lies between the pairs of its sides. The terms from the states are kept separately
 * in the same way: running sums from the side that adds.
 *
 * Sums over heads run in head order, sums over chunks from the last to the first, so results depend
 * on neither windows nor threads.
 */
#include "kernels/cpu/scan/scan_bwd.h"
#include "kernels/sequence.h"

enum { EACH = 4, WINDOW_BYTES = 64 << 20 }; /* of a window: tasks per thread; bytes */

/* ---- the gradients of states --------------------------------------------------------------- */

/* Writes in g as operand. */
static void early_rows(const ssd_back *w, const ssd_at *at, int64_t h, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  const k_tensor *dy = &w->call->in[IN_DY];
  for (int64_t i = 0; i < at->n; i++) {
    const float *g = row_read(dy, ssd_offset(dy, at, i, h), r->row2, s->P);
    float *in_g = s->half ? r->row4 : (float *)r->in_g + i * s->P;
    tide__ssd_scale(in_g, g, r->st.in[i], s->P);
    tide__ssd_put(s, r->in_g, i * s->P, in_g, s->P);
  }
}

/* Computes before <- whole dstate + (in g)' C; with dstate null the first term is 0. */
static void pass_on(const ssd *s, const ssd_at *at, const float *dstate, float *before,
                    ssd_back_scratch *r)
{
  if (dstate) tide__ssd_scale(before, dstate, r->st.whole, s->P * s->N);
  tide__panel_pack_a(s->kern, r->a_cols, ssd_own(s, r->in_g, 1, s->P), s->P, at->n);
  tide__panel_mm(s->kern, (panel_mm){r->a_cols, r->b_Cn, before, s->N, s->P, s->N, at->n,
                                     dstate != 0});
}

/* Passes the gradient over one chunk, for a block of heads. */
static void pass_chunk(const ssd_back *w, ssd_at *at, int64_t c, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  tide__ssd_chunk(s, at, c);
  if (!tide__ssd_next(s, at) || !at->seen) return;
  int whole = at->t0 + at->n == s->T || at->n == s->attrs->chunk;
  tide__panel_pack_b(s->kern, r->b_Cn, ssd_rows(s->C, at, 1), s->N, at->n);
  for (int64_t h = at->h0; h < at->h0 + at->nh; h++) {
    tide__ssd_steps(s, at, h, &r->st);
    early_rows(w, at, h, r);
    const float *after = whole && at->used ? ssd_slot(w, at->b, c, h) : 0;
    pass_on(s, at, after, ssd_slot(w, at->b, c - 1, h), r);
  }
}

static void pass_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const ssd_back *w = arg;
  ssd_back_scratch r;
  tide__ssd_back_layout(&w->s, w->work + w->each * thread, &r);
  if (w->s.kern->begin) w->s.kern->begin();
  for (int64_t i = begin; i < end; i++) {
    ssd_at at;
    tide__ssd_task(&w->s, i, &at);
    for (int64_t c = w->c1 - 1; c >= w->c0; c--) pass_chunk(w, &at, c, &r);
  }
  if (w->s.kern->end) w->s.kern->end();
}

/* ---- the chunks of a window --------------------------------------------------------------- */

static void scan_bwd_run_chunk(const ssd_back *w, ssd_at *at, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  int64_t n = s->H / s->G;
  memset(ssd_sums(w, at->b, at->c, at->g * n), 0, (size_t)(n * (2 + s->P)) * sizeof(double));
  tide__ssd_chunk(s, at, at->c);
  while (tide__ssd_next(s, at)) {
    tide__ssd_back_share(s, at, r);
    for (int64_t k = 0; k < n; k++) tide__ssd_back_head(w, at, at->g * n + k, r);
    tide__ssd_back_end(w, at, r);
  }
}

/* Runs tasks: task i is (batch, group, chunk of the window). */
static void chunk_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const ssd_back *w = arg;
  int64_t n = w->c1 - w->c0;
  ssd_back_scratch r;
  tide__ssd_back_layout(&w->s, w->work + w->each * thread, &r);
  if (w->s.kern->begin) w->s.kern->begin();
  for (int64_t i = begin; i < end; i++) {
    ssd_at at = {.b = i / n / w->s.G, .g = i / n % w->s.G, .c = w->c0 + i % n};
    scan_bwd_run_chunk(w, &at, &r);
  }
  if (w->s.kern->end) w->s.kern->end();
}

/* ---- all windows --------------------------------------------------------------------------- */

/* Sets the gradient of the state after the last token, also for zero tokens. */
static void first_gradients(const ssd_back *w)
{
  const ssd *s = &w->s;
  const k_tensor *t = &w->call->in[IN_DLAST];
  for (int64_t b = 0; b < s->nb; b++)
    for (int64_t h = 0; h < s->H; h++) {
      float *to = ssd_slot(w, b, s->nchunk - 1, h);
      if (k_absent(t)) memset(to, 0, (size_t)(s->P * s->N) * sizeof(float));
      else
        for (int64_t p = 0; p < s->P; p++)
          row_widen(to + p * s->N,
                    row_at(t, b * t->stride[0] + h * t->stride[1] + p * t->stride[2]), t->dtype,
                    s->N);
    }
}

static void add_sums(const ssd_back *w)
{
  const ssd *s = &w->s;
  int64_t n = s->H * (2 + s->P);
  for (int64_t b = 0; b < s->nb; b++)
    for (int64_t c = w->c1 - 1; c >= w->c0; c--) {
      const double *part = ssd_sums(w, b, c, 0);
      for (int64_t i = 0; i < n; i++) w->sum[b * n + i] += part[i];
    }
}

static void run_windows(ssd_back *w)
{
  const ssd *s = &w->s;
  int nthread = w->call->nthread;
  for (w->c1 = s->nchunk; w->c1 > 0; w->c1 = w->c0) {
    w->c0 = w->c1 > w->K ? w->c1 - w->K : 0;
    tide__pool_tasks(nthread, tide__ssd_tasks(s), 1, pass_tasks, w);
    tide__pool_tasks(nthread, s->nb * s->G * (w->c1 - w->c0), 1, chunk_tasks, w);
    add_sums(w);
  }
}

/* ---- results summed over many chunks ------------------------------------------------------- */

/* Returns number k of head h's sums over the batches, in order. */
static double over_batch(const ssd_back *w, int64_t h, int64_t k)
{
  const ssd *s = &w->s;
  double sum = 0;
  for (int64_t b = 0; b < s->nb; b++) sum += w->sum[(b * s->H + h) * (2 + s->P) + k];
  return sum;
}

static void scan_bwd_put_sums(const ssd_back *w)
{
  const ssd *s = &w->s;
  const k_tensor *dD = &w->call->out[OUT_D], *dbias = &w->call->out[OUT_BIAS];
  for (int64_t h = 0; h < s->H; h++) {
    ssd_set(&w->call->out[OUT_A], h, (float)over_batch(w, h, SUM_A));
    if (!k_absent(dbias)) ssd_set(dbias, h, (float)over_batch(w, h, SUM_BIAS));
    if (k_absent(dD)) continue;
    double sum = 0;
    for (int64_t p = 0; p < s->P; p++) {
      double v = over_batch(w, h, SUM_D + p);
      if (dD->ndim == 2) ssd_set(dD, h * s->P + p, (float)v);
      sum += v;
    }
    if (dD->ndim == 1) ssd_set(dD, h, (float)sum);
  }
}

static void put_initial(const ssd_back *w)
{
  const ssd *s = &w->s;
  const k_tensor *to = &w->call->out[OUT_INITIAL];
  int64_t n = s->H * s->P * s->N;
  for (int64_t b = 0; !k_absent(to) && b < s->nb; b++)
    row_narrow(row_at(to, b * n), ssd_slot(w, b, -1, 0), to->dtype, n);
}

/* ---- the kernel ---------------------------------------------------------------------------- */

/* Returns the chunks of a window: enough to occupy all threads, within the bytes of their
 * gradients. */
static int64_t window(const ssd *s, int nthread)
{
  int64_t list = s->nb * s->G, each = s->nb * s->H * s->P * s->N * (int64_t)sizeof(float);
  int64_t K = nthread > 1 && list > 0 ? (EACH * nthread + list - 1) / list : 1;
  if (K > s->nchunk) K = s->nchunk > 0 ? s->nchunk : 1;
  while (K > 1 && K * each > WINDOW_BYTES && (K - 1) * list >= nthread) K--;
  return K;
}

/* Lays out the scratch: [scratch of each thread][part][sum][dstate]. */
static int64_t lay_out_all(ssd_back *w, int nthread)
{
  const ssd *s = &w->s;
  panel_arena k = {w->work, 0};
  ssd_back_scratch r;
  w->each = tide__ssd_back_layout(s, 0, &r);
  w->K = window(s, nthread);
  tide__panel_take(&k, w->each * nthread);
  w->part = tide__panel_take(&k, s->nb * w->K * s->H * (2 + s->P) * (int64_t)sizeof(double));
  w->sum = tide__panel_take(&k, s->nb * s->H * (2 + s->P) * (int64_t)sizeof(double));
  w->dstate = tide__panel_take(&k, s->nb * (w->K + 1) * s->H * s->P * s->N *
                               (int64_t)sizeof(float));
  return k.used;
}

static void scan_bwd_plan(ssd_back *w, const k_call *call)
{
  tide__ssd_plan(&w->s, call, call->in + IN_X);
  w->s.last = !k_absent(&call->in[IN_DLAST]);
}

int64_t k_cpu_ssd_scan_bwd_work(const k_call *call)
{
  ssd_back w = {.call = call};
  scan_bwd_plan(&w, call);
  return lay_out_all(&w, call->nthread);
}

int k_cpu_ssd_scan_bwd(const k_call *call)
{
  ssd_back w = {.call = call, .work = call->work};
  scan_bwd_plan(&w, call);
  TIDE_TRY(sequence_check(call, w.s.seq));
  lay_out_all(&w, call->nthread);
  memset(w.sum, 0, (size_t)(w.s.nb * w.s.H * (2 + w.s.P)) * sizeof(double));
  first_gradients(&w);
  run_windows(&w);
  put_initial(&w);
  scan_bwd_put_sums(&w);
  return TIDE_OK;
}
