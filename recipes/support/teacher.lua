-- The parts of recipes.distil that recipes.finetune lacks: the teacher, and its place on the ranks.

local chats = require 'recipes.support.chats'
local copy = require 'tide.util.copy'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local options = require 'recipes.support.options'
local units = require 'tide.util.units'

local teacher = {}

teacher.rows = {
   { 'teacher', nil, 'published folder, checkpoint or run of the teacher; its vocabulary must be '
     .. 'that of --from', type = 'string', also = { 'teacher-model',
     'teacher-model-name-or-path' } },
   { 'teacher-dtype', nil, "dtype of the teacher's weights; default: --dtype", choices = { 'f32',
     'bf16' }, type = 'string' },
   { 'teacher-ep', 1, 'ranks that share the experts of the teacher: neighbours among all ranks, '
     .. 'whatever the mesh of the student; 1: experts are gathered', min = 1 },
   { 'alpha', 1, 'weight of the divergence from the teacher; the loss on labels has weight 1 - '
     .. 'alpha', type = 'number', min = 0, max = 1 },
   { 'temperature', 1, 'divides the logits of teacher and student; the divergence is multiplied by '
     .. 'its square', type = 'number', min = 1e-3 },
   { 'kl', 'forward', 'direction of the divergence: forward is KL(teacher, student), reverse is '
     .. 'KL(student, teacher)', choices = { 'forward', 'reverse' } },
   { 'teacher-top-k', 0, 'keep only the k most likely ids of the teacher after each token, '
     .. 'computed once before the first step; 0: run the teacher in each step', min = 0,
     also = { 'top-k', 'topk' } },
   { 'teacher-cache', nil, 'file of the ids of --teacher-top-k: read if it exists (--teacher is '
     .. 'then optional, and must be the model that wrote it), else written; default: compute them '
     .. 'at each start', type = 'string' },
}
teacher.rows = options.joined(teacher.rows, chats.rows)

-- What errors call the options.
teacher.words = options.joined(chats.words, { { 'train_on', '--train-on' }, { 'kind', '--kl' },
   { 'k', '--teacher-top-k' } })

teacher.change = { without = { 'temperature', unpack(chats.change.without) },
   default = chats.change.default }

-- Refuses a teacher of other tokens. model: the student.
local function check_tokens(job, tide, opt, model, corpus, big)
   local n, m = model.config.vocab_size, big.config.vocab_size
   if n ~= m then
      err.usage(job.name, '--teacher %s has a vocabulary of %d and the student of %d; both must '
         .. 'have the same tokens', opt.teacher, m, n)
   end
   local tok, other = corpus.tokenizer, job:check(tide.tokenizer.find, opt.teacher)
   if not other then return end
   for id = 0, math.min(tok.vocab_size, other.vocab_size) - 1 do
      local a, b = tok:decode { id }, other:decode { id }
      if a ~= b then
         err.usage(job.name, '--teacher %s has other tokens than the student: id %d is %q, and %q '
            .. 'here', opt.teacher, id, b, a)
      end
   end
end

-- Refuses a teacher that cannot read the images of the chats as the student does.
local function check_images(job, opt, model, corpus, big)
   if not corpus.train.images and not corpus.val.images then return end
   err.usage_if(type(big.placed) ~= 'function', job.name, '--teacher %s (%s) reads texts alone, '
      .. 'and the chats have images; give one that reads images, or leave them out', opt.teacher,
      big.class_name)
   local function patches(m)
      local c = m.config.vision_config
      return ('token %d, patches of %d x %d x %d, %d joined'):format(m.config.image_token_id,
         c.temporal_patch_size, c.patch_size, c.in_channels, c.spatial_merge_size)
   end
   local a, b = patches(model), patches(big)
   err.usage_if(a ~= b, job.name, '--teacher %s reads images otherwise than the student: %s, and '
      .. '%s here', opt.teacher, b, a)
end

-- Refuses ranks among which the experts of the teacher cannot be shared.
local function check_ep(job, opt, ranks, big)
   local k = opt.teacher_ep
   if k == 1 then return end
   local layers = require('tide.nn.mixtures')(big)
   err.usage_if(#layers == 0, job.name, '--teacher-ep %d: --teacher %s has no experts; leave it '
      .. 'out', k, opt.teacher)
   err.usage_if(ranks % k ~= 0, job.name, '--teacher-ep %d must divide the ranks of the run (in a '
      .. 'pipeline those of its last stage), which are %d', k, ranks)
   for _, layer in ipairs(layers) do
      err.usage_if(k > layer.m.experts, job.name, '--teacher-ep %d is more than the %d experts of '
         .. 'the teacher', k, layer.m.experts)
   end
end

-- Returns the ranks that share the teacher: all, or where each step runs it those of the last stage
-- of a student's pipeline. The second result: whether this rank is one of them.
local function ranks_of(opt, spread)
   local stage = spread.stage
   if not stage or opt.teacher_top_k > 0 then return spread.mesh.comm, true end
   return spread.sharded.stage_comm, stage.last
end

-- Spreads the teacher over ranks (see ranks_of), whatever the student's mesh, but for a context
-- axis, which both share. Returns the model and, of several ranks, its Sharded.
local function place(tide, opt, spread, big, world)
   if spread.mesh.comm.size == 1 then
      local run = tide.parallel.plan(big, { { 'dp', 1 } }):materialise { device = opt.device,
         init = false }
      return run, nil
   end
   if spread.context and opt.teacher_top_k == 0 then
      local o = copy(spread.plan.cp)
      o.axis = nil
      tide.parallel.cp.attach(big, spread.mesh:axis 'cp', o)
   end
   local sharded = tide.parallel.fully_shard(big, world, { device = opt.device, init = false,
      ep_size = opt.teacher_ep })
   return { model = big, sharded = sharded, mesh = { comm = world } }, sharded
