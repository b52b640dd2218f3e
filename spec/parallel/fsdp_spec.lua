-- fully_shard against one rank: losses, norms and weights after steps with AdamW and clipping.

local case = require 'spec.parallel.fsdp_case'
local compare = require 'spec.parallel.fsdp_compare'
local ranks = require 'spec.support.ranks'
local wide = require 'spec.support.wide'

describe('a sharded model', function()
   -- The other combinations: spec/deep/fsdp_spec.lua.
   for _, c in ipairs { { 1, 3, 'f32' }, { 2, 1, 'f64' }, { 2, 3, 'f32' }, { 3, 3, 'f64' },
      { 4, 1, 'f32' } } do
      it(('equals one rank: %d ranks, %d micro-batches, %s'):format(unpack(c)), function()
         compare.check(unpack(c))
      end)
   end

   -- On a rank: true, or which case { axes of a mesh, options } differs from one rank, and by what.
   local function on_meshes(_, _, cases, want)
      local t, here = require 'tide', require 'spec.parallel.fsdp_case'
      for i, c in ipairs(cases) do
         local r = here.train { fsdp = c[2] or {}, mesh = t.parallel.mesh(c[1]), accum = 3,
            rows = 24 }
         for _, k in ipairs { 'losses', 'norms', 'weights' } do
            local d = here.distance(r[k], want[k])
            if d >= 1e-5 or d ~= d then return ('case %d: %s differ by %g'):format(i, k, d) end
         end
      end
      return true
   end

   local want3
   local function near(n, cases)
      want3 = want3 or compare.wanted(3)
      for _, got in ipairs(ranks.run(n, on_meshes, cases, want3)) do assert.equal(true, got) end
   end

   it('may have replicas, be sharded over data and context ranks, or over fewer after forward',
      function()
         local list = { { { dp_shard = 2, cp = 2 } } }
         for _, strategy in ipairs { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } do
            list[#list + 1] = { { dp_replicate = 2, dp_shard = 2 }, { strategy = strategy } }
         end
         for _, k in ipairs { 1, 2, 4 } do
            list[#list + 1] = { { dp_shard = 4 }, { reshard_after_forward = k } }
         end
         near(4, list)
      end)

   it('equals one rank with more ranks than rows to give', function()
      near(8, { { { dp_shard = 8 }, { units = { 'Attention', 'MLP' } } } })
   end)

   it('has units by class, by size or one alone', function()
      near(2, { { { dp_shard = 2 }, { units = { 'Linear' } } },
         { { dp_shard = 2 }, { units = { 'Embedding', 'Linear' } } } })
      near(3, { { { dp_shard = 3 }, { units = { 'Block' } } },
         { { dp_shard = 3 }, { units = 5000 } },
         { { dp_shard = 3 }, { disable_bucketing = true } } })
   end)

   it('adds up all backwards of a step, also around evaluations that free what is gathered',
      function()
         -- F: forward of the loss, L: of logits, B: its backward, E: evaluation that frees
         local function grads(rank, n, list, tied, strategy)
            local t = require 'tide'
            local here = require 'spec.parallel.fsdp_case'
            local model, sharded = here.model { dtype = 'f64', config = {
               tie_word_embeddings = tied } }, nil
            if strategy then
               sharded = t.parallel.fully_shard(model, { seed = 3, strategy = strategy })
            else
               model:materialise('cpu', 3)
            end
            local loss
            for k = 1, #list do
               local op, b = list:sub(k, k), here.batch(k, rank, n, 6)
               if op == 'F' then loss = model:loss(b.ids, b.labels, { count = 42 })
               elseif op == 'L' then loss = (model(b.ids) * 0.01):sum()
               elseif op == 'B' then loss:backward()
               else
                  t.no_grad(model.loss, model, b.ids, b.labels, { count = 42 })
                  if sharded then sharded:release() end
               end
            end
            if sharded then sharded:finish() end
            t.optim.SGD(sharded or model, { lr = 1 }):step()
            return here.numbers(sharded and sharded:full_state_dict() or model:state_dict())
         end
         for _, list in ipairs(wide and { 'FBFB', 'FBEFB', 'FEBFEB', 'LEBLB' }
            or { 'FEBFEB', 'LEBLB' }) do
            for _, tied in ipairs { false, true } do
               local want = ranks.run(1, grads, list, tied)[1]
               for _, strategy in ipairs { 'optim_grads_params', 'optim' } do
                  local got = ranks.run(2, grads, list, tied, strategy)[2]
                  assert.is_true(case.distance(got, want) < 1e-9, list .. ' ' .. strategy)
               end
            end
         end
      end)
end)
