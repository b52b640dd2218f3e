-- Module: a named tree of parameters, buffers and child modules around one `forward`.
--
-- Values live in plain fields (self.weight, self.q_proj); the module keeps the ordered lists of
-- their names. So model code reads like arithmetic, and everything that walks the tree (state,
-- optimiser, sharding) sees stable dotted names in declaration order. A module that is assigned to
-- a new field becomes a child of that name, unless the name begins with '_'. A module may be built
-- on device 'null' (shapes only) and materialised later.
--
-- A tensor that sits at two places in the tree is one parameter, listed at its first name.
--
-- Field `mixes` of a class says whether its forward lets tokens of a sequence see each other:
--    false      each token by itself; children declare their own
--    'context'  tokens see each other by the context of the call (at.context), over ranks too
--    true       tokens see each other, and only those of this rank
-- A class that overrides forward declares it again; parallel.cp.attach refuses one that does not.

local tide = require 'tide'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local names_ = require 'tide.util.names'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local hook = require 'tide.nn.hook'
local instead = require 'tide.util.instead'
local place = require 'tide.nn.place'
local spread = require 'tide.nn.spread'
local weight = require 'tide.nn.weight'
local wrap = require 'tide.nn.wrap'

local Module = class 'Module'

-- A method of another library raises an error that names its counterpart here. Other absent fields
-- are nil, because modules test for them.
local meta = getmetatable(Module)
setmetatable(Module, { __call = meta.__call, __tostring = meta.__tostring,
   __index = function(_, key)
      local other = instead.Module[key]
      err.raise_if(other, 'E_ARG', 'nn.Module', "no '%s'; instead: %s", key, other)
   end })

-- Rows of the options that every module has (see util.signature).
Module.common = {
   'dtype: string? -- dtype of its parameters; f32 by default',
   "device: string? -- where they lie; 'null' has shapes only",
   'init: boolean? -- false: a parent will fill the weights',
   'seed: integer? >= 0 -- seed of the weights; 0 by default',
   'fp8: fp8? -- every Linear in it multiplies in FP8, with a scale for each operand (true) or for '
      .. 'blocks of 128; see tide.linear_fp8',
}
local common = { 'dtype', 'device', 'init', 'seed', 'fp8' }

signature.kind('module', 'a module', function(v) return class.is(v, Module) end, 'tide.Module')

local scalings = { [true] = true, [false] = true, tensor = true, block = true, block_f32 = true }
local scaling_text = "true, false, 'tensor', 'block' or 'block_f32'"
signature.kind('fp8', scaling_text, function(v) return scalings[v] end,
   "boolean|'tensor'|'block'|'block_f32'")

