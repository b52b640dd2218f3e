/* Parameters: table, parser and lookup, all from the rows of param.def. */
#include "core/base/base.h"
#include "core/base/param.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

enum { INT, SIZE };

static const struct row { const char *name, *doc; int kind; int64_t def, lo, hi; size_t offset; }
table[] = {
#define TIDE_PARAM(name, kind, def, lo, hi, doc) \
  {#name, doc, kind, def, lo, hi, offsetof(tide__params, name)},
#include "core/base/param.def"
#undef TIDE_PARAM
};

enum { NPARAM = sizeof table / sizeof table[0], NAME_MAX_ = 32, VALUE_MAX = 32 };

static int64_t *slot(tide__params *params, const struct row *row)
{
  return (int64_t *)((char *)params + row->offset);
}

static const struct row *param_find(const char *name)
{
  for (int i = 0; i < NPARAM; i++)
    if (!strcmp(table[i].name, name)) return &table[i];
  return NULL;
}

int tide_param_count(void) { return NPARAM; }
const char *tide_param_name(int i) { return i >= 0 && i < NPARAM ? table[i].name : NULL; }
const char *tide_param_doc(int i) { return i >= 0 && i < NPARAM ? table[i].doc : NULL; }

void tide__params_init(tide__params *params)
{
  for (int i = 0; i < NPARAM; i++) *slot(params, &table[i]) = table[i].def;
}

/* Parses a whole number, for sizes with one of k m g; returns 0 for any other text. */
static int parse(const struct row *row, const char *text, int64_t *value)
{
  char *end;
  errno = 0;
  long long v = strtoll(text, &end, 10);
  if (end == text || errno) return 0;
  int shift = 0;
  if (row->kind == SIZE && *end) {
    const char *units = "kmg", *unit = strchr(units, tolower((unsigned char)*end));
    if (!unit) return 0;
    shift = 10 * (int)(unit - units + 1);
    end++;
  }
  if (*end || v > (INT64_MAX >> shift) || v < (INT64_MIN >> shift)) return 0;
  *value = (int64_t)v * ((int64_t)1 << shift);
  return 1;
}

/* Returns a letter in upper case: toupper of a Turkish locale leaves the i as it is. */
static char upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c; }

/* Assigns a value to a parameter. label: the source of the value, for messages. */
static int assign(tide_ctx *ctx, const struct row *row, const char *label, const char *value)
{
  int64_t v;
  if (!value || !parse(row, value, &v) || v < row->lo || v > row->hi)
    return tide__fail(ctx, TIDE_E_ARG, "param_set", "%s: expected a whole number in [%lld, "
                      "%lld]%s, got '%s'", label, (long long)row->lo, (long long)row->hi,
                      row->kind == SIZE ? " (suffixes k, m, g)" : "", value ? value : "(null)");
  *slot(&ctx->params, row) = v;
  return TIDE_OK;
}

int tide_param_set(tide_ctx *ctx, const char *name, const char *value)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  const struct row *row = name ? param_find(name) : NULL;
  if (!row)
    return tide__fail(ctx, TIDE_E_ARG, "param_set", "name: no parameter is called '%s'; `tide "
                      "params` lists them", name ? name : "(null)");
  return assign(ctx, row, name, value);
}

const char *tide_param_get(tide_ctx *ctx, const char *name)
{
  TIDE_DOOR_OR(NULL, TIDE_OBJECT(CTX, ctx));
  const struct row *row = name ? param_find(name) : NULL;
  if (!row) return NULL;
  snprintf(ctx->params.text, sizeof ctx->params.text, "%lld", (long long)*slot(&ctx->params, row));
  return ctx->params.text;
}

/* Copies [from, to) into buf as a string; returns 0 if it does not fit. */
static int piece(char *buf, size_t n, const char *from, const char *to)
{
  if ((size_t)(to - from) >= n) return 0;
  memcpy(buf, from, (size_t)(to - from));
  buf[to - from] = 0;
  return 1;
}

int tide__params_parse(tide_ctx *ctx, const char *text)
{
  char name[NAME_MAX_], value[VALUE_MAX];
  for (const char *p = text; p && *p;) {
    p += strspn(p, " ,");
    const char *end = p + strcspn(p, " ,"), *eq = memchr(p, '=', (size_t)(end - p));
    if (p == end) break;
    if (!eq || !piece(name, sizeof name, p, eq) || !piece(value, sizeof value, eq + 1, end))
      return tide__fail(ctx, TIDE_E_ARG, "ctx_new", "params: expected name=value, got '%.*s'",
                        (int)(end - p), p);
    TIDE_TRY(tide_param_set(ctx, name, value));
    p = end;
  }
  return TIDE_OK;
}

int tide__params_env(tide_ctx *ctx)
{
  for (int i = 0; i < NPARAM; i++) {
    char key[NAME_MAX_ + 8] = "TIDE_";
    for (size_t j = 0; j <= strlen(table[i].name); j++)
      key[5 + j] = upper(table[i].name[j]);
    const char *value = getenv(key);
    if (value) TIDE_TRY(assign(ctx, &table[i], key, value));
  }
  return TIDE_OK;
}
