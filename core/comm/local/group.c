/* Groups and rooms: what ranks of one process share, made before and gone after their contexts.
 *
 * Locks: a group's before a room's. Both are held for moments only and never on the way of a
 * collective that goes well.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/fork.h"
#include "core/comm/local/local.h"

/* ---- rooms ----------------------------------------------------------------------------------- */

static void link_room(tide_group *group, tide__room *room)
{
  pthread_mutex_lock(&group->lock);
  room->next = group->rooms;
  if (room->next) room->next->prev = room;
  group->rooms = room;
  pthread_mutex_unlock(&group->lock);
}

static void unlink_room(tide_group *group, tide__room *room)
{
  pthread_mutex_lock(&group->lock);
  if (room->prev) room->prev->next = room->next;
  else group->rooms = room->next;
  if (room->next) room->next->prev = room->prev;
  pthread_mutex_unlock(&group->lock);
}

tide__room *tide__room_new(tide_group *group, int nrank, const int *member, const char *name)
{
  size_t size = sizeof(tide__room) + (size_t)nrank * sizeof(tide__seat);
  size = (size + 127) & ~(size_t)127;
  tide__room *room = aligned_alloc(128, size);
  int *copy = malloc((size_t)nrank * sizeof *copy);
  if (!room || !copy) {
    free(room);
    free(copy);
    return NULL;
  }
  memset(room, 0, size);
  memcpy(copy, member, (size_t)nrank * sizeof *copy);
  atomic_init(&room->refs, 1);
  room->nrank = nrank;
  room->spin = group->spin;
  room->group = group;
  room->member = copy;
  snprintf(room->name, sizeof room->name, "%s", name);
  pthread_mutex_init(&room->lock, NULL);
  link_room(group, room);
  return room;
}

void tide__room_hold(tide__room *room) { atomic_fetch_add(&room->refs, 1); }

void tide__room_drop(tide__room *room)
{
  if (atomic_fetch_sub(&room->refs, 1) > 1) return;
  unlink_room(room->group, room);
  pthread_mutex_destroy(&room->lock);
  free(room->member);
  free(room);
}

bool tide__room_fail(tide__room *room, const uint32_t *gen, int status, int rank, const char *text)
{
  bool closed = true;
  pthread_mutex_lock(&room->lock);
  if (!room->cause) {
    room->cause = status;
    room->cause_rank = rank;
    snprintf(room->text, sizeof room->text, "%s", text);
    closed = tide__meet_poison(&room->gate, gen);
    if (!closed) room->cause = 0;
  }
  pthread_mutex_unlock(&room->lock);
  return closed;
}

/* ---- seats, read from outside ---------------------------------------------------------------- */

/* Acquire throughout: no load may move behind the second look at the version. */
void tide__seat_read(tide__seat *seat, tide__seat_copy *copy)
{
  uint64_t before, after, site[TIDE__SITE / 8];
  do {
    before = LOAD_ACQUIRE(seat->version);
    copy->seq = LOAD_ACQUIRE(seat->seq);
    tide__page *page = &seat->page[copy->seq & 1];
    copy->words = (tide__call_words){LOAD_ACQUIRE(page->what), LOAD_ACQUIRE(page->count),
                                     LOAD_ACQUIRE(page->root), LOAD_ACQUIRE(page->hash)};
    copy->done = LOAD_ACQUIRE(seat->done);
    for (int i = 0; i < TIDE__SITE / 8; i++)
      site[i] = LOAD_ACQUIRE(seat->site[i]);
    after = LOAD_RELAXED(seat->version);
  } while (before != after || before & 1);
  memcpy(copy->site, site, sizeof copy->site);
}

void tide__group_whereabouts(tide_group *group, const tide__room *room, int rank, char *buf,
                             size_t n, size_t *at)
{
  pthread_mutex_lock(&group->lock);
  for (tide__room *r = group->rooms; r; r = r->next)
    for (int i = 0; r != room && i < r->nrank; i++) {
      tide__seat_copy copy;
      if (r->member[i] != rank) continue;
      tide__seat_read(&r->seat[i], &copy);
      if (copy.seq <= copy.done) continue;
      char call[128];
      tide__append(buf, n, at, "; it is in %s #%lld on '%s' at %s",
                   tide__call_text(&copy.words, call, sizeof call), (long long)copy.seq, r->name,
                   copy.site[0] ? copy.site : "?");
    }
  pthread_mutex_unlock(&group->lock);
}

/* Looks at the word before yielding: some 15 microseconds. */
enum { SPIN = 400 };

/* ---- groups ---------------------------------------------------------------------------------- */

void tide_group_opts_init(tide_group_opts *opts)
{
  *opts = (tide_group_opts){.size = sizeof *opts, .timeout = 600};
}

