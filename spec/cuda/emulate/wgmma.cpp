/* Hopper's asynchronous units on emulated threads: barriers, bulk copies, products of a warpgroup.
 *
 * What is under way is worth nothing. A box that is being copied holds NaN from the
 * moment the copy starts and arrives when the threads that wait for it are all that is left; the
 * registers of a product hold NaN from its start, and it reads its operands when it is waited for.
 * So a wait that is missing, and a stage that is handed back too soon, are seen by results. What
 * the PTX ISA leaves undefined (a fence that is missing, addresses off their alignment or outside
 * what the launch was given, descriptors that lanes disagree about) ends the program with a
 * sentence.
 *
 * Addresses in shared memory begin at 1040, so that no kernel relies on a round one. Spec only.
 */
#include "wgmma_emulated.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "inside.h"
#include "mma_emulated.h"

namespace {

enum { BASE = 1040 };

void wrong(const char *what)
{
  fprintf(stderr, "emulated CUDA: %s\n", what);
  abort();
}

/* n bytes at an address of shared memory. */
unsigned char *at(uint32_t address, uint32_t n)
{
  if (address < BASE || address - BASE + n > tide_emulate_shared_size())
    wrong("an address is outside the shared memory of the launch");
  return static_cast<unsigned char *>(tide_emulate_shared()) + (address - BASE);
}

/* The 128-byte swizzle: bits 4 to 6 of an address are taken with bits 7 to 9. */
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

/* ---- barriers -------------------------------------------------------------------------------- */

struct barrier {
  int32_t bytes; /* that are still to come */
  uint16_t pending;
  uint8_t count, phase;
};
static_assert(sizeof(barrier) == 8, "an mbarrier is 64 bits");

bool unfenced;
long made;

barrier *barrier_at(uint32_t address)
{
  if (address % 8) wrong("a barrier is not aligned to 8 bytes");
  barrier *b = reinterpret_cast<barrier *>(at(address, 8));
  if (b->phase > 1) wrong("a barrier is used that was not initialised");
  return b;
}

void advance(barrier *b)
{
  if (b->pending != 0 || b->bytes != 0) return;
  b->phase ^= 1;
  b->pending = b->count;
}

void arrive(barrier *b)
{
  if (b->pending == 0) wrong("more threads arrive at a barrier than it counts");
  b->pending--;
  advance(b);
}

}  // namespace

uint32_t tide_shared_address(const void *p)
{
  return (uint32_t)(static_cast<const unsigned char *>(p)
                    - static_cast<unsigned char *>(tide_emulate_shared())) + BASE;
}

static void no_products();

void tide_barrier_init(uint32_t address, uint32_t count)
{
  no_products();
  if (address % 8 || count == 0 || count > 255) wrong("a barrier is initialised wrongly");
  *reinterpret_cast<barrier *>(at(address, 8)) = {0, (uint16_t)count, (uint8_t)count, 0};
  unfenced = true;
  made++;
}

void tide_barrier_init_fence() { unfenced = false; }

void tide_barrier_expect(uint32_t address, uint32_t bytes)
{
  barrier *b = barrier_at(address);
  b->bytes += (int32_t)bytes;
  arrive(b);
}

void tide_barrier_arrive(uint32_t address) { arrive(barrier_at(address)); }

void tide_barrier_wait(uint32_t address, uint32_t parity)
{
  barrier *b = barrier_at(address);
  tide_emulate_until(b, [=] { return b->phase != parity; });
}

/* ---- tensor maps and copies ------------------------------------------------------------------ */

