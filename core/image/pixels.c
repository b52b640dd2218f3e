/* Pixels of images: other layouts to 8-bit RGB, orientation, patches. */
#include "core/base/door.h"
#include "core/base/status.h"

#include <string.h>

enum { CHANNEL = 3 };

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

static void from_rgb16(uint8_t *to, const uint16_t *from, int64_t n)
{
  for (int64_t i = 0; i < CHANNEL * n; i++) to[i] = (uint8_t)(from[i] >> 8);
}

static void from_grey16(uint8_t *to, const uint16_t *from, int64_t n)
{
  for (int64_t i = 0; i < n; i++) memset(to + 3 * i, from[i] < 255 ? from[i] : 255, CHANNEL);
}

int tide_image_rgb(tide_ctx *ctx, uint8_t *to, const void *from, int64_t npixel, int layout)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!to || !from || npixel < 0)
    return tide__fail(ctx, TIDE_E_ARG, "image_rgb", "expected pixels, and a number of them");
  switch (layout) {
  case TIDE_PIXELS_RGBA: from_rgba(to, from, npixel); break;
  case TIDE_PIXELS_CMYK: from_cmyk(to, from, npixel); break;
  case TIDE_PIXELS_RGB16: from_rgb16(to, from, npixel); break;
  case TIDE_PIXELS_GREY16: from_grey16(to, from, npixel); break;
  default:
    return tide__fail(ctx, TIDE_E_ARG, "image_rgb", "layout: expected one of TIDE_PIXELS_*, got %d",
                      layout);
  }
  return TIDE_OK;
}

int tide_image_orient(tide_ctx *ctx, uint8_t *to, const uint8_t *from, int64_t h, int64_t w,
                      int orientation)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!to || !from || h < 1 || w < 1 || orientation < 1 || orientation > 8)
    return tide__fail(ctx, TIDE_E_ARG, "image_orient", "expected pixels, sizes from 1 and an "
                      "orientation from 1 to 8, got %lld x %lld, %d", (long long)h, (long long)w,
                      orientation);
  bool turned = orientation >= 5;
  int64_t rows = turned ? w : h, columns = turned ? h : w;
  /* Whether the rows and the columns of the source are read backwards. */
  bool up = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  bool left = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  int64_t row = up ? -w : w, column = left ? -1 : 1;
  const uint8_t *start = from + CHANNEL * ((up ? (h - 1) * w : 0) + (left ? w - 1 : 0));
  int64_t dy = CHANNEL * (turned ? column : row), dx = CHANNEL * (turned ? row : column);
  for (int64_t y = 0; y < rows; y++) {
    const uint8_t *p = start + y * dy;
    for (int64_t x = 0; x < columns; x++, to += CHANNEL, p += dx) memcpy(to, p, CHANNEL);
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

int tide_image_patches(tide_ctx *ctx, float *to, const uint8_t *frame, int64_t rows,
                       int64_t columns, const tide_image_form *form, int first, int last)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!to || !frame || !form || form->patch < 1 || form->merge < 1 || form->depth < 1 || rows < 1
      || columns < 1 || rows % (form->patch * form->merge) || columns % (form->patch * form->merge)
      || first < 0 || last < first || last >= form->depth)
    return tide__fail(ctx, TIDE_E_ARG, "image_patches", "expected pixels, sizes that are multiples "
                      "of patch * merge, and slots below depth");
  int64_t patch = form->patch, merge = form->merge, area = patch * patch, row = CHANNEL * columns;
  int64_t nrow = rows / patch, ncolumn = columns / patch, slots = last - first + 1;
  for (int64_t top = 0; top < nrow; top += merge)
    for (int64_t left = 0; left < ncolumn; left += merge)
      for (int64_t i = 0; i < merge * merge; i++) {
        const uint8_t *p = frame + (top + i / merge) * patch * row
                           + (left + i % merge) * patch * CHANNEL;
        for (int c = 0; c < CHANNEL; c++, to += form->depth * area)
          write_channel(to + first * area, p + c, row, patch, slots, form->value + 256 * c);
      }
  return TIDE_OK;
}
