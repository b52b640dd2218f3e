/* What kernels read and write, one access at a time.
 *
 * The kernels are compiled with calls around their loads and stores (-fsanitize=kernel-address, of
 * which only the calls are used: the functions below are theirs). An access belongs to what the
 * thread may reach: its own stack, shared memory and constants, the arguments of the launch, memory
 * of its device within one allocation, pinned memory. It is aligned to its size (CUDA C++
 * Programming Guide, "Device Memory Accesses": other accesses are not defined; the driver answers
 * cudaErrorMisalignedAddress). Anything else ends the program with kernel, block and thread, where
 * a chip would say cudaErrorIllegalAddress some time later.
 *
 * With TIDE_EMULATE_ORDER=both every launch runs twice, its blocks and threads in one order and
 * then in the other, on the same memory; results that differ in a bit end the program. So a barrier
 * that is missing, and blocks that rely on each other, are seen. Faults that kernels report are not
 * compared: the first one is kept. Spec only.
 */
#include <link.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "inside.h"

namespace emulated {

thread_local running *launch_now __attribute__((tls_model("initial-exec")));

namespace {

const size_t PAGE = 4096;

/* ---- what was written ------------------------------------------------------------------------ */

/* Of device and pinned memory also what was read: GCC leaves out the call before a store where a
 * load of the same bytes in the same basic block has made one (gcc/asan.cc, asan_mem_ref), as in
 * x[i] += y. */
struct page { std::vector<unsigned char> before, after; };
struct word { unsigned char *at, before; };
struct history {
  bool on = false;
  uintptr_t last = 0; /* the page that was noted last */
  std::unordered_map<uintptr_t, page> pages;
  std::vector<word> pinned;
  std::vector<std::pair<uintptr_t, size_t>> shared; /* static variables, by the block that runs */
} written;

unsigned char *bytes_of(uintptr_t a) { return reinterpret_cast<unsigned char *>(a); }

void note_page(uintptr_t at)
{
  if (written.last == at) return;
  written.last = at;
  page &p = written.pages[at];
  if (p.before.empty()) p.before.assign(bytes_of(at), bytes_of(at) + PAGE);
}

void note(uintptr_t a, size_t n)
{
  for (uintptr_t at = a / PAGE * PAGE; at < a + n; at += PAGE) note_page(at);
}

/* ---- what may be reached --------------------------------------------------------------------- */

/* Where this library lies: static variables, constants. */
struct range { uintptr_t begin, end; };

int find_library(dl_phdr_info *info, size_t, void *out)
{
  range r = {UINTPTR_MAX, 0};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) &h = info->dlpi_phdr[i];
    if (h.p_type != PT_LOAD) continue;
    uintptr_t at = info->dlpi_addr + h.p_vaddr;
    if (at < r.begin) r.begin = at;
    if (at + h.p_memsz > r.end) r.end = at + h.p_memsz;
  }
  uintptr_t mine = reinterpret_cast<uintptr_t>(&find_library);
  if (mine < r.begin || mine >= r.end) return 0;
  *static_cast<range *>(out) = r;
  return 1;
}

range find()
{
  range found = {};
  dl_iterate_phdr(find_library, &found);
  return found;
}

const range library = find();

[[noreturn]] void refuse(uintptr_t a, size_t n, bool store, const char *why)
{
  running r = *launch_now;
  launch_now = nullptr;
  wrong("kernel %s, block (%u %u %u), thread (%u %u %u) %s %zu bytes at %#zx: %s", r.kernel,
        blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
        store ? "writes" : "reads", n, (size_t)a, why);
}

void check_allocation(uintptr_t a, size_t n, bool store)
{
  const allocation *of = allocation_of(bytes_of(a));
  char why[120];
  if (!of) return refuse(a, n, store, "device memory that was never allocated");
  if (!of->live) return refuse(a, n, store, "device memory that was freed");
  uintptr_t end = reinterpret_cast<uintptr_t>(of->ptr) + of->size;
  if (a + n > end) {
    snprintf(why, sizeof why, "up to %zu bytes behind the end of an allocation of %zu",
             (size_t)(a + n - end), of->size);
    refuse(a, n, store, why);
  }
  if (of->device == launch_now->device) {
    launch_now->near = reinterpret_cast<uintptr_t>(of->ptr);
    launch_now->nnear = of->size;
    return;
  }
  snprintf(why, sizeof why, "memory of device %d, and the kernel runs on device %d", of->device,
           launch_now->device);
  refuse(a, n, store, why);
}

