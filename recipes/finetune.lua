-- Supervised fine-tuning: a model and chats -> a fine-tuned model.
--
--    tide run recipes/finetune.lua --from models/llama --data chats.jsonl --out runs/sft
--    tide run -n 2 recipes/finetune.lua --mesh.dp 2 ..         two data-parallel ranks
--    tide run -n 4 recipes/finetune.lua --mesh.dp_shard 2 --mesh.cp 2 ..
--    tide run -n 2 recipes/finetune.lua --mesh.tp 2 --sequence-parallel ..
--    tide run recipes/finetune.lua --lora.rank 16 ..           adapters alone are trained
--    tide run recipes/finetune.lua --out runs/sft --resume     all options as they were
--
-- Chats are packed into rows and attend to themselves alone; labels are the assistant's tokens. A
-- step gives equal weight to every token that is trained on, over micro-batches and ranks. The last
-- or best checkpoint becomes a folder that transformers and the other recipes read.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local chats = require 'recipes.support.chats'
local job = require 'tide.train.job'
local optim = require 'recipes.support.optim'
local options = require 'recipes.support.options'
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
   if opt.plan then return chats.show_plan(self, opt, plan, per_rank, corpus) end
   local spread = self:check(plan.materialise, plan, { device = opt.device, seed = opt.seed,
      init = model.adapter ~= nil })
   if not opt.resume then tuned.fill(self, opt, spread) end

   -- Which chats make up which step, and how many steps there are.
   local sampler = chats.sampler(self, opt, corpus, spread.data)
   self:settle_epochs(self:check(sampler.rows_per_epoch, sampler))

   -- The optimiser, with its rate by the step.
   local optimiser = optim.make(self, opt, spread.params)

   -- The steps, up to the last or until nothing gets better.
   local run = self:run(corpus, plan, {
      model = spread.model, parallel = spread.sharded, comm = spread.comm, optim = optimiser,
      sampler = sampler, accum = opt.accum, clip = opt.clip, val_windows = opt.val_windows,
      same_rows = chats.same_rows(spread, corpus),
      on_nonfinite = opt.on_nonfinite, keep_best = opt.keep_best, patience = opt.patience })
   chats.keep(self, opt, corpus, processor)
   for s in run:steps() do
      if s.last or opt.val_every > 0 and s.step % opt.val_every == 0 then run:evaluate() end
      if opt.save_every > 0 and s.step % opt.save_every == 0 then run:save() end
   end
   local result = run:finish()
   if result.interrupted then return end

   -- The result.
   text.summary(self, opt, corpus, result)
   tuned.export(self, opt, tuned.chosen(opt, run, result), model)
end

return job.main({ name = 'finetune', title = 'fine-tune a model on chats',
   options = options.all('finetune', chats.rows, chats.change),
   words = options.joined(chats.words, { { 'train_on', '--train-on' } }), train = train }, ...)
