-- tide.model.load and tide.model.fill: a model from a published folder, or from a checkpoint of
-- tide, on one rank or distributed over a mesh. Each rank reads only the bytes that it keeps,
-- except weights in NF4, which are read whole, one after another.
--
-- `self` is the opened source: op (the public function, in errors), dir, plain (config and family),
-- generation, store and opts (options of modules).

local tide = require 'tide'
local checkpoint = require 'tide.train.checkpoint'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local Exact = require 'tide.pretrained.exact'
local family = require 'tide.model.family'
local folder = require 'tide.pretrained.folder'
local low_rank = require 'tide.nn.low_rank'
local mixtures = require 'tide.nn.mixtures'
local nf4 = require 'tide.nn.nf4'
local nf4_part = require 'tide.nn.nf4_part'
local nn = require 'tide.nn'
local packing = require 'tide.model.packing'
local signature = require 'tide.util.signature'
local states = require 'tide.nn.state'
local weights = require 'tide.pretrained.weights'

-- ---- sources -----------------------------------------------------------------------------------

-- Returns fn(...). Errors about the fields of a configuration name the file.
local function of_file(self, fn, ...)
   local ok, result = pcall(fn, ...)
   if ok then return result end
   local e = result
   if not err.is(e) or e.code == 'E_DEVICE' then error(e, 0) end
   if e.code == 'E_NOMEM' then
      if (self.opts or {}).device ~= 'null' then error(e, 0) end
      err.raise('E_FORMAT', self.op, '%s/config.json: its sizes make a tensor that is too large: '
         .. '%s; compare them with the shapes in the files', self.dir, e.message:match '^[^;]*')
   end
   err.raise(e.code, self.op, '%s/config.json: %s', self.dir, e.message)
end

-- Opens a folder of transformers.
local function open_published(op, dir)
   local self = folder.open(op, dir)
   self.op = op
   self.plain = { config = self.config }
   self.plain.family = of_file(self, family.saved, op, self.plain)
   local rules = family.rules(self.plain.family)
   self.store = weights.open(op, dir, rules.rename,
      of_file(self, packing.of, op, self.config, rules.packing))
   return self
end

-- Opens a checkpoint, or the newest one of a run.
local function open_checkpoint(op, where)
   local saved = checkpoint._load(op, where, { model_only = true, lazy = true })
   err.raise_if(type(saved.plain.config) ~= 'table', 'E_FORMAT', op, '%s has no model '
      .. 'configuration', saved.folder)
   return { op = op, dir = saved.folder, plain = saved.plain, store = saved.store }
end

-- Fields of all families that count layers, and fields that are a factor of the size of a tensor
-- (see model/family.lua).
local counts = { 'num_hidden_layers' }
local sizes = { 'hidden_size', 'intermediate_size', 'vocab_size', 'head_dim',
   'num_attention_heads', 'num_key_value_heads' }

