/* Writes safetensors: the header is emitted twice, first to measure it. Data lie by element size,
 * largest first, then by name, so that every tensor is aligned. */
#include "core/io/io.h"

#include "core/tensor/tensor.h"

typedef struct job {
  tide_ctx *ctx;
  int64_t n, nmeta;
  const char *const *names, *const *keys, *const *values;
  tide_tensor *const *tensors;
  int32_t *order;    /* n tensors in file order */
  tide__writer *to;  /* null: only count */
  int64_t count;     /* bytes of header so far */
} job;

static int bad_arg(const job *j, const char *what, const char *name)
{
  return tide__fail(j->ctx, TIDE_E_ARG, "file_save", "%s '%.200s'", what, name ? name : "(null)");
}

static int64_t nbytes(const tide_tensor *t)
{
  return tide_tensor_numel(t) * tide_dtype_size(t->dtype);
}

/* ---- the header ------------------------------------------------------------------------------ */

static int write_put(job *j, const char *text, size_t n)
{
  j->count += (int64_t)n;
  return j->to ? tide__writer_put(j->to, text, n) : TIDE_OK;
}

static int put_text(job *j, const char *text) { return write_put(j, text, strlen(text)); }

static int put_string(job *j, const char *text)
{
  TIDE_TRY(put_text(j, "\""));
  for (const char *p = text; *p;) {
    size_t plain = 0;
    while ((unsigned char)p[plain] >= 0x20 && p[plain] != '"' && p[plain] != '\\') plain++;
    TIDE_TRY(write_put(j, p, plain));
    p += plain;
    if (!*p) break;
    char code[8];
    unsigned char c = (unsigned char)*p++;
    snprintf(code, sizeof code, c < 0x20 ? "\\u%04x" : "\\%c", c);
    TIDE_TRY(put_text(j, code));
  }
  return put_text(j, "\"");
}

static int put_metas(job *j)
{
  TIDE_TRY(put_text(j, "\"__metadata__\":{"));
  for (int64_t i = 0; i < j->nmeta; i++) {
    if (i) TIDE_TRY(put_text(j, ","));
    TIDE_TRY(put_string(j, j->keys[i]));
    TIDE_TRY(put_text(j, ":"));
    TIDE_TRY(put_string(j, j->values[i]));
  }
  return put_text(j, "}");
}

static int put_entry(job *j, const char *name, const tide_tensor *t, int64_t at)
{
  char text[80];
  TIDE_TRY(put_string(j, name));
  TIDE_TRY(put_text(j, ":{\"dtype\":\""));
  TIDE_TRY(put_text(j, tide__st_dtype_of(t->dtype)->text));
  TIDE_TRY(put_text(j, "\",\"shape\":["));
  for (int d = 0; d < t->ndim; d++) {
    snprintf(text, sizeof text, "%s%lld", d ? "," : "", (long long)t->shape[d]);
    TIDE_TRY(put_text(j, text));
  }
  snprintf(text, sizeof text, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
           (long long)(at + nbytes(t)));
  return put_text(j, text);
}

static int put_header(job *j)
{
  int64_t at = 0;
  j->count = 0;
  TIDE_TRY(put_text(j, "{"));
  if (j->nmeta) TIDE_TRY(put_metas(j));
  for (int64_t i = 0; i < j->n; i++) {
    const tide_tensor *t = j->tensors[j->order[i]];
    if (i || j->nmeta) TIDE_TRY(put_text(j, ","));
    TIDE_TRY(put_entry(j, j->names[j->order[i]], t, at));
    at += nbytes(t);
  }
  TIDE_TRY(put_text(j, "}"));
  while (j->count % 8) TIDE_TRY(put_text(j, " "));
  return TIDE_OK;
}

/* ---- checks and order ------------------------------------------------------------------------ */

static bool write_lies_before(const void *arg, int32_t a, int32_t b)
{
  const job *j = arg;
  int x = tide_dtype_size(j->tensors[a]->dtype), y = tide_dtype_size(j->tensors[b]->dtype);
  return x != y ? x > y : strcmp(j->names[a], j->names[b]) < 0;
}

static bool write_name_before(const void *arg, int32_t a, int32_t b)
{
  const job *j = arg;
  return strcmp(j->names[a], j->names[b]) < 0;
}

static bool write_key_before(const void *arg, int32_t a, int32_t b)
{
  const job *j = arg;
  return strcmp(j->keys[a], j->keys[b]) < 0;
}

static int check_text(const job *j, const char *text, const char *what)
{
  if (!text || tide_utf8_check(text, (int64_t)strlen(text)) >= 0)
    return tide__fail(j->ctx, TIDE_E_ARG, "file_save", "%s is null or not UTF-8", what);
  return TIDE_OK;
}

