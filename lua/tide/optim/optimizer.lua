-- Optimizer: parameter groups, state by parameter name, one fused update per group.
--
-- State is kept under the dotted parameter name, never under a handle, so it can be saved, loaded
-- on another mesh, and survives the replacement of a parameter's tensor. Parameters without a
-- gradient stay unchanged; each parameter counts its own updates.
--
-- A class of optimisers extends this one: `fields` names its state of a parameter, `init` calls
-- Optimizer.init, and update_parameter changes one weight (guide/optimizer.md). AdamW and SGD
-- define update instead, which changes a group in one fused call and can be captured.

local tide = require 'tide'
local by_key = require 'tide.util.by_key'
local captured = require 'tide.optim.captured'
local class = require 'tide.class'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local groups = require 'tide.optim.groups'
local signature = require 'tide.util.signature'

local Optimizer = class 'Optimizer'

local forms = 'a module, a list of tensors or of { name =, param = }, or of groups { params = }'

-- Returns the module whose parameters() a list is; nil of other lists.
local function module_of(list)
   local meta = getmetatable(list)
   return type(meta) == 'table' and rawget(meta, 'parameters_of') or nil
end

-- Returns whether v keeps its parameters elsewhere than in fields of modules. A keeper has
-- named_parameters(), check_finished(op), which raises before a step whose gradients are not
-- complete, and updated(), called after a step. Its entries name it in field keeper.
local function is_keeper(v) return type(v.updated) == 'function' end

-- Returns a list of { name =, param = } of what was given for a group. count: tensors without a
-- name so far, which are numbered over all groups.
local function entries_of(op, source, count)
   if type(source) ~= 'table' then err.arg(op, 'params', forms, source) end
   source = module_of(source) or source
   if source.check_holds then source:check_holds(op) end
   local given = source.named_parameters and source:named_parameters() or source
   err.arg_if(#given == 0 and not is_keeper(source), op, 'params', forms .. ', with a parameter',
      source)
   local list = {}
   for i, entry in ipairs(given) do
      if tide.is_tensor(entry) then
         count.n = count.n + 1
         entry = { name = tostring(count.n), param = entry }
      end
      err.arg_if(type(entry) ~= 'table' or type(entry.name) ~= 'string'
         or not tide.is_tensor(entry.param), op, ('params[%d]'):format(i), 'a tensor, or { name =, '
         .. 'param = }', entry)
      list[i] = entry
   end
   return list
end

-- Returns the names of all parameters: of a sharded model also of those that lie on other ranks.
local function names_of(source, entries)
   local list = {}
   local all = is_keeper(source) and source.whole_parameters and source:whole_parameters()
      or entries
   for i, e in ipairs(all) do list[i] = e.name end
   return list
end

local function check_group(self, op, group, seen, count)
   group.params = entries_of(op, group.params, count)
   group.lr_scale = err.number(op, 'lr_scale', group.lr_scale or 1, 0)
   for k, v in each(self.defaults) do
      if group[k] == nil then group[k] = v end
   end
   for _, entry in ipairs(group.params) do
      for _, key in ipairs { entry.name, entry.param.id } do
         err.raise_if(seen[key], 'E_ARG', op, "parameter '%s' is given twice", entry.name)
         seen[key] = true
      end
   end
end

-- Returns the keepers of the parameters in a list.
local function keepers_of(entries)
   local list, add = by_key(function(keeper) return keeper end)
   for _, entry in ipairs(entries) do
      if entry.keeper then add(entry.keeper, entry.keeper) end
   end
   return list
end

local function is_group(v) return type(v) == 'table' and v.params ~= nil end

-- Raises unless the class of self has `fields` and an update.
local function check_class(self, op)
   local name = tostring(self.class_name)
   err.raise_if(type(self.fields) ~= 'table', 'E_ARG', op, "class %s has no list 'fields' that "
      .. "names its state tensors of a parameter, e.g. %s.fields = { 'm', 'master' }", name, name)
   err.raise_if(self.update == Optimizer.update and not self.update_whole
      and type(self.update_parameter) ~= 'function', 'E_ARG', op, 'class %s has no method '
      .. 'update_parameter(weight, grad, state, group, lr)', name)
