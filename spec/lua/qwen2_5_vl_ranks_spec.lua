-- Qwen2.5-VL over ranks: a step of plain gradient descent on texts with images and videos has the
-- loss, the gradients and the logits of one rank.

local over = require 'spec.lua.vlm_ranks_case'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local sequence = over.sequence

local cases = {
   { 'cp 2, images of several rows', 2, { cp = 2 }, { case = 'images' } },
   { 'cp 2, one frame on each rank', 2, { cp = 2 }, { case = 'mixed' } },
   { 'cp 3, fewer images than ranks', 3, { cp = 3 }, { case = 'image' } },
   { 'dp_shard 2', 2, { dp_shard = 2 }, { case = 'mixed', rows = true } },
   { 'dp_shard 2, one without images', 2, { dp_shard = 2 },
      { case = 'mixed', rows = true, text = true } },
   { 'dp 2, one without images', 2, { dp = 2 }, { case = 'mixed', rows = true, text = true } },
   { 'dp_shard 2 x cp 2', 4, { dp_shard = 2, cp = 2 }, { case = 'mixed', rows = true } },
   { 'tp 2', 2, { tp = 2 }, { case = 'mixed' } },
   { 'tp 2 with sequence_parallel', 2, { tp = 2 }, { case = 'mixed' }, sequence },
   { 'cp 2 x tp 2 with sequence_parallel', 4, { cp = 2, tp = 2 }, { case = 'mixed' }, sequence },
   { 'dp_shard 2 x tp 2 with sequence_parallel, one without images', 4, { dp_shard = 2, tp = 2 },
      { case = 'mixed', rows = true, text = true }, sequence },
}

