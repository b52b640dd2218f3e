/* A host that knows nothing of tide: it opens a Lua state of its own, runs chunks by lua_pcall and
 * reads errors by lua_tostring, as nginx and most older programs do. */
#include "check.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

/* Runs a chunk; returns the error as lua_tostring gives it, or null. Borrowed until lua_settop. */
static const char *run(lua_State *L, const char *code, int *rc)
{
  lua_settop(L, 0);
  *rc = luaL_loadstring(L, code);
  if (*rc == 0) *rc = lua_pcall(L, 0, 0, 0);
  return *rc ? lua_tostring(L, -1) : NULL;
}

static void passes(lua_State *L, const char *code)
{
  int rc;
  const char *said = run(L, code, &rc);
  if (rc) fail_msg("%s", said ? said : "an error without text");
}

static void says(lua_State *L, const char *code, const char *words)
{
  int rc;
  const char *said = run(L, code, &rc);
  assert_int_equal(rc, LUA_ERRRUN);
  if (!said) fail_msg("lua_tostring is null; expected: %s", words);
  if (!strstr(said, words)) fail_msg("expected: %s\nsaid: %s", words, said);
}

static lua_State *open_lua(void)
{
  lua_State *L = luaL_newstate();
  luaL_openlibs(L);
  passes(L, "package.path = 'bindings/?.lua;lua/?.lua;lua/?/init.lua;' .. package.path "
            "local build = os.getenv 'TIDE_BUILD' "
            "if build then package.loaded['tide.host'] = { library = build .. '/libtide.so' } end "
            "tide = require 'tide'");
  return L;
}

static void test_objects_by_default(void **state)
{
  (void)state;
  int rc;
  lua_State *L = open_lua();
  const char *said = run(L, "tide.ones { 2 }:matmul(tide.ones { 3 })", &rc);
  assert_int_equal(rc, LUA_ERRRUN);
  assert_null(said);
  assert_true(lua_istable(L, -1));
  passes(L, "local ok, e = pcall(tide.ones, { -1 }) assert(e.code == 'E_ARG') "
            "assert(tide.error_of(e) == e)");
  lua_close(L);
}

static void test_texts_on_request(void **state)
{
  (void)state;
  lua_State *L = open_lua();
  passes(L, "assert(tide.set_error_form 'text' == 'object')");
  says(L, "tide.ones { 2 }:matmul(tide.ones { 3 })", "tide.matmul: ");
  says(L, "tide.ones { 2 }:matmul(tide.ones { 3 })", "(E_SHAPE)");
  says(L, "tide.ones { -1 }", "(E_ARG)");
  says(L, "local x = tide.no_such_name", "(E_ARG)");
  says(L, "tide.scope(function() return tide.nn.Linear(3, 0.5) end)", "expected an integer >= 1");
  says(L, "tide.set_error_form 'texts'", "one of object, text");
  says(L, "error('not of tide')", "not of tide");
  passes(L, "assert(tide.set_error_form 'object' == 'text')");
  int rc;
  assert_null(run(L, "tide.ones { -1 }", &rc));
  lua_close(L);
}

static void test_code_of_a_text(void **state)
{
  (void)state;
  lua_State *L = open_lua();
  passes(L, "tide.set_error_form 'text' "
            "local ok, e = pcall(tide.ones, { -1 }) "
            "assert(type(e) == 'string' and tide.error_of(e).code == 'E_ARG') "
            "assert(tide.error_of('step 3: ' .. e).op == 'ones') "
            "ok, e = xpcall(function() tide.ones { 2 }:sum(9) end, debug.traceback) "
            "assert(tide.error_of(e).op == 'sum' and e:find('stack traceback', 1, true)) "
            "ok, e = pcall(error, 'of another') "
            "assert(tide.error_of(e) == nil and tide.error_of(nil) == nil)");
  lua_close(L);
}

static void test_states_have_a_form_each(void **state)
{
  (void)state;
  int rc;
  lua_State *one = open_lua(), *other = open_lua();
  passes(one, "tide.set_error_form 'text'");
  says(one, "tide.ones { -1 }", "(E_ARG)");
  assert_null(run(other, "tide.ones { -1 }", &rc));
  lua_close(one);
  lua_close(other);
}

/* What the library itself catches and reads: codes of files, errors of steps. */
static void test_the_library_reads_its_own_texts(void **state)
{
  (void)state;
  lua_State *L = open_lua();
  passes(L, "tide.set_error_form 'text' "
            "local fs = require 'tide.util.fs' "
            "local ok, e = pcall(fs.write, 'spec', '/no/such/folder/file', 'x') "
            "assert(tide.error_of(e).code == 'E_IO' and tide.error_of(e).op == 'spec', e) "
            "ok, e = pcall(fs.read_json, 'spec', 'README.md') "
            "assert(tide.error_of(e).code == 'E_FORMAT', e) "
            "local err = require 'tide.util.err' "
            "ok, e = pcall(err.people, { 'E_ARG' }, tide.ones, { -1 }) "
            "assert(tide.error_of(e).brief and not e:find 'traceback', e)");
  lua_close(L);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_objects_by_default),
      cmocka_unit_test(test_texts_on_request),
      cmocka_unit_test(test_code_of_a_text),
      cmocka_unit_test(test_states_have_a_form_each),
      cmocka_unit_test(test_the_library_reads_its_own_texts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