namespace {

/* Inside a CUtensorMap: four dims, the first in elements of 16 bits. The map keeps an address: what
 * lies there when a box is copied is judged as a kernel's access is (access.cpp). Elements outside
 * the dims are zeros and are not read (PTX ISA, "Tensors", "Tiled Mode"; CUDA Driver API,
 * CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE). */
struct tensor_map {
  unsigned char *data;
  uint64_t dim[4], stride[3]; /* stride in bytes, of dims 1 to 3 */
  uint32_t box[4];
};
static_assert(sizeof(tensor_map) <= sizeof(CUtensorMap), "a map is 128 bytes");

struct box_copy { tensor_map map; uint32_t to; int64_t c[4]; barrier *done; };

/* One row of a box; its elements begin at (c[0], ...) of the map and at `to`. */
void carry_row(const tensor_map &m, const int64_t c[4], uint32_t to)
{
  bool in = true;
  for (int k = 1; k < 4; k++) in = in && c[k] >= 0 && c[k] < (int64_t)m.dim[k];
  int64_t begin = c[0] < 0 ? 0 : c[0], end = c[0] + m.box[0];
  if (end > (int64_t)m.dim[0]) end = (int64_t)m.dim[0];
  if (!in || end < begin) begin = end = 0;
  const unsigned char *from = m.data;
  for (int k = 1; k < 4 && end > begin; k++) from += c[k] * (int64_t)m.stride[k - 1];
  if (end > begin) emulated::access(from + begin * 2, (size_t)(end - begin) * 2, false);
  for (int64_t i = 0; i < m.box[0]; i += 8) { /* 16 bytes */
    unsigned char *there = at(swizzled(to + (uint32_t)i * 2), 16);
    if (c[0] + i >= begin && c[0] + i + 8 <= end) {
      memcpy(there, from + (c[0] + i) * 2, 16);
      continue;
    }
    memset(there, 0, 16);
    for (int64_t k = i; k < i + 8; k++) {
      int64_t element = c[0] + k;
      if (element >= begin && element < end) memcpy(there + (k - i) * 2, from + element * 2, 2);
    }
  }
}

void carry_out(const box_copy &y)
{
  const tensor_map &m = y.map;
  uint32_t row = 0;
  for (uint32_t i3 = 0; i3 < m.box[3]; i3++)
    for (uint32_t i2 = 0; i2 < m.box[2]; i2++)
      for (uint32_t i1 = 0; i1 < m.box[1]; i1++, row++) {
        int64_t c[4] = {y.c[0], y.c[1] + i1, y.c[2] + i2, y.c[3] + i3};
        carry_row(m, c, y.to + row * m.box[0] * 2);
      }
  y.done->bytes -= (int32_t)(row * m.box[0] * 2);
  advance(y.done);
}

}  // namespace

/* Boxes of 4 dims with inner rows of 128 bytes, swizzled: no other is asked for. The rules are
 * those that the comment on cuTensorMapEncodeTiled in CUDA 13's cuda.h gives: map at a multiple of
 * 64 bytes, address of 16; dims of 1 to 2^32; strides multiples of 16 below 2^40; boxes of 1 to 256
 * elements, their inner bytes a multiple of 16 and no more than the swizzle's. Steps other than 1
 * are not modelled. Its picture of strides has each dim around the one before it, but asks for no
 * more than the above; dims here may lie in any order. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *dim, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
  bool good = rank == 4 && (uintptr_t)address % 16 == 0 && box[0] * 2 == 128
    && swizzle == CU_TENSOR_MAP_SWIZZLE_128B && (uintptr_t)map % 64 == 0
    && (type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
    && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
  for (int k = 0; good && k < 4; k++) {
    good = dim[k] >= 1 && dim[k] <= (uint64_t)1 << 32 && box[k] >= 1 && box[k] <= 256
      && steps[k] == 1;
    if (k < 3) good = good && strides[k] % 16 == 0 && strides[k] < (uint64_t)1 << 40;
  }
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  tensor_map m = {static_cast<unsigned char *>(address), {dim[0], dim[1], dim[2], dim[3]},
                  {strides[0], strides[1], strides[2]}, {box[0], box[1], box[2], box[3]}};
  memcpy(map->opaque, &m, sizeof m);
  return CUDA_SUCCESS;
}

void tide_box_copy(uint32_t to, const CUtensorMap *map, uint32_t address, int c0, int c1, int c2,
                   int c3)
{
  if (unfenced) wrong("a copy may find a barrier that is not fenced");
  box_copy y = {{}, to, {c0, c1, c2, c3}, barrier_at(address)};
  memcpy(&y.map, map->opaque, sizeof y.map);
  uint32_t n = 2;
  for (uint32_t k : y.map.box) n *= k;
  if (to % 1024) wrong("a swizzled box does not begin at a multiple of 1024 bytes");
  memset(at(to, n), 0xff, n);
  tide_emulate_later(y.done, [=] { carry_out(y); });
}

/* ---- products -------------------------------------------------------------------------------- */

