-- Distillation: a model, a larger teacher with the same tokens, and chats -> a model that answers
-- as the teacher would.
--
--    tide run recipes/distil.lua --from models/small --teacher models/large --data chats.jsonl
--    tide run recipes/distil.lua .. --temperature 2 --alpha 0.5     labels count for the other half
--    tide run -n 4 recipes/distil.lua --mesh.dp_shard 2 --mesh.cp 2 ..
--    tide run -n 2 recipes/distil.lua --mesh.tp 2 --sequence-parallel ..
--    tide run recipes/distil.lua --lora.rank 16 ..             adapters alone are trained
--    tide run recipes/distil.lua .. --teacher-top-k 16 --teacher-cache top.safetensors
--    tide run recipes/distil.lua --out runs/distil --resume    all options as they were
--
-- Chats are packed as in finetune.lua, and the loss counts the assistant's tokens. The teacher is
-- sharded over all ranks, whatever the student's mesh. Logits of both exist for some tokens at a
-- time.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local chats = require 'recipes.support.chats'
local job = require 'tide.train.job'
local optim = require 'recipes.support.optim'
local options = require 'recipes.support.options'
local teacher = require 'recipes.support.teacher'
local text = require 'recipes.support.text'
local tuned = require 'recipes.support.tuned'

local function train(self, opt)
   local tide = require 'tide'

   -- The model, which has no bytes yet, and the chats as its tokens.
   local model = self:check(tuned.model, self)
   opt.lr = opt.lr or model.adapter and 2e-4 or 2e-5
   local images, processor = chats.images(self, opt, model)
   local corpus = chats.corpus(self, opt, model, images)

   -- How it lies over the ranks and what that costs; then it gets its bytes.
   local plan = self:check(tide.parallel.plan, model, self:mesh())
   local per_rank = text.rows(self, opt, plan:data().size)
   if opt.plan then return teacher.show_plan(self, opt, plan, per_rank, corpus) end
   local spread = self:check(plan.materialise, plan, { device = opt.device, seed = opt.seed,
      init = model.adapter ~= nil })
   if not opt.resume then tuned.fill(self, opt, spread) end

   -- Which chats make up which step, and how many steps there are.
   local sampler = chats.sampler(self, opt, corpus, spread.data)
   self:settle_epochs(self:check(sampler.rows_per_epoch, sampler))

   -- The teacher, and what is learnt from it.
   local objective = teacher.objective(self, opt, spread, corpus, sampler)

   -- The optimiser, with its rate by the step.
   local optimiser = optim.make(self, opt, spread.params)

   -- The steps, up to the last or until nothing gets better.
   local run = self:run(corpus, plan, {
      model = spread.model, parallel = spread.sharded, comm = spread.comm, optim = optimiser,
      loss = objective, sampler = sampler, accum = opt.accum, clip = opt.clip,
      same_rows = chats.same_rows(spread, corpus),
      val_windows = opt.val_windows, on_nonfinite = opt.on_nonfinite,
      keep_best = opt.keep_best, patience = opt.patience,
      on_evaluate = function(at) chats.report(at, objective, spread.comm, 'val') end })
   chats.keep(self, opt, corpus, processor)
   for s in run:steps() do
      chats.report(run, objective, spread.comm, 'train')
      if s.last or opt.val_every > 0 and s.step % opt.val_every == 0 then run:evaluate() end
      if opt.save_every > 0 and s.step % opt.save_every == 0 then run:save() end
   end
   local result = run:finish()
   if result.interrupted then return end

   -- The result.
   if result.val_loss then self:print('validation loss %.4f per token', result.val_loss) end
   self:print('the run is in %s', opt.out)
   tuned.export(self, opt, tuned.chosen(opt, run, result), model)
end

return job.main({ name = 'distil', title = 'distil a larger model into a smaller one',
   options = options.all('distil', teacher.rows, teacher.change), words = teacher.words,
   train = train }, ...)
