/* One order for the NCCL calls of a rank, over all of its communicators. See nccl.h.
 *
 * NCCL's kernels wait on the device for those of the other ranks. Ranks that launch the kernels of
 * two communicators in different orders can wait for each other for ever, so an application
 * submits them in the same order on every rank and orders them on the device too (NCCL User Guide,
 * "Using multiple NCCL communicators concurrently"). The program order of a rank is that order: a
 * call draws its turn on the owner's thread, and the helper threads issue in the order of turns.
 * On the device, a call waits for the one before by an event. NCCL_LAUNCH_ORDER_IMPLICIT=1, for
 * which NCCL 2.26 and later order launches themselves and let calls overlap, replaces that event.
 */
#include <stdlib.h>

#include "core/comm/nccl/nccl.h"

tide__nccl_order *tide__nccl_order_new(tide_ctx *ctx)
{
  tide__nccl_order *o = tide__alloc(ctx, sizeof *o);
  if (!o) return NULL;
  o->refs = 1;
  pthread_mutex_init(&o->lock, NULL);
  pthread_cond_init(&o->next, NULL);
  return o;
}

void tide__nccl_order_drop(tide__nccl_shared *all)
{
  tide__nccl_order *o = all->order;
  if (!o || --o->refs > 0) return;
  if (o->event) all->backend->streams->event_free(all->device, o->event);
  pthread_mutex_destroy(&o->lock);
  pthread_cond_destroy(&o->next);
  tide__free(all->ctx, o, sizeof *o);
}

bool tide__nccl_orders_itself(const tide__nccl *l)
{
  const char *said = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return l->version >= TIDE__NCCL_ORDERS && said && atoi(said) == 1;
}

int64_t tide__nccl_draw(void *state)
{
  return ++((tide__nccl_comm *)state)->all->order->drawn;
}

static void wait_passed(tide__nccl_order *o, int64_t turn)
{
  pthread_mutex_lock(&o->lock);
  while (o->passed < turn) pthread_cond_wait(&o->next, &o->lock);
  pthread_mutex_unlock(&o->lock);
}

void tide__nccl_await_turn(tide__nccl_order *o, int64_t turn)
{
  if (turn) wait_passed(o, turn - 1);
}

void tide__nccl_pass_turn(tide__nccl_order *o, int64_t turn)
{
  if (!turn) return;
  pthread_mutex_lock(&o->lock);
  o->passed = turn;
  pthread_cond_broadcast(&o->next);
  pthread_mutex_unlock(&o->lock);
}

void tide__nccl_await_all(tide__nccl_order *o) { wait_passed(o, o->drawn); }

int tide__nccl_behind_last(tide__nccl_comm *s, void *stream, bool captured)
{
  tide__nccl_order *o = s->all->order;
  const tide__streams *st = tide__nccl_streams(s);
  int rc = TIDE_OK;
  if (s->all->orders_itself) return rc;
  pthread_mutex_lock(&o->lock);
  if (o->last && o->last != stream && o->captured == captured) {
    rc = st->record_event(s->all->device, o->last, &o->event);
    if (rc == TIDE_OK) rc = st->wait_event(s->all->device, stream, o->event);
  }
  if (stream == s->stream) o->last = stream, o->captured = captured;
  pthread_mutex_unlock(&o->lock);
  return rc;
}

void tide__nccl_order_forget(tide__nccl_comm *s)
{
  tide__nccl_order *o = s->all->order;
  pthread_mutex_lock(&o->lock);
  if (o->last == s->stream) o->last = NULL;
  pthread_mutex_unlock(&o->lock);
}

void tide__nccl_order_capture(tide__nccl_order *o, const tide_graph *graph)
{
  pthread_mutex_lock(&o->lock);
  if (o->graph != graph) o->last = NULL;
  o->graph = graph;
  pthread_mutex_unlock(&o->lock);
}

void tide__nccl_order_uncapture(tide__nccl_order *o, const tide_graph *graph)
{
  pthread_mutex_lock(&o->lock);
  if (o->graph == graph) o->last = NULL, o->graph = NULL;
  pthread_mutex_unlock(&o->lock);
}