-- A field without a tensor (the MLP's, in a model without one) may exceed all tensors up to this.
local free_size = 2 ^ 20

-- Raises if a field of a configuration counts more layers than the files have tensors, or is more
-- than `most`. at: the words before its fields in messages; rules: of the family.
local function check_fields(self, config, at, rules, tensors, most)
   local function each_above(limit, lists, fn)
      for _, list in ipairs(lists) do
         for _, key in ipairs(list) do
            local v = config[key]
            if type(v) == 'number' and v > limit then fn(at .. key, v) end
         end
      end
   end
   each_above(tensors, { counts, rules.counts }, function(key, v)
      err.raise('E_FORMAT', self.op, "%s/config.json: field '%s' says %.14g layers, the weights "
         .. 'have %d tensors', self.dir, key, v, tensors)
   end)
   each_above(most, { sizes, rules.sizes }, function(key, v)
      err.raise('E_FORMAT', self.op, "%s/config.json: field '%s' is %.14g, no tensor of the "
         .. 'weights has more than %d numbers', self.dir, key, v, most)
   end)
end

-- Raises if the configuration has more layers than the files have tensors, or is wider than the
-- largest tensor, before anything of that size is allocated.
local function check_sizes(self)
   local config, names, most = self.plain.config, self.store:names 'model', free_size
   local rules = family.rules(self.make and self.plain.family
      or of_file(self, family.saved, self.op, self.plain))
   for _, name in ipairs(names) do
      most = math.max(most, dims.numel(self.store:shape('model', name)))
   end
   check_fields(self, config, '', rules, #names, most)
   for _, part in ipairs { 'text_config', 'vision_config' } do
      if type(config[part]) == 'table' then
         check_fields(self, config[part], part .. '.', rules, #names, most)
      end
   end
end

-- Makes a model of the configuration.
local function build(self, opts)
   return of_file(self, family.build, self.op, self.plain, opts, self.make)
end

-- Returns the dtype of the parameters. auto: that of most elements of the file, f32 for f16.
local function dtype_of(self, given)
   if given and given ~= 'auto' then return given end
   local store = self.store
   local dtype = store.main_dtype and store:main_dtype()
      or store:dtype('model', store:names('model')[1])
   return dtype == 'f16' and 'f32' or dtype
end

-- Raises if the two stored copies of a tied head differ.
local function check_tied(self, model)
   local store, head = self.store, 'lm_head.weight'
   if not model.config.tie_word_embeddings or not store:shape('model', head) then return end
   local own
   for _, e in ipairs(model:named_parameters()) do
      if e.param.id == model:embedding().weight.id then own = e.name end
   end
   local shape = store:shape('model', head)
   if own and store:shape('model', own) and dims.equal(shape, store:shape('model', own)) then
      local rows = math.max(1, math.floor(2 ^ 22 / shape[2]))
      for first = 0, shape[1] - 1, rows do
         local at, size = { first, 0 }, { math.min(rows, shape[1] - first), shape[2] }
         local same = tide.scope(function()
            local a = store:read('model', head, at, size):to 'f32'
            return (a - store:read('model', own, at, size):to 'f32'):abs():amax():item() == 0
         end)
         err.raise_if(not same, 'E_FORMAT', self.op, "%s: '%s' differs from '%s', and config.json "
            .. 'says tie_word_embeddings; set that to false, or remove one', self.dir, head, own)
      end
   end
   if store.drop then store:drop(head) end
end

-- Returns whether the files hold each expert of a model apart. Files of some families have either
-- form.
local function holds_apart(self, model)
   if not model._stored_apart then return model._lists_experts end
   for _, name in ipairs(self.store:names 'model') do
      if name:find '%.experts%.%d+%.' and not model:_leaves_out(name) then return true end
   end
   return false
end

-- Raises if the model has more experts than the files have tensors, before they are listed.
local function check_experts(self, model)
   local experts, tensors = 0, #self.store:names 'model'
   for _, layer in ipairs(mixtures(model)) do experts = experts + layer.m.experts end
   err.raise_if(experts > tensors, 'E_FORMAT', self.op, '%s/config.json says %.14g experts in '
      .. 'all layers, the weights have %d tensors', self.dir, experts, tensors)
end

-- Gives parameters that the files lack the names of their tensors there. entries: of
-- model:stored(); own: the shapes of parameters by name.
local function name_as_stored(own, stored, entries)
   local lacking = {}
   for _, entry in ipairs(entries) do
      for _, part in ipairs(entry.parts) do
         if own[part.name] and not stored[part.name] then
            lacking[part.name], own[entry.name] = true, entry.shape
         end
      end
   end
   for name in each(lacking) do own[name] = nil end
end

-- Compares names and shapes of the files with those of the model; one error lists all differences.
-- entries: of model:stored(), or nil.
local function check_names(self, model, entries)
   local own, stored, store = {}, {}, self.store
   for _, e in ipairs(model:named_parameters()) do own[e.name] = e.param.shape end
   for _, b in ipairs(model:named_buffers()) do
      if b.persistent then own[b.name] = b.buffer.shape end
   end
   for _, name in ipairs(store:names 'model') do
      if not (model._leaves_out and model:_leaves_out(name)) then
         stored[name] = store:shape('model', name)
      end
   end
   name_as_stored(own, stored, entries or {})
   states.refuse(self.op, states.differences(own, stored), { 'missing', 'unexpected', 'shape' },
      ('%s: the weights are not those that config.json describes: '):format(self.dir))
end

-- ---- reading -----------------------------------------------------------------------------------

-- Fills t with a box of a stored tensor.
local function fill(store, name, offset, size, t)
   tide.scope(function()
      if store.fill then return store:fill(name, offset, size, t) end
      t:copy_(store:read('model', name, offset, size, t.device))
   end)
end

-- Returns whether a parameter is of an adapter that the files do not have: it keeps its first
-- values.
local function is_new(store, name)
   return low_rank.is_name(name) and not store:shape('model', name)
end

local function fill_whole(store, model)
   for _, e in ipairs(model:named_parameters()) do
      if not is_new(store, e.name) then
         fill(store, e.name, dims.zeros(e.param.ndim), e.param.shape, e.param:detach())
      end
   end
end

-- Fills the model of a run that is not sharded, and keeps the weights that its parameters round.
local function fill_exact(store, run)
   local exact = Exact.of(run)
   for _, e in ipairs(run.model:named_parameters()) do
      if not is_new(store, e.name) then
         exact:fill(e, store:dtype('model', e.name), function(t)
            fill(store, e.name, dims.zeros(t.ndim), t.shape, t)
         end)
      end
   end
   exact:keep(run)
end

local function fill_pieces(store, sharded)
   for _, p in ipairs(sharded:named_parameters()) do
      for _, part in ipairs(is_new(store, p.name) and {} or p.parts) do
         fill(store, p.name, part.offset, part.size,
            dims.view(p.param:detach(), part.at, part.size))
      end
   end
end

local function fill_buffers(store, model)
   for _, b in ipairs(model:named_buffers()) do
      if b.persistent and store:shape('model', b.name) then
         tide.scope(function()
            local shape, t, is_cut = nf4_part.shape(b), b.buffer, nf4_part.axis(b) ~= nil
            if is_cut then t = tide.empty(shape, { dtype = t.dtype, device = t.device }) end
            fill(store, b.name, dims.zeros(#shape), shape, t)
            if is_cut then nf4_part.fill(b, t) end
         end)
      end
   end
end

-- Quantises weights to NF4, one layer or expert at a time. dtype: that in which they are read.
local function fill_quantised(store, model, dtype)
   nf4._fill(model, function(name) return store:shape('model', name) end,
      function(name, offset, size, device)
         local W = tide.empty(size, { dtype = dtype, device = device })
         fill(store, name, offset, size, W)
         return W
      end)
end

-- Fills the run that plan:materialise returned. Collective.
local function fill_run(self, run)
   local store = self.store
   dist.together(run.mesh.comm, self.op, function()
      tide.no_grad(function()
         if run.sharded then
            fill_pieces(store, run.sharded)
         else
            fill_exact(store, run)
         end
         fill_buffers(store, run.model)
         fill_quantised(store, run.model, run.model:parameters()[1].dtype)
      end)
   end)
   if run.sharded then run.sharded:updated() end
   return run
end

-- Spreads the model over the mesh; each rank reads its part. Collective.
local function spread(self, model, opts)
   local mesh = opts.mesh or { dp_shard = dist.world().size }
   local plan = tide.parallel.plan(model, mesh, opts.plan)
   return fill_run(self, plan:materialise { device = opts.device or 'cpu', init = false })
end

local function show_unused(self, model)
   if #model.unused_fields == 0 then return end
   local log = tide.util.log.new { rank = dist.world().rank }
   log:once('%s/config.json: fields that change nothing: %s', self.dir,
      table.concat(model.unused_fields, ', '))
end

-- Opens dir and compares its weights with a model of its configuration on the null device.
local function opened(op, dir, opts)
   local self = folder.is(dir) and open_published(op, dir) or open_checkpoint(op, dir)
   self.make = opts.make
   check_sizes(self)
   self.opts = { dtype = dtype_of(self, opts.dtype), fp8 = opts.fp8, device = 'null' }
   local model = build(self, self.opts)
   local entries
   if model.stored and self.store.view then
      local is_apart = holds_apart(self, model)
      if is_apart then check_experts(self, model) end
      entries = is_apart and model._stored_apart and model:_stored_apart() or model:stored()
      self.store:view(entries)
   end
   check_tied(self, model)
   check_names(self, model, entries)
   if opts.quantise and not rawget(model, 'quantised') then nf4.quantise_(model) end
   return self, model
end

local load = {}

-- Reads a model from `dir`: a published folder (config.json and model.safetensors, or its index
-- with shards), a checkpoint of tide, or the folder of a run (its newest).
-- With a mesh the model is distributed over its ranks, and all of them call. Weights in 4 bits (see
-- nn.nf4) are coded one at a time as they are read.
-- Returns the model, in eval mode, and what plan:materialise gives { model, params, sharded, comm,
-- data, mesh .. }, with dir, family, generation (of generation_config.json, or nil) and nbyte (read
-- on this rank). E_IO, E_FORMAT: a file that is missing, is damaged or holds other tensors;
-- E_UNSUPPORTED: another architecture; E_ARG: fields of config.json; E_SHAPE: other tensors.
function load.model(dir, opts)
   local self, model = opened('model.load', dir, opts)
   local run = { model = model }
   if opts.verbose then show_unused(self, model) end
   if opts.mesh or opts.plan then
      run = spread(self, model, opts)
   elseif opts.device ~= 'null' then
      if not rawget(model, 'quantised') then
         self.opts.device, self.opts.init = opts.device, false
         run.model = build(self, self.opts)
      else
         model:materialise(opts.device, 0, { init = false })
      end
      tide.no_grad(function()
         fill_whole(self.store, run.model)
         fill_buffers(self.store, run.model)
         fill_quantised(self.store, run.model, self.opts.dtype)
      end)
   end
   self.store:close()
   run.params = run.params or run.model
   copy({ dir = self.dir, family = self.plain.family, generation = self.generation,
      nbyte = self.store.nbyte }, run)
   run.model.generation, run.model.loaded_from = self.generation, self.dir
   return run.model:eval(), run
end

-- Returns the configuration of a folder as a model built from it has it: files of transformers 5
-- have rope_parameters where models have rope_theta.
local function read_plain(self)
   if not self.plain.family then return self.plain end
   return { family = self.plain.family,
      config = family.config(build(self, { device = 'null' })) }
end

-- Reads the weights in `dir`, as of load, into what plan:materialise gave for a model of the same
-- configuration. Every rank calls it. Returns run. Make the optimiser from run.params after it: of
-- a model that is not sharded, it then has the f32 weights that 16-bit parameters round.
function load.fill(run, dir)
   local self = opened('model.fill', dir, {})
   family.check(self.op, read_plain(self), run.model)
   err.raise_if(self.plain.quantised and not rawget(run.model, 'quantised'), 'E_STATE',
      self.op, '%s has weights in NF4, but the model has plain weights; load it with quantise = '
         .. "'nf4', or export it (tide export)", dir)
   fill_run(self, run)
   self.store:close()
   run.model.generation, run.model.loaded_from = self.generation, self.dir
   return run
end

signature.kind('materialised', 'what plan:materialise gave', function(v)
   return type(v) == 'table' and class.is(v.model, nn.Module) and v.mesh ~= nil
end)
return signature.doors('model', load, {
   model = { 'dir: string', op = 'model.load', opts = {
      'mesh: table? -- or axes as parallel.mesh takes them; nil: whole on this rank',
      'plan: table? -- options of parallel.plan',
      "dtype: 'auto' | 'f32' | 'bf16' | 'f64' = 'auto' -- of the parameters; auto: as in the file, "
         .. 'f16 as f32',
      "device: 'cpu' | 'ref' | 'cuda' | 'null' = 'cpu' -- 'null': shapes only",
      'fp8: fp8? -- multiplies by weights in FP8',
      "quantise: 'nf4'? -- weights of Linear layers but the output head, and of experts, in 4 bits",
      'verbose: boolean? -- logs the fields of config.json that change nothing',
      'make: function? -- fn(config, options of modules) -> model, for a class of your own' } },
   fill = 'run: materialised; dir: string',
})
