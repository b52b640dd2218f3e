-- Sums into indexed places with many terms: index_add, scatter_add, the gradient of embedding.
--
-- Indices repeat far apart and often, so that sorting and putting sums together are seen: none,
-- some or all terms of one target, more terms and more targets than one pass or one block takes.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local compare = require 'spec.cuda.compare'

-- Sums of thousands of numbers round more than one.
local room = { f32 = 2e-5, f64 = 1e-12, bf16 = 2e-2, f16 = 4e-3, i64 = 0 }

-- name -> (i, n) -> an index in [0, n) for term i.
local patterns = {
   distinct = function(i, n) return i * 7 % n end, -- if n is no multiple of 7
   one = function(_, n) return n - 1 end,
   two_runs = function(i, n) return i % 3 == 0 and 0 or n - 1 end,
   mixed = function(i, n) return (i * i * 31 + i) % n end,
   hot = function(i, n) return i % 5 == 0 and i % n or math.floor(n / 2) end,
}
local names = {}
for name in pairs(patterns) do names[#names + 1] = name end
table.sort(names)

local function indices(pattern, terms, n, device)
   local list = {}
   for i = 1, terms do list[i] = patterns[pattern](i, n) end
   return tide.tensor(list, { dtype = 'i64', device = device })
end

local function numbers(shape, seed, dtype)
   if dtype ~= 'i64' then return compare.random(shape, seed, dtype) end
   return (compare.random(shape, seed) * 100):to 'i64'
end

local function same(run, dtype, what)
   compare.close(run(fast), run 'ref', room[dtype], what)
end

describe('sums into indexed places', function()
   for _, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64', 'i64' } do
      for _, pattern in ipairs(names) do
         it(('of rows: index_add of %s, %s'):format(pattern, dtype), function()
            for _, case in ipairs { { 31, 8, 16 }, { 32, 5, 3 }, { 33, 300, 24 }, { 2500, 300, 8 },
                                    { 97, 70000, 1 } } do
               local terms, n, width = case[1], case[2], case[3]
               local x, src = numbers({ n, width }, 1, dtype), numbers({ terms, width }, 2, dtype)
               same(function(device)
                  return x:to(device):index_add(1, indices(pattern, terms, n, device),
                                                src:to(device))
               end, dtype, ('%d terms, %d rows of %d'):format(terms, n, width))
            end
         end)

         it(('of elements: scatter_add of %s, %s'):format(pattern, dtype), function()
            for _, case in ipairs { { 1, 2100, 9 }, { 3, 700, 300 }, { 5, 1, 40 },
                                    { 40, 33, 2 } } do
               local lines, terms, n = case[1], case[2], case[3]
               local x, src = numbers({ lines, n }, 1, dtype), numbers({ lines, terms }, 2, dtype)
               same(function(device)
                  local index = indices(pattern, lines * terms, n, device):reshape { lines, terms }
                  return x:to(device):scatter_add(2, index, src:to(device))
               end, dtype, ('%d lines of %d terms into %d'):format(lines, terms, n))
               same(function(device)
                  local index = indices(pattern, lines * terms, n, device):reshape { terms, lines }
                  return x:to(device):transpose(1, 2)
                     :scatter_add(1, index, src:to(device):reshape { terms, lines })
               end, dtype, ('%d columns of %d terms into %d'):format(lines, terms, n))
            end
         end)
      end
   end

   for _, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64' } do
      it('of gradients: embedding of ' .. dtype, function()
         for _, pattern in ipairs(names) do
            for _, case in ipairs { { 700, 1000, 40 }, { 65, 9, 33 }, { 2100, 3, 16 } } do
               local terms, n, width = case[1], case[2], case[3]
               local w, dy = numbers({ n, width }, 1, dtype), numbers({ terms, width }, 2, dtype)
               same(function(device)
                  local weight = w:to(device):requires_grad_()
                  local y = tide.embedding(weight, indices(pattern, terms, n, device))
                  y:backward(dy:to(device))
                  return weight.grad
               end, dtype, ('%s: %d tokens, %d rows of %d'):format(pattern, terms, n, width))
            end
         end
      end)
   end

   it('along any dim, of sliced and transposed operands', function()
      local x, src = numbers({ 6, 50, 8 }, 1, 'f32'), numbers({ 6, 130, 9 }, 2, 'f32')
      same(function(device)
         return x:to(device):index_add(2, indices('mixed', 130, 50, device),
                                       src:to(device):slice(3, 2, 9))
      end, 'f32', 'the middle dim')
      same(function(device)
         return x:to(device):transpose(1, 2):index_add(1, indices('hot', 130, 50, device),
            src:to(device):slice(3, 1, 8):transpose(1, 2))
      end, 'f32', 'transposed')
   end)

   it('has the same bits on every run', function()
      local x = numbers({ 40, 16 }, 1, 'f32'):to(fast)
      local src = numbers({ 3000, 16 }, 2, 'f32'):to(fast)
      local index = indices('mixed', 3000, 40, fast)
      local first = compare.bytes(x:index_add(1, index, src))
      for _ = 1, 3 do assert.equal(first, compare.bytes(x:index_add(1, index, src))) end
   end)
end)
