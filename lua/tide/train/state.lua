-- What a run must save to continue exactly: model, optimiser, sampler, random numbers, step.
--
-- Tensors and plain data are kept apart: `collect` gives both, `restore` takes both.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local family = require 'tide.model.family'
local low_rank = require 'tide.nn.low_rank'
local nf4_part = require 'tide.nn.nf4_part'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'
local states = require 'tide.nn.state'
require 'tide.nn.module'                -- the kind 'module'
require 'tide.optim.optimizer'          -- the kind 'optimizer'

local state = {}

-- Returns what the batches of a run depend on; a run resumes only with equal values.
local function data_of(run)
   local s = run.sampler
   return {
      train = run.fingerprint, batch = s and s.batch, seq = s and s.seq, seed = s and s.seed,
      accum = run.accum,
   }
end

-- Adds t, which is whole on this rank.
local function add_whole(list, name, t)
   list[#list + 1] = { name = name, t = t:detach(), shape = t.shape, offset = dims.zeros(t.ndim),
      size = t.shape }
end

-- Returns whether an optimiser keeps the tensor `key`, "<parameter>.<field>", of whole parameters
-- on every rank that has a piece.
local function is_whole(optim, key)
   return optim.whole_fields ~= nil and optim.whole_fields[key:match '[^.]*$'] == true
end

-- Adds the boxes of piece p, with the bytes of t, which has its shape.
local function add_parts(list, name, p, t)
   for _, part in ipairs(p.parts) do
      list[#list + 1] = { name = name, t = dims.view(t:detach(), part.at, part.size):contiguous(),
         shape = p.shape, offset = part.offset, size = part.size }
   end
end

-- Calls fn(name, b) for the persistent buffers; b: of named_buffers.
local function each_buffer(model, fn)
   for _, b in ipairs(model:named_buffers()) do
      if b.persistent then fn(b.name, b) end
   end
end

-- Adds the buffers, which are whole in a checkpoint. What tensor or expert parallelism has cut
-- (codes of NF4) is gathered one by one, and each rank of the axis keeps its share of the buffers.
local function add_buffers(list, model, wants)
   local ncut = 0
   each_buffer(model, function(name, b)
      if not wants(name) then return end
      local axis = nf4_part.axis(b)
      if not axis then return add_whole(list, name, b.buffer) end
      local whole = nf4_part.gather(b)
      if ncut % axis.size == axis.rank then add_whole(list, name, whole) end
      ncut = ncut + 1
   end)
end

-- Returns what a rank of a sharded model holds: lists of { name, t, shape, offset, size }; see
-- shard_store. wants: of which names; optim: nil for the model alone; kept: of its state_dict.
local function pieces_of(sharded, wants, optim, kept)
   local model, moments = {}, {}
   for _, p in ipairs(sharded:named_parameters()) do
      if wants(p.name) then add_parts(model, p.name, p, p.param) end
      for _, field in ipairs(optim and optim.fields or {}) do
         local key = p.name .. '.' .. field
         if kept[key] ~= nil and is_whole(optim, key) then
            add_whole(moments, key, kept[key])
         elseif kept[key] ~= nil then
            add_parts(moments, key, p, kept[key])
         end
      end
   end
   add_buffers(model, sharded.model, wants)
   return { model = model, optim = moments }
end

local function all_names() return true end

-- Returns model and optimiser of a run: whole, or as pieces.
local function tensors_of(run)
   local moments, meta = run.optim:state_dict()
   if not run.parallel then return { model = run.model:state_dict(), optim = moments }, meta end
   local comm, counts = run.parallel.comm, {}
   for _, list in ipairs(comm:all_gather_object(meta.counts)) do copy(list, counts) end
   meta.counts = counts
   return { pieces = pieces_of(run.parallel, all_names, run.optim, moments), comm = comm }, meta
end

-- Returns the context whose random numbers a run draws: the one it names, else the state's own.
local function ctx_of(run) return run.ctx or tide.default() end

