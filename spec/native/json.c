/* tide_json_parse: what is accepted and how it is read, and a corpus of what is refused. */
#include "check.h"

#include <locale.h>
#include <math.h>

static tide_json *parse(tide_ctx *ctx, const char *text)
{
  tide_json *json = NULL;
  OK(ctx, tide_json_parse(&json, ctx, text, strlen(text), 0, 0, NULL));
  return json;
}

static int status_of(tide_ctx *ctx, const char *text, size_t n)
{
  tide_json *json = NULL;
  int rc = tide_json_parse(&json, ctx, text, n, 0, 0, "spec.json");
  if (rc < 0) assert_null(json);
  tide_json_release(json);
  return rc;
}

static void structure(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  (void)state;
  tide_json *json = parse(ctx, " {\"a\": [1, [], {\"b\": null}], \"c\": true} ");
  static const int kinds[] = {TIDE_JSON_OBJECT, TIDE_JSON_STRING, TIDE_JSON_ARRAY, TIDE_JSON_INT,
                              TIDE_JSON_ARRAY, TIDE_JSON_OBJECT, TIDE_JSON_STRING, TIDE_JSON_NULL,
                              TIDE_JSON_STRING, TIDE_JSON_BOOL};
  const tide_json_node *nodes = tide_json_nodes(json);
  assert_int_equal(tide_json_count(json), LENGTH(kinds));
  for (size_t i = 0; i < LENGTH(kinds); i++) assert_int_equal(nodes[i].kind, kinds[i]);
  assert_int_equal(nodes[0].count, 2);
  assert_int_equal(nodes[0].v.i, 10);
  assert_int_equal(nodes[2].count, 3);
  assert_int_equal(nodes[2].v.i, 8);
  assert_int_equal(nodes[4].count, 0);
  assert_int_equal(nodes[4].v.i, 5);
  assert_int_equal(nodes[5].count, 1);
  assert_int_equal(nodes[9].v.i, 1);
  tide_json_release(json);
  close_ctx(ctx);
}

static void numbers(void **state)
{
  static const struct { const char *text; int kind; int64_t i; double d; } cases[] = {
    {"0", TIDE_JSON_INT, 0, 0}, {"-7", TIDE_JSON_INT, -7, 0},
    {"9007199254740993", TIDE_JSON_INT, 9007199254740993, 0},
    {"9223372036854775807", TIDE_JSON_INT, INT64_MAX, 0},
    {"-9223372036854775808", TIDE_JSON_INT, INT64_MIN, 0},
    {"9223372036854775808", TIDE_JSON_NUMBER, 0, 9223372036854775808.0},
    {"1000000000000000019884624838656", TIDE_JSON_NUMBER, 0, 1e30},
    {"-0", TIDE_JSON_NUMBER, 0, -0.0}, {"1.0", TIDE_JSON_NUMBER, 0, 1},
    {"1e2", TIDE_JSON_NUMBER, 0, 100}, {"1E+2", TIDE_JSON_NUMBER, 0, 100},
    {"0.1", TIDE_JSON_NUMBER, 0, 0.1}, {"-2.5e-3", TIDE_JSON_NUMBER, 0, -2.5e-3},
    {"1e-400", TIDE_JSON_NUMBER, 0, 0}, {"4.9406564584124654e-324", TIDE_JSON_NUMBER, 0, 0x1p-1074},
    {"1.7976931348623157e308", TIDE_JSON_NUMBER, 0, 1.7976931348623157e308},
  };
  tide_ctx *ctx = open_ctx(NULL);
  (void)state;
  for (size_t i = 0; i < LENGTH(cases); i++) {
    tide_json *json = parse(ctx, cases[i].text);
    const tide_json_node *node = tide_json_nodes(json);
    if (node->kind != cases[i].kind) fail_msg("%s: kind %d", cases[i].text, node->kind);
    if (node->kind == TIDE_JSON_INT) {
      if (node->v.i != cases[i].i) fail_msg("%s: wrong integer", cases[i].text);
    } else if (node->v.d != cases[i].d || signbit(node->v.d) != signbit(cases[i].d)) {
      fail_msg("%s: got %.17g", cases[i].text, node->v.d);
    }
    tide_json_release(json);
  }
  close_ctx(ctx);
}

