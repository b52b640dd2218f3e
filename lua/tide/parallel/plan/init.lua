-- Plan: how a model is distributed over ranks, checked and priced before anything is done.
--
--    local plan = tide.parallel.plan(model, { dp_shard = 2, tp = 2 }, {
--       tp = { sequence_parallel = true }, recompute = 'mlp', fsdp = { strategy = 'optim' } })
--    print(plan)                                     -- what happens to which part
--    print(plan:price({ batch = 4, seq = 512 }))     -- bytes a rank, bytes on the wire
--    local run = plan:materialise { seed = 1 }       -- { model, sharded, params, comm, data, .. }
--
-- A plan is rehearsed. The code that distributes the model runs on a copy without bytes,
-- over simulated ranks, when the plan is made; whatever is wrong is raised then, and the model is
-- as it was. The same copy is priced. The order is fixed: tensor parallelism, context parallelism,
-- pipeline stages, recomputation, sharding, since each has to see what the ones before have made.

local tide = require 'tide'
local agree = require 'tide.comm.agree'
local canonical = require 'tide.util.canonical'
local class = require 'tide.class'
local cp_train = require 'tide.parallel.cp.train'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local fingerprint = require 'tide.parallel.fingerprint'
local mesh_of = require 'tide.parallel.mesh'
local nn = require 'tide.nn'
local pipeline = require 'tide.parallel.pipeline'
local plan_price = require 'tide.parallel.plan.price'
local plan_text = require 'tide.parallel.plan.text'
local spread = require 'tide.nn.spread'
local tp = require 'tide.parallel.tp'

local Plan = class 'Plan'

local op = 'parallel.plan'

local own_options = { 'tp', 'cp', 'pp', 'recompute', 'scope', 'fsdp' }
local not_fsdp = { mesh = true, comm = true, device = true, seed = true, init = true }

-- ---- what it is made of ----------------------------------------------------------------------

local size_of = plan_text.axis_size

