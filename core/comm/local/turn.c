/* Turns: programs that run in steps, such as a prompt, pause their ranks between two lines.
 *
 * A paused rank makes no calls, so a wait for it in a collective ends with E_COMM. When all ranks
 * have paused, no thread is in a call, and communicators that have failed are mended: the shared
 * state is as new. Each rank takes that over when it resumes.
 */
#include "core/comm/local/local.h"

typedef tide__local_comm local;

/* ---- a wait for ranks that have paused ------------------------------------------------------- */

static bool is_paused(const local *s, int q)
{
  return atomic_load_explicit(&s->group->owner[s->member[q]].paused, memory_order_acquire) != 0;
}

int tide__turn_missing(local *s, const tide__coll *c, int *npaused)
{
  int nmissing = 0;
  *npaused = 0;
  for (int q = 0; q < s->nrank; q++) {
    bool paused = is_paused(s, q); /* before the slot: a call made until the pause is seen there */
    if (tide__slot_seq(&s->slot[q]) >= c->seq) continue;
    nmissing++;
    *npaused += paused;
  }
  return nmissing;
}

void tide__turn_describe(local *s, const tide__coll *c, tide__text *t)
{
  int absent[TIDE__MAX_RANK], n = 0;
  for (int q = 0; q < s->nrank; q++)
    if (is_paused(s, q) && tide__slot_seq(&s->slot[q]) < c->seq) absent[n++] = q;
  tide__add_absent(t, c, s->name, absent, n);
}

/* ---- mending --------------------------------------------------------------------------------- */

static void mend_slot(tide__slot *slot)
{
  uint64_t version = atomic_load(&slot->version);
  atomic_store(&slot->version, version + 1);
  for (size_t i = 0; i < TIDE__CALL_WORDS; i++) atomic_store(&slot->word[i], 0);
  atomic_store(&slot->version, version + 2);
  atomic_store(&slot->done, 0);
  atomic_store(&slot->moved, 0);
  slot->on_device = 0;
  slot->entered = slot->left = 0;
  slot->closed = false;
}

/* Mends a failed communicator, unless a rank has left it or a device has failed. */
static void mend_comm(local *s)
{
  if (!tide__failed(&s->failure) || atomic_load(&s->left) || atomic_load(&s->device_failed) > 0)
    return;
  for (int q = 0; q < s->nrank; q++) mend_slot(&s->slot[q]);
  atomic_store(&s->entry->barrier.word, 0);
  atomic_store(&s->exit.word, 0);
  tide__failure_reset(&s->failure);
  s->nmend++;
}

/* ---- the public calls ------------------------------------------------------------------------ */

/* Sets whether a rank is paused. Returns E_STATE in a fork of the group's process. */
static int turn_set(tide_group *group, int rank, tide_ctx *ctx, bool paused)
{
  tide__owner *owner = &group->owner[rank];
  if (*group->mark != 1)
    return tide__fail(ctx, TIDE_E_STATE, paused ? "group_pause" : "group_resume", "this process "
                      "is a fork of the group's; make a group of its own");
  pthread_mutex_lock(&group->lock);
  if ((atomic_load(&owner->paused) != 0) != paused) group->npaused += paused ? 1 : -1;
  atomic_store(&owner->paused, paused);
  for (local *s = group->comms; s && group->npaused == group->nrank; s = s->next) mend_comm(s);
  pthread_mutex_unlock(&group->lock);
  return TIDE_OK;
}

static int turn_check(const tide_group *group, int rank, tide_ctx *ctx, const char *op)
{
  if (rank >= 0 && rank < group->nrank) return TIDE_OK;
  return tide__fail(ctx, TIDE_E_ARG, op, "rank: expected 0 to %d, got %d", group->nrank - 1, rank);
}

int tide_group_pause(tide_group *group, int rank, tide_ctx *ctx)
{
  TIDE_DOOR(TIDE_OBJECT(GROUP, group), TIDE_OBJECT(CTX, ctx));
  TIDE_TRY(turn_check(group, rank, ctx, "group_pause"));
  tide__comm_each(ctx, group, tide__comm_rest);
  return turn_set(group, rank, ctx, true);
}

int tide_group_resume(tide_group *group, int rank, tide_ctx *ctx)
{
  TIDE_DOOR(TIDE_OBJECT(GROUP, group), TIDE_OBJECT(CTX, ctx));
  TIDE_TRY(turn_check(group, rank, ctx, "group_resume"));
  TIDE_TRY(turn_set(group, rank, ctx, false));
  tide__comm_each(ctx, group, tide__comm_adopt);
  return TIDE_OK;
}
