/* Shared by the files of this folder: blobs, files, JSON, safetensors. Uses core/base, core/device
 * and core/tensor. */
#pragma once

#include "core/base/base.h"

struct tide_blob {
  tide__object object;
  char     *data;
  int64_t   size; /* without the final zero */
};

/* Makes a blob of size zero bytes and a final zero. Owned. */
int tide__blob_new(tide_blob **out, tide_ctx *ctx, int64_t size, const char *op);

/* ---- file.c ---------------------------------------------------------------------------------- */

/* Files: whole reads, atomic writes, folders. Every failure names path and reason.
 *
 * A reader never sees half a file. Bytes go to a temporary file in the same folder, which is
 * synchronised and then renamed over the old one; the folder is synchronised last. Reading takes
 * regular files only and never maps them, so a file truncated meanwhile is an error and not a
 * signal. */

/* Opens a regular file. fd is -1 on failure. */
int tide__fd_open(int *fd, int64_t *size, tide_ctx *ctx, const char *path, const char *op);
/* Reads exactly n bytes from offset; E_IO if the file has become shorter. */
int tide__fd_read(tide_ctx *ctx, int fd, void *data, int64_t n, int64_t offset, const char *path,
                  const char *op);
void tide__fd_close(int fd);

enum { TIDE__PATH = 4096 };

/* A file being written. A zero-initialised one is closed. Abort after a failure, or always: after
 * commit it does nothing. */
typedef struct tide__writer {
  tide_ctx   *ctx;
  const char *op, *path; /* borrowed for the writer's life */
  int         fd;
  bool        open;
  size_t      used;
  char        temp[TIDE__PATH];
  char        buffer[1 << 14];
} tide__writer;

int  tide__writer_open(tide__writer *w, tide_ctx *ctx, const char *path, const char *op);
int  tide__writer_put(tide__writer *w, const void *data, size_t n);
int  tide__writer_commit(tide__writer *w);
void tide__writer_abort(tide__writer *w);

/* ---- json_reader.c --------------------------------------------------------------------------- */

/* A strict JSON reader: one token at a time, strings unescaped in place.
 *
 * The reader owns no memory. It walks a buffer that it may change, and unescaped text is never
 * longer than its source, so every string is a piece of that buffer, followed by a zero byte. The
 * tree of tide_json_parse and the safetensors header are both built on it. It does not detect
 * duplicate keys. */

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

/* Begins to read a text, which must be valid UTF-8 (tide_utf8_check) and have a zero byte at
 * text[size]. */
void tide__json_begin(tide__json_reader *r, char *text, int64_t size);
/* Returns the next token. Do not call again after BAD or END. */
int tide__json_next(tide__json_reader *r);
/* Reads to the end of the value that `token` began. Returns false on BAD. */
bool tide__json_skip(tide__json_reader *r, int token);

/* ---- safetensors_read.c ---------------------------------------------------------------------- */

/* The safetensors format: 8 bytes of header length (little-endian), a JSON header, the data.
 *
 *   {"__metadata__": {"k": "v"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
 *
 * A file may be broken or hostile, so a reader checks: the header is at most 100 MB and fits the
 * file; offsets tile the data exactly, without gap or overlap; sizes follow from dtype and shape
 * without overflow; names are unique; metadata maps strings to strings. */

enum { TIDE__HEADER_LIMIT = 100000000 };

typedef struct tide__st_dtype {
  const char *text;
  int dtype; /* TIDE_*, or -1: in the format, not in tide */
  int bits;
} tide__st_dtype;

const tide__st_dtype *tide__st_dtype_of(int dtype);
