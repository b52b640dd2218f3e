-- Signatures: what a declaration means, and that every declared entry point refuses what it does
-- not take: each argument and option of another kind, out of its range, or with a misspelt name is
-- E_ARG of that function, by name.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local files = require 'spec.support.files'

-- All modules of the library, so that all doors are there.
for _, path in ipairs(files.lines_of 'find lua/tide -name "*.lua"') do
   require((path:gsub('^lua/', ''):gsub('%.lua$', ''):gsub('/init$', ''):gsub('/', '.')))
end

local function raised(fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok)
   assert.is_true(tide.is_error(e), tostring(e))
   return e
end

describe('util.signature', function()
   -- A function of its own behind a door: what it is called with.
   local function door(said)
      local t = { f = function(a, b, opts) return { a, b, opts } end }
      signature.doors('spec', t, { f = said })
      return t.f
   end

   it('reads types, defaults and bounds', function()
      local f = door { 'a: integer in [2, 4]; b: number >= 0 | function', opts = {
         "kind: 'x' | 'y' = 'x' -- one of two", 'size: integer >= 1 = 3',
         'rank: integer in [0, size) = 0', 'other: integer = size', 'share: number in [0, 1)?',
         'list: string[]?' } }
      assert.same({ 2, 0.5, { kind = 'x', size = 3, rank = 0, other = 3 } }, f(2, 0.5))
      assert.equal(2, f(2, print, { rank = 2, share = 0.5, list = { 'a' } })[3].rank)
      local function says(text, ...) assert.matches(text, tostring(raised(f, ...)), 1, true) end
      says("tide.spec.f: argument 'a': expected an integer in [2, 4], got 5 (E_ARG)", 5)
      says("argument 'b': expected a finite number >= 0 or a function, got \"x\"", 2, 'x')
      says("argument 'b': expected a finite number >= 0, got -1", 2, -1)
      says("argument 'kind': expected one of x, y, got \"z\"", 2, 0, { kind = 'z' })
      says("argument 'rank': expected an integer in [0, 2], got 3", 2, 0, { rank = 3 })
      says("argument 'share': expected a number in [0, 1), got 1", 2, 0, { share = 1 })
      says("argument 'list[2]': expected a string, got 1", 2, 0, { list = { 'a', 1 } })
      says("unknown option 'sise'; did you mean 'size'?", 2, 0, { sise = 1 })
   end)

   it('reads each kind at both sides of each bound', function()
      for text, row in pairs {
         ['integer < 0'] = { { -1, -9 }, { 0, 1 } }, ['integer > 0'] = { { 1, 9 }, { 0, -1 } },
         ['integer <= 3'] = { { 3, -9 }, { 4 } }, ['integer >= 3'] = { { 3, 4 }, { 2 } },
         ['number < 2'] = { { 1.999, -5 }, { 2, 3 } }, ['number > 2'] = { { 2.001 }, { 2, 1 } },
         ['number <= 2'] = { { 2, 1 }, { 2.001 } },
         ['number in [0, 1]'] = { { 0, 1 }, { -0.1, 1.1 } },
         ['number in [0, 1)'] = { { 0, 0.9 }, { 1, -0.1 } },
         ['integer in [1, 3)'] = { { 1, 2 }, { 0, 3 } },
         ['false | string'] = { { false, 'a' }, { true, 1 } }, ['integer?'] = { { 1 }, { 'x' } },
         ['integer[]'] = { { {}, { 1, 2 } }, { { 'a' }, { a = 1 }, 1 } },
         ['integer = 3'] = { { 4 }, { 'x' } },
         ranks = { { { size = 2 }, { find = print } }, { {}, 1 } },
         comm = { { { size = 1, rank = 0 } }, { { size = 1 }, { rank = 0 }, 1 } },
         float = { { 'f32', 'bf16', 'f16', 'f64' }, { 'i32', 1 } },
         ['tensor [2, ..]'] = { { tide.ones { 2 }, tide.ones { 2, 3 } },
            { tide.ones { 3 }, tide.ones {}, 1 } },
         ['tensor [..]'] = { { tide.ones {}, tide.ones { 2, 3 } }, { 1 } },
         ['tensor [2 or 3, 1] of f32, i64'] = { { tide.ones { 2, 1 }, tide.ones { 3, 1 },
            tide.ones({ 2, 1 }, { dtype = 'i64' }) }, { tide.ones { 4, 1 }, tide.ones { 2 },
            tide.ones { 2, 2 }, tide.ones({ 2, 1 }, { dtype = 'f64' }) } },
      } do
         for _, v in ipairs(row[1]) do
            assert.is_true(rawequal(v, signature.check('spec', 'v', v, text)), text)
         end
         if row[1][1] == false then assert.is_false(signature.check('spec', 'v', false, text)) end
         for _, v in ipairs(row[2]) do
            assert.equal('E_ARG', raised(signature.check, 'spec', 'v', v, text).code, text)
         end
      end
      assert.is_nil(signature.check('spec', 'v', nil, 'integer?'))
      assert.equal(3, signature.check('spec', 'v', nil, 'integer = 3'))
      assert.matches("argument 'options': expected a table, got nil",
         raised(door { 'a: integer', opts = { 'n: integer' } }, 1).message, 1, true)
   end)

   it('says what lists of conditions hold', function()
      local f = door { 'a: table; where permutes(a) -- no permutation; where sum(a) > 2 -- small' }
      for _, a in ipairs { { 0, 1, 2 }, { 2, 0, 1 }, { 3, 1, 0, 2 } } do
         assert.equal(a, f(a)[1])
      end
      for _, a in ipairs { { 0, 0, 2 }, { 1, 2, 3 }, { 0, 1, 3 }, { -1, 0, 1 } } do
         assert.matches('no permutation', raised(f, a).message, 1, true)
      end
      assert.matches('small', raised(f, { 0, 1 }).message, 1, true)
      f = door { 'a: table; where last(a) == 3 -- ends with {last(a)}' }
      assert.same({ 1, 3 }, f({ 1, 3 })[1])
      assert.matches('ends with 4', raised(f, { 3, 4 }).message, 1, true)
   end)

   it('gives a copy of options, and keeps the rest', function()
      local given = { n = 1 }
      local got = door { 'a: integer', opts = { 'n: integer' } }(7, 'free', given)
      assert.same({ 7, 'free', { n = 1 } }, got)
      assert.is_false(rawequal(given, got[3]))
   end)

   it('knows tensors by their dims, and kinds that are made', function()
      signature.kind('spec_even', 'an even pair', function(v)
         return type(v) == 'table' and #v == 2
      end)
      local f = door 'a: tensor [batch, tokens]; b: spec_even?'
      assert.equal(2, f(tide.ones { 1, 2 })[1].ndim)
      assert.matches("argument 'a': expected a tensor [batch, tokens], got",
         raised(f, tide.ones { 2 }).message, 1, true)
      assert.matches("argument 'b': expected an even pair, got a table",
         raised(f, tide.ones { 1, 2 }, { 1 }).message, 1, true)
   end)

   it('knows dims by name, shapes to choose from, and dtypes', function()
      local f = door('a: tensor [B, T, 3] or [B, T]; b: tensor [B or 1, T] of i64, i32; '
         .. 'opts: tensor [T, ..]?')
      local function ids(...) return tide.ones({ ... }, { dtype = 'i64' }) end
      assert.equal(3, #f(tide.ones { 2, 4 }, ids(1, 4), tide.ones { 4, 7, 7 }))
      local function says(text, ...) assert.equal(text, raised(f, ...).message) end
      says("argument 'b': expected a tensor [2 or 1, 4] of i64, i32, got a tensor [2, 5] of i64",
         tide.ones { 2, 4 }, ids(2, 5))
      says("argument 'b': expected a tensor [2 or 1, 4] of i64, i32, got a tensor [2, 4] of f32",
         tide.ones { 2, 4 }, tide.ones { 2, 4 })
      says("argument 'a': expected a tensor [B, T, 3] or [B, T], got a tensor [2, 4, 5] of f32",
         tide.ones { 2, 4, 5 }, ids(2, 4))
      says("argument 'opts': expected a tensor [4, ..], got a tensor [3] of f32",
         tide.ones { 2, 4, 3 }, ids(2, 4), tide.ones { 3 })
   end)

   it('knows dims of a tensor, which arrive as numbers from 1', function()
      local function f(a, b) return a, b end
      local t = signature.doors('spec', { f = f }, { f = 'a: tensor; b: dim of a = -1' })
      for given, got in pairs { [1] = 1, [3] = 3, [-1] = 3, [-3] = 1 } do
         assert.equal(got, select(2, t.f(tide.ones { 2, 4, 5 }, given)))
      end
      assert.equal(2, select(2, t.f(tide.ones { 2, 4 })))
      for _, bad in ipairs { 0, 4, -4, 1.5, 'x' } do
         assert.matches("argument 'b': expected an integer in [-3, 3] without 0, got",
            raised(t.f, tide.ones { 2, 4, 5 }, bad).message, 1, true)
      end
   end)

   it('relates arguments, fields and options', function()
      signature.record('spec_row', 'a row', { 'ids: integer[]', 'n: integer >= 1 = 1',
         'where #ids == n -- it has {#ids} ids, n is {n}' })
      local f = door { { 'a: integer > 0', 'b: spec_row[]?',
         'where a % 2 == 0 -- a ({a}) must be even; add one' }, opts = { "c: string = 'x'",
         "where #c < a -- E_STATE: '{c}' is longer than {a - 1}" } }
      assert.equal(4, f(4, { { ids = { 7 } } })[1])
      local function says(text, ...)
         assert.equal(text, tostring(raised(f, ...)):match ' tide(.*)')
      end
      says(".spec.f: a (3) must be even; add one (E_ARG)", 3)
      says(".spec.f: argument 'a': expected an integer >= 1, got 0 (E_ARG)", 0)
      says(".spec.f: b[2]: it has 2 ids, n is 3 (E_ARG)", 2, { { ids = { 1 } },
         { ids = { 1, 2 }, n = 3 } })
      says(".spec.f: argument 'b[1].ids[1]': expected an integer, got true (E_ARG)", 2,
         { { ids = { true } } })
      says(".spec.f: 'long' is longer than 3 (E_STATE)", 4, nil, { c = 'long' })
   end)

   it('says of data what is wrong with a field, and with the whole', function()
      signature.record('spec_data', 'a row', { 'n: integer', 'at: spec_row?',
         'where n > 0 -- n ({n}) must be above 0' })
      for text, v in each { ["field 'n': expected an integer, got true"] = { n = true },
         ["field 'at.ids[2]': expected an integer, got \"x\""] = { n = 1,
            at = { ids = { 1, 'x' } } },
         ['at: it has 2 ids, n is 1'] = { n = 1, at = { ids = { 1, 2 }, n = 1 } },
         ['n (0) must be above 0'] = { n = 0 }, ['expected a row, got 5'] = 5 } do
         assert.equal(text, signature.wrong(v, 'spec_data'))
      end
      assert.is_nil(signature.wrong({ n = 1 }, 'spec_data'))
      assert.same({ nil, 7 }, { err.problem(function() return 7 end) })
      assert.equal('E_STATE', raised(err.problem, err.raise, 'E_STATE', 'x', 'y').code)
   end)

   it('keeps the names of parameters, and is not the place of an error', function()
      local f = door 'a: integer'
      assert.equal('b', debug.getlocal(f, 2))
      assert.matches('signature_spec.lua:', raised(f, 'x').where, 1, true)
      assert.equal('spec.f', signature.of(f).op)
   end)

   it('reads a declaration when it is first needed, and once', function()
      local nread = 0
      local said = setmetatable({}, { __index = function(_, key)
         if key == 1 then nread = nread + 1 end
         return key == 1 and 'a: integer' or nil
      end })
      local f, g = door(said), door(said)
      assert.equal(0, nread)
      assert.same({ { 1 }, { 2 } }, { f(1), f(2) })
      assert.equal(1, nread)
      assert.equal('a', signature.of(g).args[1].name)
      assert.same({ 3 }, g(3))
      assert.equal(2, nread)
   end)

   it('reports a wrong declaration at each call', function()
      local f, g = door 'a integer', door 'wrong: integer'
      for _ = 1, 2 do
         assert.error_matches(function() f(1) end, 'signature: no row: a integer')
         assert.error_matches(function() g(1) end, 'signature: spec.f has no wrong')
      end
   end)
end)

-- ---- every declaration -----------------------------------------------------------------------

local solo = tide.comm.solo()
local good = {
   integer = 1, number = 0.5, boolean = true, string = 'text', table = {}, any = 1,
   ['function'] = function() end, module = tide.nn.Attention { dim = 4, heads = 2 },
   comm = solo, ranks = solo, axis = solo, group = solo, dim = 1, cp_method = 'ring',
   mamba2 = tide.nn.Mamba2 { dim = 4, state = 2, head_dim = 2 },
   cu = { 0, 2 }, rows = {}, counts = {}, ['false'] = false,
   plan = tide.parallel.cp_map.new { length = 2 },
   optimizer = tide.optim.SGD(tide.nn.Linear(2, 2)), weights = tide.nn.Linear(2, 2),
   placement = tide.parallel.Shard(1), points = { 1, 2 }, words = {},
   adaptable = tide.nn.Linear(2, 2), materialised = { model = tide.nn.Linear(2, 2), mesh = {} },
   source = tide.data.tokens.memory('\1\0\2\0', 2), mesh = tide.parallel.mesh({ dp = 1 },
      { comm = solo }), sharded = tide.parallel.fully_shard(tide.nn.Linear(2, 2), solo),
}

-- Objects of classes whose methods have bounds of their own.
local selves = { ['parallel.cp_map'] = good.plan, ['nn.Stack'] = tide.nn.Stack { good.module },
   ['parallel.cp.context'] = tide.parallel.cp.context { map = good.plan } }

-- Lua types that each kind takes.
local takes = { integer = 'number', number = 'number', boolean = 'boolean', string = 'string',
   ['function'] = 'function', tensor = 'userdata', any = 'any', fp8 = 'boolean', dim = 'number',
   cp_method = 'string' }

local function alternatives(row)
   local list = {}
   for part in row.kind:gmatch '[^|]+' do
      list[#list + 1] = part:match "^%s*'" and 'string' or part:find '%[%]' and 'table'
         or part:match '^%s*([%w_]+)'
   end
   return list
end

-- A value that a row takes.
local good_of
function good_of(row)
   local part = row.kind:match '^[^|]+'
   local word = part:match "'([^']*)'"
   if word then return word end
   local base, list, rest = part:match '^%s*([%w_]+)(%[?%]?)%s*(.-)%s*$'
   if list == '[]' then return {} end
   if base == 'tensor' then
      local shape = {}
      for dim in (rest:match '%[(.-)%]' or '2'):gmatch '[^,]+' do
         shape[#shape + 1] = dim:find '%.%.' and 2 or tonumber(dim) or 2
      end
      return tide.ones(shape, { dtype = rest:match '%f[%a]of (%w+)' })
   end
   if signature.fields(base) then
      local fields = {}
      for _, field in ipairs(signature.fields(base)) do
         if not field.optional then fields[field.name] = good_of(field) end
      end
      return fields
   end
   local low = tonumber(rest:match '>= (%S+)' or rest:match 'in %[([^,]+),')
   if low and (base == 'integer' or base == 'number') then return low end
   assert(good[base] ~= nil, 'no good value for ' .. row.kind)
   return good[base]
end

-- Values that a row does not take, by what they are.
local function bad_of(row)
   local ok, list = {}, {}
   for _, name in ipairs(alternatives(row)) do
      ok[takes[name] or 'table'] = true
   end
   if ok.any then return list end
   local odd = { number = 2.5, boolean = true, string = '/dev/null/nowhere',
      ['function'] = function() end }
   for kind, v in pairs(odd) do
      if not ok[kind] then list[kind] = v end
   end
   if not ok.table and not ok.boolean then list.table = {} end
   if ok.number then
      list.NaN = 0 / 0
      if row.kind:find 'integer' then list.fraction = 1.5 end
      local low = tonumber(row.kind:match '>= (%S+)' or row.kind:match 'in %[([^,]+),')
      local high = tonumber(row.kind:match 'in %[[^,]+,%s*([^%]%)]+)')
      if low then list.low = low - 1 end
      if high then list.high = high + 1 end
   end
   if not row.optional and not row.shown then list.absent = 'nil' end
   return list
end

local function names_of(t)
   local list = {}
   for name in pairs(t) do list[#list + 1] = name end
   table.sort(list)
   return list
end

describe('signatures', function()
   local all, faults = signature.all(), {}
   local narg, nmisuse = 0, 0

   -- Calls the door with one value that is wrong, and notes what is not E_ARG with the two names.
   local function try(door, row, how, values, opts)
      local list, n = {}, debug.getinfo(door.fn, 'u').nparams
      for i = 1, n do
         local name = debug.getlocal(door.fn, i)
         list[i] = values[name]
         if door.opts and i == n then list[i] = opts end
      end
      nmisuse = nmisuse + 1
      local ok, e = pcall(door.fn, unpack(list, 1, n))
      local good_error = not ok and tide.is_error(e) and e.code == 'E_ARG' and e.op == door.op
         and e.message:find("'" .. row.name, 1, true)
      if not good_error then
         faults[#faults + 1] = ('%s(%s = %s): %s'):format(door.op, row.name, how, tostring(e))
      end
   end

   for _, op in ipairs(names_of(all)) do
      if not op:find '^spec' then
         it('of ' .. op, function()
            local door, values, opts = all[op], {}, {}
            faults = {}
            for _, row in ipairs(door.args) do values[row.name] = good_of(row) end
            values.self = selves[op:match '^(.*)%.']
            for _, row in ipairs(door.opts or {}) do
               if not row.optional and not row.shown then opts[row.name] = good_of(row) end
            end
            for _, row in ipairs(door.args) do
               narg = narg + 1
               for how, v in pairs(bad_of(row)) do
                  local changed = setmetatable({ [row.name] = v ~= 'nil' and v or nil },
                     { __index = function(_, k) return k ~= row.name and values[k] or nil end })
                  try(door, row, how, changed, opts)
               end
            end
            for _, row in ipairs(door.opts or {}) do
               narg = narg + 1
               for how, v in pairs(bad_of(row)) do
                  local changed = {}
                  for k, w in pairs(opts) do changed[k] = w end
                  changed[row.name] = v ~= 'nil' and v or nil
                  try(door, row, how, values, changed)
               end
               local misspelt = {}
               for k, w in pairs(opts) do misspelt[k] = w end
               misspelt[row.name .. 'x'] = 1
               try(door, { name = row.name .. 'x' }, 'misspelt', values, misspelt)
            end
            assert.same({}, faults)
         end)
      end
   end

   it('are many', function()
      assert.is_true(narg > 20, narg)
      assert.is_true(nmisuse > 100, nmisuse)
   end)
end)

-- ---- command lines ---------------------------------------------------------------------------

-- Recipes declare options of a command line before the library is loaded. Those that arrive at a
-- declared entry point have its type, least value and words.
describe('options of recipes', function()
   local arrive = {
      ['train.run'] = { 'accum', 'clip', 'val-windows', 'keep', 'log-every', 'on-nonfinite' },
      ['optim.AdamW'] = { 'lr', 'beta2', 'weight-decay' },
      ['train.sample.generate'] = { 'temperature' },
      ['data.sampler.new'] = { 'batch', 'seq', 'seed' },
      ['optim.schedule.wsd'] = { 'warmup', 'min-lr' },
   }
   local declared = {}
   for _, row in ipairs(require('recipes.support.options').all('spec', {})) do
      declared[row[1]] = row
   end

   for op, names in pairs(arrive) do
      it('fit what ' .. op .. ' declares', function()
         for _, name in ipairs(names) do
            local option, row = declared[name], nil
            for _, r in ipairs(signature.all()[op].opts) do
               if r.name == name:gsub('-', '_') then row = r end
            end
            assert.is_truthy(row, name)
            local kind = row.kind:match '^%a+'
            if option.choices then
               local words = {}
               for word in row.kind:gmatch "'([^']*)'" do words[#words + 1] = word end
               assert.same(words, option.choices)
            else
               assert.equal(kind, option.type or option[2] % 1 == 0 and 'integer' or 'number', name)
               local low = tonumber(row.kind:match '>= (%S+)' or row.kind:match 'in %[([^,]+),')
               assert.equal(low, option.min, name)
            end
         end
      end)
   end
end)
