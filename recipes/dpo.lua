-- Preference learning (DPO, IPO): a model and pairs of answers -> a model that prefers the chosen.
--
--    tide run recipes/dpo.lua --from runs/sft/model --data pairs.jsonl --out runs/dpo
--    tide run -n 4 recipes/dpo.lua --mesh.dp_shard 2 --mesh.cp 2 ..
--    tide run -n 2 recipes/dpo.lua --mesh.tp 2 --sequence-parallel ..
--    tide run recipes/dpo.lua --lora.rank 16 ..                adapters alone are trained
--    tide run recipes/dpo.lua --out runs/dpo --resume          all options as they were
--
-- The two answers of a pair lie in one row; each attends to its prompt and itself. The model before
-- its first step is the reference: its log-probabilities of all answers are computed once and kept
-- in checkpoints. A step gives equal weight to every pair, over micro-batches and ranks.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local chats = require 'recipes.support.chats'
local job = require 'tide.train.job'
local optim = require 'recipes.support.optim'
local options = require 'recipes.support.options'
local preference = require 'recipes.support.preference'
local text = require 'recipes.support.text'
local tuned = require 'recipes.support.tuned'

local function train(self, opt)
   local tide = require 'tide'
   local objective = self:check(tide.nn.preference.objective, { beta = opt.beta, kind = opt.loss,
      label_smoothing = opt.label_smoothing })

   -- The model, which has no bytes yet, and the pairs as its tokens.
   local model = self:check(tuned.model, self)
   self:check(tide.train.reference.check, model)
   opt.lr = opt.lr or model.adapter and 5e-6 or 1e-6
   local images, processor = chats.images(self, opt, model)
   local corpus = preference.corpus(self, opt, model, images)

   -- How it lies over the ranks and what that costs.
   local plan = self:check(tide.parallel.plan, model, self:mesh())
   local per_rank = text.rows(self, opt, plan:data().size)
   if opt.plan then return preference.show_plan(self, opt, plan, per_rank, corpus) end
   local spread = self:check(plan.materialise, plan, { device = opt.device, seed = opt.seed,
      init = model.adapter ~= nil })

   -- Which pairs make up which step, and how many steps there are.
   local sampler = preference.sampler(self, opt, corpus, spread.data)
   self:settle_epochs(self:check(sampler.rows_per_epoch, sampler))

   -- The model gets its bytes, and the pairs their log-probabilities under the reference.
   if not opt.resume then preference.fill(self, opt, spread, corpus, sampler, per_rank) end

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
   if result.val_loss then self:print('validation loss %.4f per pair', result.val_loss) end
   self:print('the run is in %s', opt.out)
   tuned.export(self, opt, tuned.chosen(opt, run, result), model)
end

return job.main({ name = 'dpo', title = 'train a model on preferred answers (DPO, IPO)',
   options = options.all('dpo', preference.rows, preference.change),
   words = preference.words, train = train }, ...)
