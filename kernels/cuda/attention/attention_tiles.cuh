/* Which tiles of the other side the rows of a block see, and which they see whole.
 *
 * Without indices it is arithmetic on token numbers. With them (packed documents) attention_tiles
 * has noted what documents and positions each K_TILE tokens span, once for all layers or once in a
 * call; a warp judges 32 tiles at a time by those, so no block reads the indices of all tokens and
 * no block waits for itself. Spans err on the side of yes for "sees" and of no for "sees whole", so
 * a narrower tile is judged by those around it, and `until` of a token is one more position of it.
 */
#pragma once

#include "kernels/cuda/attention/attention.cuh"

/* Least and greatest of the tokens that have a document. The least document is complemented where
 * some token has none; {~INT32_MAX, -1} where no token has one. */
struct alignas(16) tide_extent { int document[2], position[2]; };

/* Returns what two neighbouring tiles span together. */
TIDE_DEVICE tide_extent tide_extent_join(const tide_extent &a, const tide_extent &b)
{
  int flip = (a.document[0] | b.document[0]) >> 31;
  int x = a.document[0] ^ (a.document[0] >> 31), y = b.document[0] ^ (b.document[0] >> 31);
  return {{(x < y ? x : y) ^ flip,
           a.document[1] > b.document[1] ? a.document[1] : b.document[1]},
          {a.position[0] < b.position[0] ? a.position[0] : b.position[0],
           a.position[1] > b.position[1] ? a.position[1] : b.position[1]}};
}

/* attention_tiles.cu: the extents of an index: `made` if it has them, else it starts to note them
 * in scratch of tide_tiles_bytes; nothing without an index. */
tide_tiles tide_tiles_of(const k_call *call, const k_tensor &index, const k_tensor &made,
                         void *scratch);
/* Bytes of scratch that this takes. */
int64_t tide_tiles_bytes(const k_tensor &index, const k_tensor &made);

/* Token and tile numbers are int: no more than this many tokens. */
enum { TIDE_MOST_TOKENS = INT32_MAX - 32 * 256 };

TIDE_DEVICE int tide_least_of_warp(int x)
{
#pragma unroll
  for (int far = 16; far > 0; far /= 2) {
    int y = __shfl_xor_sync(0xffffffffu, x, far);
    x = y < x ? y : x;
  }
  return x;
}
TIDE_DEVICE int tide_greatest_of_warp(int x) { return -1 - tide_least_of_warp(-1 - x); }

/* Returns what tokens [t0, t1), which exist, span; by a warp. KEYS: they are keys. */
template <bool KEYS>
TIDE_DEVICE tide_extent tide_extent_of(const tide_attend &p, int64_t b, int64_t t0, int64_t t1)
{
  tide_extent x = {{INT32_MAX, -1}, {INT32_MAX, INT32_MIN}};
  bool stray = false;
  for (int64_t t = t0 + (threadIdx.x & 31); t < t1; t += 32) {
    tide_token y = KEYS ? tide_key(p, b, t) : tide_query(p, b, t);
    int low = (int)(y.position < y.until ? y.position : y.until);
    int high = (int)(y.position < y.until ? y.until : y.position);
    if (y.document < 0) {
      stray = true;
      continue;
    }
    x.document[0] = y.document < x.document[0] ? y.document : x.document[0];
    x.document[1] = y.document > x.document[1] ? y.document : x.document[1];
    x.position[0] = low < x.position[0] ? low : x.position[0];
    x.position[1] = high > x.position[1] ? high : x.position[1];
  }
  x = {{tide_least_of_warp(x.document[0]), tide_greatest_of_warp(x.document[1])},
       {tide_least_of_warp(x.position[0]), tide_greatest_of_warp(x.position[1])}};
  if (__ballot_sync(0xffffffffu, stray) != 0) x.document[0] = ~x.document[0];
  return x;
}

/* What any of a block's rows sees, by position, and what all see: nothing unless the rows are of
 * one document. document: the least and greatest of the rows. */
struct tide_sight { int document[2], any[2], all[2]; };

