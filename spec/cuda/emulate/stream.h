/* Emulated streams: queues of steps that run as late as they may.
 *
 * Nothing runs when it is enqueued. A step runs when the host waits for its stream,
 * asks whether it is done (of an event: asks again), or waits for an event behind it. So work that
 * another stream or the host uses without waiting is seen by its results. A step that answers false
 * is not done yet (a collective whose other ranks have not come) and is asked again.
 *
 * A stream that captures keeps how a step is made; each launch of the graph makes it again.
 *
 * Virtual, so that the emulated cuBLASLt and NCCL, libraries of their own, enqueue too. Spec only.
 */
#pragma once

#include <functional>

struct tide_emulate_stream {
  int device = 0;
  virtual void enqueue(std::function<bool()> step) = 0;
  /* Enqueues make(); while it captures, each launch does. */
  virtual void record(std::function<std::function<bool()>()> make) = 0;
  virtual bool capturing() const = 0;
  /* Whether a kernel on it may touch n bytes: live ones of its device, or pinned ones. */
  virtual bool reaches(const void *p, size_t n) const = 0;
  /* Counts a launch by its name, for tide_emulate_launches. */
  virtual void count(const char *name) = 0;
  virtual ~tide_emulate_stream() {}
};
