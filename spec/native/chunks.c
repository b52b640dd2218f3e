/* The table of compiled chunks that ranks share, from many threads: bindings/host/chunks.c. */
#include "check.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../bindings/host/chunks.h"

enum { THREADS = 8, TEXTS = 24, ROUNDS = 3 };

static int open_protected(lua_State *L)
{
  luaL_openlibs(L);
  chunks_install(L, lua_touserdata(L, 1));
  return 0;
}

static lua_State *open_state(tide_host_chunks *c)
{
  lua_State *L = luaL_newstate();
  assert_non_null(L);
  assert_int_equal(lua_cpcall(L, open_protected, c), 0);
  return L;
}

/* Loads and calls a chunk; returns the number that it returns, or -1 with the error on top. */
static double value_of(lua_State *L, const char *text, size_t n, const char *name)
{
  lua_settop(L, 0);
  if (chunks_load(L, text, n, name) != 0 || lua_pcall(L, 0, 1, 0) != 0) return -1;
  return lua_tonumber(L, -1);
}

static double value(lua_State *L, const char *text, const char *name)
{
  return value_of(L, text, strlen(text), name);
}

static void test_a_text_is_compiled_once(void **state)
{
  (void)state;
  tide_host_chunks *c = tide_host_chunks_new();
  lua_State *one = open_state(c), *two = open_state(c), *alone = open_state(NULL);
  for (int i = 0; i < 3; i++) {
    assert_true(value(one, "return 1", "=a") == 1);
    assert_true(value(two, "return 1", "=a") == 1);
    assert_true(value(alone, "return 1", "=a") == 1);
  }
  assert_int_equal(tide_host_chunks_compiled(c), 1);
  assert_true(value(two, "return 2", "=a") == 2); /* another text */
  assert_true(value(two, "return 1", "=b") == 1); /* another name */
  assert_true(value(one, "return 1", "=a") == 1);
  assert_int_equal(tide_host_chunks_compiled(c), 3);
  assert_true(value_of(one, "", 0, "=empty") == 0);
  assert_true(value_of(one, "return 7 -- \0 (", 15, "=zero") == 7);
  assert_int_equal(tide_host_chunks_compiled(c), 5);
  lua_close(one);
  lua_close(two);
  lua_close(alone);
  tide_host_chunks_free(c);
}

static void test_a_wrong_text_is_reported_each_time(void **state)
{
  (void)state;
  tide_host_chunks *c = tide_host_chunks_new();
  lua_State *L = open_state(c);
  for (int i = 0; i < 3; i++) {
    assert_true(value(L, "\nreturn = 1", "=bad") == -1);
    assert_string_equal(lua_tostring(L, -1), "bad:2: unexpected symbol near '='");
    assert_true(value(L, "\nlocal t\nreturn t.x", "=raises") == -1);
    assert_string_equal(lua_tostring(L, -1),
                        "raises:3: attempt to index local 't' (a nil value)");
  }
  assert_int_equal(tide_host_chunks_compiled(c), 1);
  lua_close(L);
  tide_host_chunks_free(c);
}

/* The compiler collects between two texts: what LuaJIT keeps for literals like 1LL must stay. */
static void test_integers_of_64_bits(void **state)
{
  (void)state;
  tide_host_chunks *c = tide_host_chunks_new();
  lua_State *L = open_state(c);
  char text[64];
  for (int i = 0; i < 2000; i++) {
    snprintf(text, sizeof text, "return tonumber(%dLL + 1)", i);
    assert_true(value(L, text, "=wide") == i + 1);
  }
  lua_close(L);
  tide_host_chunks_free(c);
}

