-- Random cases: sharding strategies, mixed precision, accumulation and optimisers on a model whose
-- gradients are known numbers: each micro-batch of each rank adds a table of its own to each
-- parameter. Sums must be those of the dtype of the reduction, and updates those of the formulas.

local models = require 'spec.deep.domain.models'
local optim = require 'spec.deep.oracle.optim'
local values = require 'spec.deep.fuzz.values'

local gradients = { limit = 60 }

-- ---- cases -----------------------------------------------------------------------------------

local function precision(c)
   local mp = {}
   if c:chance(0.6) then mp.param_dtype = 'bf16' end
   if c:chance(0.6) then mp.reduce_dtype = c:pick { 'f32', 'bf16' } end
   return mp
end

-- A case: n ranks, blocks of parameters (a list of shapes each), `steps` steps of `accum`
-- micro-batches, and how they are sharded; skip: blocks but the first that a rank leaves out in one
-- micro-batch of three, which a strategy that keeps parameters allows, and plain data parallelism.
function gradients.make(c)
   local o = { n = c:pick { 1, 2, 3, 4, 5, 8 }, seed = c:int(0, 999), blocks = {} }
   for b = 1, c:few(1, 4) do
      o.blocks[b] = {}
      for p = 1, c:few(1, 3) do
         local shape = { c:few(1, 9) }
         for d = 2, c:few(1, 3) do shape[d] = c:few(1, 5) end
         o.blocks[b][p] = shape
      end
   end
   o.strategy = c:pick { 'optim_grads_params', 'optim_grads', 'optim', 'no_shard', 'plain' }
   o.steps, o.accum = c:few(1, 3), c:few(1, 24)
   o.replicate = models.divisor(c, o.n)
   o.dtype = c:pick { 'f32', 'f64', 'bf16' }
   o.mp = o.strategy ~= 'plain' and o.dtype == 'f32' and precision(c) or nil
   o.options = {}
   for _, name in ipairs { 'grad_reduce_in_fp32', 'disable_bucketing', 'cpu_offload', 'nccl_ub',
      'fsdp_double_buffer' } do
      if c:chance(0.15) then o.options[name] = true end
   end
   if o.mp and o.mp.reduce_dtype == 'bf16' then o.options.grad_reduce_in_fp32 = nil end
   for _, name in ipairs { 'overlap_grad_reduce', 'overlap_param_gather' } do
      if c:chance(0.2) then o.options[name] = false end
   end
   if c:chance(0.3) then o.options.sync_each_backward = c:chance(0.5) end
   o.optim = models.optim(c)
   o.optim.eps = o.optim.eps and 1e-3
   o.clip = c:pick { 0, 1 }
   o.skip = (o.strategy == 'no_shard' or o.strategy == 'plain') and c:chance(0.4)
   if o.skip then o.options.overlap_grad_reduce = false end
   return o
end

-- ---- the model -------------------------------------------------------------------------------

local function size_of(shape)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   return n
end

-- Numbers of 8 bits that micro-batch `id` adds to the gradient of a parameter.
local function table_of(o, name, id, shape)
   return values.normal(('%d %s %d'):format(o.seed, name, id), size_of(shape), 'bf16')
end

-- Whether a block takes part in a micro-batch.
local function takes_part(o, block, id)
   return not o.skip or block == 1 or (id + block) % 3 ~= 0
end

local function start_of(o, name, shape)
   return values.normal(('%d start %s'):format(o.seed, name), size_of(shape), 'bf16')
end

local function model_of(t, o)
   local class, Module = require 'tide.class', t.nn.Module
   local Block, Sum = class('FuzzBlock', Module), class('FuzzSum', Module)
   Block.mixes, Sum.mixes = false, false

   function Block:init(b, shapes)
      Module.init(self)
      self.b, self.shapes = b, shapes
      for p, shape in ipairs(shapes) do
         self:param('p' .. p, shape, 'ones', { dtype = o.dtype, device = 'cpu' })
      end
      self:ready { device = 'cpu' }
   end

   function Block:forward(x, at)
      local id = at.id
      if not takes_part(o, self.b, id) then return x end
      for p, shape in ipairs(self.shapes) do
         local w = self['p' .. p]
         local k = t.tensor(table_of(o, self.b .. ' ' .. p, id, shape), { dtype = 'f64' })
         x = x + (w * k:reshape(shape):to(w.dtype)):sum():to 'f32'
      end
      return x
   end

   function Sum:init()
      Module.init(self)
      local list = {}
      for b, shapes in ipairs(o.blocks) do list[b] = Block(b, shapes) end
      self:child('layers', t.nn.Stack(list))
      self:ready { device = 'cpu' }
   end

   function Sum:loss(ids) return self.layers(t.zeros {}, { id = ids:item() }) end

   local model = Sum()
   t.no_grad(function()
      for b, shapes in ipairs(o.blocks) do
         for p, shape in ipairs(shapes) do
            model.layers:at(b)['p' .. p]:copy_(t.tensor(start_of(o, b .. ' ' .. p, shape),
               { dtype = 'f64' }):reshape(shape))
         end
      end
   end)
   return model
end

-- Number of the micro-batch `a` of a rank in a step, from 0.
local function id_of(o, s, a, rank) return ((s - 1) * o.accum + a - 1) * o.n + rank end

