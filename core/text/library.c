/* See library.h. */
#include "core/text/library.h"

#include <dlfcn.h>
#include <stdio.h>

struct name { const char *symbol; size_t at; };

static void *open_library(const char *const *files, const char *what, const char *package,
                          char *why, size_t size)
{
  for (int i = 0; files[i]; i++) {
    void *lib = dlopen(files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (lib) return lib;
  }
  snprintf(why, size, "this tokenizer needs %s, and %s is not installed; install the Debian "
           "package %s", what, files[0], package);
  return NULL;
}

/* Fills a table of function pointers, which have the size of an object pointer here. */
static bool fill(void *lib, const struct name *names, size_t n, void *table, const char *file,
                 char *why, size_t size)
{
  for (size_t i = 0; i < n; i++) {
    void *f = dlsym(lib, names[i].symbol);
    if (!f) {
      snprintf(why, size, "%s has no function %s; it is too old", file, names[i].symbol);
      return false;
    }
    *(void **)((char *)table + names[i].at) = f;
  }
  return true;
}

#define REGEX(f) {"pcre2_" #f "_8", offsetof(tide__regex_api, f)}
#define UNICODE(f) {"utf8proc_" #f, offsetof(tide__unicode_api, f)}

bool tide__regex_open(tide__regex_api *api, char *why, size_t size)
{
  static const struct name names[] = {
    REGEX(compile), REGEX(jit_compile), REGEX(match), REGEX(jit_match), REGEX(match_data_create),
    REGEX(match_data_free), REGEX(get_ovector_pointer), REGEX(match_context_create),
    REGEX(match_context_free), REGEX(jit_stack_create), REGEX(jit_stack_free),
    REGEX(jit_stack_assign), REGEX(get_error_message), REGEX(code_free),
  };
  static const char *const files[] = {"libpcre2-8.so.0", "libpcre2-8.so", NULL};
  void *lib = open_library(files, "regular expressions", "libpcre2-8-0", why, size);
  return lib && fill(lib, names, sizeof names / sizeof *names, api, files[0], why, size);
}

bool tide__unicode_open(tide__unicode_api *api, char *why, size_t size)
{
  static const struct name names[] = {
    UNICODE(decompose), UNICODE(reencode), UNICODE(tolower), UNICODE(category),
    UNICODE(grapheme_break_stateful),
  };
  static const char *const files[] = {"libutf8proc.so.2", "libutf8proc.so.3", "libutf8proc.so",
                                      NULL};
  void *lib = open_library(files, "Unicode's tables", "libutf8proc2", why, size);
  return lib && fill(lib, names, sizeof names / sizeof *names, api, files[0], why, size);
}
