-- Hooks as in PyTorch, on one wrap around the call of a module.
--
-- Hooks run in the order they were added. Adding or removing while the list runs takes effect at
-- the next run, so a hook may remove itself. A handle's remove may be called any number of times.
-- Backward hooks run in the backward of identity functions.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local pack = require 'tide.ffi.pack'
local wrap = require 'tide.nn.wrap'

local hook = {}

local List = {}
List.__index = List

-- Returns whether the user has added one.
function List:is_used()
   for _, entry in ipairs(self.items) do
      if not entry.by then return true end
   end
   return false
end

-- Keeps the values that a hook of the user sees, since it may store them.
local function show(entry, values)
   if not entry.by then private.keep(unpack(values, 1, values.n)) end
end

-- Returns the values after a hook that returned `new`: `old`, where it returned nothing. Raises
-- where a number, a text or a flag is in place of a tensor.
local function replaced(module, old, new)
   if new.n == 0 or new[1] == nil then return old end
   local kind = type(new[1])
   if type(old[1]) == 'cdata' and kind ~= 'cdata' and kind ~= 'table' then
      err.raise('E_ARG', 'nn.' .. module.class_name, 'a hook returned %s instead of a tensor; it '
         .. 'must return new values for those that it got, or nothing', err.show(new[1]))
   end
   return new
end

-- Runs fn(module, values...) of every entry, or fn(module, inputs, values...) after a call; inputs
-- and values are packed lists. Results that are not nil replace the values.
function List:run(module, values, inputs)
   for _, entry in ipairs(self.items) do
      if inputs then show(entry, inputs) end
      show(entry, values)
      local r
      if inputs then
         r = pack(private.apart(entry.fn, module, inputs, unpack(values, 1, values.n)))
      else
         r = pack(private.apart(entry.fn, module, unpack(values, 1, values.n)))
      end
      show(entry, r)
      values = replaced(module, values, r)
   end
   return values
end

-- ---- a call with hooks --------------------------------------------------------------------------

local function is_tracked(v) return type(v) == 'cdata' and v.requires_grad end

-- Returns whether one of a packed list of values is v itself.
local function has(values, v)
   for i = 1, values.n do
      if rawequal(values[i], v) then return true end
   end
   return false
end

-- Frees the tensors of `made` that are in neither of the other packed lists.
local function spend_others(made, some, others)
   for i = 1, made.n do
      if not has(some, made[i]) and not has(others, made[i]) then private.spend(made[i]) end
   end
end

-- Passes the tracked tensors of a packed list through an identity whose backward runs the hooks.
local function through(module, hooks, values)
   local at, tensors = {}, {}
   for i = 1, values.n do
      if is_tracked(values[i]) then at[#at + 1], tensors[#tensors + 1] = i, values[i] end
   end
   if #at == 0 then return values end
   local func = hooks:is_used() and tide.grad.func or private.relay
   local identity = func {
      name = 'hook',
      forward = function(_, ...) return ... end,
      backward = function(_, ...)
         local dx = hooks:run(module, pack(...))
         return unpack(dx, 1, dx.n)
      end,
   }
   local copy = { n = values.n, unpack(values, 1, values.n) }
   local out = pack(identity(unpack(tensors)))
   for i, k in ipairs(at) do copy[k] = out[i] end
   return copy
end

local function active(list) return list ~= nil and #list.items > 0 end

local function has_tracked(values)
   for i = 1, values.n do
      if is_tracked(values[i]) then return true end
   end
   return false
end

-- Returns hooks that run the backward hooks of a module without gradients of inputs (its inputs are
-- ids), when the gradients of its outputs exist; they get no gradients, as in PyTorch.
local function without_inputs(hooks)
   local list = {}
   for _, entry in ipairs(hooks.items) do
      if not entry.needs_inputs then list[#list + 1] = entry end
   end
   if #list == 0 then return nil end
   return { is_used = function() return hooks:is_used() end, run = function(_, module, dy)
      for _, entry in ipairs(list) do
         err.raise_if(private.apart(entry.fn, module) ~= nil, 'E_STATE', 'nn.Module.hook_backward',
            'no input of this %s carries a gradient that the hook could replace; it must return '
            .. 'nothing', module.class_name)
      end
      return dy
   end }
end

-- Returns the results of fn(self, ...), with the hooks of the module around it.
local function run(fn, self, ...)
   local lists, inputs = self._hooks, pack(...)
   local recording, given, behind = tide.is_grad_enabled(), inputs, nil
   if active(lists.pre) then inputs = lists.pre:run(self, inputs) end
   if recording and active(lists.backward) then
      if has_tracked(inputs) then
         inputs = through(self, lists.backward, inputs)
      else
         behind = without_inputs(lists.backward)
      end
   end
   local outputs = pack(fn(self, unpack(inputs, 1, inputs.n)))
   local made = outputs
   if active(lists.post) then outputs = lists.post:run(self, outputs, inputs) end
   if behind then outputs = through(self, behind, outputs) end
   if recording and active(lists.backward_pre) then
      outputs = through(self, lists.backward_pre, outputs)
   end
   spend_others(inputs, given, outputs)
   spend_others(made, given, outputs)
   return unpack(outputs, 1, outputs.n)
end

-- ---- adding -----------------------------------------------------------------------------------

local function without(items, entry)
   local kept = {}
   for _, e in ipairs(items) do
      if e ~= entry then kept[#kept + 1] = e end
   end
   return kept
end

local function total(lists)
   local n = 0
   for _, list in each(lists) do n = n + #list.items end
   return n
end

-- Adds a hook to a module; returns its handle. kind: 'pre', 'post', 'backward_pre', 'backward'.
-- opts: first (before the existing ones), by (the part of the library that adds it; nil: the user),
-- needs_inputs (of a backward hook: only where an input carries a gradient).
function hook.add(module, kind, op, fn, opts)
   err.type(op, 'fn', fn, 'function')
   opts = err.options(op, opts, { 'first', 'by', 'needs_inputs' })
   local lists = rawget(module, '_hooks') or {}
   local list = lists[kind] or setmetatable({ items = {} }, List)
   rawset(module, '_hooks', lists)
   lists[kind] = list
   if total(lists) == 0 then
      wrap.add(module, 'hooks', run, { order = wrap.order.hooks, by = 'hooks' })
   end
   local entry = { fn = fn, by = opts.by, needs_inputs = opts.needs_inputs }
   local items = without(list.items)
   table.insert(items, opts.first and 1 or #items + 1, entry)
   list.items = items
   return { remove = function()
      list.items = without(list.items, entry)
      if total(lists) == 0 then wrap.drop(module, 'hooks') end
   end }
end

-- Returns the number of hooks of a kind.
function hook.count(module, kind)
   local lists = rawget(module, '_hooks')
   return lists and lists[kind] and #lists[kind].items or 0
end

-- Returns whether the module has a hook of the user.
function hook.is_used(module)
   for _, list in each(rawget(module, '_hooks') or {}) do
      if list:is_used() then return true end
   end
   return false
end

return hook