end

-- Begins an optimiser. op: the name in errors. params: a module, its parameters(), a list of
-- tensors (named by their numbers) or of { name =, param = }, or a list of groups { params = (one
-- of these), weight_decay =, lr_scale =, ... }. defaults: checked hyperparameters. opts.lr: number
-- or function of the step; opts.groups: options of parameters by patterns of names (groups.lua).
function Optimizer:init(op, params, defaults, opts)
   err.type('optim.Optimizer', 'op', op, 'string')
   opts = err.options(op, opts, { 'lr', 'decay_vectors', 'groups' })
   err.type(op, 'defaults', defaults, 'table')
   check_class(self, op)
   self.op, self.defaults, self.lr = op, defaults, opts.lr
   if type(opts.lr) ~= 'function' then err.number(op, 'lr', opts.lr, 0) end
   if type(params) ~= 'table' then err.arg(op, 'params', forms, params) end
   local seen, count, types = {}, { n = 0 }, groups.types_of(self.init)
   if is_group(params[1]) then
      err.raise_if(opts.groups ~= nil, 'E_ARG', op, "argument 'groups': params is a list of groups "
         .. 'already; give one of the two')
      self.groups = {}
      for i, group in ipairs(params) do
         groups.options(op, ('params[%d]'):format(i), group, defaults, types, { 'params',
            'lr_scale' })
         self.groups[i] = copy(group)
      end
   else
      local entries = entries_of(op, params, count)
      self.patterns = groups.check(op, opts, defaults, types, names_of(params, entries))
      self.groups = groups.make(entries, self.patterns, opts, defaults.weight_decay ~= nil)
   end
   for _, group in ipairs(self.groups) do check_group(self, op, group, seen, count) end
   self.state, self.steps = {}, 0
   self.keepers = is_keeper(params) and { params } or keepers_of(self:entries())
end

-- Checks, when the constructor of a class has returned, that it called init.
function Optimizer:made()
   err.raise_if(not rawget(self, 'groups'), 'E_STATE', 'optim.' .. tostring(self.class_name), 'its '
      .. 'init ends without tide.optim.Optimizer.init(self, name, params, defaults, { lr = .. })')
end

-- Calls init of the class above, `base`, for a class whose hyperparameters are all of its checked
-- options but lr, decay_vectors and groups.
function Optimizer:_begin(base, op, params, opts)
   local defaults, rest = copy(opts), {}
   for _, name in ipairs { 'lr', 'decay_vectors', 'groups' } do
      rest[name], defaults[name] = opts[name], nil
   end
   base.init(self, op, params, defaults, rest)
end

-- Returns the learning rate of the next step. A function is called each time; `last_lr` is the rate
-- of the last step, also of a replayed one.
function Optimizer:next_lr()
   if type(self.lr) == 'function' then return self.lr(self.steps + 1) end
   return self.lr
end

