-- Context parallelism, swept: methods, layouts and masks, with grouped heads, documents of every
-- kind and lengths that fit nothing, over up to eight ranks, held against attention on one rank;
-- and training over each method and layout, beside the other axes, for fifty steps. Every pair of
-- options is tried (spec/support/pairwise.lua), and for attention every three of ranks, method and
-- layout with each of the rest.

local pairwise = require 'spec.support.pairwise'
local case = require 'spec.parallel.cp_case'
local ranks = require 'spec.support.ranks'

-- On a rank: outputs and gradients of attention over n ranks against those of one, for the rows of
-- c: { method, layout, a2a, rows = list of { T =, mask =, heads =, documents = } by number }.
-- Returns how many were compared, or what is wrong.
local function sweep(_, n, c)
   local t = require 'tide'
   local cp, parallel = t.parallel.cp, t.parallel
   local axis = parallel.mesh({ cp = n }):axis 'cp'
   local inner = require('tide.parallel.cp.attention').new { axis = axis, method = c.method,
      a2a = c.a2a }
   local masks = { { causal = false }, { causal = true }, { causal = true, window = { 5, -1 } },
      { causal = false, window = { 3, 2 } }, { causal = true, softcap = 2 } }
   local heads = { { 4, 4 }, { 4, 2 }, { 4, 1 }, { 7, 7 } }
   local compared = 0

   local function cumulative(T, lengths)
      local cu = { 0 }
      for _, l in ipairs(lengths) do cu[#cu + 1] = math.min(T, cu[#cu] + l) end
      return cu
   end
   local function off(got, want)
      if want:numel() == 0 then return 0 end
      return (got - want):abs():amax():item() / math.max(1e-3, want:abs():amax():item())
   end

   local function one(T, B, cu, mask, h)
      local plan = parallel.cp_map.new { kind = c.layout, axis = axis, length = T, cu = cu,
         mask = c.layout == 'balanced' and { causal = mask.causal } or nil }
      local context = cp.context { map = plan }
      local full = {}
      for i, k in ipairs { h[1], h[2], h[2], h[1] } do
         full[i] = t.empty({ B, T, k, 8 }):normal_(0, 1, { seed = 10 * T + i })
      end
      local parts, index = {}, nil
      if cu then
         local tensor = t.tensor(cu, { dtype = 'i32' })
         index = t.slot_index(tensor, tensor, T)
      end
      for i = 1, 4 do parts[i] = plan:shard(full[i], 2, 0) end
      local opts, whole = { context = context }, { q_index = index, k_index = index }
      for _, name in ipairs { 'causal', 'window', 'softcap' } do
         opts[name], whole[name] = mask[name], mask[name]
      end
      for i = 1, 3 do
         full[i]:requires_grad_(true)
         parts[i] = parts[i]:detach():clone():requires_grad_(true)
      end
      local want = t.attention(full[1], full[2], full[3], whole)
      want:backward(full[4])
      local got = inner(parts[1], parts[2], parts[3], opts)
      got:backward(parts[4])
      local results = { { got:detach(), want:detach() } }
      for i = 1, 3 do results[i + 1] = { parts[i].grad, full[i].grad } end
      for i, pair in ipairs(results) do
         local error_ = off(plan:gather(pair[1], 2), pair[2])
         if error_ > 1e-5 or error_ ~= error_ then
            return ('%s off by %g: %d tokens, %d rows, causal %s, window %s, %d heads on %d, %s')
               :format(({ 'out', 'dq', 'dk', 'dv' })[i], error_, T, B, tostring(mask.causal),
               tostring(mask.window and mask.window[1]), h[1], h[2],
               cu and table.concat(cu, ' ') or 'one document')
         end
      end
      compared = compared + 1
   end

   for _, row in ipairs(c.rows) do
      local T = row.T
      local cu = ({ false, cumulative(T, { 1, 0, 7, 2, 10 }), cumulative(T, { T - 1, 1 }),
         cumulative(T, { 3, 1, 1, 1 }) })[row.documents]
      local problem = t.scope(function()
         return one(T, cu and 1 or 2, cu or nil, masks[row.mask], heads[row.heads])
      end)
      if problem then return problem end
   end
   return compared
end

describe('attention over ranks', function()
   local rows = pairwise { { 'mask', { 1, 2, 3, 4, 5 } }, { 'T', { 1, 3, 16, 37 } },
      { 'documents', { 1, 2, 3, 4 } }, { 'heads', { 1, 2, 3, 4 } } }

   for _, n in ipairs { 1, 2, 3, 4, 8 } do
      for _, method in ipairs { 'ring', 'allgather', 'a2a', 'a2a+p2p' } do
         for _, layout in ipairs { 'contiguous', 'zigzag', 'document', 'balanced' } do
            it(('is that of one: %d ranks, %s, %s'):format(n, method, layout), function()
               local c = { method = method, layout = layout, rows = rows,
                  a2a = method == 'a2a+p2p' and (n % 2 == 0 and 2 or 1) or nil }
               for _, compared in ipairs(ranks.run(n, sweep, c)) do
                  assert.equal(#rows, compared)
               end
            end)
         end
      end
   end
end)

describe('fifty steps over ranks', function()
   -- What one rank does alone, once for each kind of batch.
   local known = {}
   local function alone(c)
      local name = ('%s %s %s'):format(tostring(c.packed), tostring(c.clip), tostring(c.accum))
      known[name] = known[name] or ranks.run(1, case.alone, c)[1]
      return known[name]
   end

   local function same(n, c)
      c.steps = 50
      c.want = alone { steps = 50, packed = c.packed, clip = c.clip, accum = c.accum }
      for _, ok in ipairs(ranks.run(n, case.train, c)) do assert.equal(true, ok) end
   end

   for _, row in ipairs(pairwise { { 'method', { 'ring', 'allgather', 'a2a' } },
      { 'layout', { 'contiguous', 'zigzag', 'document', 'balanced' } }, { 'n', { 2, 3, 4 } },
      { 'packed', { false, true } }, { 'recompute', { 'none', 'mlp', 'full' } } }) do
      it(('equal one rank: cp %d, %s, %s, recompute %s%s'):format(row.n, row.method, row.layout,
         row.recompute, row.packed and ', packed' or ''), function()
            same(row.n, { sizes = { cp = row.n }, packed = row.packed, recompute = row.recompute,
               attach = { method = row.method, layout = row.layout } })
         end)
   end

   for name, row in require 'tide.util.each' {
      ['dp 2 x cp 2'] = { 4, { sizes = { dp = 2, cp = 2 }, clip = 1, accum = 2 } },
      ['dp_shard 2 x cp 2'] = { 4, { sizes = { dp_shard = 2, cp = 2 }, clip = 1,
         shard = 'optim_grads_params' } },
      ['dp_shard 2 x cp 3'] = { 6, { sizes = { dp_shard = 2, cp = 3 }, shard = 'optim_grads' } },
      ['cp 2 x tp 2'] = { 4, { sizes = { dp = 1, cp = 2, tp = 2 }, shard = 'optim', clip = 1 } },
      ['cp 2 x tp 2, sequence'] = { 4, { sizes = { dp = 1, cp = 2, tp = 2 }, shard = 'no_shard',
         sequence = true } },
      ['dp_shard 2 x cp 2 x tp 2'] = { 8, { sizes = { dp_shard = 2, cp = 2, tp = 2 },
         shard = 'optim_grads_params', sequence = true } },
      ['cp 4, a2a+p2p'] = { 4, { sizes = { cp = 4 }, attach = { method = 'a2a+p2p', a2a = 2 } } },
      ['cp 3, layers that differ'] = { 3, { sizes = { cp = 3 }, attach = { layers = {
         [2] = 'a2a' } } } },
   } do
      for _, recompute in ipairs { 'none', 'mlp', 'full' } do
         it(('equal one rank: %s, recompute %s'):format(name, recompute), function()
            local c = { packed = recompute ~= 'mlp', recompute = recompute }
            for k, v in require 'tide.util.each' (row[2]) do c[k] = v end
            same(row[1], c)
         end)
      end
   end
end)

describe('the recipe', function()
   local tmp = require 'spec.support.tmp'
   local function losses(dir, n, words) return case.recipe(dir, n, '--steps 50 ' .. words) end

   it('matches one rank over data and context', function()
      tmp.with(function(dir)
         for _, kind in ipairs { '--packed', '--sliding-window 20' } do
            local want = losses(dir, 1, kind)
            assert.is_true(#want > 50)
            for _, words in ipairs { '--mesh.dp_shard 2 --mesh.cp 2',
               '--mesh.cp 4 --cp.method a2a+p2p --cp.a2a 2 --cp.layout document',
               '--mesh.cp 2 --mesh.tp 2 --sequence-parallel --recompute full' } do
               local got = losses(dir, 4, words .. ' ' .. kind)
               assert.equal(#want, #got)
               for i, w in ipairs(want) do
                  assert.is_true(math.abs(got[i] / w - 1) < 1e-5,
                     ('%s, %s: %.9g, one rank %.9g'):format(words, kind, got[i], w))
               end
            end
         end
      end)
   end)
end)
