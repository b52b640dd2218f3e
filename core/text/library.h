/* The two libraries that a tokenizer may need, opened when a step asks for them: PCRE2 (regular
 * expressions, compiled to machine code) and utf8proc (normal forms, lower case). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE__PCRE_UTF = 0x00080000, TIDE__PCRE_UCP = 0x00020000, TIDE__PCRE_NO_CHECK = 0x40000000,
       TIDE__PCRE_NO_C = 0x00100000, TIDE__PCRE_JIT = 1, TIDE__PCRE_NOMATCH = -1 };

/* Functions of libpcre2-8 by their names without pcre2_. */
typedef struct tide__regex_api {
  void  *(*compile)(const uint8_t *, size_t, uint32_t, int *, size_t *, void *);
  int    (*jit_compile)(void *, uint32_t);
  int    (*match)(const void *, const uint8_t *, size_t, size_t, uint32_t, void *, void *);
  int    (*jit_match)(const void *, const uint8_t *, size_t, size_t, uint32_t, void *, void *);
  void  *(*match_data_create)(uint32_t, void *);
  void   (*match_data_free)(void *);
  size_t *(*get_ovector_pointer)(void *);
  void  *(*match_context_create)(void *);
  void   (*match_context_free)(void *);
  void  *(*jit_stack_create)(size_t, size_t, void *);
  void   (*jit_stack_free)(void *);
  void   (*jit_stack_assign)(void *, void *, void *);
  int    (*get_error_message)(int, uint8_t *, size_t);
  void   (*code_free)(void *);
} tide__regex_api;

enum { TIDE__UTF8PROC_STABLE = 2, TIDE__UTF8PROC_COMPAT = 4, TIDE__UTF8PROC_COMPOSE = 8,
       TIDE__UTF8PROC_DECOMPOSE = 16 };

/* Categories of libutf8proc: letters, marks, decimal digits and letter numbers are LU to NL. */
enum { TIDE__UTF8PROC_LU = 1, TIDE__UTF8PROC_MN = 6, TIDE__UTF8PROC_ME = 8,
       TIDE__UTF8PROC_NL = 10, TIDE__UTF8PROC_PC = 12 };

/* Functions of libutf8proc by their names without utf8proc_. */
typedef struct tide__unicode_api {
  ptrdiff_t (*decompose)(const uint8_t *, ptrdiff_t, int32_t *, ptrdiff_t, int);
  ptrdiff_t (*reencode)(int32_t *, ptrdiff_t, int);
  int32_t   (*tolower)(int32_t);
  int       (*category)(int32_t);
  bool      (*grapheme_break_stateful)(int32_t, int32_t, int32_t *);
} tide__unicode_api;

/* Open a library and fill its table. Return false and a sentence that names the package. The
 * library stays open until the process ends. */
bool tide__regex_open(tide__regex_api *api, char *why, size_t size);
bool tide__unicode_open(tide__unicode_api *api, char *why, size_t size);
