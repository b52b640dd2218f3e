/* Pixels of images: other layouts to 8-bit RGB, orientation, patches. */
#include "core/image/image.h"

#include "core/base/door.h"
#include "core/base/status.h"

#include <string.h>

enum { CHANNEL = TIDE__RGB };

int tide__host_data(tide_tensor *t, const char *op, const char *name, void **data)
{
  if (!tide_tensor_is_contiguous(t))
    return tide__fail(t->ctx, TIDE_E_ARG, op, "%s: expected a contiguous tensor", name);
  if (t->storage->gone)
    return tide__fail(t->ctx, TIDE_E_GONE, op, "%s: the bytes of this tensor were dropped", name);
  *data = tide_tensor_data(t);
  if (*data) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_DEVICE, op, "%s: expected a tensor with bytes on the host, got "
                    "%s", name, TIDE__TEXT(t));
}

int tide__pixels(tide_tensor *x, int64_t channels, const char *op, const uint8_t **data)
{
  if (x->dtype != TIDE_U8)
    return tide__fail(x->ctx, TIDE_E_DTYPE, op, "x: expected u8, got %s", TIDE__TEXT(x));
  if (x->ndim != 3 || x->shape[0] < 1 || x->shape[1] < 1 || x->shape[2] != channels)
    return tide__fail(x->ctx, TIDE_E_SHAPE, op, "x: expected [height, width, %d], got %s",
                      (int)channels, TIDE__SHAPE_OF(x));
  void *p;
  TIDE_TRY(tide__host_data(x, op, "x", &p));
  *data = p;
  return TIDE_OK;
}

int tide__pixels_new(tide_tensor **out, tide_ctx *ctx, int64_t h, int64_t w, const char *op,
                     uint8_t **data)
{
  const int64_t shape[] = {h, w, CHANNEL};
  TIDE_TRY(tide__tensor_new(out, ctx, TIDE_DEV_CPU, TIDE_U8, 3, shape, op));
  *data = (uint8_t *)tide__tensor_ptr(*out);
  return TIDE_OK;
}

/* Returns a * b / 255, rounded. */
static inline uint8_t scaled(unsigned a, unsigned b)
{
  unsigned t = a * b + 128;
  return (uint8_t)((t + (t >> 8)) >> 8);
}

static void from_rgba(uint8_t *to, const uint8_t *from, int64_t n)
{
  for (int64_t i = 0; i < n; i++) memcpy(to + 3 * i, from + 4 * i, 3);
}

/* Values are inverted, as Adobe's programs write them: 255 is no ink. */
static void from_cmyk(uint8_t *to, const uint8_t *from, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    for (int c = 0; c < CHANNEL; c++) {
      unsigned key = from[4 * i + 3];
      to[3 * i + c] = (uint8_t)(key - scaled(255u - from[4 * i + c], key));
    }
}

/* Returns number i of 16 bits at `from`, which may lie at any byte. */
static inline uint16_t wide_at(const uint8_t *from, int64_t i)
{
  uint16_t v;
  memcpy(&v, from + 2 * i, sizeof v);
  return v;
}

static void from_rgb16(uint8_t *to, const uint8_t *from, int64_t n)
{
  for (int64_t i = 0; i < CHANNEL * n; i++) to[i] = (uint8_t)(wide_at(from, i) >> 8);
}

static void from_grey16(uint8_t *to, const uint8_t *from, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    uint16_t v = wide_at(from, i);
    memset(to + 3 * i, v < 255 ? v : 255, CHANNEL);
  }
}

int tide_image_rgb(tide_tensor **out, tide_tensor *x, int layout)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  static const int channels[] = {[TIDE_PIXELS_RGBA] = 4, [TIDE_PIXELS_CMYK] = 4,
                                 [TIDE_PIXELS_RGB16] = 6, [TIDE_PIXELS_GREY16] = 2};
  const char *op = "image_rgb";
  if (layout < 0 || layout > TIDE_PIXELS_GREY16)
    return tide__fail(x->ctx, TIDE_E_ARG, op, "layout: expected one of TIDE_PIXELS_*, got %d",
                      layout);
  const uint8_t *from;
  uint8_t *to;
  TIDE_TRY(tide__pixels(x, channels[layout], op, &from));
  TIDE_TRY(tide__pixels_new(out, x->ctx, x->shape[0], x->shape[1], op, &to));
  int64_t n = x->shape[0] * x->shape[1];
  if (layout == TIDE_PIXELS_RGBA) from_rgba(to, from, n);
  else if (layout == TIDE_PIXELS_CMYK) from_cmyk(to, from, n);
  else if (layout == TIDE_PIXELS_RGB16) from_rgb16(to, from, n);
  else from_grey16(to, from, n);
  return TIDE_OK;
}

