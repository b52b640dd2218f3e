/* XXH64, from its specification (XXH64 section of the xxHash document): four accumulators take 32
 * bytes a round, then merge; the tail is added by 8, 4 and 1 bytes. Words are little-endian. */
#include "core/io/io.h"

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu,
                      P3 = 0x165667B19E3779F9u, P4 = 0x85EBCA77C2B2AE63u,
                      P5 = 0x27D4EB2F165667C5u;

/* A checksum under way: begin, any number of adds, end. Not cryptographic. */
typedef struct hash {
  uint64_t acc[4];
  uint64_t seed, total;
  unsigned char rest[32]; /* the last total % 32 bytes */
} hash;

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static uint64_t hash_word(const unsigned char *p, int nbyte)
{
  uint64_t w = 0;
  for (int i = nbyte - 1; i >= 0; i--) w = w << 8 | p[i];
  return w;
}

static uint64_t mix(uint64_t acc, uint64_t input) { return rotate(acc + input * P2, 31) * P1; }

static void hash_begin(hash *h, uint64_t seed)
{
  *h = (hash){.acc = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

static void eat(hash *h, const unsigned char *p)
{
  for (int i = 0; i < 4; i++) h->acc[i] = mix(h->acc[i], hash_word(p + 8 * i, 8));
}

static void hash_add(hash *h, const void *data, size_t n)
{
  const unsigned char *p = data;
  size_t held = h->total % 32;
  h->total += n;
  if (held) {
    size_t take = n < 32 - held ? n : 32 - held;
    memcpy(h->rest + held, p, take);
    if (held + take < 32) return;
    eat(h, h->rest);
    p += take;
    n -= take;
  }
  for (; n >= 32; p += 32, n -= 32) eat(h, p);
  if (n) memcpy(h->rest, p, n);
}

static uint64_t hash_end(const hash *h)
{
  uint64_t x = h->seed + P5;
  if (h->total >= 32) {
    static const int turn[4] = {1, 7, 12, 18};
    x = 0;
    for (int i = 0; i < 4; i++) x += rotate(h->acc[i], turn[i]);
    for (int i = 0; i < 4; i++) x = (x ^ mix(0, h->acc[i])) * P1 + P4;
  }
  x += h->total;
  const unsigned char *p = h->rest, *end = p + h->total % 32;
  for (; end - p >= 8; p += 8) x = rotate(x ^ mix(0, hash_word(p, 8)), 27) * P1 + P4;
  for (; end - p >= 4; p += 4) x = rotate(x ^ hash_word(p, 4) * P1, 23) * P2 + P3;
  for (; p < end; p++) x = rotate(x ^ *p * P5, 11) * P1;
  x = (x ^ x >> 33) * P2;
  x = (x ^ x >> 29) * P3;
  return x ^ x >> 32;
}

uint64_t tide_hash(const void *data, size_t nbytes, uint64_t seed)
{
  hash h;
  hash_begin(&h, seed);
  if (data) hash_add(&h, data, nbytes);
  return hash_end(&h);
}

int tide_path_hash(tide_ctx *ctx, const char *path, char *text)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  int fd;
  int64_t size;
  text[0] = 0;
  TIDE_TRY(tide__fd_open(&fd, &size, ctx, path, "path_hash"));
  hash h;
  hash_begin(&h, 0);
  char block[1 << 16];
  int rc = TIDE_OK;
  for (int64_t at = 0; at < size && rc == TIDE_OK;) {
    int64_t n = size - at < (int64_t)sizeof block ? size - at : (int64_t)sizeof block;
    rc = tide__fd_read(ctx, fd, block, n, at, path, "path_hash");
    if (rc == TIDE_OK) hash_add(&h, block, (size_t)n);
    at += n;
  }
  tide__fd_close(fd);
  if (rc < 0) return rc;
  snprintf(text, 17, "%016llx", (unsigned long long)hash_end(&h));
  return TIDE_OK;
}