/* A host with a decimal comma must not change what 0.5 means. */
static void locale_is_ignored(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  (void)state;
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
  for (size_t i = 0; i < LENGTH(names) && !setlocale(LC_NUMERIC, names[i]);) i++;
  tide_json *json = parse(ctx, "[0.5]");
  assert_true(tide_json_nodes(json)[1].v.d == 0.5);
  setlocale(LC_NUMERIC, "C");
  tide_json_release(json);
  close_ctx(ctx);
}

static void strings(void **state)
{
  static const struct { const char *text, *value; int n; } cases[] = {
    {"\"\"", "", 0}, {"\"abc\"", "abc", 3},
    {"\"\\\" \\\\ \\/ \\b\\f\\n\\r\\t\"", "\" \\ / \b\f\n\r\t", 11},
    {"\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac", 6},
    {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", 4}, {"\"a\\u0000b\"", "a\0b", 3},
    {"\"\xc3\xa9\xf0\x9f\x98\x80\"", "\xc3\xa9\xf0\x9f\x98\x80", 6}, {"\"\x7f\"", "\x7f", 1},
    {"\"\\uFFFF\"", "\xef\xbf\xbf", 3}, {"\"\\udbff\\udfff\"", "\xf4\x8f\xbf\xbf", 4},
  };
  tide_ctx *ctx = open_ctx(NULL);
  (void)state;
  for (size_t i = 0; i < LENGTH(cases); i++) {
    tide_json *json = parse(ctx, cases[i].text);
    const tide_json_node *node = tide_json_nodes(json);
    assert_int_equal(node->kind, TIDE_JSON_STRING);
    if (node->count != cases[i].n) fail_msg("%s: %d bytes", cases[i].text, node->count);
    assert_memory_equal(tide_json_text(json) + node->v.i, cases[i].value, (size_t)cases[i].n + 1);
    tide_json_release(json);
  }
  close_ctx(ctx);
}

static const char *const refused[] = {
  "", " ", "\n", "\t\r\n ", "{", "[", "}", "]", "{]", "[}", "[1", "[1,", "[1,]", "[,1]", "[,]",
  "[1 2]", "[1,,2]", "[1]]", "[1][", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,\"a\":1}", "{\"a\" 1}",
  "{\"a\":1 \"b\":2}", "{\"a\":1,,\"b\":2}", "{a:1}", "{'a':1}", "{1:1}", "{null:1}", "{\"a\":1}}",
  "{\"a\":1]", "{\"a\"::1}", "{\"a\",1}", "1 2", "1,2", "true false", "nul", "nulll", "True",
  "TRUE",
  "tru", "fals", "nan", "NaN", "Infinity", "-Infinity", "inf", "undefined", "None",
  "01", "-01", "00", "-", "+1", "--1", "1.", ".5", "-.5", "1.e5", "1e", "1e+", "1e-", "1E", "0x10",
  "1_000", "1e999", "-1e999", "1.7976931348623159e308", "1e5.5", "1.2.3", "1f", "0b1", "- 1",
  "1 .5",
  "\"", "\"abc", "\"abc\\", "\"abc\\\"", "'abc'", "\"\\x41\"", "\"\\a\"", "\"\\0\"", "\"\\'\"",
  "\"\\u\"", "\"\\u1\"", "\"\\u12\"", "\"\\u123\"", "\"\\u123g\"", "\"\\U00000041\"", "\"\\u+123\"",
  "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\ud800\"", "\"\\ud800x\"", "\"\\ud800\\n\"",
  "\"\\udc00\\ud800\"", "\"\\ud800\\u0041\"", "\"a\nb\"", "\"a\tb\"", "\"a\rb\"", "\"a\x01" "b\"",
  "\"a\x1f" "b\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xc1\xbf\"", "\"\xe0\x80\x80\"",
  "\"\xed\xa0\x80\"",
  "\"\xf0\x80\x80\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xf5\x80\x80\x80\"", "\"\xc3\"",
  "\"\xe2\x82\"",
  "\"\x80\"", "\xef\xbb\xbf{}", "\xff\xfe{\x00}", "{\"a\":1,\"a\":2}", "{\"a\":1,\"\\u0061\":2}",
  "[{\"x\":{\"y\":1,\"z\":2,\"y\":3}}]", "{\"\":1,\"\":2}", "// x\n1", "/* x */ 1", "1 // x",
  "# x\n1",
  "[1;2]", "(1)", "<1>", "\v1", "\f1", "1\v", "\xc2\xa0" "1", "[\"a\",\n\"b\"\n\"c\"]",
  "{\"a\":tru}",
  "{\"a\":[}", "[{\"a\":1]", "[\"\\ud83d\\ude0\"]", "\\u0031", "{\"a\":\"b}", "\"\\", "[-]", "[1.]",
};

