-- What recipes.distil has beside recipes.finetune: the teacher, spread its own way, and its
-- figures.

local chats = require 'recipes.support.chats'
local each = require 'tide.util.each'
local err = require 'tide.util.err'

local teacher = {}

teacher.rows = {
   { 'teacher', nil, 'published folder, checkpoint or run of the model that is learnt from; its '
     .. 'vocabulary must be that of --from', type = 'string',
     also = { 'teacher-model', 'teacher-model-name-or-path' } },
   { 'teacher-dtype', nil, "of the teacher's weights; not given: --dtype",
     choices = { 'f32', 'bf16' }, type = 'string' },
   { 'alpha', 1, 'weight of the divergence from the teacher; the rest is that of the labels',
     type = 'number', min = 0, max = 1 },
   { 'temperature', 1, 'logits of both are divided by it; the divergence is multiplied by its '
     .. 'square', type = 'number', min = 1e-3 },
   { 'kl', 'forward', 'divergence of the student from the teacher, or the other way',
     choices = { 'forward', 'reverse' } },
}
for _, row in ipairs(chats.rows) do teacher.rows[#teacher.rows + 1] = row end

teacher.change = { without = { 'temperature', unpack(chats.change.without) },
   default = chats.change.default }

-- Refuses a teacher of other tokens. model: the student.
local function check_tokens(job, tide, opt, model, corpus, big)
   local n, m = model.config.vocab_size, big.config.vocab_size
   if n ~= m then
      err.usage(job.name, '--teacher %s has a vocabulary of %d and the student of %d; both need '
         .. 'the same tokens', opt.teacher, m, n)
   end
   local tok = corpus.tokenizer
   local other = tok and job:check(tide.tokenizer.find, opt.teacher)
   if not other then return end
   for id = 0, math.min(tok.vocab_size, other.vocab_size) - 1 do
      local a, b = tok:decode { id }, other:decode { id }
      if a ~= b then
         err.usage(job.name, '--teacher %s has other tokens than the student: id %d is %q, and %q '
            .. 'here', opt.teacher, id, b, a)
      end
   end
end

-- Spreads the teacher over all ranks, whatever the student's mesh, but for a context axis, which
-- both share. Returns the model and, of several ranks, its Sharded.
local function place(tide, opt, spread, big)
   local world = spread.mesh.comm
   if world.size == 1 then
      local run = tide.parallel.plan(big, { { 'dp', 1 } }):materialise { device = opt.device,
         init = false }
      return run, nil
   end
   if spread.context then
      local o = {}
      for k, v in each(spread.plan.cp) do o[k] = v end
      o.axis = nil
      tide.parallel.cp.attach(big, spread.mesh:axis 'cp', o)
   end
   local sharded = tide.parallel.fully_shard(big, world, { device = opt.device, init = false })
   return { model = big, sharded = sharded, mesh = spread.mesh }, sharded
end

-- The teacher with its weights, in eval mode and frozen, and its Sharded. spread: of the student.
function teacher.load(job, opt, spread, corpus)
   local tide = require 'tide'
   if not opt.teacher then err.usage(job.name, '--teacher is needed: the model to learn from') end
   local big = job:check(tide.model.load, opt.teacher, { dtype = opt.teacher_dtype or opt.dtype,
      device = 'null' })
   check_tokens(job, tide, opt, spread.model, corpus, big)
   big:requires_grad_(false)
   local run, sharded = job:check(place, tide, opt, spread, big)
   job:check(tide.model.fill, run, opt.teacher)
   job.log:once('the teacher (%s) has %d parameters', opt.teacher, run.model:num_parameters())
   return run.model:eval(), sharded
end

-- Gives the metrics of the present step the parts of its loss, those of an evaluation as val_...
function teacher.report(run, objective, comm, which)
   for name, value in each(objective:take(comm, which) or {}) do
      run:metric(which == 'val' and 'val_' .. name or name, value)
   end
end

return teacher
