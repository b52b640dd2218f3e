-- Models with a vision tower over ranks: a step of plain gradient descent on texts with images and
-- videos has the loss, the gradients and the logits of one rank.

local assert = require 'luassert'
local tide = require 'tide'
local vlm_case = require 'spec.lua.vlm_case'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local case = { sequence = { tp = { sequence_parallel = true } } }

-- On a rank: logits of the first micro-batch, and the model after a step, as `out`; returns loss.
-- how: of (nil, or a name of vlm_case.of), case, plan, rows (whether the rows of the case are
-- batches of their own), text (whether the second of them is a text), layers (see vlm_case).
local function on_rank(rank, _, dir, mesh, out, how)
   local t = require 'tide'
   local case_ = require('spec.lua.vlm_case').of(how.of)
   local copy = require 'tide.util.copy'
   local model, run = t.model.load(dir, { mesh = mesh, dtype = 'f64', plan = how.plan })
   local n, images = case_.numbers(how.case), case_.images(how.case, 'f64')
   local list = {}
   if how.rows then
      -- grids of a case with one image, and one video or none, in each row
      local at = { image = 0, video = 0 }
      for b = 1, 2 do
         local row = { ids = n.ids:narrow(1, b, 1), labels = n.labels:narrow(1, b, 1),
            attention_mask = n.mask:narrow(1, b, 1), second_per_grid_ts = images.second_per_grid_ts
               and images.second_per_grid_ts:narrow(1, b, 1) }
         for kind, pixels in pairs { image = 'pixel_values', video = 'pixel_values_videos' } do
            local grids = images[kind .. '_grid_thw']
            local grid = grids and grids:narrow(1, b, 1)
            local g = grid and grid:tolist()[1]
            row[kind .. '_grid_thw'] = grid
            if g then
               row[pixels] = images[pixels]:narrow(1, at[kind] + 1, g[1] * g[2] * g[3])
               at[kind] = at[kind] + g[1] * g[2] * g[3]
            end
         end
         list[b] = row
      end
      if how.text then
         list[2] = { ids = t.tensor({ { 3, 4, 5, 6 } }, { dtype = 'i64' }),
            labels = t.tensor({ { 4, 5, 6, 7 } }, { dtype = 'i64' }) }
      end
   else
      list[1] = copy(images, { ids = n.ids, labels = n.labels, attention_mask = n.mask })
   end
   local first = list[1]
   local function logits_of()
      local call = { attention_mask = first.attention_mask }
      local mine = first
      if mesh.cp then
         mine = run.context:cut(first)
         call = { context = mine.context, positions = mine.positions }
      end
      for _, name in ipairs(model.input_fields) do call[name] = mine[name] end
      local y = model(mine.ids, call):detach()
      return mesh.cp and mine.context.map:gather(y, 2) or y
   end
   local logits = t.no_grad(logits_of)
   if rank == 0 then t.util.fs.io().safetensors_save(out .. '.logits', { logits = logits }) end
   local mine = {}
   for i = run.data.rank + 1, #list, run.data.size do mine[#mine + 1] = list[i] end
   local step = t.train.step.new { model = model:train(), parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = 1 }) }
   local loss = step:run(mine).loss
   if run.sharded or rank == 0 then
      t.model.save(run.sharded or model, out, { dtype = 'f64' })
   end
   return loss
end

local function tensors(path) return tide.train.checkpoint.tensors(path) end

local function run_on(dir, work, size, mesh, how)
   local out = work .. '/out' .. math.random(1e9)
   local loss = ranks.run(size, on_rank, dir, mesh, out, how)
   return { loss = loss, after = tensors(out .. '/model.safetensors'),
      logits = tensors(out .. '.logits').logits }
end

local function far(a, b) return (a - b):abs():amax():item() / b:abs():amax():item() end

local alone = {}

-- Returns what one rank computes and learns, and the weights before; once for each batch. work: a
-- folder with the model.
local function of_one(work, how)
   local key = table.concat({ tostring(how.of), how.case, tostring(how.rows), tostring(how.text),
      tostring(how.layers) }, ' ')
   if not alone[key] then
      local plan = how.plan
      how.plan = nil
      alone[key] = { run_on(work .. '/model', work, 1, { dp_shard = 1 }, how),
         tensors(work .. '/model/model.safetensors') }
      how.plan = plan
   end
   return unpack(alone[key])
end

-- Compares what ranks of a mesh compute and learn with what one rank does. how: see on_rank.
function case.check(size, mesh, how)
   local of = vlm_case.of(how.of)
   tmp.with(function(work)
      tide.model.save(of.model(how.case, nil, how.layers), work .. '/model')
      local want, before = of_one(work, how)
      local got, largest = run_on(work .. '/model', work, size, mesh, how), 0
      local keep = how.rows and 1 or of.numbers(how.case).mask:to 'f64':unsqueeze(3)
      assert.is_true(far(got.logits * keep, want.logits * keep) <= 1e-9)
      for _, loss in ipairs(got.loss) do assert.near(want.loss[1], loss, 1e-9) end
      for name, t in each(before) do
         largest = math.max(largest, (want.after[name] - t:to 'f64'):abs():amax():item())
      end
      for name in each(before) do
         local off = (got.after[name] - want.after[name]):abs():amax():item()
         assert.is_true(off <= 1e-9 * largest, name .. ' off by ' .. off)
      end
   end)
end

return case
