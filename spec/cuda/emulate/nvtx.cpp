/* NVTX for specs: keeps the ranges that kernels/cuda opens. Spec only. */
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <string>

static std::mutex lock;
static std::string ranges; /* "name{" and "}" in the order of the calls */

int nvtxRangePushA(const char *name)
{
  std::lock_guard<std::mutex> g(lock);
  ranges.append(name).append(1, '{');
  return 0;
}

int nvtxRangePop(void)
{
  std::lock_guard<std::mutex> g(lock);
  ranges.append(1, '}');
  return 0;
}

/* Returns the ranges since the last call; valid until the next one. */
extern "C" __attribute__((visibility("default"))) const char *tide_emulate_ranges()
{
  static std::string taken;
  std::lock_guard<std::mutex> g(lock);
  taken.clear();
  taken.swap(ranges);
  return taken.c_str();
}
