/* Groups, and the state that ranks of one process share. It is made before their contexts and
 * outlives them. The locks here are held for moments only, and never by a collective that
 * succeeds. */
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/machine.h"
#include "core/comm/local/local.h"

/* ---- the state of a communicator ------------------------------------------------------------- */

static void link_comm(tide_group *group, tide__local_comm *s)
{
  pthread_mutex_lock(&group->lock);
  s->next = group->comms;
  if (s->next) s->next->prev = s;
  group->comms = s;
  pthread_mutex_unlock(&group->lock);
}

static void unlink_comm(tide_group *group, tide__local_comm *s)
{
  pthread_mutex_lock(&group->lock);
  if (s->prev) s->prev->next = s->next;
  else group->comms = s->next;
  if (s->next) s->next->prev = s->prev;
  pthread_mutex_unlock(&group->lock);
}

/* Closes the entry when a failure is set, unless the meeting that the rank waited for is
 * complete. */
static bool close_entry(tide__failure *f, const void *last)
{
  tide__local_comm *s = (tide__local_comm *)((char *)f - offsetof(tide__local_comm, failure));
  return tide__barrier_close(&s->entry->barrier, last);
}

tide__local_comm *tide__local_new(tide_group *group, int nrank, const int *member,
                                  const char *name)
{
  size_t size = sizeof(tide__local_comm) + (size_t)nrank * sizeof(tide__slot), n = (size_t)nrank;
  tide__local_comm *s = aligned_alloc(128, (size + 127) & ~(size_t)127);
  int *copy = malloc(n * sizeof *copy), nlist = tide__call_nlist(nrank);
  int64_t *lists = calloc(n * (size_t)nlist, sizeof *lists);
  size_t tags = sizeof(tide__entry) + n * sizeof s->entry->tag[0];
  tide__entry *entry = aligned_alloc(64, (tags + 63) & ~(size_t)63);
  if (!s || !copy || !lists || !entry) {
    free(s);
    free(copy);
    free(lists);
    free(entry);
    return NULL;
  }
  memset(s, 0, size);
  memset(entry, 0, tags);
  s->entry = entry;
  memcpy(copy, member, n * sizeof *copy);
  atomic_init(&s->refs, 1);
  atomic_init(&s->left, false);
  s->nrank = nrank;
  s->spin = group->spin;
  s->group = group;
  s->member = copy;
  s->lists = lists;
  for (int q = 0; q < nrank; q++) s->slot[q].list = lists + (size_t)q * (size_t)nlist;
  snprintf(s->name, sizeof s->name, "%s", name);
  tide__failure_init(&s->failure, close_entry);
  link_comm(group, s);
  return s;
}

void tide__local_hold(tide__local_comm *s) { atomic_fetch_add(&s->refs, 1); }

void tide__local_drop(tide__local_comm *s)
{
  if (atomic_fetch_sub(&s->refs, 1) > 1) return;
  unlink_comm(s->group, s);
  tide__failure_close(&s->failure);
  free(s->entry);
  free(s->member);
  free(s->lists);
  free(s);
}

/* ---- slots, read from outside ---------------------------------------------------------------- */

/* Reads a slot of another rank. All loads acquire: none may move behind the second look at the
 * version. */
void tide__slot_read(tide__slot *slot, tide__comm_call *call, int64_t *done)
{
  uint64_t before, after, word[TIDE__CALL_WORDS];
  do {
    before = atomic_load_explicit(&slot->version, memory_order_acquire);
    for (int i = 0; i < TIDE__CALL_WORDS; i++)
      word[i] = atomic_load_explicit(&slot->word[i], memory_order_acquire);
    *done = atomic_load_explicit(&slot->done, memory_order_acquire);
    after = atomic_load_explicit(&slot->version, memory_order_relaxed);
  } while (before != after || before & 1);
  memcpy(call, word, sizeof *call);
}

int64_t tide__slot_seq(tide__slot *slot)
{
  return (int64_t)atomic_load_explicit(&slot->word[offsetof(tide__comm_call, seq) / 8],
                                       memory_order_acquire);
}

void tide__group_whereabouts(tide_group *group, const tide__local_comm *s, int rank, tide__text *t)
{
  pthread_mutex_lock(&group->lock);
  for (tide__local_comm *r = group->comms; r; r = r->next)
    for (int i = 0; r != s && i < r->nrank; i++) {
      tide__comm_call call;
      int64_t done;
      if (r->member[i] != rank) continue;
      tide__slot_read(&r->slot[i], &call, &done);
      if (call.seq <= done) continue;
      tide__add(t, "; it is in ");
      tide__add_where(t, &call, r->name);
    }
  pthread_mutex_unlock(&group->lock);
}

/* Polls of the barrier before the first yield: about 15 microseconds. */
enum { SPIN = 400 };

/* ---- groups ---------------------------------------------------------------------------------- */

void tide_group_opts_init(tide_group_opts *opts)
{
  *opts = (tide_group_opts){.size = sizeof *opts, .timeout = 600};
}

