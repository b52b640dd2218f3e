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
local options = require 'recipes.support.options'
local teacher = require 'recipes.support.teacher'
local text = require 'recipes.support.text'

-- What errors call the options.
local words = {
   { 'tensor parallel size', '--mesh.tp' }, { 'template', '--chat-template' },
   { 'seq', '--seq' }, { 'long', '--long' }, { 'skip_bad', '--skip-bad' },
   { 'train_on', '--train-on' }, { 'kind', '--kl' }, { 'k', '--teacher-top-k' },
   { 'rank', '--lora.rank' }, { 'targets', '--lora.targets' },
}

local function train(self, opt)
   -- The model, which has no bytes yet, and the chats as its tokens.
   local model = self:check(chats.model, self)
   opt.lr = opt.lr or model.adapter and 2e-4 or 2e-5
   local corpus = chats.corpus(self, opt, model)

   -- How it lies over the ranks and what that costs; then it gets its bytes.
   local plan = text.plan(self, opt, model)
   if not plan then return end
   local spread = self:check(plan.materialise, plan, { device = opt.device, seed = opt.seed,
      init = model.adapter ~= nil })
   if not opt.resume then chats.fill(self, opt, spread) end

   -- Which chats make up which step, and how many steps there are.
   local sampler = chats.sampler(self, opt, corpus, spread.data)
   self:settle_epochs(self:check(sampler.rows_per_epoch, sampler))

   -- The teacher, and what is learnt from it.
   local objective = teacher.objective(self, opt, spread, corpus, sampler)

   -- The steps, up to the last or until nothing gets better, and their result.
   local run, result = text.train(self, opt, corpus, plan, spread, sampler, objective)
   if not run then return end
   text.summary(self, opt, corpus, result, 'per token')
   chats.export(self, opt, run, result, model.adapter ~= nil)
end

return job.main({ name = 'distil', title = 'distil a larger model into a smaller one',
   options = options.all('distil', teacher.rows, teacher.change), words = words, train = train },
   ...)