-- Returns a list of { name=, param= } over all groups.
function Optimizer:entries()
   local list = {}
   for _, group in ipairs(self.groups) do
      for _, entry in ipairs(group.params) do list[#list + 1] = entry end
   end
   return list
end

-- Returns the gradients that exist, in order.
function Optimizer:grads()
   local list = {}
   for _, entry in ipairs(self:entries()) do
      local g = entry.param.grad
      if g ~= nil then list[#list + 1] = g end
   end
   return list
end

-- Clears the gradients and frees their bytes: handles from earlier calls of grads() raise E_GONE.
-- What a sharded model notes of this step goes with them.
function Optimizer:zero_grad()
   for _, entry in ipairs(self:entries()) do entry.param:drop_grad() end
   for _, s in ipairs(self.keepers) do
      if s.zero_grad then s:zero_grad() end
   end
end

-- Returns the f32 weight of which a parameter is the rounding (entry.exact), nil without one.
-- Elements that were written into the parameter since have its values.
local function exact_of(entry)
   local exact, param = entry.exact, entry.param
   if not exact or exact:is_gone() or exact.device ~= param.device
      or not dims.equal(exact.shape, param.shape) then
      return nil
   end
   tide.scope(function()
      local same = exact:to(param.dtype):eq(param:detach())
      exact:copy_(tide.where(same, exact, param:detach():to 'f32'))
   end)
   return exact
end

-- Returns whether a class keeps masters.
local function keeps_masters(self)
   for _, field in ipairs(self.fields) do
      if field == 'master' then return true end
   end
   return false
end

-- Returns the state of an entry before its first update. Its master is the exact weight.
function Optimizer:_begin_state(entry)
   local state = self:new_state(entry)
   local exact = exact_of(entry)
   if exact and state.master then
      state.master:release()
      state.master = exact
   elseif exact then
      exact:release()                                  -- this class updates the parameter itself
   end
   return state
end

-- Returns the parameters of a group by fused call: same dtype, same number of updates.
function Optimizer:_buckets(group)
   local list, at = by_key(function(step) return { step = step, p = {}, g = {}, states = {} } end)
   for _, entry in ipairs(group.params) do
      local g = entry.param.grad
      if g ~= nil then
         local state = self.state[entry.name] or self:_begin_state(entry)
         self.state[entry.name] = state
         local b = at(entry.param.dtype .. state.step, state.step + 1)
         b.p[#b.p + 1], b.g[#b.g + 1], b.states[#b.states + 1] = entry.param, g, state
      end
   end
   return list
end

-- Raises if a step would silently do nothing, or only a part.
function Optimizer:_check_ready(op)
   for _, s in ipairs(self.keepers) do s:check_finished(op) end
   err.raise_if(#self.keepers == 0 and #self:grads() == 0, 'E_STATE', op, 'no parameter has a '
      .. 'gradient: call backward before step, and after fully_shard make the optimiser from its '
      .. 'result')
end

-- Adds `by` to the number of steps of each state in `lists`.
function Optimizer:_add_steps(lists, by)
   for _, states in ipairs(lists) do
      for _, state in ipairs(states) do state.step = state.step + by end
   end
   self.steps = self.steps + by
   self.counted = by > 0 and lists or nil
end

-- Updates the parameters of all groups, or of those for which only(group) holds. Returns the lists
-- of states whose step it has counted.
function Optimizer:_update_all(lr, opts, only)
   local lists = {}
   for _, group in ipairs(self.groups) do
      for _, bucket in ipairs(not (only and not only(group)) and self:_buckets(group) or {}) do
         self:update(group, bucket, lr * group.lr_scale, opts)
         for _, state in ipairs(bucket.states) do state.step = bucket.step end
         lists[#lists + 1] = bucket.states
      end
   end
   return lists
end

-- Makes one update. opts: lr (overrides), scale (number), factor (f32 scalar tensor): both multiply
-- every gradient; found_inf (f32 scalar tensor): unless it is 0 nothing changes on the device, and
-- the caller calls take_back once it knows. In a captured step (tide.cuda.graph) each replay makes
-- and counts the update, with the rate and the step number of that replay.
function Optimizer:step(opts)
   opts = err.options(self.op .. '.step', opts, { 'lr', 'scale', 'factor', 'found_inf' })
   if opts.scale ~= nil then err.number(self.op .. '.step', 'scale', opts.scale) end
   if captured.is_recording() then
      self:_check_ready(self.op .. '.step')
      return tide.no_grad(captured.record, self, self.op .. '.step', opts)
   end
   local lr = opts.lr or self:next_lr()
   self.last_lr = err.number(self.op .. '.step', 'lr', lr, 0)
   self:_check_ready(self.op .. '.step')
   local lists = tide.no_grad(function()
      captured.prepare(self)
      return self:_update_all(lr, opts)
   end)
   self.steps, self.counted = self.steps + 1, lists
   for _, s in ipairs(self.keepers) do s:updated() end
end

-- Undoes the count of the last step, whose found_inf was not 0.
function Optimizer:take_back()
   if not self.counted then
      err.raise('E_STATE', self.op .. '.take_back', 'there is no step to take back: none was made '
         .. 'since the last take_back')
   end
   self:_add_steps(self.counted, -1)
end

-- Returns the state of a parameter before its first update: zeros for each of the class's fields,
-- `master` as the weight in f32 (parameters of 16 bits alone). entry: { name =, param =, exact = },
-- where exact is an f32 tensor of which param is the rounding; it becomes the master.
function Optimizer:new_state(entry)
   local state = { step = 0 }
   for _, field in ipairs(self.fields) do
      if field == 'master' then
         state.master = self.master(entry.param)
      else
         state[field] = self.zeros_like(entry.param)
      end
   end
   return state
end

-- Returns a gradient in a weight's dtype, times the factors of the step.
function Optimizer.scaled(g, dtype, opts)
   g = g:to(dtype)
   if (opts.scale or 1) ~= 1 then g = g * opts.scale end
   return opts.factor and g * opts.factor:to(dtype) or g
end

-- Updates the weights of a bucket one by one by the class's update_parameter(weight, grad, state,
-- group, lr), which changes weight and the fields of state. weight is the f32 copy where `fields`
-- has 'master' and the parameter 16 bits. E_UNSUPPORTED for found_inf and within a captured step.
function Optimizer:update(group, bucket, lr, opts)
   if bucket.rates or opts.found_inf then
      err.raise('E_UNSUPPORTED', self.op .. '.update', 'class %s has update_parameter, and a '
         .. 'captured step needs a method update', tostring(self.class_name))
   end
   for i, p in ipairs(bucket.p) do
      local state = bucket.states[i]
      local weight = state.master or p
      tide.scope(function()
         local grad = self.scaled(bucket.g[i], weight.dtype, opts)
         self:update_parameter(weight, grad, state, group, lr)
         if state.master then p:copy_(weight) end
         return state                                 -- its tensors outlive the scope
      end)
   end
end

-- Returns an exact copy of the weight for parameters of 16 bits, else nil.
function Optimizer.master(param)
   if param.dtype == 'bf16' or param.dtype == 'f16' then return param:detach():to 'f32' end
end

-- Returns zeros for a moment of a parameter: f64 of f64, else f32, on its device.
function Optimizer.zeros_like(param)
   local dtype = param.dtype == 'f64' and 'f64' or 'f32'
   return tide.zeros(param.shape, { dtype = dtype, device = param.device })
end

-- Returns the bytes that `count` fields of a parameter's shape need for an element, for
-- parallel.plan's price.
function Optimizer.bytes_of(dtype, count)
   local wide = dtype == 'f64' and 8 or 4
   return count * wide + ((dtype == 'bf16' or dtype == 'f16') and 4 or 0)
end

-- Returns column `field` of the states; nil if no state has it (tables with holes never leave Lua).
function Optimizer.column(states, field)
   local list = {}
   for i, state in ipairs(states) do
      if state[field] == nil then return nil end
      list[i] = state[field]
   end
   return list
end

-- ---- state -------------------------------------------------------------------------------------

-- Returns field `field` of a state as it is saved, of the parameter's shape. A class that keeps it
-- in another form overrides this and write_field.
function Optimizer:read_field(state, field) return state[field] end

-- Sets a field of a state from what read_field gave.
function Optimizer:write_field(state, field, t) state[field]:copy_(t) end

-- Returns tensors and meta. tensors: "name.field" -> tensor; meta: steps and the update count of
-- each parameter. A parameter without an update has no count, and its master is its exact weight.
function Optimizer:state_dict()
   local tensors, counts = {}, {}
   for _, entry in ipairs(keeps_masters(self) and self:entries() or {}) do
      if not self.state[entry.name] then
         tensors[entry.name .. '.master'] = tide.no_grad(exact_of, entry)
      end
   end
   for name, state in each(self.state) do
      counts[name] = state.step
      for _, field in ipairs(self.fields) do
         if state[field] ~= nil then
            tensors[name .. '.' .. field] = self:read_field(state, field)
         end
      end
   end
   return tensors, { kind = self.class_name, steps = self.steps, counts = counts }
end

-- Raises unless shapes are equal: copy_ would broadcast.
local function check_fits(op, key, to, from)
   if not tide.is_tensor(from) then err.arg(op, key, 'a tensor', from) end
   local want, got = table.concat(to.shape, ', '), table.concat(from.shape, ', ')
   err.raise_if(want ~= got, 'E_SHAPE', op, "'%s' is [%s] in the state, [%s] here", key, got, want)
end

-- Returns a new state of an entry with the tensors of state_dict. The present state keeps its
-- numbers: a later entry may be refused.
local function restore(self, op, entry, count, tensors)
   local state = self.state[entry.name] and self:new_state(entry) or self:_begin_state(entry)
   for _, field in ipairs(self.fields) do
      local key = entry.name .. '.' .. field
      local t = tensors[key]
      if state[field] == nil and t ~= nil then
         err.raise('E_ARG', op, "the state has '%s', which is not kept here (options of the "
            .. 'optimiser or the dtype of the parameter differ)', key)
      elseif state[field] ~= nil then
         if t == nil then err.raise('E_FORMAT', op, "the state has no '%s'", key) end
         check_fits(op, key, state[field], t)
         self:write_field(state, field, t)
      end
   end
   state.step = err.integer(op, entry.name .. '.step', count, 0)
   return state
end

-- Copies what state_dict gave into the state. Parameters without a state start with a new one, with
-- the master that the tensors have for them.
-- E_ARG for a state of another class, or with parameters or tensors that are not kept here,
-- E_FORMAT if one is missing, E_SHAPE if one does not fit.
function Optimizer:load_state_dict(tensors, meta)
   local op = self.op .. '.load_state_dict'
   local known, state, exact = {}, {}, {}
   tide.no_grad(function()
      for _, entry in ipairs(self:entries()) do
         known[entry.name] = true
         local count, master = meta.counts[entry.name], tensors[entry.name .. '.master']
         if count then
            state[entry.name] = restore(self, op, entry, count, tensors)
         elseif keeps_masters(self) then
            exact[entry] = master and master:to(entry.param.device):clone() or false
         end
      end
   end)
   for name in each(meta.counts) do
      err.raise_if(not known[name], 'E_ARG', op, "the state has a parameter '%s' that is not "
         .. 'optimised here', name)
   end
   for entry, t in each(exact) do entry.exact = t or nil end
   self.steps = meta.steps
   self.state, self.counted = state, nil
end

local text = 'an optimiser: tide.optim.AdamW, SGD, or a class of your own that extends '
   .. 'tide.optim.Optimizer (lua/guide/optimizer.md)'
signature.kind('optimizer', text, function(v) return class.is(v, Optimizer) end, 'tide.Optimizer')
signature.record('optimizer_meta', 'a table { kind =, steps =, counts = }', {
   'kind: any', 'steps: integer >= 0', 'counts: table' })
signature.record('entry', 'a table { name =, param = }', { 'param: tensor' })
signature.record('bucket', 'a table { p =, g =, states = }', { 'p: table', 'g: table',
   'states: table' })

-- The arguments of the methods of a class: an entry { name =, param = }; a group, a bucket of it
-- with lists of equal length, the rate and options.
Optimizer.grouping = {
   'groups: table? -- { { pattern =, lr = | lr_scale =, weight_decay =, .. } }, by names',
   'decay_vectors: boolean = false -- lets norms, biases and other vectors decay, too',
}
Optimizer.takes = {
   new_state = 'entry: entry',
   update = 'group: table; bucket: bucket; lr: number >= 0; opts: table',
   read_field = 'state: table; field: string',
   write_field = 'state: table; field: string; t: tensor',
}
return signature.doors('optim.Optimizer', Optimizer, {
   new_state = Optimizer.takes.new_state, update = Optimizer.takes.update,
   read_field = Optimizer.takes.read_field, write_field = Optimizer.takes.write_field,
   scaled = 'g: tensor; dtype: string; opts: table',
   bytes_of = 'dtype: string; count: number >= 0',
   load_state_dict = { { 'tensors: table', 'meta: optimizer_meta',
      'where meta.kind == self.class_name -- the state is of {meta.kind}, this is '
         .. '{self.class_name}' } },
})