static int usable_cores(void)
{
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

static int group_check_opts(int nrank, const tide_group_opts *o, char *msg, size_t n)
{
  if (nrank < 1 || nrank > TIDE__MAX_RANK)
    return tide__refuse_new("group_new", msg, n, TIDE_E_ARG, "nrank: expected 1 to 1024, got %d",
                            nrank);
  if (!(o->timeout > 0 && o->timeout < 1e9))
    return tide__refuse_new("group_new", msg, n, TIDE_E_ARG, "opts.timeout: expected seconds > 0, "
                            "got %g", o->timeout);
  return TIDE_OK;
}

static void group_destroy(tide_group *g)
{
  g->tag = ~g->tag;
  if (g->world) tide__local_drop(g->world);
  pthread_mutex_destroy(&g->lock);
  tide__fork_mark_release(g->mark);
  free(g->joined);
  free(g->owner);
  free(g);
}

static bool group_fill(tide_group *g)
{
  int *all = malloc((size_t)g->nrank * sizeof *all);
  for (int i = 0; all && i < g->nrank; i++) all[i] = i;
  g->joined = calloc((size_t)g->nrank, sizeof *g->joined);
  g->owner = aligned_alloc(64, (size_t)g->nrank * sizeof *g->owner);
  if (g->owner) memset(g->owner, 0, (size_t)g->nrank * sizeof *g->owner);
  g->mark = tide__fork_mark_new();
  if (all && g->joined && g->owner && g->mark)
    g->world = tide__local_new(g, g->nrank, all, "world");
  free(all);
  return g->world != NULL;
}

int tide_group_new(tide_group **out, int nrank, const tide_group_opts *opts, char *msg, size_t n)
{
  tide_group_opts o;
  *out = NULL;
  tide_group_opts_init(&o);
  if (!tide__options(&o, sizeof o, opts))
    return tide__refuse_new("group_new", msg, n, TIDE_E_ARG, "opts.size is %u: call "
                            "tide_group_opts_init", opts->size);
  TIDE_TRY(group_check_opts(nrank, &o, msg, n));
  tide_group *g = calloc(1, sizeof *g);
  if (!g) return tide__refuse_new("group_new", msg, n, TIDE_E_NOMEM, "no memory for a group of %d",
                                  nrank);
  atomic_init(&g->refs, 1);
  g->tag = TIDE__TAG(TIDE__KIND_GROUP);
  g->nrank = nrank;
  g->timeout = o.timeout;
  g->spin = nrank <= usable_cores() ? SPIN : 0;
  pthread_mutex_init(&g->lock, NULL);
  if (!group_fill(g)) {
    group_destroy(g);
    return tide__refuse_new("group_new", msg, n, TIDE_E_NOMEM, "no memory for a group of %d",
                            nrank);
  }
  *out = g;
  return TIDE_OK;
}

/* Returns whether this process may read the bytes. */
static bool is_mapped(const void *p, size_t n)
{
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p / page * page;
  return msync((void *)from, (uintptr_t)p + n - from, MS_ASYNC) == 0;
}

/* Returns whether a group lies at this address, which may be a number from another Lua state. */
static bool is_group(const tide_group *group)
{
  return group && (uintptr_t)group % _Alignof(tide_group) == 0 && is_mapped(group, sizeof *group) &&
         tide__alive(group, TIDE__KIND_GROUP);
}

int tide_group_retain(tide_group *group)
{
  if (!is_group(group))
    return tide__fail(NULL, TIDE_E_ARG, "group_retain", "argument 'group': expected a live "
                      "group");
  atomic_fetch_add(&group->refs, 1);
  return TIDE_OK;
}

void tide_group_release(tide_group *group)
{
  if (!tide__alive(group, TIDE__KIND_GROUP)) return;
  if (atomic_fetch_sub(&group->refs, 1) == 1) group_destroy(group);
}

int tide_group_size(const tide_group *group)
{
  return TIDE_IS(GROUP, group) ? group->nrank : TIDE_E_ARG;
}

static bool has_member(const tide__local_comm *s, int rank)
{
  for (int i = 0; i < s->nrank; i++)
    if (s->member[i] == rank) return true;
  return false;
}

void tide_group_leave(tide_group *group, int rank, int status, const char *message)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(GROUP, group));
  char text[TIDE__COMM_TEXT];
  if (rank < 0 || rank >= group->nrank) return;
  if (status < 0)
    snprintf(text, sizeof text, "rank %d failed first: %s", rank,
             message && *message ? message : tide_status_text(status));
  else
    snprintf(text, sizeof text, "rank %d has left the group: its program has ended", rank);
  pthread_mutex_lock(&group->lock);
  for (tide__local_comm *s = group->comms; s; s = s->next)
    if (status < 0 || has_member(s, rank)) {
      atomic_store(&s->left, true);
      tide__failure_set(&s->failure, TIDE_E_PEER, rank, text, NULL);
    }
  pthread_mutex_unlock(&group->lock);
}
