-- Options of a command line that distribute a model over ranks, and the arguments of parallel.plan
-- that they make.
--
-- A program adds options.rows to its own (see util.args) and gives options.read to parallel.plan.
-- Errors name the options of the command line. Nothing else of tide is loaded before they are read.

local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local options = {}

local op = 'options'

options.rows = {
   { 'mesh.dp', 0, 'data-parallel ranks; 0: what the other axes leave', min = 0 },
   { 'mesh.dp_replicate', 0, 'HSDP: replicas of the sharded model; 0: no such axis', min = 0 },
   { 'mesh.dp_shard', 0, 'FSDP: ranks that parameters are sharded over; 0: not sharded', min = 0,
     also = { 'fsdp' } },
   { 'mesh.tp', 1, 'tensor-parallel ranks', min = 1,
     also = { 'tensor-parallel-size', 'tensor-model-parallel-size' } },
   { 'mesh.cp', 1, 'context-parallel ranks: each sequence is split over them', min = 1,
     also = { 'context-parallel-size' } },
   { 'mesh.pp', 1, 'pipeline stages: each keeps some neighbouring layers; with --accum of several '
     .. 'times as many, few of them wait', min = 1, also = { 'pipeline-model-parallel-size' } },
   { 'mesh.ep', 1, 'expert-parallel ranks, neighbours among the data and context-parallel ranks: '
     .. 'each keeps some experts of every layer, and tokens travel to them', min = 1,
     also = { 'expert-model-parallel-size' } },
   { 'cp.layout', 'zigzag', 'which tokens of a sequence each context-parallel rank holds',
     choices = { 'zigzag', 'contiguous', 'document', 'balanced' } },
   { 'cp.method', 'ring', 'how context-parallel ranks exchange queries, keys and values',
     choices = { 'ring', 'allgather', 'a2a', 'a2a+p2p' } },
   { 'cp.a2a', 0, 'ranks of the inner all-to-all of a2a+p2p; 0: another method', min = 0 },
   { 'pp.layers', nil, 'layers of each pipeline stage, as 7,8,8,7; by default so that the largest '
     .. 'work of a stage is least', type = 'string' },
   { 'pp.virtual', 1, 'pipeline stages of each rank (interleaved): with several, ranks wait less '
     .. 'and send more', min = 1, also = { 'num-virtual-stages-per-pipeline-rank' } },
   { 'sequence-parallel', false, 'split activations along the sequence between the tensor-parallel '
     .. 'parts of a layer', also = { 'sp' } },
   { 'async-tp', false, 'overlap the collectives of sequence parallelism with matrix products' },
   { 'recompute', 'none', 'what backward recomputes to save memory: none, selective (norms and '
     .. 'gated products), mlp, full, every:k (or k), or names of modules' },
   { 'fsdp.strategy', 'auto', 'what to shard; auto: everything if --mesh.dp_shard (or '
     .. '--mesh.dp_replicate, --offload, --fsdp.reduce, --fsdp.reshard) is given, else nothing',
     choices = { 'auto', 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } },
   { 'fsdp.reduce', 'auto', 'dtype of the gradient reduction; auto: that of --dtype',
     choices = { 'auto', 'f32', 'bf16' } },
   { 'fsdp.reshard', 'auto', 'free gathered parameters after forward: auto, yes, no, or a number '
     .. 'of ranks that keep a copy among them' },
   { 'fsdp.forward-prefetch', 1, 'layers to gather ahead in forward', min = 0 },
   { 'fsdp.backward-prefetch', 2, 'layers to gather ahead in backward', min = 0 },
   { 'offload', false, 'keep shards and optimiser state in host memory' },
}

-- Returns what args.parse made of these options, or a table like it: the mesh, with its defaults.
local function checked(fn, opt)
   err.type(fn, 'opt', opt, 'table')
   local m = copy(err.type(fn, 'opt.mesh', opt.mesh or {}, 'table'))
   for _, row in ipairs(options.rows) do
      local name = row[1]:match '^mesh%.(.*)$'
      if name then m[name] = err.integer(fn, 'opt.mesh.' .. name, m[name] or row[2], row.min) end
   end
   return m
end

-- ---- ranks -----------------------------------------------------------------------------------

local axis_names = { 'pp', 'dp', 'dp_replicate', 'dp_shard', 'cp', 'tp' }