end

-- The teacher with its weights, in eval mode and frozen, and its Sharded. spread: of the student.
function teacher.load(job, opt, spread, corpus)
   local tide = require 'tide'
   if not opt.teacher then err.usage(job.name, '--teacher is needed: the model to learn from') end
   local big = job:check(tide.model.load, opt.teacher, { dtype = opt.teacher_dtype or opt.dtype,
      device = 'null' })
   check_tokens(job, tide, opt, spread.model, corpus, big)
   check_images(job, opt, spread.model, corpus, big)
   local world, is_here = ranks_of(opt, spread)
   check_ep(job, opt, world.size, big)
   big:requires_grad_(false)
   if not is_here then return big:eval(), nil end
   local run, sharded = job:check(place, tide, opt, spread, big, world)
   job:check(tide.model.fill, run, opt.teacher)
   job.log:once('the teacher (%s) has %d parameters', opt.teacher, run.model:num_parameters())
   return run.model:eval(), sharded
end

-- Returns the identity of --teacher; nil if it is not given or, beside a file of its ids, missing.
local function identity(job, opt)
   if not opt.teacher then return nil end
   if fs.exists(opt.teacher) or not opt.teacher_cache then
      return job:check(require('tide').train.identity, opt.teacher)
   end
   job.log:once('%s does not exist, so tide cannot check that this teacher wrote %s', opt.teacher,
      opt.teacher_cache)
end

-- The ids of --teacher-top-k: those of --teacher-cache, or computed, with the teacher's rows shared
-- among all ranks, whatever the student's mesh.
local function most_likely(job, opt, spread, corpus, sampler)
   local train, path, k = require('tide').train.teacher, opt.teacher_cache, opt.teacher_top_k
   if path and fs.exists(path) then
      local top = job:check(train.load, path, sampler, corpus, { k = k,
         teacher = identity(job, opt), vocab = spread.model.config.vocab_size })
      job.log:once('%s has the %d most likely ids of the teacher', path, k)
      return top
   end
   if path then job:check(fs.mkdirs, job.name, fs.above(path)) end      -- before the work
   local large, sharded = teacher.load(job, opt, spread, corpus)
   local top = job:check(train.top, { model = large, sharded = sharded, comm = spread.mesh.comm },
      sampler, corpus, { k = k, device = opt.device, teacher = path and identity(job, opt) })
   if path then
      dist.on_first(spread.mesh.comm, job.name, function() train.save(path, top) end)
   end
   return top
end

-- Returns the bytes that the teacher needs on a rank, for its share of the weights and a forward of
-- per_rank rows, and over how many ranks it lies. plan: of the student.
local function bytes_of(job, opt, plan, per_rank)
   local tide = require 'tide'
   local big = job:check(tide.model.load, opt.teacher, { dtype = opt.teacher_dtype or opt.dtype,
      device = 'null' }):requires_grad_(false):eval()
   local in_steps = opt.teacher_top_k == 0
   local n = plan.ranks / (in_steps and opt.mesh.pp or 1)
   check_ep(job, opt, n, big)
   local T = math.ceil(opt.seq / (in_steps and opt.mesh.cp or 1))
   local ids = tide.empty({ per_rank, T }, { dtype = 'i64', device = 'null' })
   return tide.parallel.plan(big, { dp_shard = n }, { ranks = n,
      fsdp = n > 1 and { ep_size = opt.teacher_ep } or nil }):price { device = opt.device,
      forward = function(model)
         tide.no_grad(model.hidden, model, ids)
         return tide.zeros({}, { device = 'null' }):requires_grad_(true)
      end }.peak, n
end

-- Prints the plan of the student (see chats.show_plan), and what the teacher adds.
function teacher.show_plan(job, opt, plan, per_rank, corpus)
   chats.show_plan(job, opt, plan, per_rank, corpus)
   local is_kept = opt.teacher_top_k > 0 and opt.teacher_cache and fs.exists(opt.teacher_cache)
   if is_kept or not opt.teacher then return end
   local bytes, n = bytes_of(job, opt, plan, per_rank)
   job:print('these figures are of the student; the teacher needs up to %s more on a rank%s',
      units.bytes(bytes), n > 1 and (', with its weights over %d ranks'):format(n) or '')
end

-- The loss of a step: with the teacher in each, or with its ids in the batches of the sampler.
function teacher.objective(job, opt, spread, corpus, sampler)
   local tide = require 'tide'
   local o = { alpha = opt.alpha, temperature = opt.temperature, kind = opt.kl }
   if opt.teacher_top_k == 0 then
      if opt.teacher_cache then
         err.usage(job.name, '--teacher-cache needs --teacher-top-k K; give both')
      end
      o.teacher, o.sharded = teacher.load(job, opt, spread, corpus)
   elseif opt.kl == 'reverse' then
      err.usage(job.name, "--kl reverse needs all of the teacher's probabilities; leave out "
         .. '--teacher-top-k')
   else
      tide.train.teacher.use(sampler, corpus, most_likely(job, opt, spread, corpus, sampler))
   end
   return job:check(tide.nn.distil.objective, o)
end

return teacher