#define GROUP_MAGIC UINT64_C(0x7469646567727570)

static int usable_cores(void)
{
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

static int refuse(int status, char *msg, size_t n, const char *fmt, double value)
{
  if (msg && n) snprintf(msg, n, fmt, value);
  return status;
}

static int check_opts(int nrank, const tide_group_opts *o, char *msg, size_t n)
{
  if (nrank < 1 || nrank > TIDE__MAX_RANK)
    return refuse(TIDE_E_ARG, msg, n, "nrank: expected 1 to 1024, got %.0f", nrank);
  if (o->size != sizeof *o)
    return refuse(TIDE_E_ARG, msg, n, "opts.size is %.0f: call tide_group_opts_init", o->size);
  if (!(o->timeout > 0 && o->timeout < 1e9))
    return refuse(TIDE_E_ARG, msg, n, "opts.timeout: expected seconds > 0, got %g", o->timeout);
  return TIDE_OK;
}

static void destroy(tide_group *g)
{
  g->magic = 0;
  if (g->world) tide__room_drop(g->world);
  pthread_mutex_destroy(&g->lock);
  tide__fork_mark_release(g->mark);
  free(g->joined);
  free(g->owner);
  free(g);
}

static bool fill(tide_group *g)
{
  int *all = malloc((size_t)g->nrank * sizeof *all);
  for (int i = 0; all && i < g->nrank; i++) all[i] = i;
  g->joined = calloc((size_t)g->nrank, sizeof *g->joined);
  g->owner = aligned_alloc(64, (size_t)g->nrank * sizeof *g->owner);
  if (g->owner) memset(g->owner, 0, (size_t)g->nrank * sizeof *g->owner);
  g->mark = tide__fork_mark_new();
  if (all && g->joined && g->owner && g->mark) g->world = tide__room_new(g, g->nrank, all, "world");
  free(all);
  return g->world != NULL;
}

int tide_group_new(tide_group **out, int nrank, const tide_group_opts *opts, char *msg, size_t n)
{
  tide_group_opts o;
  *out = NULL;
  tide_group_opts_init(&o);
  if (opts) o = *opts;
  int rc = check_opts(nrank, &o, msg, n);
  if (rc < 0) return rc;
  tide_group *g = calloc(1, sizeof *g);
  if (!g) return refuse(TIDE_E_NOMEM, msg, n, "no memory for a group of %.0f", nrank);
  atomic_init(&g->refs, 1);
  g->magic = GROUP_MAGIC;
  g->nrank = nrank;
  g->timeout = o.timeout;
  g->spin = nrank <= usable_cores() ? SPIN : 0;
  pthread_mutex_init(&g->lock, NULL);
  if (!fill(g)) {
    destroy(g);
    return refuse(TIDE_E_NOMEM, msg, n, "no memory for a group of %.0f", nrank);
  }
  *out = g;
  return TIDE_OK;
}

/* Whether this process may read the bytes. */
static bool is_mapped(const void *p, size_t n)
{
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p / page * page;
  return msync((void *)from, (uintptr_t)p + n - from, MS_ASYNC) == 0;
}

/* The address may come as a number from another Lua state: whether a group lies there. */
static bool is_group(const tide_group *group)
{
  return group && (uintptr_t)group % _Alignof(tide_group) == 0 && is_mapped(group, sizeof *group) &&
         group->magic == GROUP_MAGIC;
}

int tide_group_retain(tide_group *group)
{
  if (!is_group(group)) return TIDE_E_ARG;
  atomic_fetch_add(&group->refs, 1);
  return TIDE_OK;
}

void tide_group_release(tide_group *group)
{
  if (group && atomic_fetch_sub(&group->refs, 1) == 1) destroy(group);
}

int tide_group_size(const tide_group *group) { return group->nrank; }

static bool has_member(const tide__room *room, int rank)
{
  for (int i = 0; i < room->nrank; i++)
    if (room->member[i] == rank) return true;
  return false;
}

void tide_group_leave(tide_group *group, int rank, int status, const char *message)
{
  char text[TIDE__COMM_TEXT];
  if (!group || rank < 0 || rank >= group->nrank) return;
  if (status < 0)
    snprintf(text, sizeof text, "rank %d failed first: %s", rank,
             message && *message ? message : tide_status_text(status));
  else
    snprintf(text, sizeof text, "rank %d has left the group: its program has ended", rank);
  pthread_mutex_lock(&group->lock);
  for (tide__room *r = group->rooms; r; r = r->next)
    if (status < 0 || has_member(r, rank)) tide__room_fail(r, NULL, TIDE_E_PEER, rank, text);
  pthread_mutex_unlock(&group->lock);
}
