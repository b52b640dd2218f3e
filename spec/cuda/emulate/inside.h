/* What the files of the emulated runtime share. Everything is under device_lock unless said. */
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

#include "cuda_runtime.h"
#include "stream.h"

/* The thread waits for an event, named by an address, and goes on when ready answers true. */
void tide_emulate_until(const void *event, std::function<bool()> ready);
/* Happens when some thread waits for the event and none can go on: as late as it may. */
void tide_emulate_later(const void *event, std::function<void()> what);

namespace emulated {

/* ---- device.cpp ------------------------------------------------------------------------------ */

extern std::recursive_mutex device_lock;
typedef std::lock_guard<std::recursive_mutex> guard;
extern std::atomic<bool> dead; /* a kernel has ended the device; any thread */
/* Any thread. Sets the thread's last error if there is one; returns e. */
cudaError_t report(cudaError_t e);
/* Any thread. The error of a lost device, or success. */
cudaError_t sticky();
/* Any thread. The thread's current device. */
int current_device();
/* Ends the program with a sentence. */
[[noreturn]] void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- streams.cpp ----------------------------------------------------------------------------- */

/* Without the lock. The host waits: asks until ready, in turns with the other threads. */
cudaError_t until(const std::function<bool()> &ready);
/* Runs what the streams of a device were given. Returns whether nothing is left. */
bool run_streams(int device);

/* ---- memory.cpp ------------------------------------------------------------------------------ */

/* Steps of streams may touch device memory in the scope of one of these, the host nowhere else. */
struct opened {
  opened();
  ~opened();
};

struct allocation {
  char *ptr;
  size_t size;
  int device;
  bool live;
};
/* Returns the allocation that an address belongs to, or did, or lies close behind; null for what is
 * not device memory. */
const allocation *allocation_of(const void *p);
bool is_device_memory(const void *p);
bool is_pinned(const void *p, size_t n);

/* ---- runtime.cpp ----------------------------------------------------------------------------- */

/* Any thread. The last kernel that the thread has launched. */
const char *last_kernel_launched();

/* ---- access.cpp ------------------------------------------------------------------------------ */

/* A launch as its accesses to memory are judged. */
struct running {
  const char *kernel;
  int device;
  const void *bound;
  size_t nbound;
  const char *stack; /* of the fiber that runs */
  size_t nstack;
  uintptr_t near, nnear; /* the allocation of the last access that was right */
};
/* Null on every thread but that of a launch. */
extern thread_local running *launch_now __attribute__((tls_model("initial-exec")));

/* Judges an access of the thread that runs, for what is copied by no code of the kernel. */
void access(const void *p, size_t n, bool store);
/* Whether kernels are compiled so that each of their accesses is seen. */
bool sees_accesses();
/* Keeps what is written from now on: record begins; block begins a block, whose static shared
 * memory holds 0xff where one before has written; turn_back keeps the results and puts back what
 * was there before; compare looks whether memory holds the kept results and ends it. */
void record();
void block();
void turn_back();
void compare(const char *kernel);

}  // namespace emulated
