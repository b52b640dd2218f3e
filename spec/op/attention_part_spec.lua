-- Attention in parts: blocks of keys attended to one by one, merged by their log-sum-exps, give
-- what one call over all keys gives, and so do the gradients of the blocks.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local refused = require 'spec.support.refused'

local B, T, H, K, D = 2, 11, 4, 2, 8

local function draw(seed, shape, dtype, device)
   local t = tide.empty(shape, { dtype = 'f32' }):normal_(0, 1, { seed = seed })
   return t:to { dtype = dtype, device = device }
end

local function close(want, got, tolerance, what)
   local a, b = want:to('f64'):to('cpu'):reshape(-1):tolist(),
      got:to('f64'):to('cpu'):reshape(-1):tolist()
   assert.equal(#a, #b, what)
   for i = 1, #a do
      local near = a[i] == b[i] or math.abs(a[i] - b[i]) <= tolerance * math.max(1, math.abs(a[i]))
      assert.is_true(near, ('%s[%d]: %g against %g'):format(what, i, b[i], a[i]))
   end
end

local wide = { f32 = 'f32', bf16 = 'f32', f16 = 'f32', f64 = 'f64' }
-- 16 bits: each part is rounded once before it is merged.
local tolerance = { f32 = 3e-6, f64 = 1e-12, bf16 = 2e-2, f16 = 3e-3 }

-- Documents of 4, 5 and 2 tokens; what a rank sees of them is a slice of these pairs.
local function index(device)
   return tide.document_index(tide.tensor({ 0, 4, 9, 11 }, { dtype = 'i64' }), T):to(device)
end

local masks = {
   { name = 'full', opts = {} },
   { name = 'causal', opts = { causal = true }, indexed = true },
   { name = 'window', opts = { causal = true, window = { 2, -1 } }, indexed = true },
   { name = 'document', opts = { causal = true }, indexed = true, documents = true },
}

local function positions(device)
   local pairs_ = {}
   for t = 0, T - 1 do pairs_[t + 1] = { 0, t } end
   return tide.tensor({ pairs_ }, { dtype = 'i32', device = device })
end

local function options(mask, index_, first, last)
   local o = { return_lse = true }
   for k, v in pairs(mask.opts) do o[k] = v end
   if mask.indexed then
      o.q_index, o.k_index = index_, index_:slice(2, first, last):contiguous()
   end
   return o
end

local function case(mask, dtype, device)
   local q, k, v = draw(1, { B, T, H, D }, dtype, device), draw(2, { B, T, K, D }, dtype, device),
      draw(3, { B, T, K, D }, dtype, device)
   local ix = mask.documents and index(device) or positions(device)
   return q, k, v, ix
end

-- Cuts of the keys: uneven, with an empty block.
local blocks = { { 1, 3 }, { 4, 3 }, { 4, 8 }, { 9, T } }

local function merged(q, k, v, ix, mask, dtype, device)
   local opts = { dtype = wide[dtype], device = device }
   local out, lse = tide.zeros({ B, T, H, D }, opts), tide.full({ B, H, T }, -math.huge, opts)
   for _, b in ipairs(blocks) do
      local o, l = tide.attention(q, k:slice(2, b[1], b[2]), v:slice(2, b[1], b[2]),
         options(mask, ix, b[1], b[2]))
      tide.attention_merge_(out, lse, o, l)
   end
   return out, lse
end

describe('attention in parts', function()
   for _, device in ipairs { fast, 'ref' } do
      for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
         for _, mask in ipairs(masks) do
            local title = ('%s, %s, %s'):format(mask.name, dtype, device)
            it('merges to the whole: ' .. title, function()
               local q, k, v, ix = case(mask, dtype, device)
               local want, want_lse = tide.attention(q, k, v, options(mask, ix, 1, T))
               local out, lse = merged(q, k, v, ix, mask, dtype, device)
               close(want, out, tolerance[dtype], 'out')
               close(want_lse, lse, math.min(tolerance[dtype], 1e-5), 'lse')
            end)

            it('has gradients that add up: ' .. title, function()
               local q, k, v, ix = case(mask, dtype, device)
               local dout = draw(4, { B, T, H, D }, dtype, device)
               for _, t in ipairs { q, k, v } do t:requires_grad_(true) end
               local o = options(mask, ix, 1, T)
               local want, lse = tide.attention(q, k, v, o)
               want:backward(dout)
               lse = lse:detach()
               local dq = tide.zeros(q.shape, { dtype = wide[dtype], device = device })
               local dk, dv = {}, {}
               tide.no_grad(function()
                  for _, b in ipairs(blocks) do
                     local part = options(mask, ix, b[1], b[2])
                     part.return_lse = nil
                     local a, c, d = tide.attention_backward(dout, q, k:slice(2, b[1], b[2]),
                        v:slice(2, b[1], b[2]), want:detach(), lse, part)
                     dq:add_(a)
                     dk[#dk + 1], dv[#dv + 1] = c, d
                  end
               end)
               close(q.grad, dq, 2 * tolerance[dtype], 'dq')
               close(k.grad, tide.cat(dk, 2), 2 * tolerance[dtype], 'dk')
               close(v.grad, tide.cat(dv, 2), 2 * tolerance[dtype], 'dv')
            end)
         end
      end
   end

   it('reads nothing of a row that saw no key', function()
      for _, device in ipairs { fast, 'ref' } do
         local o = { device = device }
         local nan = tide.full({ 1, 2, 1, 3 }, 0 / 0, o)
         local none = tide.full({ 1, 1, 2 }, -math.huge, o)
         local part, lse = tide.ones({ 1, 2, 1, 3 }, o), tide.full({ 1, 1, 2 }, -math.huge, o)
         local out = nan:clone()
         tide.attention_merge_(out, lse, part, none)
         assert.same({ 0, 0, 0, 0, 0, 0 }, out:reshape(-1):tolist())
         out = nan:clone()
         tide.attention_merge_(out, lse, part, tide.zeros({ 1, 1, 2 }, o))
         assert.same({ 1, 1, 1, 1, 1, 1 }, out:reshape(-1):tolist())
         tide.attention_merge_(out, lse, nan, none)
         assert.same({ 1, 1, 1, 1, 1, 1 }, out:reshape(-1):tolist())
         assert.same({ 0, 0 }, lse:reshape(-1):tolist())
      end
   end)

   it('weighs by the log-sum-exps', function()
      local out, lse = tide.full({ 1, 1, 1, 1 }, 1), tide.zeros { 1, 1, 1 }
      tide.attention_merge_(out, lse, tide.full({ 1, 1, 1, 1 }, 3), tide.zeros { 1, 1, 1 })
      assert.is_true(math.abs(out:item() - 2) < 1e-6 and math.abs(lse:item() - math.log(2)) < 1e-6)
      tide.attention_merge_(out, lse, tide.full({ 1, 1, 1, 1 }, 5), tide.full({ 1, 1, 1 }, 200))
      assert.is_true(math.abs(out:item() - 5) < 1e-6 and lse:item() == 200)
   end)

   it('takes strided targets', function()
      local out = tide.zeros({ 1, 3, 5, 4 }):transpose(2, 4)        -- [1, T 4, H 5, D 3]
      local lse = tide.full({ 1, 4, 5 }, -math.huge):transpose(2, 3)
      local part, add = draw(5, { 1, 4, 5, 3 }, 'f32'), draw(6, { 1, 5, 4 }, 'f32')
      tide.attention_merge_(out, lse, part, add)
      close(part, out, 1e-7, 'out')
      close(add, lse, 1e-7, 'lse')
   end)

   it('does not depend on the number of threads', function()
      local q, k, v, ix = case(masks[4], 'f32', fast)
      local ctx = tide.default()
      local before, list = ctx:nthread(), {}
      for i, n in ipairs { 1, 3 } do
         ctx:set_nthread(n)
         list[i] = merged(q, k, v, ix, masks[4], 'f32', fast):reshape(-1):tolist()
      end
      ctx:set_nthread(before)
      assert.same(list[1], list[2])
   end)

   it('refuses what does not fit', function()
      local out, lse = tide.zeros { 1, 2, 1, 3 }, tide.zeros { 1, 1, 2 }
      local part = tide.zeros { 1, 2, 1, 3 }
      refused('E_SHAPE', 'attention_merge_', tide.attention_merge_, out, lse,
         tide.zeros { 1, 2, 1, 4 }, lse:clone())
      refused('E_SHAPE', 'attention_merge_', tide.attention_merge_, out, tide.zeros { 1, 2, 1 },
         part, tide.zeros { 1, 2, 1 })
      refused('E_DTYPE', 'attention_merge_', tide.attention_merge_, out:to 'bf16', lse, part,
         lse:clone())
      refused('E_DTYPE', 'attention_merge_', tide.attention_merge_, out, lse, part:to 'f64',
         lse:clone())
      refused('E_ARG', 'attention_merge_', tide.attention_merge_, out, lse, out, lse:clone())
      refused('E_ARG', 'attention_merge_', tide.attention_merge_, out, lse, part, nil)
      refused('E_STATE', 'attention_merge_', tide.attention_merge_,
         tide.zeros({ 1, 2, 1, 3 }):requires_grad_(true), lse, part, lse:clone())
      -- a part with a history would lose its gradient
      local q = tide.ones({ 1, 2, 1, 3 }):requires_grad_(true)
      local o, l = tide.attention(q, part, part, { return_lse = true })
      refused('E_STATE', 'part needs a gradient', tide.attention_merge_, out, lse, o, lse:clone())
      refused('E_STATE', 'part needs a gradient', tide.attention_merge_, out, lse, o, l)
      local leaf = tide.zeros({ 1, 1, 2 }):requires_grad_(true)
      refused('E_STATE', 'part_lse needs a gradient', tide.attention_merge_, out, lse, part, leaf)
      assert.same({ 0, 0 }, lse:reshape(-1):tolist())
      tide.no_grad(tide.attention_merge_, out, lse, o, l)
      refused('E_SHAPE', 'attention_backward', tide.attention_backward, part, part, part, part,
         part, tide.zeros { 1, 2, 1 })
      -- and so would whatever it is given
      local names = { 'dout', 'q', 'k', 'v', 'out', 'lse' }
      for i, name in ipairs(names) do
         local given = { part, part, part, part, part, tide.zeros { 1, 1, 2 } }
         given[i] = given[i]:detach():requires_grad_(true)
         refused('E_STATE', name .. ' needs a gradient', tide.attention_backward, unpack(given))
         tide.no_grad(tide.attention_backward, unpack(given))
      end
      refused('E_SHAPE', 'attention_backward', tide.attention_backward, tide.zeros { 1, 2, 1, 4 },
         part, part, part, part, lse)
      refused('E_DTYPE', 'attention_backward', tide.attention_backward, part, part, part, part,
         part, lse:to 'f64')
      refused('E_ARG', 'attention_backward', tide.attention_backward, part, part, part, part,
         part, lse, { bias = part })
   end)
end)
