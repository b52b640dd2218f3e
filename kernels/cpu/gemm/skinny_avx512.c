/* Products with few rows in vectors of 16. See skinny_lanes.h. */
#include "kernels/cpu/vec.h"

#if defined(__x86_64__) && defined(__GNUC__)

enum { LANES = 16, LANES_COLS1 = 8, LANES_COLS2 = 6, LANES_COLS4 = 4, LANES_COLS8 = 3,
       LANES_ROWS8 = 8 };
#define LANES_FN TIDE_AVX512
#define LANES_INLINE TIDE_AVX512_INLINE

typedef __m512 lanes;

LANES_INLINE lanes lanes_load(const void *src, int64_t at, int dtype, int64_t n)
{
  return vec_load16(src, at, dtype, vec_lanes(n));
}

LANES_INLINE lanes lanes_get(const float *from) { return _mm512_loadu_ps(from); }
LANES_INLINE void  lanes_put(float *to, lanes v) { _mm512_storeu_ps(to, v); }
LANES_INLINE lanes lanes_set(float x) { return _mm512_set1_ps(x); }
LANES_INLINE lanes lanes_zero(void) { return _mm512_setzero_ps(); }
LANES_INLINE lanes lanes_madd(lanes a, lanes b, lanes sum) { return _mm512_fmadd_ps(a, b, sum); }
LANES_INLINE float lanes_sum(lanes v) { return _mm512_reduce_add_ps(v); }

#include "kernels/cpu/gemm/skinny_lanes.h"

skinny_fn tide__skinny_avx512(int along_k, int dtype) { return lanes_choose(along_k, dtype); }

#else

#include "kernels/cpu/gemm/skinny.h"

skinny_fn tide__skinny_avx512(int along_k, int dtype)
{
  (void)along_k, (void)dtype;
  return 0;
}

#endif