static int check_tensor(const job *j, int64_t i)
{
  const tide_tensor *t = j->tensors[i];
  TIDE_TRY(check_text(j, j->names[i], "a tensor's name"));
  if (strcmp(j->names[i], "__metadata__") == 0)
    return bad_arg(j, "a tensor cannot have the name", j->names[i]);
  if (!t) return bad_arg(j, "no tensor for the name", j->names[i]);
  if (t->storage->gone)
    return tide__fail(j->ctx, TIDE_E_GONE, "file_save", "the bytes of tensor '%.200s' were dropped",
                      j->names[i]);
  if (t->storage->device == TIDE_DEV_NULL)
    return tide__fail(j->ctx, TIDE_E_DEVICE, "file_save", "tensor '%.200s' is on the null device "
                      "and has no bytes", j->names[i]);
  return TIDE_OK;
}

static int find_twins(job *j)
{
  size_t bytes = (size_t)j->nmeta * sizeof(int32_t);
  int32_t *order = bytes ? tide__alloc(j->ctx, bytes) : NULL;
  if (bytes && !order)
    return tide__fail(j->ctx, TIDE_E_NOMEM, "file_save", "no memory for metadata");
  int32_t name = tide__sort_twin(j->order, j->n, write_name_before, j);
  int32_t key = tide__sort_twin(order, j->nmeta, write_key_before, j);
  tide__free(j->ctx, order, bytes);
  if (name >= 0) return bad_arg(j, "two tensors have the name", j->names[name]);
  return key < 0 ? TIDE_OK : bad_arg(j, "two metadata entries have the key", j->keys[key]);
}

static int check(job *j)
{
  for (int64_t i = 0; i < j->n; i++) TIDE_TRY(check_tensor(j, i));
  for (int64_t i = 0; i < j->nmeta; i++) {
    TIDE_TRY(check_text(j, j->keys[i], "one of keys"));
    TIDE_TRY(check_text(j, j->values[i], "one of values"));
  }
  TIDE_TRY(find_twins(j));
  tide__sort(j->order, j->n, write_lies_before, j);
  TIDE_TRY(put_header(j));
  if (j->count > TIDE__HEADER_LIMIT)
    return tide__fail(j->ctx, TIDE_E_ARG, "file_save", "a header of %lld bytes, readers accept %d; "
                      "use shorter names or several files", (long long)j->count,
                      TIDE__HEADER_LIMIT);
  return TIDE_OK;
}

/* ---- the data -------------------------------------------------------------------------------- */

static int put_data(job *j, tide_tensor *t)
{
  int64_t n = nbytes(t);
  if (n == 0) return TIDE_OK;
  const void *data = tide_tensor_is_contiguous(t) ? tide_tensor_data(t) : NULL;
  if (data) return tide__writer_put(j->to, data, (size_t)n);
  void *copy = tide__alloc(j->ctx, (size_t)n);
  if (!copy)
    return tide__fail(j->ctx, TIDE_E_NOMEM, "file_save", "no memory for a copy of %lld bytes",
                      (long long)n);
  int rc = tide_to_bytes(t, copy, (size_t)n);
  if (rc == TIDE_OK) rc = tide__writer_put(j->to, copy, (size_t)n);
  tide__free(j->ctx, copy, (size_t)n);
  return rc;
}

static int write_file(job *j)
{
  unsigned char prefix[8];
  for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)j->count >> (8 * i));
  TIDE_TRY(tide__writer_put(j->to, prefix, 8));
  TIDE_TRY(put_header(j));
  for (int64_t i = 0; i < j->n; i++) TIDE_TRY(put_data(j, j->tensors[j->order[i]]));
  return tide__writer_commit(j->to);
}

int tide_file_save(tide_ctx *ctx, const char *path, int64_t n, const char *const *names,
                   tide_tensor *const *tensors, int64_t nmeta, const char *const *keys,
                   const char *const *values)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (n < 0 || nmeta < 0 || n > INT32_MAX || nmeta > INT32_MAX)
    return tide__fail(ctx, TIDE_E_ARG, "file_save", "expected 0 or more tensors and "
                      "metadata entries, got %lld and %lld", (long long)n, (long long)nmeta);
  if ((n && (!names || !tensors)) || (nmeta && (!keys || !values)))
    return tide__fail(ctx, TIDE_E_ARG, "file_save", "one of names, tensors, keys and values "
                      "is null");
  TIDE_TRY(tide__check_tensors(ctx, "file_save", "tensors", n, tensors));
  job j = {ctx, n, nmeta, names, keys, values, tensors, NULL, NULL, 0};
  size_t bytes = (size_t)n * sizeof *j.order;
  if (bytes && !(j.order = tide__alloc(ctx, bytes)))
    return tide__fail(ctx, TIDE_E_NOMEM, "file_save", "no memory for %lld names", (long long)n);
  tide__writer w;
  int rc = check(&j);
  if (rc == TIDE_OK) {
    rc = tide__writer_open(&w, ctx, path, "file_save");
    j.to = &w;
    if (rc == TIDE_OK) rc = write_file(&j);
    tide__writer_abort(&w);
  }
  tide__free(ctx, j.order, bytes);
  return rc;
}
