-- Groups of rows and their products: against a loop of linear, whatever the groups, threads and
-- dtypes.

local fast = require 'spec.support.fast'
local launched = require 'spec.support.launched'
local refused = require 'spec.support.refused'
local tide = require 'tide'

local dtypes = { 'f32', 'f64', 'bf16', 'f16' }
local tolerance = { f32 = 2e-5, f64 = 1e-12, bf16 = 1.6e-2, f16 = 2e-3 }

local function random(seed, shape, dtype, device)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to { dtype = dtype,
      device = device or fast }
end

local function offsets(list, dtype)
   return tide.tensor(list, { dtype = dtype or 'i64', device = fast })
end

-- Offsets of n groups over about `rows` rows, some of them empty, from a seed.
local function draw(seed, n, rows)
   local weights = tide.empty({ n + 2 }):uniform_(0, 1, { seed = seed }):tolist()
   local list, at = {}, 0
   for g = 1, n + 1 do
      list[g] = at
      at = at + (weights[g] < 0.3 and 0 or math.floor(weights[g] * rows * 2 / n))
   end
   return list
end

-- y, dx and dw of a loop of linear over the groups.
local function loop(x, w, list, dy)
   local xs, ws = x:detach():requires_grad_(), w:detach():requires_grad_()
   local parts = { tide.zeros({ list[1], w:size(2) }, { dtype = x.dtype, device = x.device }) }
   for g = 1, #list - 1 do
      parts[#parts + 1] = tide.linear(xs:narrow(1, list[g] + 1, list[g + 1] - list[g]),
         ws:select(1, g))
   end
   parts[#parts + 1] = tide.zeros({ x:size(1) - list[#list], w:size(2) },
      { dtype = x.dtype, device = x.device })
   local y = tide.cat(parts, 1)
   y:backward(dy)
   return y:detach(), xs.grad, ws.grad
end

local function grouped(x, w, o, dy)
   local xs, ws = x:detach():requires_grad_(), w:detach():requires_grad_()
   local y = tide.grouped_linear(xs, ws, o)
   y:backward(dy)
   return y:detach(), xs.grad, ws.grad
end

local function close(a, b, allowed, what)
   local scale = math.max(b:abs():amax():item(), 1e-6)
   local off = (a:to 'f64' - b:to 'f64'):abs():amax():item()
   assert.is_true(off <= allowed * scale, ('%s: %g of %g'):format(what, off, scale))
end

