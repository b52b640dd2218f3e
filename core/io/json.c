/* tide_json: the values of a JSON text as one flat array of nodes, which Lua walks without calls.
 * Nodes are 16 bytes; strings stay in the (unescaped) copy of the text. */
#include "core/io/io.h"

struct tide_json {
  tide__object object;
  tide_ctx *ctx;
  char     *text;
  int64_t   size;      /* of text, without its final zero */
  tide_json_node *nodes;
  int64_t   count, cap;
};

enum { DEFAULT_LIMIT = 1 << 30, SMALL = 64 };

typedef struct builder {
  tide_json *json;
  tide__json_reader reader;
  int64_t open[TIDE__JSON_DEPTH]; /* node of each open container */
  const char *name;
} builder;

static int json_fail(builder *b, const char *what)
{
  const tide__json_reader *r = &b->reader;
  return tide__fail(b->json->ctx, TIDE_E_FORMAT, "json_parse", "%s%sline %lld, column %lld: %s",
                    b->name ? b->name : "", b->name ? ": " : "", (long long)r->line,
                    (long long)(r->pos - r->line_at + 1), what);
}

static int json_nomem(builder *b)
{
  return tide__fail(b->json->ctx, TIDE_E_NOMEM, "json_parse", "no memory for %lld JSON values",
                    (long long)b->json->count);
}

/* Appends a node and returns it, or NULL. */
static tide_json_node *json_push(tide_json *json, int kind)
{
  bool room = json->count < INT32_MAX &&
              tide__grow(json->ctx, &json->nodes, json->count, &json->cap, sizeof *json->nodes);
  if (!room) return NULL;
  tide_json_node *node = &json->nodes[json->count++];
  *node = (tide_json_node){.kind = kind};
  return node;
}

static int compare_text(const tide_json *json, int32_t a, int32_t b)
{
  const tide_json_node *x = &json->nodes[a], *y = &json->nodes[b];
  size_t n = (size_t)(x->count < y->count ? x->count : y->count);
  int order = memcmp(json->text + x->v.i, json->text + y->v.i, n);
  return order ? order : x->count - y->count;
}

static bool text_before(const void *arg, int32_t a, int32_t b)
{
  return compare_text(arg, a, b) < 0;
}

/* Lists the key nodes of the object at `at`, in order. */
static void list_keys(const tide_json *json, int64_t at, int32_t *keys)
{
  int64_t n = 0;
  for (int64_t key = at + 1; key < json->count;) {
    const tide_json_node *value = &json->nodes[key + 1];
    keys[n++] = (int32_t)key;
    key = value->kind >= TIDE_JSON_ARRAY ? value->v.i : key + 2;
  }
}

/* Fails for a key that is there twice. The message has the first characters of a long key, and '?'
 * for control characters. */
