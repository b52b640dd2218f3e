/* The strict JSON reader (RFC 8259). A state machine without recursion; see io.h. */
#include "core/io/io.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

enum { VALUE, VALUE_OR_CLOSE, KEY_OR_CLOSE, COMMA_OR_CLOSE, DONE };

void tide__json_begin(tide__json_reader *r, char *text, int64_t size)
{
  *r = (tide__json_reader){.text = text, .size = size, .line = 1, .expect = VALUE};
}

static int bad(tide__json_reader *r, const char *what)
{
  r->error = what;
  return TIDE__JSON_BAD;
}

static char peek(tide__json_reader *r)
{
  for (;; r->pos++) {
    char c = r->text[r->pos];
    if (c == '\n') {
      r->line++;
      r->line_at = r->pos + 1;
    } else if (c != ' ' && c != '\t' && c != '\r') {
      return c;
    }
  }
}

static bool in_object(const tide__json_reader *r)
{
  return r->depth > 0 && (r->objects >> (r->depth - 1) & 1);
}

/* Sets the tokens allowed after a value. */
static int ended(tide__json_reader *r, int token)
{
  r->expect = r->depth ? COMMA_OR_CLOSE : DONE;
  return token;
}

/* ---- strings -------------------------------------------------------------------------------- */

/* Returns the value of the four digits at pos, or -1. */
static int hex4(tide__json_reader *r)
{
  int value = 0;
  for (int i = 0; i < 4; i++) {
    char c = r->text[r->pos + i];
    int digit = c >= '0' && c <= '9' ? c - '0'
              : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  r->pos += 4;
  return value;
}

static char *put_utf8(char *to, uint32_t u)
{
  if (u < 0x80) {
    *to++ = (char)u;
  } else if (u < 0x800) {
    *to++ = (char)(0xC0 | u >> 6);
    *to++ = (char)(0x80 | (u & 63));
  } else if (u < 0x10000) {
    *to++ = (char)(0xE0 | u >> 12);
    *to++ = (char)(0x80 | (u >> 6 & 63));
    *to++ = (char)(0x80 | (u & 63));
  } else {
    *to++ = (char)(0xF0 | u >> 18);
    *to++ = (char)(0x80 | (u >> 12 & 63));
    *to++ = (char)(0x80 | (u >> 6 & 63));
    *to++ = (char)(0x80 | (u & 63));
  }
  return to;
}

/* Reads after "\u". Returns NULL without four digits, or for half a surrogate pair. */
static char *unescape_unicode(tide__json_reader *r, char *to)
{
  int u = hex4(r);
  if (u < 0) return bad(r, "expected four hex digits after \\u"), NULL;
  if (u >= 0xD800 && u <= 0xDBFF) {
    int low = -1;
    if (r->text[r->pos] == '\\' && r->text[r->pos + 1] == 'u') {
      r->pos += 2;
      low = hex4(r);
    }
    if (low < 0xDC00 || low > 0xDFFF) return bad(r, "half a surrogate pair"), NULL;
    return put_utf8(to, 0x10000u + ((uint32_t)(u - 0xD800) << 10) + (uint32_t)(low - 0xDC00));
  }
  if (u >= 0xDC00 && u <= 0xDFFF) return bad(r, "half a surrogate pair"), NULL;
  return put_utf8(to, (uint32_t)u);
}

/* Reads after the backslash. */
static char *unescape(tide__json_reader *r, char *to)
{
  static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
  char c = r->text[r->pos];
  if (c == 'u') {
    r->pos++;
    return unescape_unicode(r, to);
  }
  const char *at = c ? strchr(from, c) : NULL;
  if (!at) return bad(r, "unknown escape in a string"), NULL;
  r->pos++;
  *to++ = into[at - from];
  return to;
}

/* Reads from the opening quote. */
static bool read_string(tide__json_reader *r)
{
  char *to = r->str = r->text + ++r->pos;
  for (;;) {
    unsigned char c = (unsigned char)r->text[r->pos];
    if (c == '"') break;
    if (c == '\\') {
      r->pos++;
      to = unescape(r, to);
      if (!to) return false;
    } else if (c < 0x20) {
      bad(r, r->pos >= r->size ? "the text ends inside a string" : "control character in a string");
      return false;
    } else {
      *to++ = (char)c;
      r->pos++;
    }
  }
  r->pos++;
  *to = 0;
  r->nstr = to - r->str;
  return true;
}

/* ---- numbers -------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Converts a decimal to int64; returns false if it does not fit. */
static bool to_integer(const char *s, const char *end, int64_t *value)
{
  bool negative = *s == '-';
  int64_t v = 0;
  for (s += negative; s < end; s++)
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, *s - '0', &v)) return false;
  if (!negative && v == INT64_MIN) return false;
  *value = negative ? v : -v;
  return true;
}

/* Returns the number of a text. The host may have set a locale with a decimal comma; newlocale("C")
 * costs nothing. */
static double to_double(const char *s)
{
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  int saved = errno;
  double value = c ? strtod_l(s, NULL, c) : NAN;
  errno = saved;
  if (c) freelocale(c);
  return value;
}