-- Returns what a checkpoint says of a model beside its tensors. Merged weights are those of a model
-- without adapters.
local function description(model)
   return { config = family.config(model), family = family.of(model),
      adapter = not low_rank.is_merged(model) and rawget(model, 'adapter') or nil,
      quantised = rawget(model, 'quantised') }
end

-- Returns the stage of a pipeline that a run has here; nil without one.
local function stage_of(run) return run.parallel and run.parallel.stage end

-- Returns the random state of a run on this rank. plain: of a checkpoint, which has one for each
-- stage of a pipeline, as these draw differently often.
local function rng_of(run, plain)
   local stage, list = stage_of(run), plain.rng_stages
   local is_same = stage and list and #list == stage.size
   return is_same and list[stage.rank + 1] or plain.rng
end

-- Refuses a run whose model a checkpoint cannot hold: one that would apply its adapters twice, or
-- parts of weights.
local function check_model(op, run)
   err.raise_if(low_rank.is_merged(run.model), 'E_STATE', op, 'the adapters of the model are '
      .. 'merged, and a run that resumes would apply them again; call nn.lora.unmerge(model) '
      .. 'first, or write the merged model with tide.model.save')
   if not run.parallel then spread.check_uncut(op, run.model) end
end

-- Collects what a checkpoint holds of run: { model=, optim=, sampler=, ctx=, step=, recipe=, job=,
-- fingerprint=, accum=, val_loss=, best=, parallel= }. With parallel (a Sharded), every rank calls
-- it.
function state.collect(run)
   check_model('train.state.collect', run)
   local saved, meta = tensors_of(run)
   local rng, stage = ctx_of(run):rng_state(), stage_of(run)
   saved.plain = copy(description(run.model), {
      step = run.step, optim = meta, sampler = run.sampler and run.sampler:state(),
      rng = rng, rng_stages = stage and stage:gather(rng), recipe = run.recipe, job = run.job,
      data = data_of(run), val_loss = run.val_loss, best = run.best,
   })
   return saved
end

local function not_of_adapters(name) return not low_rank.is_name(name) end

-- Returns the weights of a sharded model alone, to give to checkpoint.save: a checkpoint that no
-- run resumes. wants(name): which of them; nil: all, of a model with merged adapters those that it
-- is without them. Every rank calls it.
function state.weights(sharded, wants)
   wants = wants or low_rank.is_merged(sharded.model) and not_of_adapters or all_names
   return { pieces = pieces_of(sharded, wants), comm = sharded.comm,
      plain = copy(description(sharded.model),
         { step = 0, optim = { kind = 'none', steps = 0, counts = {} } }) }
end

-- Refuses data, a batch or windows that differ: the run would silently learn from them.
local function check_data(op, run, saved)
   local now = data_of(run)
   for _, k in ipairs { 'batch', 'seq', 'seed' } do
      if saved[k] ~= nil and now[k] ~= nil and saved[k] ~= now[k] then
         err.usage(op, '--%s: the checkpoint was saved with %s, this run has %s; a resumed run '
            .. 'needs the same value', k, tostring(saved[k]), tostring(now[k]))
      end
   end
   err.usage_if(saved.train and now.train and saved.train ~= now.train, op, '--data: the training '
      .. 'tokens are not those of the checkpoint (count:width:hash was %s, is %s); a resumed run '
      .. 'needs the same data', saved.train, now.train)
end

-- Refuses windows for a run of whole documents and the reverse: they are other orders of the data.
local function check_rows(op, saved, now)
   if type(saved) ~= 'table' or (saved.documents ~= nil) == (now.documents ~= nil) then return end
   local packed = { [true] = 'whole documents', [false] = 'windows' }
   err.usage(op, '--packed: the checkpoint was saved with %s, this run has %s; a resumed run needs '
      .. 'the same value', packed[saved.documents ~= nil], packed[now.documents ~= nil])
end

-- Returns whether an optimiser keeps an f32 master of a parameter. The master is the exact weight
-- of a 16-bit parameter, and a wider parameter needs none: one is restored as the other, with the
-- same bits. (Shards of 16-bit parameters are f32 by default.)
local function keeps_master(param) return param.dtype == 'bf16' or param.dtype == 'f16' end