/* Returns what the rows from t0 on that exist see; by a warp. KEYS: the rows are keys. */
template <bool KEYS>
TIDE_DEVICE tide_sight tide_sight_of(const tide_attend &p, int64_t b, int64_t t0, int rows)
{
  int64_t n = KEYS ? p.tk : p.tq, t1 = t0 + rows < n ? t0 + rows : n;
  tide_sight s = {{0, 0}, {}, {1, 0}};
  int64_t least = t0, most = t1 - 1;
  if (!KEYS) least += p.q_start, most += p.q_start;
  bool one = true;
  if (p.q_index) {
    tide_extent x = tide_extent_of<KEYS>(p, b, t0, t1);
    s.document[0] = x.document[0] ^ (x.document[0] >> 31);
    s.document[1] = x.document[1];
    least = x.position[0], most = x.position[1];
    one = x.document[0] == x.document[1];
  }
  tide_positions first = tide_positions_of<KEYS>(p, least), last = tide_positions_of<KEYS>(p, most);
  tide_positions there = tide_positions_there<KEYS>(p);
  s.any[0] = tide_as_int(first.low > there.low ? first.low : there.low);
  s.any[1] = tide_as_int(last.high < there.high ? last.high : there.high);
  if (!one) return s;
  s.all[0] = tide_as_int(last.low);
  s.all[1] = tide_as_int(first.high < there.high ? first.high : there.high);
  return s;
}

/* A tile: its first token, -1 after the last; whether every row sees every token of it. */
struct tide_step { int t; bool whole; };

/* The tiles of COLS tokens that some row of a block may see, in order. Every lane of a warp asks
 * and gets the same. KEYS: the rows are keys, so the tiles are of queries. */
template <bool KEYS, int COLS> struct tide_walk {
  tide_sight seen;
  const tide_extent *of; /* null without indices */
  int n, at;             /* tokens; the first one that has not been judged */
  uint32_t some, whole;  /* of the 32 tiles before `at`, those that are left, and the whole ones */

  TIDE_DEVICE tide_walk(const tide_attend &p, int64_t b, int64_t t0, int rows)
    : seen(tide_sight_of<KEYS>(p, b, t0, rows)), of(p.tiles.of), n((int)(KEYS ? p.tq : p.tk))
  {
    if (of) of += b * p.tiles.batch;
    begin();
  }
  TIDE_DEVICE void begin()
  {
    some = whole = 0;
    at = of ? 0 : seen.any[0] > seen.any[1] ? INT32_MAX : seen.any[0] / COLS * COLS;
  }
  TIDE_DEVICE tide_step next()
  {
    if (!of) {
      if (at > seen.any[1]) return {-1, false};
      tide_step r = {at, at >= seen.all[0] && at + (COLS - 1) <= seen.all[1]};
      at += COLS;
      return r;
    }
    while (some == 0) {
      if (at >= n) return {-1, false};
      judge();
    }
    int bit = __ffs((int)some) - 1;
    some &= some - 1;
    return {at - (32 - bit) * COLS, (whole >> bit & 1) != 0};
  }
  TIDE_DEVICE void judge()
  {
    int t = at + (int)(threadIdx.x & 31) * COLS;
    tide_extent x = {{~INT32_MAX, -1}, {INT32_MAX, INT32_MIN}};
    if (t < n) x = of[t / K_TILE];
    for (int c = K_TILE; c < COLS; c += K_TILE)
      if (t + c < n) x = tide_extent_join(x, of[(t + c) / K_TILE]);
    int least = x.document[0] ^ (x.document[0] >> 31);
    bool meets = least <= seen.document[1] && x.document[1] >= seen.document[0]
      && x.position[0] <= seen.any[1] && x.position[1] >= seen.any[0];
    bool within = t + COLS <= n && x.document[0] == x.document[1]
      && x.document[0] == seen.document[0] && x.position[0] >= seen.all[0]
      && x.position[1] <= seen.all[1];
    some = __ballot_sync(0xffffffffu, meets);
    whole = __ballot_sync(0xffffffffu, within);
    at += 32 * COLS;
  }
};