static int fail_twice(builder *b, const tide_json_node *key)
{
  char shown[65], what[128];
  size_t n = (size_t)key->count < sizeof shown ? (size_t)key->count : sizeof shown - 1;
  const char *text = b->json->text + key->v.i;
  while (n < (size_t)key->count && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
  for (size_t i = 0; i < n; i++) shown[i] = (unsigned char)text[i] < 32 ? '?' : text[i];
  shown[n] = 0;
  snprintf(what, sizeof what, "the object that ends here has the key '%s' twice", shown);
  return json_fail(b, what);
}

static int check_keys(builder *b, int64_t at)
{
  tide_json *json = b->json;
  int64_t n = json->nodes[at].count;
  int32_t small[SMALL], *keys = small;
  size_t bytes = (size_t)n * sizeof *keys;
  if (n > SMALL && !(keys = tide__alloc(json->ctx, bytes))) return json_nomem(b);
  list_keys(json, at, keys);
  tide__sort(keys, n, text_before, json);
  int rc = TIDE_OK;
  for (int64_t i = 1; i < n && rc == TIDE_OK; i++)
    if (compare_text(json, keys[i - 1], keys[i]) == 0) rc = fail_twice(b, &json->nodes[keys[i]]);
  if (keys != small) tide__free(json->ctx, keys, bytes);
  return rc;
}

static int json_close_container(builder *b)
{
  int64_t at = b->open[b->reader.depth];
  tide_json_node *node = &b->json->nodes[at];
  node->v.i = b->json->count;
  return node->kind == TIDE_JSON_OBJECT ? check_keys(b, at) : TIDE_OK;
}

/* Adds the token to the tree. */
static int add(builder *b, int token)
{
  tide__json_reader *r = &b->reader;
  if (token == TIDE__JSON_CLOSE) return json_close_container(b);
  bool container = token >= TIDE_JSON_ARRAY && token != TIDE__JSON_KEY;
  int depth = r->depth - container; /* of the container that holds the value */
  if (depth > 0 && token != TIDE__JSON_KEY) b->json->nodes[b->open[depth - 1]].count++;
  if (container) b->open[depth] = b->json->count;
  tide_json_node *node = json_push(b->json, token == TIDE__JSON_KEY ? TIDE_JSON_STRING : token);
  if (!node) return json_nomem(b);
  if (node->kind == TIDE_JSON_STRING) {
    node->count = (int32_t)r->nstr;
    node->v.i = r->str - r->text;
  } else if (node->kind == TIDE_JSON_NUMBER) {
    node->v.d = r->number;
  } else {
    node->v.i = r->integer;
  }
  return TIDE_OK;
}

static int build(builder *b)
{
  int64_t at = tide_utf8_check(b->json->text, b->json->size);
  if (at >= 0) {
    tide__json_reader *r = &b->reader;
    for (; r->pos < at; r->pos++)
      if (r->text[r->pos] == '\n') {
        r->line++;
        r->line_at = r->pos + 1;
      }
    return json_fail(b, "not valid UTF-8");
  }
  for (;;) {
    int token = tide__json_next(&b->reader);
    if (token == TIDE__JSON_END) return TIDE_OK;
    if (token == TIDE__JSON_BAD) return json_fail(b, b->reader.error);
    TIDE_TRY(add(b, token));
  }
}

static void json_destroy(tide__object *o, int n)
{
  tide_json *json = (tide_json *)o;
  tide_ctx *ctx = json->ctx;
  (void)n;
  tide__free(ctx, json->nodes, (size_t)json->cap * sizeof *json->nodes);
  if (json->text) tide__free(ctx, json->text, (size_t)json->size + 1);
  tide__object_free(o);
}

int tide_json_parse(tide_json **out, tide_ctx *ctx, const char *text, size_t nbytes,
                    int64_t limit, int flags, const char *name)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  if (!text && nbytes) return tide__fail(ctx, TIDE_E_ARG, "json_parse", "text is null");
  if (flags & ~TIDE_JSON_NONFINITE)
    return tide__fail(ctx, TIDE_E_ARG, "json_parse", "flags: expected 0 or TIDE_JSON_NONFINITE, "
                      "got %d", flags);
  if (limit <= 0 || limit > DEFAULT_LIMIT) limit = DEFAULT_LIMIT;
  if (nbytes > (size_t)limit)
    return tide__fail(ctx, TIDE_E_ARG, "json_parse", "%s%s%zu bytes, more than the limit of %lld",
                      name ? name : "", name ? ": " : "", nbytes, (long long)limit);
  tide__objects_settle(ctx);
  tide_json *json = tide__object_new(ctx, TIDE__KIND_JSON, sizeof *json, json_destroy);
  char *copy = json ? tide__alloc(ctx, nbytes + 1) : NULL;
  if (json) json->ctx = ctx;
  if (!copy) {
    tide_json_release(json);
    return tide__fail(ctx, TIDE_E_NOMEM, "json_parse", "no memory for %zu bytes", nbytes);
  }
  if (nbytes) memcpy(copy, text, nbytes);
  json->text = copy;
  json->size = (int64_t)nbytes;
  builder b = {.json = json, .name = name};
  tide__json_begin(&b.reader, copy, json->size);
  b.reader.nonfinite = flags & TIDE_JSON_NONFINITE;
  int rc = build(&b);
  if (rc < 0) tide_json_release(json);
  else *out = json;
  return rc;
}

void tide_json_release(tide_json *json) { tide__object_release(json, TIDE__KIND_JSON); }

int64_t tide_json_count(const tide_json *json) { return TIDE_IS(JSON, json) ? json->count : -1; }

const tide_json_node *tide_json_nodes(const tide_json *json)
{
  return TIDE_IS(JSON, json) ? json->nodes : NULL;
}

const char *tide_json_text(const tide_json *json)
{
  return TIDE_IS(JSON, json) ? json->text : NULL;
}
