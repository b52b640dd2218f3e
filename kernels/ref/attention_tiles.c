/* Defines attention_tiles: what documents and positions each K_TILE tokens of an index span. */
#include "kernels/ref/load.h"

/* Widens the extents of a tile by a token's document and one of its positions. */
static void ref_widen(int64_t x[4], int64_t document, int64_t position)
{
  if (document < x[0]) x[0] = document;
  if (document > x[1]) x[1] = document;
  if (position < x[2]) x[2] = position;
  if (position > x[3]) x[3] = position;
}

static void ref_tile(const k_tensor *index, int64_t b, int64_t first, int64_t x[4])
{
  bool stray = false;
  x[0] = x[2] = INT32_MAX;
  x[1] = -1;
  x[3] = INT32_MIN;
  for (int64_t t = first; t < first + K_TILE && t < index->shape[1]; t++) {
    int64_t at = b * index->stride[0] + t * index->stride[1];
    int64_t document = ref_get_int(index, at);
    if (document < 0) stray = true;
    else
      for (int64_t i = 1; i < index->shape[2]; i++)
        ref_widen(x, document, ref_get_int(index, at + i * index->stride[2]));
  }
  if (stray) x[0] = ~x[0];
}

int k_ref_attention_tiles(const k_call *call)
{
  const k_tensor *index = &call->in[0], *y = &call->out[0];
  for (int64_t b = 0; b < y->shape[0]; b++)
    for (int64_t tile = 0; tile < y->shape[1]; tile++) {
      int64_t x[4];
      ref_tile(index, b, tile * K_TILE, x);
      for (int i = 0; i < 4; i++)
        ref_put_int(y, b * y->stride[0] + tile * y->stride[1] + i * y->stride[2], x[i]);
    }
  return TIDE_OK;
}