static int read_number(tide__json_reader *r)
{
  const char *s = r->text + r->pos, *p = s + (*s == '-');
  bool integral = true;
  if (!is_digit(*p)) return bad(r, "expected a value");
  if (*p == '0' && is_digit(p[1])) return bad(r, "a number must not begin with 0");
  while (is_digit(*p)) p++;
  if (*p == '.') {
    integral = false;
    if (!is_digit(*++p)) return bad(r, "expected a digit after the decimal point");
    while (is_digit(*p)) p++;
  }
  if (*p == 'e' || *p == 'E') {
    integral = false;
    p++;
    p += *p == '+' || *p == '-';
    if (!is_digit(*p)) return bad(r, "expected a digit in the exponent");
    while (is_digit(*p)) p++;
  }
  bool minus_zero = s[0] == '-' && s[1] == '0' && p == s + 2;
  if (integral && !minus_zero && to_integer(s, p, &r->integer)) {
    r->pos += p - s;
    return ended(r, TIDE_JSON_INT);
  }
  r->number = to_double(s);
  if (!isfinite(r->number)) return bad(r, "the number does not fit a double");
  r->pos += p - s;
  return ended(r, TIDE_JSON_NUMBER);
}

/* ---- the state machine ----------------------------------------------------------------------- */

static int open_container(tide__json_reader *r, bool object)
{
  if (r->depth == TIDE__JSON_DEPTH) return bad(r, "nested deeper than 64");
  uint64_t bit = 1ull << r->depth++;
  r->objects = object ? r->objects | bit : r->objects & ~bit;
  r->expect = object ? KEY_OR_CLOSE : VALUE_OR_CLOSE;
  r->pos++;
  return object ? TIDE_JSON_OBJECT : TIDE_JSON_ARRAY;
}

static int reader_close_container(tide__json_reader *r)
{
  r->pos++;
  r->depth--;
  return ended(r, TIDE__JSON_CLOSE);
}

static int reader_word(tide__json_reader *r, const char *text, int token, int value)
{
  size_t n = strlen(text);
  if (strncmp(r->text + r->pos, text, n) != 0) return bad(r, "expected a value");
  r->pos += (int64_t)n;
  r->integer = value;
  return ended(r, token);
}

/* Reads a number that is not JSON but that Python and others write. */
static int read_nonfinite(tide__json_reader *r, const char *text, double value)
{
  if (strncmp(r->text + r->pos, text, strlen(text)) != 0) return bad(r, "expected a value");
  if (!r->nonfinite) return bad(r, "expected a value; JSON has no NaN and no Infinity");
  r->number = value;
  return reader_word(r, text, TIDE_JSON_NUMBER, 0);
}

static int read_value(tide__json_reader *r, char c)
{
  if (c == '-' && r->text[r->pos + 1] == 'I') return read_nonfinite(r, "-Infinity", -INFINITY);
  switch (c) {
  case 'I': return read_nonfinite(r, "Infinity", INFINITY);
  case 'N': return read_nonfinite(r, "NaN", NAN);
  case '{': return open_container(r, true);
  case '[': return open_container(r, false);
  case '"': return read_string(r) ? ended(r, TIDE_JSON_STRING) : TIDE__JSON_BAD;
  case 't': return reader_word(r, "true", TIDE_JSON_BOOL, 1);
  case 'f': return reader_word(r, "false", TIDE_JSON_BOOL, 0);
  case 'n': return reader_word(r, "null", TIDE_JSON_NULL, 0);
  case 0: return bad(r, r->pos >= r->size ? "the text ends before the value" : "expected a value");
  default: return read_number(r);
  }
}

static int read_key(tide__json_reader *r, char c)
{
  if (c != '"') return bad(r, "expected a key in double quotes");
  if (!read_string(r)) return TIDE__JSON_BAD;
  if (peek(r) != ':') return bad(r, "expected ':' after a key");
  r->pos++;
  r->expect = VALUE;
  return TIDE__JSON_KEY;
}

int tide__json_next(tide__json_reader *r)
{
  char c = peek(r);
  char closing = in_object(r) ? '}' : ']';
  switch (r->expect) {
  case DONE: return r->pos >= r->size ? TIDE__JSON_END : bad(r, "text after the value");
  case COMMA_OR_CLOSE:
    if (c == closing) return reader_close_container(r);
    if (c != ',') return bad(r, closing == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
    r->pos++;
    c = peek(r);
    return closing == '}' ? read_key(r, c) : read_value(r, c);
  case KEY_OR_CLOSE:
    return c == closing ? reader_close_container(r) : read_key(r, c);
  case VALUE_OR_CLOSE:
    return c == closing ? reader_close_container(r) : read_value(r, c);
  default: return read_value(r, c);
  }
}

bool tide__json_skip(tide__json_reader *r, int token)
{
  if (token != TIDE_JSON_ARRAY && token != TIDE_JSON_OBJECT) return token >= 0;
  for (int depth = r->depth - 1; r->depth > depth;)
    if (tide__json_next(r) < 0) return false;
  return true;
}