describe('group_rows', function()
   -- rows, place and offsets by a loop over the groups.
   local function by_group(list, n, k, groups)
      local rows, place, ends = {}, {}, { 0 }
      local function take(is)
         for i, g in ipairs(list) do
            if is(g) then
               rows[#rows + 1], place[i] = math.floor((i - 1) / k), #rows
            end
         end
      end
      for g = 0, groups - 1 do
         take(function(v) return v == g end)
         ends[g + 2] = #rows
      end
      take(function(v) return v < 0 or v >= groups end)
      assert.equal(n * k, #rows)
      return rows, place, ends
   end

   local function numbers(t)
      local list = {}
      for i, v in ipairs(t:to('cpu'):reshape(-1):tolist()) do list[i] = tonumber(v) end
      return list
   end

   for _, row in ipairs { { 1, 1, 1 }, { 5, 1, 3 }, { 33, 4, 7 }, { 700, 8, 300 }, { 0, 2, 3 },
                          { 3, 0, 2 } } do
      local n, k, groups = unpack(row)
      it(('sorts %d rows of %d choices by %d groups'):format(n, k, groups), function()
         local drawn = tide.empty({ n, k }):uniform_(-1.5, groups + 1.5, { seed = n })
         local ids = drawn:floor():to { dtype = 'i64', device = fast }
         local rows, place, ends = by_group(numbers(ids), n, k, groups)
         -- a transposed copy has the same ids in other strides
         for _, t in ipairs { ids, ids:to 'i32', ids:t():contiguous():t() } do
            local got = { tide.group_rows(t, groups) }
            assert.same({ n, k }, got[2].shape)
            for i, want in ipairs { rows, place, ends } do
               assert.equal('i64', got[i].dtype)
               assert.same(want, numbers(got[i]))
            end
         end
      end)
   end

   it('takes one choice a row without a dim for it', function()
      local rows, place, ends = tide.group_rows(offsets { 1, 0, 1, 9 }, 2)
      assert.same({ { 1, 0, 2, 3 }, { 1, 0, 2, 3 }, { 0, 1, 3 } },
         { numbers(rows), numbers(place), numbers(ends) })
   end)

   it('puts numbers at the limits of i64 and i32 in no group', function()
      -- -2^63 to 2^63 - 1024
      local ids = offsets { -2 ^ 53, 2 ^ 53 - 1, 2 ^ 22, -2 ^ 22, 0 } * 1024
      local rows, _, ends = tide.group_rows(ids, 2)
      assert.same({ { 4, 0, 1, 2, 3 }, { 0, 1, 1 } }, { numbers(rows), numbers(ends) })
      rows, _, ends = tide.group_rows(offsets { -2 ^ 31, 1, 2 ^ 31 - 1, 0 }:to 'i32', 2)
      assert.same({ { 3, 1, 0, 2 }, { 0, 1, 2 } }, { numbers(rows), numbers(ends) })
   end)

   it('refuses what has no groups', function()
      refused('E_DTYPE', { 'group_rows', 'ids', 'f32' }, tide.group_rows,
         random(1, { 3 }, 'f32'), 2)
      refused('E_SHAPE', { 'group_rows', '[1, 2, 3]' }, tide.group_rows,
         tide.zeros({ 1, 2, 3 }, { dtype = 'i64' }), 2)
      refused('E_ARG', { 'group_rows', 'groups', '>= 1', '0' }, tide.group_rows, offsets { 0 }, 0)
   end)
end)

describe('grouped_linear', function()
   for _, dtype in ipairs(dtypes) do
      it('gives what linear gives of each group, in ' .. dtype, function()
         for i, size in ipairs { { 1, 9, 5, 3 }, { 5, 60, 17, 24 }, { 8, 300, 64, 40 },
                                 { 40, 80, 32, 33 }, { 3, 200, 72, 130 } } do
            local n, rows, k, out = unpack(size)
            local list = draw(i, n, rows)
            for g = 1, #list do list[g] = list[g] + i % 3 end
            local x, w = random(i, { list[#list] + i % 4, k }, dtype), random(9 + i, { n, out, k },
               dtype)
            local dy = random(20 + i, { x:size(1), out }, dtype)
            local y, dx, dw = grouped(x, w, offsets(list, i % 2 == 0 and 'i32' or 'i64'), dy)
            local y2, dx2, dw2 = loop(x, w, list, dy)
            close(y, y2, tolerance[dtype], 'y')
            close(dx, dx2, tolerance[dtype], 'dx')
            close(dw, dw2, tolerance[dtype], 'dw')
            if fast == 'cpu' then assert.equal(y:to_string_bytes(), y2:to_string_bytes()) end
         end
      end)
   end

   it('gives the same bits on any number of threads', function()
      finally(function() tide.set_nthread(2) end)
      local sizes = { { 3, 700, 96, 80 }, { 64, 500, 48, 40 }, { 9, 40, 512, 640 } }
      if fast == 'cuda' then sizes = { { 3, 70, 96, 80 }, { 9, 40, 128, 160 } } end
      for _, size in ipairs(sizes) do
         local n, rows, k, out = unpack(size)
         local list = draw(4, n, rows)
         local x, w = random(1, { list[#list], k }, 'f32'), random(2, { n, out, k }, 'f32')
         local dy, o = random(3, { list[#list], out }, 'f32'), offsets(list)
         local first
         for _, threads in ipairs { 1, 2, 7 } do
            tide.set_nthread(threads)
            local bytes = {}
            for i, t in ipairs { grouped(x, w, o, dy) } do bytes[i] = t:to_string_bytes() end
            first = first or bytes
            for i = 1, 3 do assert.is_true(first[i] == bytes[i], threads .. ' threads') end
         end
      end
   end)

   it('reads nothing of rows in no group', function()
      for _, dtype in ipairs(dtypes) do
         local x, w = random(1, { 6, 4 }, dtype), random(2, { 2, 3, 4 }, dtype)
         x:select(1, 1):fill_(0 / 0)
         x:select(1, 6):fill_(0 / 0)
         local dy = random(3, { 6, 3 }, dtype)
         dy:select(1, 6):fill_(0 / 0)
         local y, dx, dw = grouped(x, w, offsets { 1, 3, 5 }, dy)
         for _, r in ipairs { 1, 6 } do
            assert.same({ 0, 0, 0 }, y:select(1, r):tolist())
            assert.same({ 0, 0, 0, 0 }, dx:select(1, r):tolist())
         end
         for _, t in ipairs { y, dx, dw } do assert.is_true(t:isfinite():all():item()) end
      end
   end)

   it('takes one weight for all groups, and views of any strides', function()
      local x, w = random(1, { 6, 8 }, 'f32'), random(2, { 1, 5, 8 }, 'f32')
      local o = offsets { 0, 1, 4, 6 }
      close(tide.grouped_linear(x, w:expand(3, 5, 8), o), tide.linear(x, w:select(1, 1)), 1e-6, 'y')
      local turned = random(3, { 8, 6 }, 'f32'):t()
      local wide = random(4, { 3, 8, 10 }, 'f32'):transpose(2, 3):slice(2, 1, 9, 2)
      close(tide.grouped_linear(turned, wide, o),
         tide.grouped_linear(turned:contiguous(), wide:contiguous(), o), 1e-6, 'views')
   end)

   it('adds the gradient of its weight in f32, in the product', function()
      for _, dtype in ipairs { 'bf16', 'f16' } do
         local list = { 0, 30, 30, 41 }
         local x, o = random(1, { 41, 24 }, dtype), offsets(list)
         local w = random(2, { 3, 16, 24 }, dtype):requires_grad_():set_grad_dtype 'f32'
         local want = tide.zeros({ 3, 16, 24 }, { dtype = 'f64' })
         for micro = 1, 3 do
            local dy = random(10 + micro, { 41, 16 }, dtype)
            local y = tide.grouped_linear(x, w, o)
            local n = launched(function() y:backward(dy) end)
            assert.equal(0, n.axpy_ + n.cast + n.add)
            assert.same(micro == 1 and { 1, 0 } or { 0, 1 },
               { n.grouped_linear_bwd, n.grouped_addmm_ })
            local function wide(t, g)
               return t:to { dtype = 'f64', device = 'cpu' }:narrow(1, list[g] + 1,
                  list[g + 1] - list[g])
            end
            for g = 1, 3 do
               want:select(1, g):add_(wide(dy, g):t():matmul(wide(x, g)))
            end
         end
         close(w.grad:to { dtype = 'f64', device = 'cpu' }, want, 4e-6, dtype)
      end
   end)

   it('has no rows, no groups, no columns', function()
      local function shapes(rows, groups, out, k, list)
         local x, w = random(1, { rows, k }, 'f32'), random(2, { groups, out, k }, 'f32')
         local y, dx, dw = grouped(x, w, offsets(list), tide.ones({ rows, out }, { device = fast }))
         assert.same({ { rows, out }, { rows, k }, { groups, out, k } }, { y.shape, dx.shape,
            dw.shape })
         for _, t in ipairs { y, dx, dw } do assert.equal(0, t:abs():sum():item()) end
      end
      shapes(0, 2, 3, 4, { 0, 0, 0 })
      shapes(5, 0, 3, 4, { 2 })
      shapes(5, 2, 0, 4, { 0, 2, 5 })
      shapes(5, 2, 3, 0, { 0, 2, 5 })
   end)

   it('refuses what does not fit', function()
      local x, w, o = random(1, { 5, 4 }, 'f32'), random(2, { 2, 3, 4 }, 'f32'), offsets { 0, 2, 5 }
      local linear = tide.grouped_linear
      refused('E_SHAPE', { 'grouped_linear', '[5, 4]', '[2, 3, 5]' }, linear, x,
         random(2, { 2, 3, 5 }, 'f32'), o)
      refused('E_SHAPE', { 'grouped_linear', 'offsets', '[3]', '[2]' }, linear, x, w,
         offsets { 0, 5 })
      refused('E_DTYPE', { 'grouped_linear', 'f32', 'bf16' }, linear, x, w:to 'bf16', o)
      refused('E_DTYPE', { 'grouped_linear', 'offsets', 'f32' }, linear, x, w, o:to 'f32')
      refused('E_DTYPE', { 'grouped_linear', 'i32' }, linear, x:to 'i32', w:to 'i32', o)
      local dst, y = tide.zeros({ 2, 3, 4 }, { device = fast }), random(3, { 5, 3 }, 'f32')
      refused('E_SHAPE', { 'grouped_addmm_', '[5, 3]' }, dst.grouped_addmm_, dst, x, y, o)
      refused('E_SHAPE', { 'grouped_addmm_', 'offsets', '[2]' }, dst.grouped_addmm_, dst, y, x,
         offsets { 0, 5 })
      refused('E_DTYPE', { 'grouped_addmm_', 'f64' }, dst.grouped_addmm_, dst, y:to 'f64',
         x:to 'f64', o)
      refused('E_STATE', { 'grouped_addmm_', 'needs a gradient' }, dst.grouped_addmm_, dst, y,
         x:detach():requires_grad_(), o)
   end)

   it('refuses offsets that are no groups of the rows', function()
      local x, w = random(1, { 5, 4 }, 'f32'), random(2, { 2, 3, 4 }, 'f32')
      local y = random(3, { 5, 3 }, 'f32')
      for _, bad in ipairs { { 0, 2, 6, '6 at position 2' }, { 0, 3, 2, '2 at position 2' },
                             { -1, 2, 5, '-1 at position 0' } } do
         local o = offsets { bad[1], bad[2], bad[3] }
         for name, fn in pairs {
            grouped_linear = function() return tide.grouped_linear(x, w, o) end,
            grouped_addmm_ = function() return w:clone():grouped_addmm_(y, x, o) end,
         } do
            refused('E_ARG', { 'offsets', bad[4], '5 rows', fast == 'cpu' and name or '' },
               function()
                  local t = fn()
                  return t:sum():item()              -- a GPU says so where the host waits
               end)
         end
      end
   end)
end)
