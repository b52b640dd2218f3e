/* Compares the calls of all ranks and writes the message if they do not fit together. */

#include "core/comm/call.h"

typedef tide__call_ref ref;

static const char *place_name(int device) { return device < 0 ? "the host" : "a device"; }

/* Compares what rank a sends to rank b with what b expects of a, for all_to_all_v. */
static void compare_counts(const ref *calls, int nrank, int a, int b, tide__text *why)
{
  int64_t sent = calls[a].list[b];
  int64_t expected = calls[b].list[tide__call_nlist(nrank) / 2 + a];
  if (sent != expected)
    tide__add(why, "rank %d sends %lld elements to rank %d, which expects %lld", a,
              (long long)sent, b, (long long)expected);
}

/* Names the first listed tensor that rank a sends and rank b expects with another count or
 * dtype. */
static void name_tensor(const ref *calls, int nrank, int a, int b, tide__text *why)
{
  int half = tide__call_nlist(nrank) / 2, n = calls[a].call->ntensor;
  for (int i = 0; i < n && i < half; i++) {
    int64_t sent = calls[a].list[i], expected = calls[b].list[half + i];
    if (sent == expected) continue;
    tide__add(why, "tensor %d: rank %d sends %lld elements of %s to rank %d, which expects %lld of "
              "%s", i + 1, a, (long long)(sent >> 8), tide_dtype_name((int)(sent & 255)), b,
              (long long)(expected >> 8), tide_dtype_name((int)(expected & 255)));
    return;
  }
  tide__add(why, "rank %d sends tensors of other counts or dtypes than rank %d expects", a, b);
}

/* Checks, for send_recv, that rank a sends to rank b exactly if b receives from a, and that both
 * name the same tensors. */
static void compare_tensors(const ref *calls, int nrank, int a, int b, tide__text *why)
{
  const tide__comm_call *from = calls[a].call, *to = calls[b].call;
  bool sends = from->to == b, expects = to->from == a;
  if (sends != expects)
    tide__add(why, sends ? "rank %d sends to rank %d, which receives from %d"
                         : "rank %d does not send to rank %d, which receives from %d",
              a, b, to->from);
  else if (!sends) return;
  else if (from->ntensor != to->ntensor)
    tide__add(why, "rank %d sends %d tensors to rank %d, which expects %d", a, from->ntensor, b,
              to->ntensor);
  else if (from->ntensor && from->device != to->device)
    tide__add(why, "rank %d sends from %s to rank %d, which receives on %s%s", a,
              place_name(from->device), b, place_name(to->device),
              from->device >= 0 && to->device >= 0 ? " of another number" : "");
  else if (from->sent != to->expected) name_tensor(calls, nrank, a, b, why);
}

/* Compares every pair of ranks; why stays empty if all fit. */
static void compare_pairs(const ref *calls, int nrank, tide__text *why)
{
  for (int a = 0; a < nrank && !why->at; a++) {
    const tide__comm_call *c = calls[a].call;
    if (c->same.op == TIDE__ALL_TO_ALL_V) {
      for (int b = 0; b < nrank && !why->at; b++) compare_counts(calls, nrank, a, b, why);
    } else if (c->same.op == TIDE__SEND_RECV) {
      if (c->to >= 0) compare_tensors(calls, nrank, a, c->to, why);
      if (c->from >= 0 && !why->at) compare_tensors(calls, nrank, c->from, a, why);
    }
  }
}

static bool same_call(const ref *a, const ref *b)
{
  return memcmp(&a->call->same, &b->call->same, sizeof a->call->same) == 0;
}

/* Names what differs where the texts of two calls do not show it. */
static void compare_hashes(const ref *a, const ref *b, tide__text *why)
{
  const tide__call_same *x = &a->call->same;
  tide__call_same y = b->call->same;
  if (x->hash == y.hash) return;
  y.hash = x->hash;
  memcpy(y.shape, x->shape, sizeof y.shape);
  if (memcmp(x, &y, sizeof y) != 0) return;
  if (x->op == TIDE__ALL_GATHER_V || x->op == TIDE__REDUCE_SCATTER_V)
    tide__add(why, "the counts by rank differ");
  else if (x->op <= TIDE__ALL_TO_ALL && x->ntensor)
    tide__add(why, "tensors of the lists differ in shape or dtype");
  else if (x->op <= TIDE__ALL_TO_ALL)
    tide__add(why, "the tensors have as many elements, but other shapes");
}

/* Adds a line for each call and the ranks that made it: "ranks 0, 2: all_reduce(sum, f32, 8
 * elements) at a.lua:3". */
static void list_calls(const ref *calls, int nrank, tide__text *t)
{
  bool listed[TIDE__MAX_RANK] = {false};
  for (int q = 0; q < nrank; q++) {
    const char *site = calls[q].call->site;
    int same = 0;
    if (listed[q]) continue;
    tide__add(t, "\n  rank %d", q);
    for (int k = q + 1; k < nrank; k++) {
      if (!same_call(&calls[q], &calls[k]) || strcmp(site, calls[k].call->site)) continue;
      listed[k] = true;
      if (same++ < 16) tide__add(t, ", %d", k);
    }
    tide__add(t, ": ");
    tide__add_call(t, calls[q].call);
    tide__add(t, " at %s", site[0] ? site : "?");
  }
}

int tide__agree(const tide__call_ref *calls, int nrank, const char *name, char *text, size_t n)
{
  char reason[256];
  tide__text why = tide__text_in(reason, sizeof reason);
  bool same = true;
  for (int q = 1; q < nrank && same; q++) {
    same = same_call(&calls[0], &calls[q]);
    if (!same) compare_hashes(&calls[0], &calls[q], &why);
  }
  if (same) compare_pairs(calls, nrank, &why);
  if (same && !why.at) return TIDE_OK;
  tide__text t = tide__text_in(text, n);
  tide__add(&t, "ranks disagree about call #%lld on '%s'%s%s; no data was moved",
            (long long)calls[0].call->seq, name, why.at ? ": " : "", reason);
  list_calls(calls, nrank, &t);
  return TIDE_E_COMM;
}
