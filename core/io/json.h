/* A strict JSON reader: one token at a time, strings unescaped in place.
 *
 * The reader owns no memory. It walks a buffer that it may change, and unescaped text is never
 * longer than its source, so every string is a piece of that buffer, followed by a zero byte. The
 * tree of tide_json_parse and the safetensors header are both built on it. It does not detect
 * duplicate keys.
 */
#ifndef TIDE_IO_JSON_H
#define TIDE_IO_JSON_H

#include "core/io/io.h"

/* Tokens beside the TIDE_JSON_* values; ARRAY and OBJECT open a container. */
enum { TIDE__JSON_KEY = 7, TIDE__JSON_CLOSE = 8, TIDE__JSON_END = 9, TIDE__JSON_BAD = -1 };
enum { TIDE__JSON_DEPTH = 64 };

typedef struct tide__json_reader {
  char    *text;          /* size bytes and a zero */
  int64_t  size, pos;
  int64_t  line, line_at; /* of pos: counted from 1, and where the line starts */
  uint64_t objects;       /* bit d: the container at depth d is an object */
  int      depth;
  int      expect;
  bool     nonfinite;     /* NaN, Infinity and -Infinity are numbers; set it after begin */
  /* the token just read */
  char    *str;           /* KEY, STRING: nstr bytes of UTF-8 and a zero */
  int64_t  nstr;
  int64_t  integer;       /* BOOL, INT */
  double   number;        /* NUMBER */
  const char *error;      /* BAD: the error at pos */
} tide__json_reader;

/* text must be valid UTF-8 (tide_utf8_check) and text[size] a zero byte. */
void tide__json_begin(tide__json_reader *r, char *text, int64_t size);
/* Returns the next token. Do not call again after BAD or END. */
int tide__json_next(tide__json_reader *r);
/* Reads to the end of the value that `token` began. Returns false on BAD. */
bool tide__json_skip(tide__json_reader *r, int token);

#endif
