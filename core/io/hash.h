/* XXH64: the checksum of checkpoint manifests. Fast and well distributed; not cryptographic. Use:
 * begin, any number of adds, end. */
#ifndef TIDE_IO_HASH_H
#define TIDE_IO_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct tide__hash {
  uint64_t acc[4];
  uint64_t seed, total;
  unsigned char rest[32]; /* the last total % 32 bytes */
} tide__hash;

void     tide__hash_begin(tide__hash *h, uint64_t seed);
void     tide__hash_add(tide__hash *h, const void *data, size_t n);
uint64_t tide__hash_end(const tide__hash *h);

#endif
