/* Blobs and UTF-8. */
#include "core/io/io.h"

static void blob_destroy(tide__object *o, int n)
{
  tide_blob *blob = (tide_blob *)o;
  (void)n;
  if (blob->data) tide__free(o->ctx, blob->data, (size_t)blob->size + 1);
  tide__object_free(o);
}

int tide__blob_new(tide_blob **out, tide_ctx *ctx, int64_t size, const char *op)
{
  tide__objects_settle(ctx);
  tide_blob *b = tide__object_new(ctx, TIDE__KIND_BLOB, sizeof *b, blob_destroy);
  if (b && size < INT64_MAX) b->data = tide__alloc(ctx, (size_t)size + 1);
  if (!b || !b->data) {
    tide_blob_release(b);
    return tide__fail(ctx, TIDE_E_NOMEM, op, "no memory for %lld bytes", (long long)size);
  }
  b->size = size;
  *out = b;
  return TIDE_OK;
}

const char *tide_blob_data(const tide_blob *blob)
{
  return TIDE_IS(BLOB, blob) ? blob->data : NULL;
}

int64_t tide_blob_size(const tide_blob *blob) { return TIDE_IS(BLOB, blob) ? blob->size : -1; }

void tide_blob_release(tide_blob *blob) { tide__object_release(blob, TIDE__KIND_BLOB); }

/* Returns the bytes of the character at s, or 0 if it is not valid. */
static int utf8_length(const unsigned char *s, int64_t left)
{
  unsigned c = s[0];
  if (c < 0x80) return 1;
  int n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
  if (c < 0xC2 || c > 0xF4 || left < n) return 0;
  unsigned lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
  unsigned hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
  if (s[1] < lo || s[1] > hi) return 0;
  for (int i = 2; i < n; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  return n;
}

int64_t tide_utf8_check(const char *text, int64_t n)
{
  if (!text) return n > 0 ? 0 : -1;
  for (int64_t i = 0; i < n;) {
    int step = utf8_length((const unsigned char *)text + i, n - i);
    if (!step) return i;
    i += step;
  }
  return -1;
}
