-- Whatever is given to a method is either computed or refused with a tide error; nothing crashes.
--
-- Generated from the method table: every method, with every odd value in every place. The whole
-- matrix runs in this process, so a crash ends the run and is seen.

local ffi = require 'ffi'
local tide = require 'tide'
local methods = require('tide.ffi.tensor').methods
local op = require 'tide.ffi.op'

ffi.cdef 'typedef struct spec_foreign { int x; } spec_foreign;'

local other = assert(tide.open { nthread = 1 })
local gone = tide.ones { 2, 3 }
gone:release()

local function odd_values()
   return {
      { 'nil', nil }, { 'string', 'text' }, { 'NaN', 0 / 0 }, { 'inf', 1 / 0 }, { '1e20', 1e20 },
      { '-1', -1 }, { '0', 0 }, { '1.5', 1.5 }, { '3', 3 }, { 'true', true }, { 'table', {} },
      { 'list', { 1, 2 } }, { 'odd list', { 1, 'a', -3 } }, { 'function', print },
      { 'struct', ffi.new 'spec_foreign' }, { 'struct pointer', ffi.new 'spec_foreign[1]' },
      { 'void pointer', ffi.cast('void *', 8) }, { 'int64', 5LL }, { 'file', io.stdout },
      { 'null tensor', ffi.cast('tide_tensor *', nil) },
      { 'gone', gone }, { 'same shape', tide.ones { 2, 3 } },
      { 'other dtype', tide.ones({ 2, 3 }, { dtype = 'f64' }) },
      { 'integers', tide.ones({ 2, 3 }, { dtype = 'i64' }) },
      { 'bools', tide.ones({ 2, 3 }, { dtype = 'bool' }) },
      { 'other device', tide.ones({ 2, 3 }, { device = 'ref' }) },
      { 'no bytes', tide.ones({ 2, 3 }, { device = 'null' }) },
      { 'other context', other:ones { 2, 3 } }, { 'other shape', tide.ones { 5, 7 } },
      { 'empty', tide.ones { 0, 3 } }, { 'scalar', tide.tensor(1) },
      { 'strided', tide.ones({ 3, 2 }):t() }, { 'broadcast', tide.ones({ 1, 3 }):expand(2, 3) },
      { 'leaf', tide.ones({ 2, 3 }, { requires_grad = true }) },
   }
end

-- A call gives its result or raises a tide error.
local function try(name, label, fn, ...)
   local ok, err = pcall(fn, ...)
   if not ok and not tide.is_error(err) then
      error(('%s(%s): not a tide error: %s'):format(name, label, tostring(err)), 0)
   end
   return ok, err
end

-- Calls that are not to be made with arbitrary values: they do what they say.
local skipped = { release = true }

local names = {}
for name in pairs(methods) do
   if not skipped[name] then names[#names + 1] = name end
end
table.sort(names)

describe('misuse of methods', function()
   for _, name in ipairs(names) do
      it('of ' .. name .. ' is refused or computed', function()
         local fn, values = methods[name], odd_values()
         for _, receiver in ipairs(values) do
            try(name, receiver[1], fn, receiver[2])
            for _, first in ipairs(values) do
               local label = receiver[1] .. ', ' .. first[1]
               try(name, label, fn, receiver[2], first[2])
            end
         end
      end)

      it('of ' .. name .. ' with two arguments is refused or computed', function()
         local fn, values = methods[name], odd_values()
         for _, first in ipairs(values) do
            for _, second in ipairs(values) do
               try(name, first[1] .. ', ' .. second[1], fn, tide.ones { 2, 3 }, first[2], second[2])
               try(name, '1, ' .. first[1] .. ', ' .. second[1], fn, tide.ones { 2, 3 }, 1,
                  first[2], second[2])
            end
         end
      end)
   end

   it('as receiver is always refused when it is no tensor', function()
      for _, name in ipairs(names) do
         for _, value in ipairs(odd_values()) do
            local v = value[2]
            if not tide.is_tensor(v) and name ~= 'tostring' then
               local ok = try(name, value[1], methods[name], v)
               assert.is_false(ok, name .. ' accepted ' .. value[1])
            end
         end
      end
   end)
end)

describe('misuse of operators', function()
   local x = tide.ones { 2, 3 }
   local forms = {
      add = function(a, b) return a + b end, sub = function(a, b) return a - b end,
      mul = function(a, b) return a * b end, div = function(a, b) return a / b end,
      pow = function(a, b) return a ^ b end,
   }
   for name, form in pairs(forms) do
      it('of ' .. name .. ' is refused or computed', function()
         for _, value in ipairs(odd_values()) do
            local v = value[2]
            -- a foreign pointer has no metatable: LuaJIT itself refuses
            local ok, err = pcall(form, x, v)
            assert.is_true(ok or err ~= nil)
            ok, err = pcall(form, v, x)
            assert.is_true(ok or err ~= nil)
         end
      end)
   end
end)

describe('misuse of functions', function()
   local functions = {}
   for name, fn in pairs(op) do
      if not methods[name] then functions[name] = fn end
   end
   for _, name in ipairs { 'zeros', 'full', 'rand', 'randn', 'arange', 'tensor', 'from_string',
      'no_grad', 'scope', 'checkpoint', 'backward' } do
      functions[name] = tide[name]
   end
   local list = {}
   for name in pairs(functions) do list[#list + 1] = name end
   table.sort(list)

   for _, name in ipairs(list) do
      it('such as ' .. name .. ' is refused or computed', function()
         local fn, values = functions[name], odd_values()
         local good = tide.ones { 2, 3 }
         for _, a in ipairs(values) do
            for _, b in ipairs(values) do
               -- functions that call what they are given raise what it raises
               if a[1] ~= 'function' then
                  try(name, a[1] .. ', ' .. b[1], fn, a[2], b[2])
                  try(name, 'x, ' .. a[1] .. ', ' .. b[1], fn, good, a[2], b[2])
                  try(name, 'x, x, ' .. a[1] .. ', ' .. b[1], fn, good, good, a[2], b[2])
               end
            end
         end
      end)
   end
end)

describe('tensors that do not belong together', function()
   it('are refused with their reason', function()
      local x, released = tide.ones { 2, 3 }, tide.ones { 2, 3 }
      released:release()
      local cases = {
         E_DEVICE = tide.ones({ 2, 3 }, { device = 'ref' }), E_GONE = released,
         E_SHAPE = tide.ones { 5, 7 },
      }
      for code, y in pairs(cases) do
         for _, name in ipairs { 'add', 'mul', 'matmul', 'copy_' } do
            local ok, err = pcall(methods[name], x, y)
            assert.is_false(ok)
            assert.equal(code, err.code, name .. ': ' .. tostring(err))
         end
      end
      for _, name in ipairs { 'add', 'mul', 'matmul', 'copy_' } do
         local ok, err = pcall(methods[name], x, other:ones { 2, 3 })
         assert.is_false(ok, name .. ' took a tensor of another context')
         assert.is_true(tide.is_error(err))
      end
   end)
end)