/* compile(text, name) of Lua: the function, or nil and the error, as loadstring. */
static void test_lua_compiles_through_the_table(void **state)
{
  (void)state;
  tide_host_chunks *c = tide_host_chunks_new();
  lua_State *L = open_state(c);
  lua_register(L, "compile", chunks_compile);
  for (int i = 0; i < 2; i++)
    assert_true(value(L, "local f = compile('return 5, ...', '=made') "
                         "local five, given = f(6) "
                         "local none, said = compile('return (', '=made') "
                         "return five * given + (none == nil and "
                         "said == \"made:1: unexpected symbol near '<eof>'\" and 1 or 0)",
                      "=code") == 31);
  assert_true(value(L, "return compile(1)", "=few") == -1);
  assert_non_null(strstr(lua_tostring(L, -1), "bad argument #2"));
  assert_int_equal(tide_host_chunks_compiled(c), 3);
  lua_close(L);
  tide_host_chunks_free(c);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct worker {
  tide_host_chunks *c;
  pthread_t thread;
  int index, wrong;
} worker;

/* Every third text is wrong; each thread takes the texts in its own order. */
static void load_all(worker *w, lua_State *L)
{
  static const int steps[] = {1, 5, 7, 11, 13, 17, 19, 23};
  char text[96], name[16];
  for (int i = 0; i < TEXTS; i++) {
    int k = (w->index + i * steps[w->index % 8]) % TEXTS;
    snprintf(name, sizeof name, "=text%d", k);
    snprintf(text, sizeof text, k % 3 ? "local f = function(x) return x + %d end\nreturn f(0)"
                                      : "local f = function(x) return x + %d end end", k);
    w->wrong += value(L, text, name) != (k % 3 ? k : -1);
  }
}

static void *work(void *p)
{
  worker *w = p;
  for (int i = 0; i < ROUNDS; i++) {
    lua_State *L = open_state(w->c);
    load_all(w, L);
    lua_close(L);
  }
  tide_host_chunks_free(w->c);
  return NULL;
}

static void test_threads_in_different_orders(void **state)
{
  (void)state;
  tide_host_chunks *c = tide_host_chunks_new();
  worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.c = chunks_retain(c), .index = i};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(workers[i].thread, NULL);
    assert_int_equal(workers[i].wrong, 0);
  }
  assert_int_equal(tide_host_chunks_compiled(c), TEXTS - TEXTS / 3);
  tide_host_chunks_free(c);
}

/* The last reference is dropped while the caller's is gone: by an abandoned rank. */
static void test_a_table_outlives_its_maker(void **state)
{
  (void)state;
  tide_host_chunks *c = tide_host_chunks_new(), *kept = chunks_retain(c);
  tide_host_chunks_free(c);
  lua_State *L = open_state(kept);
  assert_true(value(L, "return 3", "=late") == 3);
  lua_close(L);
  tide_host_chunks_free(kept);
  tide_host_chunks_free(NULL);
  assert_null(chunks_retain(NULL));
}

/* A text that takes long to compile, so that a fork falls into that time. */
static char *long_text(void)
{
  enum { LINES = 200000 };
  char *text = malloc(6 * LINES + 16), *p = text;
  for (int i = 0; i < LINES; i++, p += 6) memcpy(p, "a = 1\n", 6);
  memcpy(p, "return 4", 9);
  return text;
}

typedef struct slow {
  tide_host_chunks *c;
  char *text;
  atomic_bool begun;
} slow;

static void *compile_slowly(void *p)
{
  slow *s = p;
  lua_State *L = open_state(s->c);
  atomic_store(&s->begun, true);
  value(L, s->text, "=slow");
  lua_close(L);
  return NULL;
}

/* The child has no thread that would end what the parent's began. */
static void test_a_forked_child_compiles_for_itself(void **state)
{
  (void)state;
  int status = 0;
  pthread_t thread;
  slow s = {.c = tide_host_chunks_new(), .text = long_text()};
  lua_State *L = open_state(s.c);
  assert_int_equal(pthread_create(&thread, NULL, compile_slowly, &s), 0);
  while (!atomic_load(&s.begun)) usleep(100);
  usleep(5000);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    bool right = value(L, s.text, "=slow") == 4;
    lua_close(L);
    tide_host_chunks_free(s.c);
    _exit(right ? 0 : 1);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  pthread_join(thread, NULL);
  assert_int_equal(tide_host_chunks_compiled(s.c), 1);
  lua_close(L);
  tide_host_chunks_free(s.c);
  free(s.text);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* What cannot be read twice is not read here: LuaJIT reads a pipe itself. */
static void test_a_pipe_is_read_once(void **state)
{
  (void)state;
  int ends[2];
  char path[32];
  tide_host_chunks *c = tide_host_chunks_new();
  lua_State *L = open_state(c);
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(write(ends[1], "return 6", 8), 8);
  close(ends[1]);
  snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
  assert_int_equal(chunks_load_file(L, path), 0);
  assert_int_equal(lua_pcall(L, 0, 1, 0), 0);
  assert_true(lua_tonumber(L, -1) == 6);
  assert_int_equal(tide_host_chunks_compiled(c), 0);
  close(ends[0]);
  assert_int_not_equal(chunks_load_file(L, "no/such/file.lua"), 0);
  assert_non_null(strstr(lua_tostring(L, -1), "cannot open no/such/file.lua"));
  lua_close(L);
  tide_host_chunks_free(c);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_text_is_compiled_once),
      cmocka_unit_test(test_a_wrong_text_is_reported_each_time),
      cmocka_unit_test(test_integers_of_64_bits),
      cmocka_unit_test(test_lua_compiles_through_the_table),
      cmocka_unit_test(test_threads_in_different_orders),
      cmocka_unit_test(test_a_table_outlives_its_maker),
      cmocka_unit_test(test_a_forked_child_compiles_for_itself),
      cmocka_unit_test(test_a_pipe_is_read_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
