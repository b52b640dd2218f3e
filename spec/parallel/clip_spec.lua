-- parallel/clip: norms and factors by hand, empty lists, 16-bit gradients, parts on ranks.

local tide = require 'tide'
local ranks = require 'spec.support.ranks'

local clip = tide.parallel.clip

local function grads(...)
   local list = {}
   for i = 1, select('#', ...) do list[i] = tide.tensor((select(i, ...))) end
   return list
end

-- On a rank: the norm of a model whose tensor-parallel parts have other sizes, so that the ranks
-- cut what is left whole at other elements.
local function of_uneven_parts()
   local t = require 'tide'
   local model = t.model.llama({ vocab_size = 9, hidden_size = 4, intermediate_size = 3,
      num_hidden_layers = 2, num_attention_heads = 2 }, { device = 'null' })
   local run = t.parallel.plan(model, { dp_shard = 3, tp = 2 }):materialise { seed = 1 }
   local ids = t.tensor({ { 3, 1, 4, 1, 5, run.data.rank } }, { dtype = 'i64' })
   run.model:loss(ids, ids, { count = 6 }):backward()
   run.sharded:finish()
   return t.parallel.clip.norm(run.sharded):item()
end

describe('the norm', function()
   it('has the same bits on every rank', function()
      local all = ranks.run(6, of_uneven_parts)
      for r = 2, 6 do assert.equal(all[1], all[r]) end
   end)

   it('is that of all gradients together', function()
      local list = grads({ 3, 4 }, { 1, 2 })
      assert.near(math.sqrt(25 + 5), clip.norm(list):item(), 1e-6)
      assert.equal(10, clip.norm(list, 1):item())
      assert.near((27 + 64 + 1 + 8) ^ (1 / 3), clip.norm(list, 3):item(), 1e-5)
      assert.equal(7, clip.norm(grads({ -3 }, { 7, 2 }), math.huge):item())
   end)

   it('of groups is that of their members, summed over communicators of several ranks', function()
      local groups, all = {}, {}
      for g = 0, 3 do
         local list = {}
         for i = 1, g do
            list[i] = (tide.arange(3) * i - g / 3):to(i == 2 and 'f64' or 'f32')
            for _, v in ipairs(list[i]:tolist()) do all[#all + 1] = math.abs(v) end
         end
         groups[g + 1] = { grads = list, comms = { { rank = 0, size = 1 } } }
      end
      for _, p in ipairs { 1, 2, 3, math.huge } do
         local sum = 0
         for _, v in ipairs(all) do sum = p == math.huge and math.max(sum, v) or sum + v ^ p end
         assert.near(p == math.huge and sum or sum ^ (1 / p), clip.norm(groups, p):item(), 1e-5)
      end
      local g = tide.tensor({ 1 / 3, 2 / 7 }, { dtype = 'f64' })
      assert.near((1 / 27 + 8 / 343) ^ (1 / 3), clip.norm({ g }, 3):item(), 1e-15)
      local norm = tide.parallel.clip_grad_norm_(groups, 1):item()
      assert.is_true(norm > 1)
      assert.near(1, clip.norm(groups):item(), 1e-5)
   end)

   it('of nothing is 0', function()
      for _, p in ipairs { 1, 2, 3, math.huge } do assert.equal(0, clip.norm({}, p):item()) end
      assert.equal(0, tide.parallel.clip_grad_norm_({}, 1):item())
   end)

   it('sums the parts of ranks, also where a rank has none', function()
      local r = ranks.run(3, function(rank)
         local t, out = require 'tide', {}
         local list = rank == 2 and {} or { t.tensor { rank == 0 and 3 or -4 } }
         local comm = require('tide.comm').world()
         for i, p in ipairs { 1, 2, 3, math.huge } do
            out[i] = t.parallel.clip.norm(list, p, comm):item()
         end
         t.parallel.clip_grad_norm_(list, 1, { comm = comm })
         out[5] = list[1] and list[1]:item() or 0
         return out
      end)
      for i, last in ipairs { 0.6, -0.8, 0 } do
         assert.equal(7, r[i][1])
         assert.equal(5, r[i][2])
         assert.near(91 ^ (1 / 3), r[i][3], 1e-5)
         assert.equal(4, r[i][4])
         assert.near(last, r[i][5], 1e-6)
      end
   end)

   it('is the same f64 on a rank that has no part', function()
      local r = ranks.run(2, function(rank)
         local t = require 'tide'
         local list = rank == 0 and { t.tensor({ 1, 1 / 3 }, { dtype = 'f64' }) } or {}
         local norm = t.parallel.clip.norm(list, 2, require('tide.comm').world())
         return { norm:item(), norm.dtype }
      end)
      for i = 1, 2 do
         assert.near(math.sqrt(1 + 1 / 9), r[i][1], 1e-15)
         assert.equal('f64', r[i][2])
      end
   end)
end)

describe('clipping', function()
   it('multiplies by max / (norm + 1e-6), if that is below 1', function()
      local list = grads({ 3, 4 })
      assert.equal(5, tide.parallel.clip_grad_norm_(list, 1):item())
      assert.near(3 * 0.19999996, list[1]:at(1), 1e-7)
      list = grads({ 3, 4 })
      tide.parallel.clip_grad_norm_(list, 10)
      assert.same({ 3, 4 }, list[1]:tolist())
      list = grads({ 4 })
      tide.parallel.clip_grad_norm_(list, 2)
      assert.near(4 * 0.4999998750, list[1]:at(1), 1e-6)
      list = grads({ -3, 7 })
      tide.parallel.clip_grad_norm_(list, 3.5, { norm_type = math.huge })
      assert.near(-1.5, list[1]:at(1), 1e-5)
      tide.parallel.clip_grad_norm_(list, 0)
      assert.same({ 0, 0 }, list[1]:tolist())
   end)

   it('changes 16-bit gradients themselves', function()
      for _, dtype in ipairs { 'bf16', 'f16' } do
         local g = tide.tensor({ 3, 4 }, { dtype = dtype })
         assert.equal(5, tide.parallel.clip_grad_norm_({ g }, 1):item())
         assert.equal(dtype, g.dtype)
         assert.near(0.6, g:at(1), 4e-3)
      end
   end)

   it('refuses what it cannot use', function()
      local function raised(...)
         local ok, e = pcall(tide.parallel.clip_grad_norm_, ...)
         assert.is_false(ok)
         return tostring(e)
      end
      assert.matches('max_norm', raised({}, -1), 1, true)
      assert.matches('norm_type', raised({}, 1, { norm_type = 0.5 }), 1, true)
      assert.matches('norm_type', raised({}, 1, { norm_type = 0 / 0 }), 1, true)
      assert.matches('norm_typ', raised({}, 1, { norm_typ = 2 }), 1, true)
      assert.matches('grads', raised(3, 1), 1, true)
      -- what PyTorch takes: parameters would be scaled in place of their gradients
      local model = tide.nn.Linear(2, 2, { seed = 1 })
      local before = model.weight:clone()
      assert.matches('got a Linear', raised(model, 1), 1, true)
      assert.matches("'grads[1]': expected a gradient, got a parameter",
         raised(model:parameters(), 0.1), 1, true)
      assert.matches("'grads[1]': expected a tensor, got 3", raised({ 3 }, 1), 1, true)
      assert.is_true(model.weight:equal(before))
   end)
end)