describe('qwen2_5_vl over ranks', function()
   for _, row in ipairs(cases) do
      it('computes and learns what one rank does: ' .. row[1], function()
         row[4].plan = row[5]
         over.check(row[2], row[3], row[4])
      end)
   end

   it('leaves a tower alone in a step without images, sharded or not', function()
      -- a step with images gives momentum to its weights, which steps without images do not touch
      local function on_rank_(rank)
         local t = require 'tide'
         local copy = require 'tide.util.copy'
         local case_ = require 'spec.lua.vlm_case'
         local model = case_.model('image', { dtype = 'f64' })
         local size = t.comm.world().size
         local sharded = t.parallel.fully_shard(model, t.comm.world(), {})
         local step = t.train.step.new { model = model:train(), parallel = sharded,
            optim = t.optim.AdamW(sharded, { lr = 0.01, weight_decay = 0.1 }) }
         local n = case_.numbers 'image'
         local images = copy(case_.images('image', 'f64'), { ids = n.ids, labels = n.labels })
         local ids = t.tensor({ { 3, 4, 5, 6 } }, { dtype = 'i64' })
         local text = { ids = ids, labels = t.nn.loss.shift(ids) }
         local function weights()
            local list = {}
            for name, p in pairs(sharded:full_state_dict()) do
               if name:find '^visual' then list[#list + 1] = p:abs():sum():item() end
            end
            table.sort(list)
            return table.concat(list, ' ')
         end
         local moved, before = {}, weights()
         for k, list in ipairs { { images }, { text }, { text, text }, { text, images } } do
            -- of several ranks, the last alone has images
            step:run(rank == size - 1 and list or { text, #list == 2 and text or nil })
            local after = weights()
            moved[k], before = after ~= before, after
         end
         return moved
      end
      for size = 1, 2 do
         for _, moved in ipairs(ranks.run(size, on_rank_)) do
            assert.same({ true, false, false, true }, moved)
         end
      end
   end)

   it('has gradients of zero in a step without images that trains the tower alone', function()
      local function on_rank_(rank, size, is_sharded)
         local t = require 'tide'
         local copy = require 'tide.util.copy'
         local case_ = require 'spec.lua.vlm_case'
         local model = case_.model('image', { dtype = 'f64' }):requires_grad_(false)
         model.visual:requires_grad_(true)
         local sharded = is_sharded and t.parallel.fully_shard(model, t.comm.world(), {}) or nil
         local optim = t.optim.AdamW(sharded or model, { lr = 0.01, weight_decay = 0.1 })
         local step = t.train.step.new { model = model:train(), parallel = sharded,
            optim = optim }
         local n = case_.numbers 'image'
         local images = copy(case_.images('image', 'f64'), { ids = n.ids, labels = n.labels })
         local ids = t.tensor({ { 3, 4, 5, 6 } }, { dtype = 'i64' })
         local text = { ids = ids, labels = t.nn.loss.shift(ids) }
         local function weights()
            local sum = 0
            for _, e in ipairs((sharded or model):named_parameters()) do
               sum = sum + e.param:detach():to 'f64':abs():sum():item()
            end
            return sum
         end
         local moved, norms = {}, {}
         for k, batch in ipairs { text, images, text } do
            local before = weights()
            -- of several ranks, the last alone has images
            norms[k] = step:run { rank == size - 1 and batch or text }.grad_norm
            moved[k] = weights() ~= before
         end
         return { moved, norms[1], norms[2] > 0, norms[3], optim.steps }
      end
      for size = 1, 2 do
         for _, is_sharded in ipairs { false, true } do
            for _, got in ipairs(ranks.run(size, on_rank_, is_sharded)) do
               assert.same({ { false, true, false }, 0, true, 0, 3 }, got)
            end
         end
      end
   end)

   it('answers turn after turn what one rank answers, and reads only what is new', function()
      local function on_rank_(_, _, dir, mesh, plan)
         local t = require 'tide'
         local case_ = require 'spec.lua.vl_chat_case'
         local model = t.model.load(dir, { mesh = mesh, plan = plan })
         local proc, n, answers = t.data.image.processor(case_.golden), 0, {}
         local cache, prompt, images = {}, {}, {}
         model:hook_pre(function(_, ids) n = n + ids:size(2) end)
         for k, turn in ipairs(case_.numbers.turns) do
            for _, id in ipairs(turn.ids) do prompt[#prompt + 1] = id end
            for _, name in ipairs(turn.images) do
               images[#images + 1] = case_.golden .. '/' .. name
            end
            answers[k] = t.train.sample.generate(model, prompt, { tokens = #turn.answer,
               temperature = 0, cache = cache, inputs = t.data.vision.fields(
                  t.data.vision.read(proc, { images = images })) })
            for _, id in ipairs(answers[k]) do prompt[#prompt + 1] = id end
         end
         return { answers, #prompt - 1, n }
      end
      tmp.with(function(dir)
         local chat, want = require 'spec.lua.vl_chat_case', {}
         chat.write(dir)
         for k, turn in ipairs(chat.numbers.turns) do want[k] = turn.answer end
         for _, row in ipairs { { { tp = 2 } }, { { tp = 2 }, sequence }, { { dp_shard = 2 } } } do
            for _, got in ipairs(ranks.run(2, on_rank_, dir .. '/m', row[1], row[2])) do
               assert.same(want, got[1])
               assert.equal(got[2], got[3])
            end
         end
      end)
   end)

   it('refuses ranks of an axis whose images differ', function()
      ranks.fail(2, function(rank)
         local t = require 'tide'
         local copy = require 'tide.util.copy'
         local case_ = require 'spec.lua.vlm_case'
         local run = t.parallel.plan(case_.model 'mixed', { tp = 2 }):materialise { seed = 1 }
         local step = t.train.step.new { model = run.model, parallel = run.sharded,
            comm = run.comm, optim = t.optim.SGD(run.params, { lr = 0.1 }) }
         local n, o = case_.numbers 'mixed', case_.images 'mixed'
         o.pixel_values = o.pixel_values * (1 + rank)
         step:run { copy(o, { ids = n.ids, labels = n.labels }) }
      end, 'ranks of the tensor-parallel axis (2 ranks) were given different batches')
   end)

   it('needs the places of images that whole rows show, where tokens are cut', function()
      ranks.fail(2, function()
         local t = require 'tide'
         local case_ = require 'spec.lua.vlm_case'
         local copy = require 'tide.util.copy'
         local model = case_.model 'image'
         local handle = t.parallel.cp.attach(model, require('tide.comm').world())
         local n, o = case_.numbers 'image', case_.images 'image'
         local mine = handle:cut { ids = n.ids }
         model(mine.ids, copy({ context = mine.context, positions = mine.positions }, o))
      end, "argument 'feature_rows': expected this rank's part of those of whole rows, beside a "
         .. 'context: cut a batch that model:placed(batch) completed (handle:cut does so)')
   end)
end)