int tide_image_orient(tide_tensor **out, tide_tensor *x, int orientation)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  const char *op = "image_orient";
  if (orientation < 1 || orientation > 8)
    return tide__fail(x->ctx, TIDE_E_ARG, op, "orientation: expected 1 to 8, got %d", orientation);
  const uint8_t *from;
  uint8_t *to;
  TIDE_TRY(tide__pixels(x, CHANNEL, op, &from));
  int64_t h = x->shape[0], w = x->shape[1];
  bool turned = orientation >= 5;
  int64_t rows = turned ? w : h, columns = turned ? h : w;
  TIDE_TRY(tide__pixels_new(out, x->ctx, rows, columns, op, &to));
  /* Whether the rows and the columns of the source are read backwards. */
  bool up = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  bool left = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  int64_t row = up ? -w : w, column = left ? -1 : 1;
  const uint8_t *start = from + CHANNEL * ((up ? (h - 1) * w : 0) + (left ? w - 1 : 0));
  int64_t dy = CHANNEL * (turned ? column : row), dx = CHANNEL * (turned ? row : column);
  for (int64_t y = 0; y < rows; y++) {
    const uint8_t *p = start + y * dy;
    for (int64_t c = 0; c < columns; c++, to += CHANNEL, p += dx) memcpy(to, p, CHANNEL);
  }
  return TIDE_OK;
}

/* Writes one channel of a patch at p to n slots of `area` numbers each, which follow each other. */
static void write_channel(float *to, const uint8_t *p, int64_t row, int64_t patch, int64_t n,
                          const float *value)
{
  int64_t area = patch * patch;
  for (int64_t y = 0; y < patch; y++)
    for (int64_t x = 0; x < patch; x++) to[y * patch + x] = value[p[y * row + CHANNEL * x]];
  for (int64_t i = 1; i < n; i++) memcpy(to + i * area, to, (size_t)area * sizeof *to);
}

void tide_image_patches_attrs_init(tide_image_patches_attrs *a)
{
  *a = (tide_image_patches_attrs){.size = sizeof *a, .patch = 14, .merge = 2, .depth = 2};
}

/* Writes a frame at p, nrow x ncolumn patches, into slots first to last of its patches. */
static void write_patches(float *to, const uint8_t *frame, int64_t nrow, int64_t ncolumn,
                          const tide_image_patches_attrs *a, int first, int last)
{
  int64_t patch = a->patch, merge = a->merge, area = patch * patch;
  int64_t row = CHANNEL * ncolumn * patch, slots = last - first + 1;
  for (int64_t top = 0; top < nrow; top += merge)
    for (int64_t left = 0; left < ncolumn; left += merge)
      for (int64_t i = 0; i < merge * merge; i++) {
        const uint8_t *p = frame + (top + i / merge) * patch * row
                           + (left + i % merge) * patch * CHANNEL;
        for (int c = 0; c < CHANNEL; c++, to += a->depth * area)
          write_channel(to + first * area, p + c, row, patch, slots, a->value + 256 * c);
      }
}

/* Fails unless attrs are possible, and x and `to` fit them. */
static int check_patches(tide_tensor *to, tide_tensor *x, const tide_image_patches_attrs *a,
                         const char *op)
{
  const int32_t most = 4096;
  if (a->patch < 1 || a->merge < 1 || a->depth < 1 || a->patch > most || a->merge > most
      || a->depth > most)
    return tide__fail(x->ctx, TIDE_E_ARG, op, "attrs: expected patch, merge and depth from 1 to "
                      "%d, got %d, %d and %d", most, a->patch, a->merge, a->depth);
  int64_t side = (int64_t)a->patch * a->merge;
  if (x->shape[0] % side || x->shape[1] % side)
    return tide__fail(x->ctx, TIDE_E_SHAPE, op, "x: expected height and width in multiples of "
                      "patch * merge (%lld), got %s", (long long)side, TIDE__SHAPE_OF(x));
  if (to->dtype != TIDE_F32)
    return tide__fail(x->ctx, TIDE_E_DTYPE, op, "to: expected f32, got %s", TIDE__TEXT(to));
  int64_t width = (int64_t)CHANNEL * a->depth * a->patch * a->patch;
  if (to->ndim != 2 || to->shape[1] != width)
    return tide__fail(x->ctx, TIDE_E_SHAPE, op, "to: expected [patches, %lld], got %s",
                      (long long)width, TIDE__SHAPE_OF(to));
  return TIDE_OK;
}

int tide_image_patches(tide_tensor *to, tide_tensor *x, int64_t frame, int first, int last,
                       const tide_image_patches_attrs *attrs)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, to), TIDE_OBJECT(TENSOR, x));
  const char *op = "image_patches";
  tide_image_patches_attrs a;
  tide_image_patches_attrs_init(&a);
  TIDE_TRY(tide__read_attrs(&a, sizeof a, attrs, x, op));
  const uint8_t *from;
  void *data;
  TIDE_TRY(tide__pixels(x, CHANNEL, op, &from));
  TIDE_TRY(check_patches(to, x, &a, op));
  int64_t nrow = x->shape[0] / a.patch, ncolumn = x->shape[1] / a.patch, n = nrow * ncolumn;
  if (frame < 0 || frame >= to->shape[0] / n)
    return tide__fail(x->ctx, TIDE_E_ARG, op, "frame: expected 0 to %lld, got %lld",
                      (long long)(to->shape[0] / n - 1), (long long)frame);
  if (first < 0 || last < first || last >= a.depth)
    return tide__fail(x->ctx, TIDE_E_ARG, op, "first and last: expected slots from 0 to %d, got %d "
                      "and %d", a.depth - 1, first, last);
  TIDE_TRY(tide__host_data(to, op, "to", &data));
  to->storage->version++;
  write_patches((float *)data + frame * n * to->shape[1], from, nrow, ncolumn, &a, first, last);
  return TIDE_OK;
}