-- Checks the options of a constructor: its own names and those of every module.
function Module.options(op, opts, known)
   local all = {}
   for _, k in ipairs(known) do all[#all + 1] = k end
   for _, k in ipairs(common) do all[#all + 1] = k end
   opts = err.options(op, opts, all)
   local fp8 = opts.fp8
   err.arg_if(fp8 ~= nil and not scalings[fp8], op, 'fp8', scaling_text, fp8)
   return opts
end

-- Returns options for a child: the same dtype, device and fp8. The root fills its weights later.
function Module.inner(opts, extra)
   local t = { dtype = opts.dtype, device = opts.device, fp8 = opts.fp8, init = false }
   return copy(extra or {}, t)
end

-- Begins a module; the init of every class calls it before it declares parameters and children.
function Module:init()
   self.training = true
   self._param, self._buffer, self._child = {}, {}, {}
   self._spec, self._volatile, self._fixed = {}, {}, {}
end

local function check_begun(self)
   if rawget(self, '_child') then return end
   err.raise('E_STATE', 'nn.' .. self.class_name, 'its init declares parts before it has called '
      .. 'nn.Module.init(self); call that first')
end

local function free_name(self, name)
   local op = 'nn.' .. self.class_name
   check_begun(self)
   err.type(op, 'name', name, 'string')
   err.arg_if(name == '' or name:find('.', 1, true), op, 'name', 'a name without dots', name)
   if self[name] == nil then return end
   err.raise('E_ARG', op, "argument 'name': %s is %s; take another name", err.show(name),
      rawget(self, name) == nil and 'a method of the class' or 'a field of the module already')
end

-- Declares a parameter. spec: an initialiser for nn.weight. Its value is undefined until
-- init_weights.
function Module:param(name, shape, spec, opts)
   free_name(self, name)
   self._spec[name] = weight.spec('nn.Module.param', 'init', spec)
   local t = tide.empty(shape, { dtype = opts and opts.dtype, device = opts and opts.device })
   t:requires_grad_(true)
   self._param[#self._param + 1] = name
   rawset(self, name, t)
   return t
end

-- Removes a parameter or buffer.
function Module:_take_away(name)
   for _, list in ipairs { self._param, self._buffer } do
      for i = #list, 1, -1 do
         if list[i] == name then table.remove(list, i) end
      end
   end
   self._spec[name] = nil
   rawset(self, name, nil)
end

-- Removes a child.
function Module:_remove(name)
   for i = #self._child, 1, -1 do
      if self._child[i] == name then table.remove(self._child, i) end
   end
   rawset(self, name, nil)
end

-- Declares a tensor that is not a parameter. opts.persistent = false keeps it out of the state;
-- opts.keeps_dtype = true keeps its dtype where that of the module changes.
function Module:buffer(name, t, opts)
   opts = err.options('nn.Module.buffer', opts, { 'persistent', 'keeps_dtype' })
   free_name(self, name)
   self._buffer[#self._buffer + 1] = name
   self._volatile[name] = err.same(opts.persistent, false)
   self._fixed[name] = opts.keeps_dtype or nil
   rawset(self, name, t)
   return t
end

-- Makes module a child under `name` and sets that field; returns it. E_ARG if the name is taken.
function Module:child(name, module)
   free_name(self, name)
   err.arg_if(not class.is(module, Module), 'nn.Module.child', name, 'a module', module)
   self._child[#self._child + 1] = name
   rawset(self, name, module)
   return module
end

-- Declares a child for self.name = module, as PyTorch does. Lua replaces an existing field without
-- calling this.
function Module:__newindex(name, value)
   if class.is(value, Module) and type(name) == 'string' and name:sub(1, 1) ~= '_' then
      self:child(name, value)
   else
      rawset(self, name, value)
   end
end

-- Returns the name of the first child whose weights wait for init_weights of a module above, or
-- nil.
local function waiting_part(self)
   for _, name in ipairs(self._child) do
      if rawget(self[name], '_waits') then return name end
   end
end

-- Ends a constructor: fills the weights unless a parent will, or there are no bytes yet.
function Module:ready(opts)
   opts = err.type('nn.Module.ready', 'opts', opts or {}, 'table')
   self._is_ready = true
   if err.same(opts.device, 'null') then return end
   if opts.init ~= false then return self:init_weights(opts.seed or 0) end
   self._waits = (#self._param > 0 or waiting_part(self)) and true or nil
end

local function is_plain(field, v)
   return type(field) == 'string' and field:sub(1, 1) ~= '_' and type(v) == 'table'
      and not getmetatable(v)
end

-- Refuses a plain table of modules with unfilled weights: nothing would fill, train or save them.
local function check_lists(self)
   for field, list in each(self) do
      for _, part in each(is_plain(field, list) and list or {}) do
         local lost = class.is(part, Module) and rawget(part, '_waits')
         if lost then self:walk(function(m) lost = lost and m ~= part end) end
         err.raise_if(lost, 'E_ARG', 'nn.' .. self.class_name, "the field '%s' is a plain table of "
            .. 'modules, whose parameters nothing would initialise or train; make it a module: '
            .. 'nn.Stack { a, b }', field)
      end
   end
end

-- Checks, when the constructor has returned, that it filled the weights: unfilled ones are
-- undefined. A class that only holds what it is given (holds_parts) leaves filling it to a module
-- above.
function Module:made()
   check_begun(self)
   check_lists(self)
   if self._is_ready then return end
   local part, text = waiting_part(self), "its init declares the parameter '%s' and ends without "
      .. 'self:ready(opts), which fills the weights'
   if self.holds_parts then self._waits = part and true or nil return end
   err.raise_if(#self._param > 0, 'E_STATE', 'nn.' .. self.class_name, text, self._param[1])
   err.raise_if(part, 'E_STATE', 'nn.' .. self.class_name, "its part '%s' has weights that are not "
      .. 'filled yet (Module.inner), and its init ends without self:ready(opts), which fills them',
      part)
end

-- ---- walking ---------------------------------------------------------------------------------

local function visit(self, prefix, fn)
   fn(self, prefix)
   for _, name in ipairs(self._child) do visit(self[name], names_.join(prefix, name), fn) end
end

-- Calls fn(module, path) for this module and everything below, parents first.
function Module:walk(fn) visit(self, '', err.func('nn.Module.walk', 'fn', fn)) end

-- Returns a list of { name=, module= }.
function Module:named_modules()
   local list = {}
   self:walk(function(m, path) list[#list + 1] = { name = path, module = m } end)
   return list
end

-- Returns a list of { name=, param=, owner=, field= }; a shared tensor appears once.
function Module:named_parameters()
   local list, seen = {}, {}
   self:walk(function(m, path)
      for _, field in ipairs(m._param) do
         local t = m[field]
         if not seen[t.id] then
            seen[t.id] = true
            local name = names_.join(path, field)
            list[#list + 1] = { name = name, param = t, owner = m, field = field }
         end
      end
   end)
   return list
end

-- Raises in the name of op if the fields do not hold the parameters that are trained.
function Module:check_holds(op)
   if not spread.of(self).inside then return end
   err.raise('E_ARG', op, 'this model is sharded, and its fields hold whole parameters only '
      .. 'temporarily; pass the object that fully_shard returned')
end

-- Returns a list of the parameters of this module and all below, a shared one once. An optimiser
-- finds their names by the list.
function Module:parameters()
   local list = setmetatable({}, { parameters_of = self })
   for i, entry in ipairs(self:named_parameters()) do list[i] = entry.param end
   return list
end

-- Returns a list of { name=, buffer=, owner=, field=, persistent= } of this module and all below.
function Module:named_buffers()
   local list = {}
   self:walk(function(m, path)
      for _, field in ipairs(m._buffer) do
         list[#list + 1] = {
            name = names_.join(path, field), buffer = m[field], owner = m, field = field,
            persistent = not m._volatile[field],
         }
      end
   end)
   return list
end

-- Calls fn(module) bottom up and returns self.
function Module:apply(fn)
   for _, name in ipairs(self._child) do self[name]:apply(fn) end
   fn(self)
   return self
end

-- Returns the module at a dotted path ('' is this one).
function Module:get(path)
   local m = self
   for name in path:gmatch '[^.]+' do
      m = m[name]
      err.raise_if(not class.is(m, Module), 'E_ARG', 'nn.Module.get', "no module '%s' at '%s'",
         name, path)
   end
   return m
end

-- Returns the number of elements of the parameters of this module and all below, on this rank.
function Module:num_parameters()
   local n = 0
   for _, entry in ipairs(self:named_parameters()) do n = n + entry.param:numel() end
   return n
end

-- ---- mode, dtype, device, weights --------------------------------------------------------------

-- Sets the field `training` (on: true by default) of this module and all below; returns self.
function Module:train(on)
   self:walk(function(m) m.training = on end)
   return self
end

-- Ends training mode, as train(false): dropout does nothing.
function Module:eval() return self:train(false) end

-- Sets whether the parameters get gradients (on: true by default); false freezes them. Returns
-- self.
function Module:requires_grad_(on)
   for _, entry in ipairs(self:named_parameters()) do entry.param:requires_grad_(on ~= false) end
   return self
end

-- Clears the gradients of all parameters.
function Module:zero_grad()
   for _, entry in ipairs(self:named_parameters()) do entry.param:zero_grad() end
end

-- Moves parameters and buffers to a target: a dtype, a device, or { dtype=, device= }. Integer
-- tensors keep their dtype.
function Module:to(target) return place.to(self, target) end

-- Marks the weights of this module and of all below as filled.
local function set_filled(self)
   self:walk(function(m) m._waits = nil end)
end

-- Allocates the tensors of a module that was built on device 'null', and fills them. opts: init
-- (true; false: they have no values yet, and the caller loads them).
function Module:materialise(device, seed, opts)
   opts = err.type('nn.Module.materialise', 'opts', opts or {}, 'table')
   place.materialise(self, device)
   return opts.init == false and self or self:init_weights(seed or 0)
end

-- Fills every parameter by its declared initialiser from (seed, dotted name).
function Module:init_weights(seed)
   place.fill(self, seed)
   self._seed = seed                     -- train.step compares it where ranks hold parts
   set_filled(self)
   return self
end

-- ---- state -------------------------------------------------------------------------------------

-- Returns name -> tensor: the parameters and persistent buffers themselves, without history.
-- E_STATE if the model is sharded and not gathered.
function Module:state_dict()
   local sharded = spread.of(self).inside
   if sharded then sharded:check_whole('nn.Module.state_dict', self) end
   local state = {}
   for _, entry in ipairs(self:named_parameters()) do state[entry.name] = entry.param:detach() end
   for _, entry in ipairs(self:named_buffers()) do
      if entry.persistent then state[entry.name] = entry.buffer:detach() end
   end
   return state
end

-- Copies a state into the parameters and buffers, converting dtypes. Strict by default: missing,
-- unexpected and misshapen entries are one error that lists them all, and nothing is changed.
-- opts.strict = false ignores missing and unexpected names; shapes must always fit. Names of rotary
-- frequencies (rotary_emb.inv_freq), which old files keep, are passed over.
function Module:load_state_dict(state, opts)
   local result = require('tide.nn.state').load(self, state, opts)
   set_filled(self)
   return result
end

-- ---- ranks -------------------------------------------------------------------------------------

-- Returns how a module is cut over the ranks of a tensor-parallel axis; parallel.parallelize_module
-- asks every module of a model, parents first. style: what the plan gives it (fields shard, input,
-- output, blocks), or nil. on: ranks, rank, path, children (name -> style), refuse(text, ...),
-- check_size(what, n), first(n), all_or_none(into, out, text), cut(field, dim) for done.
-- nil: not cut. Else a table:
--    cut     parameter -> dim along which it is cut, or { dim =, blocks = }: the call sees a part;
--            buffer -> { layout = on:layout(shape, dim, blocks), place = fn() that cuts it }
--    takes   layout in which the call wants x: 'R' (default: whole), 'S(-1)' or 'S(1)'
--    gives   layout of its result: 'R', 'S(-1)', 'S(1)', or 'P' (each rank has a part of a sum)
--    late    a parameter that is not cut and added to that sum; the call does not see it
--    call    call(next, self, x, ...) in place of next
--    length  dim of x along which the sequence lies (of ids: the first argument enters as it is)
--    done    done(n) after the cut; n: size of the cut dim of the first parameter on this rank
--    summed  children whose parameters get parts of their gradients on every rank
--    give    child -> what it finds in on.given
function Module.tp() return nil end

-- Returns the styles with which the children of this module are cut, for the plan of a decoder
-- whose blocks have it: child ('' for the module itself) -> style, its name, or { name, input =,
-- output =, blocks = }. nil: the class has no rule.
function Module.tp_plan() return nil end

-- ---- wraps, hooks and the call -----------------------------------------------------------------

-- Wraps the call of this module, or a method of its class, in fn(next, self, ...). fn
-- calls next(self, ...) for the inner call, and returns what the call returns. Returns a handle
-- with name and remove(). Each call or method takes a name once. opts:
--    of     'call' (default; of a model also its loss), 'forward', or another method
--    order  0; a larger one is further outside, equal ones in the order of adding (tensor
--           parallelism -20, context parallelism -10, hooks 10, recomputation 20, ranges 30)
--    by     the part of the library that adds it; nil: the user
function Module:wrap(name, fn, opts)
   local op = 'nn.Module.wrap'
   opts = wrap.check(op, self, name, opts, Module)
   local entry, of = wrap.add(self, name, err.func(op, 'fn', fn), opts), opts.of
   return { name = name, remove = function() wrap.remove(self, entry, of) end }
end

-- Returns the names of the wraps around the call, or around a method, innermost first.
function Module:wraps(of)
   local names = {}
   for i, entry in ipairs(wrap.list(self, of)) do names[i] = entry.name end
   return names
end

-- Hooks see what calls see: module(...), and of a model also model:loss(...). opts: first (before
-- the existing ones), by (the part of the library that adds it; nil: the user).

-- Calls fn(module, inputs...) before each call; its results replace the inputs (nil: unchanged).
function Module:hook_pre(fn, opts) return hook.add(self, 'pre', 'nn.Module.hook_pre', fn, opts) end

-- Calls fn(module, inputs, outputs...) after each call, inputs a packed list; its results replace
-- the outputs.
function Module:hook_post(fn, opts)
   return hook.add(self, 'post', 'nn.Module.hook_post', fn, opts)
end

-- Calls fn(module, dy...) before the backward of this module with the gradients of its outputs;
-- its results replace them.
function Module:hook_backward_pre(fn, opts)
   return hook.add(self, 'backward_pre', 'nn.Module.hook_backward_pre', fn, opts)
end

-- Calls fn(module, dx...) after the backward of this module with the gradients of its tensor
-- inputs; its results replace them. Where no input carries a gradient (ids) it runs before
-- that backward, when the gradients of the outputs are there, as fn(module), and must return
-- nothing; opts.needs_inputs: it does not run then.
function Module:hook_backward(fn, opts)
   return hook.add(self, 'backward', 'nn.Module.hook_backward', fn, opts)
end

-- Returns whether the user has put hooks or wraps around a call of this module.
function Module:has_hooks()
   for _, of in ipairs { 'call', 'forward' } do
      for _, entry in ipairs(wrap.list(self, of)) do
         if not entry.by then return true end
      end
   end
   return hook.is_used(self)
end

-- Calls forward. Wraps of the call replace this method in the instance.
function Module:_call(...) return private.call(self.forward, self, ...) end
private.note(Module._call)

function Module:__call(...) return private.call(self._call, self, ...) end

-- Calls fn(self, ...) as the call of this module, with its hooks and wraps, and returns its
-- results. It is for classes with a second way to be called, as models have by their loss.
function Module:as_call(fn, ...)
   return private.call(wrap.compose(wrap.list(self), fn), self, ...)
end

-- Notes, in a forward, on how many rows of data this module ran. 0: it had none, and did not run
-- or ran on a stand-in, to take part in the collectives of a sharded model. A step in which it ran
-- on no rows on any rank leaves its parameters as they are. Without gradients nothing is noted.
function Module:note_rows(rows)
   if not tide.is_grad_enabled() then return end
   spread.set(self, 'rows', (spread.of(self).rows or 0) + rows)
end

-- Computes the results of a call, module(...). Every class defines its own.
function Module:forward()
   err.raise('E_STATE', 'nn.' .. self.class_name, 'this module has no forward')
end

function Module:__tostring()
   local lines = {}
   self:walk(function(m, path)
      local depth = select(2, path:gsub('%.', '.')) + (path == '' and 0 or 1)
      local name = path:match '[^.]+$'
      local detail = m.detail and ' ' .. m:detail() or ''
      lines[#lines + 1] = ('   '):rep(depth) .. (name and name .. ': ' or '')
         .. m.class_name .. detail
   end)
   return table.concat(lines, '\n')
end

return signature.doors('nn.Module', Module, {
   apply = 'fn: function', get = 'path: string', train = 'on: boolean = true',
   init_weights = 'seed: integer >= 0', as_call = 'fn: function',
   note_rows = 'rows: integer >= 0',
})
