/* Products with few rows in vectors of 8. See skinny_lanes.h. */
#include "kernels/cpu/vec.h"

#if defined(__x86_64__) && defined(__GNUC__)

enum { LANES = 8, LANES_COLS1 = 8, LANES_COLS2 = 4, LANES_COLS4 = 3, LANES_COLS8 = 3,
       LANES_ROWS8 = 4 };
#define LANES_FN TIDE_AVX2
#define LANES_INLINE TIDE_AVX2_INLINE

typedef __m256 lanes;

LANES_INLINE lanes lanes_load(const void *src, int64_t at, int dtype, int64_t n)
{
  if (n >= LANES) return vec_load8(src, at, dtype);
  uint32_t part[LANES] = { 0 };
  const int64_t size = vec_size(dtype);
  memcpy(part, (const char *)src + at * size, (size_t)(n * size));
  return vec_load8(part, 0, dtype);
}

LANES_INLINE lanes lanes_get(const float *from) { return _mm256_loadu_ps(from); }
LANES_INLINE void  lanes_put(float *to, lanes v) { _mm256_storeu_ps(to, v); }
LANES_INLINE lanes lanes_set(float x) { return _mm256_set1_ps(x); }
LANES_INLINE lanes lanes_zero(void) { return _mm256_setzero_ps(); }
LANES_INLINE lanes lanes_madd(lanes a, lanes b, lanes sum) { return _mm256_fmadd_ps(a, b, sum); }

LANES_INLINE float lanes_sum(lanes v)
{
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

#include "kernels/cpu/gemm/skinny_lanes.h"

skinny_fn tide__skinny_avx2(int along_k, int dtype) { return lanes_choose(along_k, dtype); }

#else

#include "kernels/cpu/gemm/skinny.h"

skinny_fn tide__skinny_avx2(int along_k, int dtype)
{
  (void)along_k, (void)dtype;
  return 0;
}

#endif