namespace {

struct started { tide_emulate_product p; int group; };

/* Of a thread: products under way, and the accumulators they go on from. */
struct products {
  std::deque<started> list;
  std::map<float *, std::vector<float>> held;
  int group = 0;
  bool fenced = false;
};
products of_thread[1024];

uint32_t field(uint64_t descriptor, int from)
{
  return (uint32_t)(descriptor >> from & 0x3fff) * 16;
}

void check(uint64_t descriptor)
{
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
    wrong("a descriptor is not of 128-byte swizzle with base offset 0");
}

enum { CHUNK = 8 }; /* elements that lie side by side, whatever the swizzle */

template <bool F16> void read_chunk(uint32_t address, float *to, int by)
{
  const unsigned char *from = at(swizzled(address), 2 * CHUNK);
  for (int e = 0; e < CHUNK; e++) to[e * by] = tide_emulate_half<F16>(from + 2 * e);
}

/* Row i of an operand whose rows run along k, which counts rows of a or columns of b: 16 elements,
 * each `by` floats behind the last. */
template <bool F16> void read_along(uint64_t descriptor, int i, float *to, int by)
{
  uint32_t a = field(descriptor, 0) + i % 8 * 128 + i / 8 * field(descriptor, 32);
  for (int k = 0; k < 16; k += CHUNK) read_chunk<F16>(a + k * 2, to + k * by, by);
}

/* Columns [i, i + 8) of row k of b, whose rows run along i, in tiles of 64. */
template <bool F16> void read_across(uint64_t descriptor, int i, int k, float *to)
{
  uint32_t a = field(descriptor, 0) + i % 64 * 2 + i / 64 * field(descriptor, 16) + k % 8 * 128
    + k / 8 * field(descriptor, 32);
  read_chunk<F16>(a, to, 1);
}

/* What a lane gives to the product of its warp. */
struct given { const tide_emulate_product *p; float *d; };

given of_lane(const unsigned char *all, int lane)
{
  given r;
  memcpy(&r, all + lane * TIDE_EMULATE_SLOT, sizeof r);
  return r;
}

/* The 16 rows of a warp, which is one of four, times b: lane 4 g + t has rows g and g + 8, columns
 * 8 n + 2 t and the next. Sums run over k in order. */
template <bool F16> void multiply(const unsigned char *all)
{
  static float a[16][16], b[16][256], d[16][256];
  const tide_emulate_product p = *of_lane(all, 0).p;
  for (int lane = 0; lane < 32; lane++) {
    const given x = of_lane(all, lane);
    if (x.p->a != p.a || x.p->b != p.b) wrong("lanes of a product name different operands");
    int g = lane / 4, t = lane % 4 * 2;
    for (int r = 0; p.a_registers && r < 4; r++) {
      uint16_t pair[2];
      memcpy(pair, &x.p->a_registers[r], sizeof pair);
      for (int e = 0; e < 2; e++)
        a[g + r % 2 * 8][t + r / 2 * 8 + e] = tide_emulate_half<F16>(&pair[e]);
    }
    for (int c = 0; c < p.n / 2; c++)
      d[g + c / 2 % 2 * 8][c / 4 * 8 + t + c % 2] = p.add ? x.d[c] : 0;
  }
  int first = (int)threadIdx.x / 32 % 4 * 16;
  for (int i = 0; !p.a_registers && i < 16; i++) read_along<F16>(p.a, first + i, a[i], 1);
  for (int i = 0; !p.b_columns && i < p.n; i++) read_along<F16>(p.b, i, &b[0][i], 256);
  for (int k = 0; p.b_columns && k < 16; k++)
    for (int i = 0; i < p.n; i += CHUNK) read_across<F16>(p.b, i, k, &b[k][i]);
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++)
      for (int i = 0; i < p.n; i++) d[row][i] += a[row][k] * b[k][i];
  for (int lane = 0; lane < 32; lane++) {
    float *to = of_lane(all, lane).d;
    for (int c = 0; c < p.n / 2; c++)
      to[c] = d[lane / 4 + c / 2 % 2 * 8][c / 4 * 8 + lane % 4 * 2 + c % 2];
  }
}

}  // namespace

/* At the start of a block. */
static void no_products()
{
  for (const products &p : of_thread)
    if (!p.list.empty()) wrong("a block ended with products that nobody waited for");
}

void tide_wgmma_fence() { of_thread[threadIdx.x].fenced = true; }
void tide_wgmma_commit() { of_thread[threadIdx.x].group++; }

void tide_emulate_wgmma(const tide_emulate_product &p)
{
  products &mine = of_thread[threadIdx.x];
  if (!mine.fenced) wrong("wgmma without a fence after registers were touched");
  check(p.b);
  if (!p.a_registers) check(p.a);
  mine.list.push_back({p, mine.group});
  size_t n = (size_t)p.n / 2;
  if (!mine.held.count(p.d)) mine.held[p.d].assign(p.d, p.d + n);
  for (size_t i = 0; i < n; i++) p.d[i] = NAN;
}

void tide_emulate_wgmma_wait(int n)
{
  products &mine = of_thread[threadIdx.x];
  while (!mine.list.empty() && mine.list.front().group < mine.group - n) {
    tide_emulate_product p = mine.list.front().p;
    mine.list.pop_front();
    std::vector<float> &d = mine.held[p.d];
    given x = {&p, d.data()};
    tide_emulate_together(&x, sizeof x, p.f16 ? multiply<true> : multiply<false>);
    bool more = false;
    for (const started &s : mine.list) more = more || s.p.d == p.d;
    if (more) continue;
    memcpy(p.d, d.data(), d.size() * sizeof(float));
    mine.held.erase(p.d);
  }
  __syncwarp(); /* a warp waits as one */
  mine.fenced = false;
}

/* How many barriers blocks have made, for specs that ask which kernel ran. */
extern "C" __attribute__((visibility("default"))) long tide_emulate_barriers() { return made; }