-- Returns axes as a list. If they lack a data axis, it adds dp_shard of one rank before cp and tp.
local function with_data(list)
   local out, has = {}, false
   for _, a in ipairs(list) do has = has or a.name == 'dp' or a.name == 'dp_shard' end
   for _, a in ipairs(list) do
      if not has and (a.name == 'cp' or a.name == 'tp') then
         out[#out + 1], has = { name = 'dp_shard', size = 1 }, true
      end
      out[#out + 1] = { name = a.name, size = a.size }
   end
   if not has then out[#out + 1] = { name = 'dp_shard', size = 1 } end
   return out
end

-- Reads the sizes of the axes from a mesh, or from axes as parallel.mesh takes them.
local function read_mesh(self, mesh, ranks)
   err.type(op, 'mesh', mesh, 'table')
   local list
   if getmetatable(mesh) == mesh_of.Mesh then
      if ranks then err.raise('E_ARG', op, 'ranks: a mesh has its own') end
      list, self.mesh = mesh.root.base, mesh.root
   else
      local n = ranks and err.integer(op, 'ranks', ranks, 1) or dist.world().size
      list = mesh_of.sizes(mesh, n)
   end
   self.axes = with_data(list)
   self.ranks = mesh_of._product(self.axes)
   if self.mesh and #self.axes ~= #list then self.base, self.mesh = self.mesh.comm, nil end
   err.raise_if(size_of(self, 'pp') > 1 and self.axes[1].name ~= 'pp', 'E_ARG', op, "the axis 'pp' "
      .. 'must be the outermost one, it is not in %s', plan_text.axes(self))
end

-- Reads the model: a description { family =, config =, dtype = }, a function, or a module.
local function read_model(self, model)
   if type(model) == 'table' and not class.is(model, nn.Module) then
      err.options(op, model, { 'family', 'config', 'dtype' })
      local family = err.type(op, 'family', model.family, 'string')
      err.type(op, 'config', model.config, 'table')
      local make = tide.model[family]
      if not make then err.arg(op, 'family', 'a family of tide.model', family) end
      model = make(model.config, { dtype = model.dtype, device = 'null' })
   elseif type(model) == 'function' then
      model = model()
      err.arg_if(not class.is(model, nn.Module), op, 'model', 'a function that returns a module',
         model)
   end
   err.arg_if(not class.is(model, nn.Module), op, 'model', 'a module, a function that makes one, '
      .. 'or { family =, config = }', model)
   spread.check_whole(op, model, 'give it whole')
   self.model = model
end

-- ---- sections --------------------------------------------------------------------------------

-- Returns the result of fn(model, axis, options) of a section; nil if its axis is one rank.
local function over_axis(self, run, name, fn)
   local o = copy(self[name])
   local axis = run.mesh:find(o.axis)
   err.raise_if(self.given[name] and not axis, 'E_ARG', op, "option '%s': no axis '%s' in this "
      .. 'mesh (%s); add %s = n to the mesh, or leave the option out', name, tostring(o.axis),
      self:axes_text(), tostring(o.axis))
   o.axis = nil
   return axis and axis.size > 1 and fn(run.model, axis, o) or nil
end

-- Sections in the order in which they are applied: { name, apply(plan, run, device, seed, init),
-- is_own (registered by the user) }.
local sections = {
   { name = 'tp', apply = function(self, run) over_axis(self, run, 'tp', tp.tensor_parallel) end },
   { name = 'cp', apply = function(self, run)
      run.context = over_axis(self, run, 'cp', cp_train.attach)
   end },
   { name = 'recompute', apply = function(self, run)
      if self.recompute == nil then return end
      tide.parallel.recompute(run.model, self.recompute, { scope = self.scope })
   end },
   { name = 'pp', apply = function(self, run)
      run.stage = over_axis(self, run, 'pp', pipeline.pipeline_parallel)
   end },
   { name = 'fsdp', apply = function(self, run, device, seed, init)
      if not self.fsdp then return end
      local o = copy(self.fsdp)
      o.device, o.seed, o.init = device, seed, init
      run.sharded = tide.parallel.fully_shard(run.model, run.mesh, o)
   end },
}

-- Returns the options of a section's function, and the axis that the plan gives it.
local function names_of(fn)
   local list = { 'axis' }
   for _, row in ipairs(signature.of(fn).opts) do list[#list + 1] = row.name end
   return list
end

-- Reads the options of the sections, with what the mesh implies.
local function read_sections(self, opts)
   for _, k in ipairs(own_options) do self[k] = opts[k] end
   self.own = {}
   for _, s in ipairs(sections) do
      if s.is_own then self.own[s.name] = opts[s.name] end
   end
   if opts.tp then err.options(op .. ': tp', opts.tp, names_of(tp.tensor_parallel)) end
   if opts.cp then err.options(op .. ': cp', opts.cp, names_of(cp_train.attach)) end
   if opts.pp then err.options(op .. ': pp', opts.pp, { 'layers', 'virtual' }) end
   for k in each(opts.fsdp and err.type(op, 'fsdp', opts.fsdp, 'table') or {}) do
      err.raise_if(not_fsdp[k], 'E_ARG', op, "fsdp: '%s' is the plan's; leave it out", tostring(k))
   end
   self.tp, self.fsdp = copy(opts.tp or {}), opts.fsdp and copy(opts.fsdp)
   self.cp = copy(opts.cp or {})
   self.pp = copy(opts.pp or {})
   self.tp.axis, self.cp.axis, self.pp.axis = self.tp.axis or 'tp', self.cp.axis or 'cp', 'pp'
   self.given = { tp = opts.tp ~= nil, cp = opts.cp ~= nil, pp = opts.pp ~= nil }
   if opts.fsdp then return end
   if size_of(self, 'dp_shard') > 1 then
      self.fsdp = {}
   elseif size_of(self, self.tp.axis) * size_of(self, self.cp.axis) * size_of(self, 'pp') > 1 then
      self.fsdp = { strategy = 'no_shard' }
   end
end

-- ---- doing it --------------------------------------------------------------------------------

-- Spreads a model over a mesh: the rehearsal and the real thing.
local function apply(self, model, mesh, device, seed, init)
   local run, names = { model = model, mesh = mesh, plan = self }, {}
   for _, section in ipairs(sections) do section.apply(self, run, device, seed, init) end
   for _, a in ipairs(mesh.axes) do
      if a.name:find '^dp' then names[#names + 1] = a.name end
   end
   -- ranks that have data of their own, and those whose losses and gradients are added
   run.data = (#names == 1 and mesh:axis(names[1]) or mesh:flatten(names)).comm
   run.comm = run.sharded and mesh.comm or run.data
   run.params = run.sharded or model
   return run
end

local function axes_list(self)
   local list = {}
   for i, a in ipairs(self.axes) do list[i] = { a.name, a.size } end
   return list
end

local function rehearse(self, rank, host_size)
   local comm = dist.simulate(self.ranks, rank, host_size)
   local mesh = mesh_of(axes_list(self), { comm = comm })
   return apply(self, plan_price.null_copy(self.model), mesh, 'null', 0)
end

-- ---- the object ------------------------------------------------------------------------------

-- Plans how a model is distributed over ranks. model: a module (best on the null device), a
-- function that returns one, or { family =, config =, dtype = }. mesh: a mesh, or axes as
-- parallel.mesh takes them (opts.ranks: of how many ranks; default: this run's). opts: tp (options
-- of tensor_parallel and axis), cp (those of cp.attach), pp (those of pipeline_parallel), recompute
-- and scope (of parallel.recompute), fsdp (options of fully_shard; absent: its defaults if an axis
-- dp_shard has several ranks, else plain data parallelism, or beside tp, cp and pp the strategy
-- no_shard), ranks, and the registered ones (see plan.register). A section whose axis has one rank
-- changes nothing.
function Plan:init(model, mesh, opts)
   local known = { 'ranks', unpack(own_options) }
   for _, s in ipairs(sections) do known[#known + 1] = s.is_own and s.name or nil end
   opts = err.options(op, opts, known)
   read_mesh(self, mesh, opts.ranks)
   read_model(self, model)
   read_sections(self, opts)
   self.numel, self.trained = self.model:num_parameters(), 0
   for _, e in ipairs(self.model:named_parameters()) do
      if e.param.requires_grad then self.trained = self.trained + e.param:numel() end
   end
   self.rehearsal = plan_text.of(rehearse(self, 0))
end

-- Counts what a rank keeps and sends in a step.
-- Returns bytes: parameters (with buffers), gradients, optimizer, their sum state; activations
-- (kept from forward to backward), unit (largest gathered unit), stays (what
-- reshard_after_forward = k keeps of gathered units until backward), peak (everything, at its
-- largest); wire (sent a step) and of that wire_between_hosts; collectives: calls by kind; idle: of
-- a pipeline, the share of a step in which a stage waits.
-- Prints as a table.
function Plan:price(opts)
   local o, config = opts, self.model.config or {}
   o.seq = o.seq or config.max_position_embeddings or 1024
   err.integer('parallel.plan.price', 'rank', o.rank, 0, self.ranks - 1)
   err.arg_if(o.images and type(self.model.priced) ~= 'function', 'parallel.plan.price', 'images',
      'nil, as the model reads no images', o.images)
   local run = rehearse(self, o.rank, o.host_size)
   local sum = plan_price.of(run, o)
   sum.rank, sum.ranks, sum.batch, sum.seq, sum.accum = o.rank, self.ranks, o.batch, o.seq, o.accum
   return setmetatable(sum, plan_text.price_meta)
end

-- Checks that all ranks have the same plan for the same model: all that the parts would compare.
local function check_agreed(self, comm, device, seed)
   local model, given = self.model, {}
   for _, k in ipairs { 'own', unpack(own_options) } do given[k] = self[k] end
   agree.check(comm, 'parallel.plan.materialise', 'E_COMM', {
      { 'plans', tostring(self), 'shown' }, { 'options of the plan', canonical(given) },
      { 'styles of modules', self.rehearsal.styles },
      fingerprint.model(model),
      { 'devices', device, 'shown' }, { 'seeds', tostring(seed) },
   })
end

local function real_mesh(self)
   if self.mesh then return self.mesh end
   local comm = self.base or dist.world()
   err.raise_if(comm.size ~= self.ranks, 'E_STATE', 'parallel.plan.materialise',
      'the plan is for %d ranks (%s), the run has %d', self.ranks, plan_text.axes(self), comm.size)
   return mesh_of(axes_list(self), { comm = comm })
end

-- Distributes the model over the ranks of the run, in place; every rank calls it, once. Returns {
-- model, sharded (nil without fsdp), params (for the optimiser), comm (for train.loop), data (ranks
-- with data of their own: rank, size for the sampler), mesh, context (of context parallelism), plan
-- }.
function Plan:materialise(opts)
   local name = 'parallel.plan.materialise'
   if self.done then err.raise('E_STATE', name, 'this plan has spread its model already') end
   spread.check_whole(name, self.model, 'give it whole')          -- another plan may have
   local device, seed = opts.device, opts.seed
   local mesh = real_mesh(self)
   err.raise_if(mesh.comm.transport == 'sim' and device ~= 'null', 'E_STATE', name,
      'the mesh is simulated; it can be priced only')
   check_agreed(self, mesh.comm, device, seed)
   self.done = true
   local first = self.model:parameters()[1]
   local on_null = first ~= nil and first.device == 'null'
   local run = agree.settled(mesh.comm, self.model, apply, self, self.model, mesh,
      on_null and device or nil, seed, opts.init)
   if on_null and not run.sharded then run.model:materialise(device, seed, opts) end
   return run
end

Plan.__tostring = plan_text.show

-- Returns the axes as text: "dp_shard=2 x tp=2".
function Plan:axes_text() return plan_text.axes(self) end

-- Returns the place { rank, size } of rank 0 among the ranks with data of their own.
function Plan:data() return { rank = 0, size = self.rehearsal.data } end

-- Returns the plan as a plain table, for JSON; see plan.from_table.
function Plan:to_table() return plan_text.to_table(self) end

signature.doors('parallel.plan', Plan, {
   price = { opts = {
      'batch: integer >= 1 = 1 -- rows of a micro-batch on a rank',
      "seq: integer? >= 1 -- tokens of the whole sequence; the model's context by default",
      'accum: integer >= 1 = 1 -- micro-batches of a step', 'rank: integer >= 0 = 0',
      "device: 'cpu' | 'ref' | 'cuda' = 'cpu' -- runs the kernels; scratch counts on 'cpu' and "
         .. "'ref', with this context's number of threads",
      'host_size: any? -- ranks that share a host',
      "state_bytes: number >= 0 | function? -- of the optimiser for an element, a number or the "
         .. "state_bytes of its class; AdamW's by default",
      'images: table? -- grids { frames, rows, columns } of the images of a micro-batch, for a '
         .. 'model that reads images',
      'forward: any? -- makes a loss of a model other than a language model' } },
   materialise = { opts = {
      "device: string = 'cpu' -- of a model on the null device", 'seed: integer >= 0 = 0',
      'init: boolean? -- false: parameters have no values yet, and the caller loads them' } },
})

local plan = { Plan = Plan }

-- Adds a section to all plans that are made from now on: the option `name` of parallel.plan.
-- section: apply(run, options), called where the option is given, in the rehearsal and in
-- materialise, on every rank, with run.model and run.mesh; before (the section that follows it:
-- 'tp', 'cp', 'recompute', default 'fsdp', or a registered one). Fields that apply adds to
-- the run reach the caller of materialise.
function plan.register(name, section)
   local fn, apply_own, before, at = 'parallel.plan.register', section.apply, section.before, nil
   for i, s in ipairs(sections) do
      if s.name == name then err.arg(fn, 'name', 'a section that no plan has', name) end
      if s.name == before then at = i end
   end
   if not at then err.arg(fn, 'before', 'the name of a section', before) end
   table.insert(sections, at, { name = name, is_own = true, apply = function(self, run)
      if self.own[name] ~= nil then apply_own(run, self.own[name]) end
   end })
end

-- Removes a registered section; later plans do not have it.
function plan.unregister(name)
   for i, s in ipairs(sections) do
      if s.is_own and s.name == name then return table.remove(sections, i) and true end
   end
   return false
end

-- Returns the results of fn() with the model of `run`, which materialise gave, whole where it is
-- sharded, and whole sequences on each rank. Collective.
function plan.whole(run, fn)
   local inner, context = fn, run.context
   if context then fn = function() return context:whole(inner) end end
   if not run.sharded then return fn() end
   return tide.parallel.unshard_fsdp2_model(run.sharded, fn)
end

-- Returns the plan that to_table has described. model: the model; default: of the family and
-- configuration in the table.
function plan.from_table(t, model)
   local name = 'parallel.plan.from_table'
   local parts = plan_text.from_table(name, t)
   if model == nil then
      model = t.model or err.arg(name, 'model', 'the model, because the table does not have it',
         nil)
   end
   return Plan(model, parts.mesh, parts.opts)
end

signature.doors('parallel.plan', plan, {
   register = { "name: string; where name ~= 'scope' and name ~= 'ranks' -- argument 'name': "
      .. 'expected no option of plans, got {name}', opts = {
      'apply: function -- (run, options)', "before: string = 'fsdp' -- the section after it" } },
   whole = 'run: table; fn: function', from_table = 't: table',
})
return setmetatable(plan, { calls = Plan.init, __call = function(_, ...) return Plan(...) end })
