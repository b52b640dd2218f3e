/* Ranks that wait for each other in different communicators.
 *
 * A rank that waits at the entry of a call needs every other rank of that communicator. One that is
 * missing arrives if its helper thread is in an earlier call there and that call ends, or if its
 * own thread makes the call; that thread may itself wait for a call of another communicator. A
 * cycle of such waits never ends. The search follows them from one waiting rank.
 *
 * Ranks continue during the search, so a cycle counts only if two searches, some time apart,
 * find it with the same call numbers. These only grow: each rank of the cycle was in its call, and
 * missing in the other's, for the whole time between.
 */
#include "core/comm/local/local.h"

enum { MAX_NODE = 256 };   /* a search that meets more waits finds nothing */

/* Rank `index` of comm is in call seq there. */
typedef struct waiter {
  tide__local_comm *comm;
  int index;
  int64_t seq;
} waiter;

typedef struct search {
  waiter path[MAX_NODE];   /* the waits that lead to the current one */
  int n, first;            /* length; the cycle is path[first..n-1] */
  waiter over[MAX_NODE];   /* waits from which no cycle can be reached */
  int nover;
} search;

static int64_t deadlock_load(_Atomic int64_t *p)
{
  return atomic_load_explicit(p, memory_order_acquire);
}

static bool same(const waiter *a, const waiter *b)
{
  return a->comm == b->comm && a->index == b->index && a->seq == b->seq;
}

static int deadlock_find(const waiter *list, int n, const waiter *w)
{
  for (int i = 0; i < n; i++)
    if (same(&list[i], w)) return i;
  return -1;
}

/* Returns whether rank index of comm is in a call there, and in *w which. */
static bool is_in_call(tide__local_comm *comm, int index, waiter *w)
{
  tide__slot *slot = &comm->slot[index];
  *w = (waiter){comm, index, tide__slot_seq(slot)};
  return w->seq > deadlock_load(&slot->done);
}

static int index_in(const tide__local_comm *comm, int member)
{
  for (int i = 0; i < comm->nrank; i++)
    if (comm->member[i] == member) return i;
  return -1;
}

/* Finds the wait that keeps rank q of w's communicator from making w's call. Returns false if none
 * is known. */
static bool deadlock_is_kept(const waiter *w, int q, waiter *by)
{
  int member = w->comm->member[q];
  tide__owner *owner = &w->comm->group->owner[member];
  if (tide__slot_seq(&w->comm->slot[q]) >= w->seq) return false; /* it has arrived */
  if (is_in_call(w->comm, q, by)) return true;
  tide__local_comm *other = atomic_load_explicit(&owner->comm, memory_order_acquire);
  int index = other ? index_in(other, member) : -1;
  return index >= 0 && is_in_call(other, index, by) && deadlock_load(&owner->seq) >= by->seq;
}

/* Searches depth first. Returns true when path ends in a cycle. */
static bool leads_to_cycle(search *s, const waiter *w)
{
  s->first = deadlock_find(s->path, s->n, w);
  if (s->first >= 0) return true;
  if (deadlock_find(s->over, s->nover, w) >= 0) return false;
  if (s->n == MAX_NODE || s->nover == MAX_NODE) return false;
  s->path[s->n++] = *w;
  for (int q = 0; q < w->comm->nrank; q++) {
    waiter by;
    if (q != w->index && deadlock_is_kept(w, q, &by) && leads_to_cycle(s, &by)) return true;
  }
  s->over[s->nover++] = s->path[--s->n];
  return false;
}

static void deadlock_describe(const search *s, tide__text *t)
{
  tide__add(t, "ranks wait for each other; no data was moved");
  for (int i = s->first; i < s->n; i++) {
    const waiter *w = &s->path[i], *next = &s->path[i + 1 < s->n ? i + 1 : s->first];
    tide__comm_call call;
    int64_t done;
    tide__slot_read(&w->comm->slot[w->index], &call, &done);
    call.seq = w->seq;
    tide__add(t, "\n  rank %d waits in ", w->comm->member[w->index]);
    tide__add_where(t, &call, w->comm->name);
    tide__add(t, " for rank %d", next->comm->member[next->index]);
  }
}

uint64_t tide__group_deadlock(tide__local_comm *comm, int me, uint64_t before)
{
  tide_group *group = comm->group;
  char buf[TIDE__COMM_TEXT];
  tide__text text = tide__text_in(buf, sizeof buf);
  uint64_t hash = 0;
  waiter mine;
  search found, *s = &found;
  s->n = s->nover = 0;
  pthread_mutex_lock(&group->lock);
  if (is_in_call(comm, me, &mine) && leads_to_cycle(s, &mine)) {
    for (int i = s->first; i < s->n; i++) {
      hash = tide__hash_step(hash, (uint64_t)(uintptr_t)s->path[i].comm);
      hash = tide__hash_step(hash, (uint64_t)s->path[i].index << 48 ^ (uint64_t)s->path[i].seq);
    }
    hash |= 1; /* 0 means none */
    if (hash == before) deadlock_describe(s, &text);
    for (int i = s->first; hash == before && i < s->n; i++)
      tide__failure_set(&s->path[i].comm->failure, TIDE_E_COMM, -1, buf, NULL);
  }
  pthread_mutex_unlock(&group->lock);
  return hash;
}