-- Returns the sizes that are given, as for parallel.mesh, and the ranks they need.
local function given_axes(m)
   local axes, n, words = {}, 1, {}
   for _, name in ipairs(axis_names) do
      local size = m[name]
      if size > ((name == 'cp' or name == 'pp') and 1 or 0) then axes[name] = size end
      -- dp beside its factors is their product
      if size > 0 and not (name == 'dp' and (m.dp_replicate > 0 or m.dp_shard > 0)) then
         n = n * size
      end
      if size > 1 or size == 1 and name:find '^dp' then
         words[#words + 1] = ('--mesh.%s %d'):format(name, size)
      end
   end
   return axes, n, table.concat(words, ' x ')
end

-- Returns the axes for n ranks from the options, and infers the size that is not given. simulate: a
-- run of one rank plans for as many ranks as the options need.
function options.axes(opt, n, simulate)
   local m = checked('parallel.plan.options.axes', opt)
   err.integer('parallel.plan.options.axes', 'n', n, 1)
   local axes, need, words = given_axes(m)
   local open = m.dp == 0 and m.dp_shard == 0
   local by_dp = m.dp * m.cp * m.tp * m.pp
   if simulate and n == 1 then
      n = (m.dp > 0 and (m.dp_replicate > 0 or m.dp_shard > 0)) and by_dp or need
   elseif open and n % need ~= 0 or not open and m.dp == 0 and n ~= need
      or m.dp > 0 and n ~= by_dp then
      local want = m.dp > 0 and by_dp or need
      err.usage(op, '%s, but the run has %d rank%s (tide run -n %d, or mpirun -np '
         .. '%d)', words, n, n == 1 and '' or 's', want, want)
   end
   if open then axes[m.dp_replicate > 0 and 'dp_shard' or 'dp'] = n / need end
   return axes, n
end

-- ---- sections --------------------------------------------------------------------------------

local function reshard_of(text)
   if text == 'auto' then return nil end
   if text == 'yes' or text == 'no' then return text == 'yes' end
   local k = tonumber(text)
   err.usage_if(not k or k < 1 or k ~= math.floor(k), op, '--fsdp.reshard: expected auto, yes, no '
      .. 'or a number of ranks, got %s', err.show(text))
   return k
end

local function fsdp_of(opt, mesh)
   local f = opt.fsdp
   local reshard, strategy = reshard_of(f.reshard), f.strategy
   local wanted = mesh.dp_shard > 0 or mesh.dp_replicate > 0 or f.reduce ~= 'auto'
      or opt.offload or reshard ~= nil
   if strategy == 'auto' then
      if not wanted and mesh.ep == 1 then return nil end
      strategy = wanted and 'optim_grads_params' or 'no_shard'
   end
   return {
      strategy = strategy, reshard_after_forward = reshard, cpu_offload = opt.offload,
      ep_size = mesh.ep,
      forward_prefetch = f.forward_prefetch, backward_prefetch = f.backward_prefetch,
      mp_policy = f.reduce ~= 'auto' and { reduce_dtype = f.reduce } or nil,
   }
end

-- Options with each other.
local fits = signature.options {
   'where opt.sequence_parallel or not opt.async_tp -- usage: --async-tp requires '
      .. '--sequence-parallel',
   'where mesh.pp > 1 or not pp.layers -- usage: --pp.layers belongs to --mesh.pp of 2 or more',
   'where mesh.pp > 1 or (pp.virtual or 1) == 1 -- usage: --pp.virtual belongs to --mesh.pp of 2 '
      .. 'or more',
   'where mesh.tp > 1 or not opt.sequence_parallel -- usage: --sequence-parallel requires '
      .. '--mesh.tp of 2 or more: it cuts activations over the tensor-parallel ranks',
   "where (cp.method == 'a2a+p2p') == (cp.a2a > 0) -- usage: --cp.a2a belongs to --cp.method "
      .. 'a2a+p2p, and that needs it',
}

-- Returns the numbers of --pp.layers, or nil.
local function layers_of(text)
   if text == nil then return nil end
   local list = {}
   for word in (text .. ','):gmatch '([^,]*),' do
      local n = word:match '^%s*(%d+)%s*$'
      err.usage_if(not n, op, '--pp.layers: expected numbers with commas between them, as 7,8,8,7, '
         .. 'got %s', err.show(text))
      list[#list + 1] = tonumber(n)
   end
   return list
end

-- Returns the mesh and the options of parallel.plan over the `n` ranks of a run. simulate: see
-- axes.
function options.read(opt, n, simulate)
   local fn = 'parallel.plan.options.read'
   local mesh = checked(fn, opt)
   for _, k in ipairs { 'cp', 'fsdp' } do err.type(fn, 'opt.' .. k, opt[k], 'table') end
   err.type(fn, 'opt.recompute', opt.recompute, 'string')
   fits(op, {}, { opt = opt, mesh = mesh, cp = opt.cp, pp = opt.pp or {} })
   local axes, ranks = options.axes(opt, n, simulate)
   local recompute, cp, pp = opt.recompute == '0' and 'none' or opt.recompute, opt.cp, opt.pp or {}
   if recompute:find '^%d+$' then recompute = 'every:' .. recompute end
   return axes, {
      ranks = ranks, recompute = recompute, fsdp = fsdp_of(opt, mesh),
      tp = opt.mesh.tp > 1 and { sequence_parallel = opt.sequence_parallel,
         async_tp = opt.async_tp } or nil,
      pp = mesh.pp > 1 and { layers = layers_of(pp.layers), virtual = pp.virtual } or nil,
      cp = opt.mesh.cp > 1 and { layout = cp.layout, method = cp.method,
         a2a = cp.a2a > 0 and cp.a2a or nil, mamba = cp.mamba } or nil,
   }
end

return options
