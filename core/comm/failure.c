/* See failure.h. */
#include "core/comm/failure.h"

#include "core/comm/comm.h"

void tide__failure_init(tide__failure *f, bool (*first)(tide__failure *f, const void *arg))
{
  pthread_mutex_init(&f->lock, NULL);
  atomic_init(&f->seen, 0);
  f->status = 0;
  f->first = first;
}

void tide__failure_close(tide__failure *f) { pthread_mutex_destroy(&f->lock); }

bool tide__failure_set(tide__failure *f, int status, int rank, const char *text, const void *arg)
{
  pthread_mutex_lock(&f->lock);
  if (!f->status) {
    f->status = status;
    f->rank = rank;
    snprintf(f->text, sizeof f->text, "%s", text);
    if (f->first && !f->first(f, arg)) f->status = 0;
    else atomic_store_explicit(&f->seen, 1, memory_order_release);
  }
  bool failed = f->status != 0;
  pthread_mutex_unlock(&f->lock);
  return failed;
}

bool tide__failure_end(tide__failure *f, tide__coll *c, int status, int rank, const char *text,
                       const void *arg)
{
  if (!tide__failure_set(f, status, rank, text, arg)) return false;
  if (status == TIDE_E_INTERRUPT && c->interrupt) atomic_store(c->interrupt, 0);
  return true;
}

int tide__failure_get(tide__failure *f, int rank, char *text, size_t n)
{
  pthread_mutex_lock(&f->lock);
  int status = f->status == TIDE_E_INTERRUPT && f->rank != rank ? TIDE_E_PEER : f->status;
  if (status) snprintf(text, n, "%s", f->text);
  pthread_mutex_unlock(&f->lock);
  return status;
}

void tide__failure_reset(tide__failure *f)
{
  pthread_mutex_lock(&f->lock);
  f->status = 0;
  atomic_store_explicit(&f->seen, 0, memory_order_release);
  pthread_mutex_unlock(&f->lock);
}
