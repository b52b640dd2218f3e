-- The contract: text, library and what LuaJIT makes of them agree.

local ffi = require 'ffi'
local errors = require 'tide.error'
local lib = require 'tide.ffi.lib'
local read = require('spec.support.files').read
local C = lib.C

local path = 'core/include/tide/tide_abi.h'
local text = read(path)
local code = text:gsub('/%*.-%*/', ' ')

-- Declarations with their parentheses: {name = text of the prototype}.
local function prototypes()
   local list = {}
   local flat = code:gsub('%b{}', '{}')
   for statement in flat:gmatch '[^;]+' do
      local name = statement:match '%f[%w_](tide_[%w_]+)%s*%('
      if name and not statement:find '%f[%w_]typedef%f[^%w_]' then
         list[name] = statement:gsub('%s+', ' ')
      end
   end
   return list
end

local function exported()
   local names = {}
   local pipe = io.popen("nm -D --defined-only '" .. lib.path .. "' 2>/dev/null")
   for line in pipe:lines() do
      local kind, name = line:match ' (%a) (%S+)$'
      if kind and kind:find '[TDBRVWi]' then names[name] = true end
   end
   pipe:close()
   return names
end

-- Names of the functions that no comment is about: none above, none beside, no comment with a colon
-- at its end since the last empty line. The rules at the top explain _init and _release.
local function unexplained()
   local list, comment, statement, depth, own, group = {}, nil, '', 0, false, false
   for line in text:gmatch '([^\n]*)\n' do
      local beside
      if statement == '' and not comment and not line:find '%S' then own, group = false, false end
      line = line:gsub('/%*.-%*/', function(c)
         if statement == '' and line:find '^%s*/%*' then
            own, group = not c:find '^/%* %-%-%-%-', group or c:find ':%s*%*/$' ~= nil
         else
            beside = true
         end
         return ''
      end)
      if comment then
         local last = line:find('*/', 1, true)
         comment = not last and comment or nil
         if last and statement == '' then own, group = true, group or line:find ':%s*%*/' ~= nil end
         line = last and line:sub(last + 2) or ''
      end
      local first = line:find('/*', 1, true)
      if first then comment, line = true, line:sub(1, first - 1) end
      if line:find '%S' then
         statement = statement .. ' ' .. line
         depth = depth + select(2, line:gsub('{', '')) - select(2, line:gsub('}', ''))
      end
      if depth == 0 and statement:find ';%s*$' then
         local name = statement:match '%f[%w_](tide_[%w_]+)%s*%('
         local free = own or group or beside or not name or statement:find '%f[%w_]typedef%f[^%w_]'
         if not free and not name:find '_init$' and not name:find '_release$' then
            list[#list + 1] = name
         end
         statement, own = '', false
      end
   end
   return list
end

describe('the contract', function()
   it('is the text inside the library', function()
      assert.equal(text, ffi.string(C.tide_abi_text()))
   end)

   it('has no preprocessor line', function()
      for line in text:gmatch '[^\n]+' do assert.is_nil(line:find '^%s*#') end
   end)

   it('has no word that LuaJIT or C++ cannot read', function()
      for _, word in ipairs { '_Static_assert', '_Noreturn', '_Float16', '__attribute__', 'inline',
         'long', 'unsigned', 'class', 'new', 'delete', 'template', 'namespace' } do
         assert.is_nil(code:find('%f[%w_]' .. word .. '%f[^%w_]'), word)
      end
   end)

   it('declares functions, every one exported by the library', function()
      local have, missing, n = exported(), {}, 0
      for name in pairs(prototypes()) do
         n = n + 1
         if not have[name] then missing[#missing + 1] = name end
      end
      table.sort(missing)
      assert.same({}, missing)
      assert.is_true(n > 100)
   end)

   it('names everything the library exports', function()
      local declared, extra = prototypes(), {}
      for name in pairs(exported()) do
         if not declared[name] and name ~= '_init' and name ~= '_fini' then
            extra[#extra + 1] = name
         end
      end
      table.sort(extra)
      assert.same({}, extra)
   end)

   it('takes no function pointers: C is called, C never calls Lua', function()
      for name, prototype in pairs(prototypes()) do
         assert.is_nil(prototype:find('%(%s*%*'), name)
      end
   end)

   it('returns no enum and passes no struct by value', function()
      local structs = {}
      for name in code:gmatch '}%s*(tide_[%w_]+)%s*;' do structs[#structs + 1] = name end
      for name, prototype in pairs(prototypes()) do
         assert.is_nil(prototype:find '%f[%w_]enum%f[^%w_]', name)
         for _, struct in ipairs(structs) do
            for _, before in ipairs { '%(', ',' } do
               assert.is_nil(prototype:find(before .. '%s*' .. struct .. '%s+[%w_]'), name)
            end
            assert.is_nil(prototype:find('^%s*' .. struct .. '%s+tide_'), name)
         end
      end
   end)

   it('puts out-parameters first', function()
      for name, prototype in pairs(prototypes()) do
         local args = prototype:match '%((.*)%)'
         local at = args:find('%*%*%s*out%f[^%w_]')
         if at then assert.is_nil(args:sub(1, at):find ',', name) end
      end
   end)

   -- C gives its sizes itself: each option struct is stamped with sizeof by its init function.
   it('has the sizes that C has', function()
      local n = 0
      for name in code:gmatch '}%s*(tide_[%w_]+)%s*;' do
         local init = name .. '_init'
         if prototypes()[init] then
            local s = ffi.new(name)
            C[init](s)
            assert.equal(ffi.sizeof(name), s.size, name)
            assert.equal(0, ffi.offsetof(name, 'size'), name)
            n = n + 1
         end
      end
      assert.is_true(n >= 5)
   end)

   -- Structs without a size member: written by C in known ways, read field by field.
   it('reads structs that C fills', function()
      local out = ffi.new 'tide_ctx *[1]'
      assert.equal(0, C.tide_ctx_new(out, nil, nil, 0))
      local ctx = ffi.gc(out[0], C.tide_ctx_release)
      local t = ffi.new 'tide_tensor *[1]'
      local shape = ffi.new('int64_t[1]', 1000)
      assert.equal(0, C.tide_full(t, ctx, C.TIDE_DEV_CPU, C.TIDE_F32, 1, shape, 1))
      local stats = C.tide_ctx_stats(ctx)
      assert.is_true(tonumber(stats.live) >= 4000 and tonumber(stats.live) < 2^20)
      assert.equal(1, tonumber(stats.ntensor))
      assert.is_true(tonumber(stats.nhost) > 0)
      C.tide_tensor_release(t[0])
      assert.equal(0, tonumber(stats.ntensor))
      assert.equal(C.TIDE_E_DTYPE < 0, C.tide_empty(t, ctx, 0, 99, 0, nil) < 0)
      local record = C.tide_error(ctx)
      assert.is_true(record.code < 0)
      assert.equal(ffi.string(C.tide_status_name(record.code)), ffi.string(record.name))
      assert.equal('empty', ffi.string(record.op))
      local json = ffi.new 'tide_json *[1]'
      assert.equal(0, C.tide_json_parse(json, ctx, '[7,2.5]', 7, 0, 0, nil))
      local nodes = C.tide_json_nodes(json[0])
      assert.equal(C.TIDE_JSON_INT, nodes[1].kind)
      assert.equal(7, tonumber(nodes[1].v.i))
      assert.equal(2.5, nodes[2].v.d)
      C.tide_json_release(json[0])
   end)

   it('keeps handles incomplete, so that t + 1 is never pointer arithmetic', function()
      for _, name in ipairs { 'tide_tensor', 'tide_ctx', 'tide_backward', 'tide_file',
         'tide_json' } do
         assert.is_false(pcall(ffi.new, name), name)
      end
   end)

   it('gives every status a name and a text', function()
      for name, value in code:gmatch '(TIDE_E_%w+)%s*=%s*(%-?%d+)' do
         assert.equal(name:sub(6), ffi.string(C.tide_status_name(tonumber(value))))
         assert.is_true(#ffi.string(C.tide_status_text(tonumber(value))) > 10)
      end
   end)

   it('gives every status the name and text that errors made in Lua have', function()
      local want, got = {}, {}
      for name, says in read('core/base/status.def'):gmatch 'TIDE_STATUS%((E_[%w_]+), "(.-)"%)' do
         want[#want + 1] = name .. ' ' .. says
      end
      assert.is_true(#want > 10)
      for i = 1, 64 do
         local name = ffi.string(C.tide_status_name(-i))
         if name == 'E_UNKNOWN' then break end
         got[i] = name .. ' ' .. errors.name[name]
         assert.equal(-i, errors.code[name])
         assert.equal(name, errors.code[-i])
         local e = errors.new(name, 'f', 'm')
         assert.same({ -i, errors.name[name] }, { e.status, e.name })
      end
      assert.same(want, got)
      assert.equal('OK', errors.code[0])
      assert.equal('MORE', errors.code[C.TIDE_MORE])
   end)

   it('explains every function', function()
      assert.same({}, unexplained())
   end)

   it('lists its sections at the top, in their order', function()
      local found, listed = {}, {}
      for name in text:gmatch '/%* %-%-%-%- (.-) %-%-%-%-+ %*/' do
         found[#found + 1] = name:gsub(':.*$', '')
      end
      local list = text:match 'begins one%):(.-)%*/':gsub('%s+%*?%s*', ' ')
      for name in list:gmatch '[^;]+' do listed[#listed + 1] = name:match '^%s*(.-)%s*$' end
      assert.is_true(#found > 20)
      assert.same(found, listed)
   end)

   it('releases on any thread what core/THREADING.md says', function()
      local row = read('core/THREADING.md'):match '\n| (`tide_tensor_release`[^|]+)|'
      for name in code:gmatch '%f[%w_](tide_[%w_]+_release[%w_]*)%s*%(' do
         local known = row:find('`' .. name .. '`', 1, true) or name == 'tide_group_release'
         assert.equal(name ~= 'tide_ctx_release', known and true or false, name)
      end
   end)
end)