static void malformed(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  (void)state;
  for (size_t i = 0; i < LENGTH(refused); i++) {
    int rc = status_of(ctx, refused[i], strlen(refused[i]));
    if (rc != TIDE_E_FORMAT) fail_msg("case %zu (%s): status %d", i, refused[i], rc);
    if (!strstr(tide_error(ctx)->message, "spec.json: line "))
      fail_msg("case %zu: message '%s'", i, tide_error(ctx)->message);
  }
  /* zero bytes, which a C string cannot show */
  assert_int_equal(status_of(ctx, "\0", 1), TIDE_E_FORMAT);
  assert_int_equal(status_of(ctx, "1\0", 2), TIDE_E_FORMAT);
  assert_int_equal(status_of(ctx, "[1\0]", 4), TIDE_E_FORMAT);
  assert_int_equal(status_of(ctx, "\"a\0b\"", 5), TIDE_E_FORMAT);
  assert_int_equal(status_of(ctx, "{\"a\"\0:1}", 8), TIDE_E_FORMAT);
  close_ctx(ctx);
}

/* What is no JSON but what Python writes: numbers under the flag, refused without it. */
static void nonfinite(void **state)
{
  static const char text[] = "[Infinity, -Infinity, NaN, -1]";
  static const char *const not_even_then[] = {
    "Inf", "+Infinity", "infinity", "-NaN", "-Infinit", "NaNs", "Infinity1", "{Infinity: 1}",
    "1e999", "-", "N", "I", "[-I]",
  };
  tide_ctx *ctx = open_ctx(NULL);
  tide_json *json = NULL;
  (void)state;
  OK(ctx, tide_json_parse(&json, ctx, text, sizeof text - 1, 0, TIDE_JSON_NONFINITE, NULL));
  const tide_json_node *node = tide_json_nodes(json);
  for (int i = 1; i < 4; i++) assert_int_equal(node[i].kind, TIDE_JSON_NUMBER);
  assert_true(isinf(node[1].v.d) && node[1].v.d > 0);
  assert_true(isinf(node[2].v.d) && node[2].v.d < 0);
  assert_true(isnan(node[3].v.d));
  assert_int_equal(node[4].v.i, -1);
  tide_json_release(json);
  for (size_t i = 0; i < LENGTH(not_even_then); i++) {
    const char *t = not_even_then[i];
    int rc = tide_json_parse(&json, ctx, t, strlen(t), 0, TIDE_JSON_NONFINITE, NULL);
    if (rc != TIDE_E_FORMAT) fail_msg("%s: status %d", t, rc);
  }
  assert_int_equal(tide_json_parse(&json, ctx, "1", 1, 0, 2, NULL), TIDE_E_ARG);
  status_of(ctx, "[0, Infinity]", 13);
  assert_string_equal(tide_error(ctx)->message, "spec.json: line 1, column 5: expected a value; "
                      "JSON has no NaN and no Infinity");
  close_ctx(ctx);
}

static void position(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  (void)state;
  status_of(ctx, "{\n  \"a\": \"x\\ny\",\n  \"b\": ?\n}", 28);
  assert_string_equal(tide_error(ctx)->message, "spec.json: line 3, column 8: expected a value");
  status_of(ctx, "[1,\n \"\xff\"]", 9);
  assert_string_equal(tide_error(ctx)->message, "spec.json: line 2, column 3: not valid UTF-8");
  status_of(ctx, "{\"k\":1,\n\"k\":2}", 14);
  assert_non_null(strstr(tide_error(ctx)->message, "the key 'k' twice"));
  close_ctx(ctx);
}

