/* Blobs and UTF-8. */
#include "core/io/io.h"

static void blob_destroy(tide__foreign *f, int n)
{
  tide_blob *blob = (tide_blob *)f;
  tide_ctx *ctx = blob->ctx;
  (void)n;
  tide__free(ctx, blob->data, (size_t)blob->size + 1);
  tide__free(ctx, blob, sizeof *blob);
  tide__ctx_drop(ctx);
}

int tide__blob_new(tide_blob **out, tide_ctx *ctx, int64_t size, const char *op)
{
  tide__foreign_settle(ctx);
  tide_blob *b = tide__alloc(ctx, sizeof *b);
  char *data = b && size < INT64_MAX ? tide__alloc(ctx, (size_t)size + 1) : NULL;
  if (!data) {
    tide__free(ctx, b, sizeof *b);
    return tide__fail(ctx, TIDE_E_NOMEM, op, "no memory for %lld bytes", (long long)size);
  }
  *b = (tide_blob){{.release = blob_destroy}, ctx, data, size};
  tide__ctx_hold(ctx);
  *out = b;
  return TIDE_OK;
}

const char *tide_blob_data(const tide_blob *blob) { return blob ? blob->data : NULL; }
int64_t tide_blob_size(const tide_blob *blob) { return blob ? blob->size : 0; }

void tide_blob_release(tide_blob *blob)
{
  if (blob) tide__foreign_release(blob->ctx, &blob->foreign);
}

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
  for (int64_t i = 0; i < n;) {
    int step = utf8_length((const unsigned char *)text + i, n - i);
    if (!step) return i;
    i += step;
  }
  return -1;
}
