/* Texts of messages, with a decimal point in any locale of the host. */
#pragma once

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>

/* Does what vsnprintf does in the locale "C". That locale exists always: newlocale does not
 * allocate it. uselocale changes the calling thread only. */
__attribute__((format(printf, 3, 0)))
static inline int tide__format(char *buf, size_t n, const char *format, va_list args)
{
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  locale_t before = uselocale(c);
  int length = vsnprintf(buf, n, format, args);
  uselocale(before);
  freelocale(c);
  return length;
}
