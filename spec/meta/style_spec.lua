-- House rules that a grep can hold: what library code may not call, words that must not stay,
-- width of lines, header comments.

local lines_of = require('spec.support.files').lines_of
local read = require('spec.support.files').read

local folders = 'core kernels bindings lua recipes spec'
local function files(where, patterns)
   local names = {}
   for _, p in ipairs(patterns) do names[#names + 1] = "-name '" .. p .. "'" end
   return lines_of('find ' .. where .. ' \\( ' .. table.concat(names, ' -o ') .. ' \\) -type f')
end

local c_patterns = { '*.c', '*.h', '*.cpp', '*.def', '*.cu', '*.cuh' }

-- Code without comments and string contents, line structure kept.
local function c_code(path)
   local text = read(path)
   text = text:gsub('"[^"\n]*"', '""')
   text = text:gsub('/%*.-%*/', function(c) return (c:gsub('[^\n]', '')) end)
   return (text:gsub('//[^\n]*', ''))
end

local function line_of(text, at)
   local _, n = text:sub(1, at):gsub('\n', '')
   return n + 1
end

-- Every "path:line: what" where a word is before "(".
local function calls(list, words, skip)
   local found = {}
   for _, path in ipairs(list) do
      if not (skip and skip(path)) then
         local code = c_code(path)
         for at, word in code:gmatch '()%f[%w_]([%a_][%w_]*)%s*%(' do
            local member = code:sub(at - 1, at - 1):find '[%.>]' -- backend->free(...)
            if words[word] and not member then
               found[#found + 1] = ('%s:%d: %s'):format(path, line_of(code, at), word)
            end
         end
      end
   end
   return found
end

-- Every "path:line: what" for which what(line, path, the line before) returns a text; true
-- means the line.
local function lines(list, what)
   local found = {}
   for _, path in ipairs(list) do
      local n, before = 0, ''
      for line in io.lines(path) do
         n = n + 1
         local w = what(line, path, before)
         if w then found[#found + 1] = ('%s:%d: %s'):format(path, n, w == true and line or w) end
         before = line
      end
   end
   return found
end

local function set(text)
   local s = {}
   for word in text:gmatch '%S+' do s[word] = true end
   return s
end

describe('style', function()
   it('sees files at all', function()
      assert.is_true(#files(folders, c_patterns) > 50)
   end)

   -- A host keeps its process: no end, no output, no dispositions, no locale, no environment.
   it('of the library: no exit, output, signals or locale', function()
      local banned = set [[exit _exit _Exit quick_exit printf puts putchar vprintf perror signal
         sigaction setlocale setenv putenv unsetenv chdir srand rand umask atexit on_exit fork
         system popen strerror strtok localtime gmtime asctime]]
      assert.same({}, calls(files('core kernels bindings', c_patterns), banned,
         function(path) return path:find '^bindings/cli/' or path:find '^kernels/bench/' end))
   end)

   it('of the library: nothing aborts', function()
      assert.same({}, calls(files('core kernels bindings', c_patterns),
         set 'abort assert __builtin_trap raise', function(path)
            return path:find '^bindings/cli/' or path:find '^kernels/bench/'
         end))
   end)

   it('of the library: the standard streams are not named', function()
      local found = {}
      for _, path in ipairs(files('core kernels bindings', c_patterns)) do
         if not path:find '^bindings/cli/' and not path:find '^kernels/bench/' then
            local code = c_code(path)
            for at, word in code:gmatch '()%f[%w_](std%a+)%f[^%w_]' do
               if word == 'stdout' or word == 'stderr' or word == 'stdin' then
                  found[#found + 1] = ('%s:%d: %s'):format(path, line_of(code, at), word)
               end
            end
         end
      end
      assert.same({}, found)
   end)

   -- core/tide.c holds the default hook itself; a group of ranks belongs to no single context, and
   -- MPI may own memory that outlives one; threads that tokenize must not call a hook.
   it('of allocation: the context hook, not malloc', function()
      local found = calls(files('core', c_patterns), set 'malloc calloc realloc strdup free',
         function(path)
            return path == 'core/base/alloc.c' or path == 'core/tide.c'
               or path == 'core/text/table.c' or path == 'core/comm/local/group.c'
               or path:find '^core/comm/mpi/'
         end)
      assert.same({}, found)
   end)

   -- Debian's LuaJIT may end such a loop before its first entry; see bindings/README.md.
   it('of loops: no "in pairs(" in what a recipe runs', function()
      assert.same({}, lines(files('bindings lua recipes', { '*.lua' }), function(line)
         return not line:find '^%s*%-%-' and (line:find 'in pairs%(' or line:find 'in next,') ~= nil
      end))
   end)

   -- A trace that does not need one corrupts the heap; see "faults" in bindings/README.md.
   it('of arrays: of variable length in one file alone', function()
      assert.same({}, lines(files('bindings lua recipes', { '*.lua' }), function(line, path)
         local code = line:gsub('%-%-.*', '')
         return path ~= 'bindings/tide/ffi/buffer.lua' and code:find('[?]', 1, true) ~= nil
      end))
   end)

   -- The comment above a function is what ?name shows at the prompt. Tables that no file returns:
   local private = set [[fill make none part price run Run State str dict list range statements
      E F G S T A Expression ChatParser Lexer normal words models around kinds]]

   it('of functions: what a table holds has a comment above it', function()
      assert.same({}, lines(files('bindings lua', { '*.lua' }), function(line, _, above)
         local owner, name = line:match '^function ([%w_]+)[%.:]([%w_%.:]+)'
         local is_described = above:find '^%-%-' and not above:find '^%-%- %-%-%-'
         return owner and not private[owner] and not name:find '^__' and not is_described
      end))
   end)

   it('of words: nothing half-done is left standing', function()
      local words = { 'TO' .. 'DO', 'FIX' .. 'ME', 'XX' .. 'X', 'HA' .. 'CK' }
      local all = files(folders, { '*.md', '*.txt', '*.cmake', '*.lua', unpack(c_patterns) })
      assert.same({}, lines(all, function(line)
         for _, word in ipairs(words) do
            if line:find('%f[%w_]' .. word .. '%f[^%w_]') then return word end
         end
      end))
   end)

   it('of lines: at most 100 columns, no tabs, no trailing blanks', function()
      assert.same({}, lines(files(folders, { '*.lua', unpack(c_patterns) }), function(line)
         local _, marks = line:gsub('[\128-\191]', '') -- continuation bytes of UTF-8
         return #line - marks > 100 and 'longer than 100' or line:find '\t' and 'a tab'
            or line:find '%s$' and 'a trailing blank'
      end))
   end)

   it('of files: each opens with what it is', function()
      local found = {}
      for _, path in ipairs(files(folders, { '*.lua', unpack(c_patterns) })) do
         local first = io.lines(path)() or ''
         if not (first:find '^/%*' or first:find '^//' or first:find '^%-%-'
            or first:find '^#!') then
            found[#found + 1] = path
         end
      end
      assert.same({}, found)
   end)

   it('of files: nothing that a merge leaves', function()
      assert.same({}, lines_of('git ls-files "*.orig" "*.rej" 2>/dev/null'))
   end)

   -- Names of examples, and files that are made.
   local made = set 'recipe.lua job.lua site.lua tide.lua _spec.lua'

   -- A text may name the end of a path, or the place that a Debian package gives the file.
   it('of texts: a Lua file that a comment or a README names is there', function()
      local lua = files(folders, { '*.lua' })
      local all, found = '\n' .. table.concat(lua, '\n') .. '\n', {}
      for _, path in ipairs(files(folders .. ' README.md', { '*.lua', '*.md' })) do
         for line in io.lines(path) do
            local text = path:find '%.md$' and line or line:match '^%s*%-%-(.*)' or ''
            text = text:gsub('/usr/share/tide/', '')
            for name in text:gmatch '[%w_][%w_/]*%.lua%f[^%w_]' do
               if not made[name] and not all:find('[/\n]' .. name:gsub('%.', '%%.') .. '\n') then
                  found[#found + 1] = path .. ' names ' .. name
               end
            end
         end
      end
      assert.same({}, found)
   end)
end)