bool is_aligned(uintptr_t a, size_t n) { return n > 16 || (n & (n - 1)) || (a & (n - 1)) == 0; }

/* Of an access that is not to the thread's stack. */
void check_far(uintptr_t a, size_t n, bool store)
{
  const running *r = launch_now;
  const void *p = bytes_of(a);
  if (a - reinterpret_cast<uintptr_t>(r->bound) < r->nbound) return;
  bool device = is_device_memory(p), pinned = false;
  if (device) check_allocation(a, n, store);
  else if (a < library.begin || a >= library.end) {
    pinned = is_pinned(p, n);
    if (!pinned) refuse(a, n, store, "memory of the host");
  }
  if (!is_aligned(a, n)) refuse(a, n, store, "it is not aligned to its size");
  if (!written.on) return;
  if (device) note(a, n);
  else if (!pinned && store) written.shared.push_back({a, n});
  for (size_t i = 0; pinned && i < n; i++) written.pinned.push_back({bytes_of(a) + i,
                                                                     bytes_of(a)[i]});
}

/* The most frequent accesses first: the stack, shared memory, the allocation of the last one. */
inline void check(uintptr_t a, size_t n, bool store)
{
  const running *r = launch_now;
  if (!r || a - reinterpret_cast<uintptr_t>(r->stack) < r->nstack) return;
  bool is_known = a - library.begin < library.end - library.begin ||
                  (a >= r->near && a + n <= r->near + r->nnear);
  if (is_known && is_aligned(a, n) && !written.on) return;
  check_far(a, n, store);
}

}  // namespace

void access(const void *p, size_t n, bool store)
{
  check(reinterpret_cast<uintptr_t>(p), n, store);
}

#ifdef TIDE_EMULATE_ACCESSES
bool sees_accesses() { return true; }
#else
bool sees_accesses() { return false; }
#endif

void record() { written.on = true; }

void block()
{
  for (auto &row : written.shared) memset(bytes_of(row.first), 0xff, row.second);
  written.shared.clear();
}

void turn_back()
{
  for (auto &row : written.pages) {
    unsigned char *at = bytes_of(row.first);
    row.second.after.assign(at, at + PAGE);
    memcpy(at, row.second.before.data(), PAGE);
  }
  for (size_t i = written.pinned.size(); i-- > 0;) *written.pinned[i].at = written.pinned[i].before;
  written.pinned.clear();
}

void compare(const char *kernel)
{
  for (auto &row : written.pages) {
    const page &p = row.second;
    const std::vector<unsigned char> &want = p.after.empty() ? p.before : p.after;
    const unsigned char *now = bytes_of(row.first);
    size_t i = 0;
    while (i < PAGE && now[i] == want[i]) i++;
    if (i == PAGE) continue;
    i = i / 4 * 4;
    uint32_t first, second;
    memcpy(&first, want.data() + i, 4);
    memcpy(&second, now + i, 4);
    wrong("kernel %s: the word at %p is %08x, and %08x with blocks and threads in the other order",
          kernel, static_cast<const void *>(now + i), first, second);
  }
  written = history();
}

}  // namespace emulated

/* The names are the compiler's. */
#define ACCESS(n)                                                                         \
  extern "C" void __asan_load##n##_noabort(uintptr_t a) { emulated::check(a, n, false); } \
  extern "C" void __asan_store##n##_noabort(uintptr_t a) { emulated::check(a, n, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
extern "C" void __asan_loadN_noabort(uintptr_t a, size_t n) { emulated::check(a, n, false); }
extern "C" void __asan_storeN_noabort(uintptr_t a, size_t n) { emulated::check(a, n, true); }
extern "C" void __asan_handle_no_return() {}