-- Loads the optimiser of a whole model, after the model.
local function load_whole_optim(op, optim, saved, meta)
   local tensors = copy(err.type(op, 'saved.optim', saved.optim, 'table'))
   local counts = err.type(op, 'counts', err.type(op, 'saved.plain.optim', meta, 'table').counts,
      'table')
   for _, e in ipairs(optim:entries()) do
      local key = e.name .. '.master'
      local weight = saved.model[e.name]
      if keeps_master(e.param) then
         local is_exact = weight and (counts[e.name] or weight.dtype == 'f32')
         tensors[key] = tensors[key] or is_exact and weight or nil
      elseif tide.is_tensor(tensors[key]) and dims.equal(tensors[key].shape, e.param.shape) then
         tide.no_grad(function() e.param:copy_(tensors[key]) end)
         tensors[key] = nil
      end
   end
   optim:load_state_dict(tensors, meta)
end

-- ---- into a sharded model ---------------------------------------------------------------------

-- Compares names and shapes of the stored model with those of this one: one error lists all that
-- differ. Returns this one's, by name.
local function check_stored(op, sharded, from)
   local own, stored = {}, {}
   for _, e in ipairs(sharded:whole_parameters()) do own[e.name] = e.shape end
   each_buffer(sharded.model, function(name, b) own[name] = nf4_part.shape(b) end)
   if sharded.stage then                                   -- the other stages have the rest
      for _, list in ipairs(sharded.stage:gather(own)) do copy(list, own) end
   end
   for _, name in ipairs(from:names 'model') do stored[name] = from:shape('model', name) end
   states.refuse(op, states.differences(own, stored), { 'missing', 'unexpected', 'shape' },
      'the checkpoint is of another model: ')
   return own
end

-- Fills t, of the shape of piece p, from the checkpoint.
local function read_piece(from, kind, name, p, t)
   for _, part in ipairs(p.parts) do
      dims.view(t, part.at, part.size):copy_(from:read(kind, name, part.offset, part.size,
         t.device))
   end
   return t
end