/* `depth` arrays or objects within each other. */
static int nested(tide_ctx *ctx, int depth, const char *open, const char *shut)
{
  char text[4096] = "";
  for (int i = 0; i < depth; i++) strcat(text, open);
  strcat(text, "1");
  for (int i = 0; i < depth; i++) strcat(text, shut);
  return status_of(ctx, text, strlen(text));
}

static void limits(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  tide_json *json = NULL;
  (void)state;
  assert_int_equal(nested(ctx, 64, "[", "]"), TIDE_OK);
  assert_int_equal(nested(ctx, 65, "[", "]"), TIDE_E_FORMAT);
  assert_int_equal(nested(ctx, 64, "{\"a\":", "}"), TIDE_OK);
  assert_int_equal(nested(ctx, 65, "{\"a\":", "}"), TIDE_E_FORMAT);
  size_t n = 1 << 20;
  char *deep = malloc(n);
  memset(deep, '[', n);
  assert_int_equal(status_of(ctx, deep, n), TIDE_E_FORMAT);
  free(deep);
  assert_int_equal(tide_json_parse(&json, ctx, "[1, 2]", 6, 5, 0, NULL), TIDE_E_ARG);
  assert_int_equal(tide_json_parse(&json, ctx, "[1, 2]", 6, 6, 0, NULL), TIDE_OK);
  tide_json_release(json);
  assert_int_equal(tide_json_parse(&json, ctx, NULL, 3, 0, 0, NULL), TIDE_E_ARG);
  close_ctx(ctx);
}

/* Many keys: equal ones are found whatever lies between. */
static void many_keys(void **state)
{
  enum { N = 5000 };
  tide_ctx *ctx = open_ctx(NULL);
  char *text = malloc(N * 16 + 32), *p = text;
  (void)state;
  *p++ = '{';
  for (int i = 0; i < N; i++) p += sprintf(p, "%s\"k%d\":%d", i ? "," : "", i * 7919 % N, i);
  char *end = p;
  strcpy(p, "}");
  assert_int_equal(status_of(ctx, text, strlen(text)), TIDE_OK);
  strcpy(end, ",\"k17\":1}");
  assert_int_equal(status_of(ctx, text, strlen(text)), TIDE_E_FORMAT);
  free(text);
  close_ctx(ctx);
}

/* Every prefix of a text with all kinds in it, and every single-byte change, ends in order. */
static void mutations(void **state)
{
  static const char whole[] =
      "{\"a\":[1,-2.5e3,true,false,null,\"x\\u00e9\\ud83d\\ude00\\n\"],\"b\":{\"c\":[],\"d\":{}}}";
  static const char bytes[] = "\0\"\\{}[]:,0-e.tu \n\xff\xc3";
  tide_ctx *ctx = open_ctx(NULL);
  char text[sizeof whole];
  (void)state;
  assert_int_equal(status_of(ctx, whole, sizeof whole - 1), TIDE_OK);
  for (size_t n = 0; n < sizeof whole - 1; n++)
    assert_int_equal(status_of(ctx, whole, n), TIDE_E_FORMAT);
  for (size_t i = 0; i < sizeof whole - 1; i++)
    for (size_t b = 0; b < sizeof bytes - 1; b++) {
      memcpy(text, whole, sizeof whole);
      text[i] = bytes[b];
      int rc = status_of(ctx, text, sizeof whole - 1);
      assert_true(rc == TIDE_OK || rc == TIDE_E_FORMAT);
    }
  assert_int_equal(tide_ctx_stats(ctx)->nop, 0);
  close_ctx(ctx);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(structure), cmocka_unit_test(numbers), cmocka_unit_test(locale_is_ignored),
    cmocka_unit_test(strings),   cmocka_unit_test(malformed), cmocka_unit_test(nonfinite),
    cmocka_unit_test(position),
    cmocka_unit_test(limits),    cmocka_unit_test(many_keys), cmocka_unit_test(mutations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