function gradients.on_rank(o, rank)
   local t = require 'tide'
   local model, sharded = model_of(t, o), nil
   if o.strategy ~= 'plain' then
      local opts = { strategy = o.strategy, mp_policy = o.mp }
      local mesh = t.parallel.mesh { dp_replicate = o.replicate, dp_shard = o.n / o.replicate }
      for k, v in pairs(o.options) do opts[k] = v end
      sharded = t.parallel.fully_shard(model, mesh, opts)
   end
   local opts = {}
   for k, v in pairs(o.optim) do opts[k] = v end
   opts.kind = nil
   local step = t.train.step.new { model = model, parallel = sharded, clip = o.clip,
      optim = t.optim[o.optim.kind](sharded or model, opts) }
   local got = { norms = {} }
   for s = 1, o.steps do
      local list = {}
      for a = 1, o.accum do
         list[a] = { ids = t.tensor({ { id_of(o, s, a, rank) } }, { dtype = 'i64' }),
            labels = t.zeros({ 1, 1 }, { dtype = 'i64' }), count = 1 }
      end
      got.norms[s] = step:run(list).grad_norm
   end
   got.weights = {}
   for name, v in pairs(sharded and sharded:full_state_dict() or model:state_dict()) do
      got.weights[name] = v:to 'f64':reshape(-1):tolist()
   end
   return got
end

-- ---- the check -------------------------------------------------------------------------------

-- The dtype that gradients are summed in. grad_reduce_in_fp32 makes it f32 for weights of every
-- dtype, f64 too.
local function dtype_of(o)
   if o.options.grad_reduce_in_fp32 and o.strategy ~= 'plain' then return 'f32' end
   return o.mp and (o.mp.reduce_dtype or o.mp.param_dtype) or o.dtype
end

-- How far weights may be.
local weight_room = { f64 = 1e-6, f32 = 1e-4, bf16 = 0.1 }

local half_ulp = { f64 = 2 ^ -53, f32 = 2 ^ -24, bf16 = 2 ^ -9 }

-- How far a norm may be. Its gradients are sums of accum * n terms, each rounded so many times at
-- most; size: the norm of the sums of the terms' magnitudes. The squares are summed in f32, or f64.
local function norm_room(o, size, count)
   local sum = dtype_of(o) == 'f64' and half_ulp.f64 or half_ulp.f32
   return size * ((o.accum * o.n + 1) * half_ulp[dtype_of(o)] + (count + 4) * sum)
end

local function train_by_hand(o)
   local out, states = { norms = {}, rooms = {}, weights = {} }, {}
   local params = {}
   for b, shapes in ipairs(o.blocks) do
      for p, shape in ipairs(shapes) do
         params[#params + 1] = { key = b .. ' ' .. p, shape = shape, block = b,
            name = ('layers.%d.p%d'):format(b - 1, p), w = start_of(o, b .. ' ' .. p, shape) }
      end
   end
   for s = 1, o.steps do
      local all, sizes, used, count = {}, {}, {}, 0
      for i, e in ipairs(params) do
         all[i], sizes[i] = {}, {}
         for k = 1, #e.w do all[i][k], sizes[i][k] = 0, 0 end
         count = count + #e.w
         for id = id_of(o, s, 1, 0), id_of(o, s, o.accum, o.n - 1) do
            if takes_part(o, e.block, id) then
               used[i] = true
               for k, v in ipairs(table_of(o, e.key, id, e.shape)) do
                  all[i][k], sizes[i][k] = all[i][k] + v, sizes[i][k] + math.abs(v)
               end
            end
         end
      end
      out.norms[s], out.rooms[s] = optim.norm(all), norm_room(o, optim.norm(sizes), count)
      local factor = optim.factor(out.norms[s], o.clip)
      for i, e in ipairs(params) do
         if used[i] or o.strategy ~= 'plain' then
            for k = 1, #all[i] do all[i][k] = all[i][k] * factor end
            local options = {}
            for k, v in pairs(o.optim) do options[k] = v end
            if #e.shape < 2 and not o.optim.decay_vectors then options.weight_decay = 0 end
            states[i] = states[i] or {}
            optim[o.optim.kind](e.w, all[i], states[i], options)
         end
      end
   end
   for _, e in ipairs(params) do out.weights[e.name] = e.w end
   return out
end

-- What a failing case has.
function gradients.trait(o)
   return ('%s %s %s/%s%s'):format(o.strategy, o.dtype, o.mp and o.mp.param_dtype or '-',
      o.mp and o.mp.reduce_dtype or '-', o.skip and ' skip' or '')
end

-- What is wrong with a case, or nil.
function gradients.check(o)
   local all, text = values.ranks(o.n, 'spec.deep.domain.gradients', 'on_rank', o)
   if not all then return text end
   local want, allowed = train_by_hand(o), weight_room[dtype_of(o)]
   for r, got in ipairs(all) do
      for s, norm in ipairs(want.norms) do
         local far = math.abs((got.norms[s] or math.huge) - norm)
         if far > want.rooms[s] or far ~= far then
            return ('the norm of rank %d, step %d, is off by %.3g'):format(r - 1, s, far)
         end
      end
      for name, list in pairs(want.weights) do
         local far = values.far(got.weights[name] or {}, list, 1)
         if far > allowed then
            return ('%s of rank %d is off by %.3g'):format(name, r - 1, far)
         end
      end
   end
end

return gradients