local function load_model(sharded, from)
   for _, p in ipairs(sharded:named_parameters()) do
      read_piece(from, 'model', p.name, p, p.param)
   end
   each_buffer(sharded.model, function(name, b)
      local shape = nf4_part.shape(b)
      tide.scope(function()
         nf4_part.fill(b, from:read('model', name, dims.zeros(#shape), shape, b.buffer.device))
      end)
   end)
end

-- Returns the names of the optimiser's tensors of a piece that the checkpoint has: of a parameter
-- without an update at most the master.
local function optim_keys(p, optim, from, counts)
   local list = {}
   for _, field in ipairs(optim.fields) do
      local key = p.name .. '.' .. field
      local is_read = counts[p.name] or field == 'master'
      if is_read and from:shape('optim', key) then list[#list + 1] = key end
   end
   return list
end

-- Calls fn(key, part) for each box of a piece's tensors of the optimiser; part: { offset,
-- size } in the stored tensor.
local function each_part(p, optim, from, keys, fn)
   for _, key in ipairs(keys) do
      local shape = is_whole(optim, key) and from:shape('optim', key)
      local whole = shape and { { offset = dims.zeros(#shape), size = shape } }
      for _, part in ipairs(whole or p.parts) do fn(key, part) end
   end
end

-- Checks everything that can be wrong, before anything changes.
local function check_pieces(op, sharded, optim, from, meta)
   local own = check_stored(op, sharded, from)
   for name in each(meta.counts) do
      err.raise_if(not own[name], 'E_ARG', op, "the state has a parameter '%s' that is not "
         .. 'optimised here', name)
   end
   for _, p in ipairs(sharded:named_parameters()) do
      for _, part in ipairs(p.parts) do from:touch('model', p.name, part.offset, part.size) end
      each_part(p, optim, from, optim_keys(p, optim, from, meta.counts),
         function(key, part) from:touch('optim', key, part.offset, part.size) end)
   end
end

local function load_optim(sharded, optim, from, meta)
   local tensors, counts = {}, {}
   for _, p in ipairs(sharded:named_parameters()) do
      local master, device = p.name .. '.master', p.param.device
      counts[p.name] = meta.counts[p.name]
      for _, key in ipairs(optim_keys(p, optim, from, meta.counts)) do
         if is_whole(optim, key) then
            local shape = from:shape('optim', key)
            tensors[key] = from:read('optim', key, dims.zeros(#shape), shape, device)
         elseif key == master and not keeps_master(p.param) then
            tide.no_grad(read_piece, from, 'optim', key, p, p.param)
         else
            tensors[key] = read_piece(from, 'optim', key, p, tide.empty(p.size,
               { dtype = from:dtype('optim', key), device = device }))
         end
      end
      local is_exact = counts[p.name] or from:dtype('model', p.name) == 'f32'
      if is_exact and keeps_master(p.param) and not tensors[master] then
         tensors[master] = read_piece(from, 'model', p.name, p, tide.empty(p.size,
            { dtype = 'f32', device = device }))
      end
   end
   optim:load_state_dict(tensors, { kind = meta.kind, steps = meta.steps, counts = counts })
end

-- Loads the pieces. Collective: an error of one rank is one of all.
local function load_pieces(op, sharded, saved, optim)
   local from, meta = saved.store, saved.plain.optim
   dist.together(sharded.comm, op, function()
      if optim then check_pieces(op, sharded, optim, from, meta) else
         check_stored(op, sharded, from)
      end
      family.check(op, saved.plain, sharded.model)
   end)
   dist.together(sharded.comm, op, function()
      tide.no_grad(load_model, sharded, from)
      if optim then load_optim(sharded, optim, from, meta) end
   end)
   from:close()
   sharded:updated()
end

-- Loads the parameters alone of a sharded model, from checkpoint.load(where, { lazy = true }).
-- Collective.
function state.restore_model(sharded, saved)
   load_pieces('train.state.restore_model', sharded, saved)
end

-- Sets everything in `run` from `saved`, which collect gave, and returns the step.
function state.restore(run, saved)
   local op, plain = 'train.state.restore', saved.plain
   if type(plain.data) == 'table' then check_data(op, run, plain.data) end
   if run.sampler then check_rows(op, plain.sampler, run.sampler:state()) end
   if run.parallel then
      load_pieces(op, run.parallel, saved, run.optim)
   else
      family.check(op, plain, run.model)
      run.model:load_state_dict(saved.model)
      load_whole_optim(op, run.optim, saved, plain.optim)
   end
   if run.sampler and plain.sampler then run.sampler:restore(plain.sampler) end
   local rng = rng_of(run, plain)
   if rng then ctx_of(run):set_rng_state(rng) end
   run.step, run.val_loss, run.best = plain.step, plain.val_loss, plain.best
   return run.step
end

signature.record('run_state', 'a table { model =, optim =, .. }', { 'model: module',
   'optim: optimizer', 'sampler: table?', 'ctx: table?', 'parallel: sharded?' })
signature.record('saved_plain', 'a table { step =, .. }', { 'step: integer >= 0' })
signature.record('saved_state', 'what tide.train.checkpoint.load gave', { 'plain: saved_plain' })
return signature.doors('train.state', state, {
   collect = 'run: run_state', weights = 'sharded: sharded; wants: function?',
   restore_model = { { 'sharded: sharded', 'saved: saved_state',
      "where saved.store -- argument 'saved': expected what checkpoint.load(where, "
         .. '{ lazy = true }) gave' } },
   restore = { { 'run: run_state', 'saved: saved_state',
      'where not run.parallel or saved.store -- a sharded model is restored from '
         .. 'checkpoint.load(where, { lazy = true })',
      "where run.parallel or not saved.store -- argument 'saved': its tensors are not loaded (lazy "
         .. '= true), which is for a sharded model, run.parallel; load it without' } },
})
