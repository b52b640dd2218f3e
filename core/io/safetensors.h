/* The safetensors format: 8 bytes of header length (little-endian), a JSON header, the data.
 *
 *   {"__metadata__": {"k": "v"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
 *
 * A file may be broken or hostile, so a reader checks: the header is at most 100 MB and fits the
 * file; offsets tile the data exactly, without gap or overlap; sizes follow from dtype and shape
 * without overflow; names are unique; metadata maps strings to strings.
 */
#ifndef TIDE_IO_SAFETENSORS_H
#define TIDE_IO_SAFETENSORS_H

#include "core/io/file.h"

enum { TIDE__HEADER_LIMIT = 100000000 };

typedef struct tide__st_dtype {
  const char *text;
  int dtype; /* TIDE_*, or -1: in the format, not in tide */
  int bits;
} tide__st_dtype;

const tide__st_dtype *tide__st_dtype_of(int dtype);

#endif
