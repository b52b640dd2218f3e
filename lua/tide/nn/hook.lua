-- Ordered lists of hooks with removable handles.
--
-- Hooks run in the order they were added. Adding or removing while the list runs takes effect at
-- the next run, so a hook may remove itself. A handle's remove may be called any number of times.
-- Backward hooks ride on identity functions whose backward runs them.

local tide = require 'tide'
local err = require 'tide.util.err'
local pack = require 'tide.ffi.pack'

local hook = {}

local List = {}
List.__index = List

-- An empty list of hooks.
function hook.list() return setmetatable({ items = {} }, List) end

-- opts: first (before those that are there), by (the part of the library that adds it; nil: the
-- user), needs_inputs (of a backward hook: only where an input carries a gradient).
function List:add(op, fn, opts)
   err.type(op, 'fn', fn, 'function')
   opts = err.options(op, opts, { 'first', 'by', 'needs_inputs' })
   local items = {}
   for i, entry in ipairs(self.items) do items[i] = entry end
   local entry = { fn = fn, by = opts.by, needs_inputs = opts.needs_inputs }
   table.insert(items, opts.first and 1 or #items + 1, entry)
   self.items = items
   return {
      remove = function()
         local kept = {}
         for _, e in ipairs(self.items) do
            if e ~= entry then kept[#kept + 1] = e end
         end
         self.items = kept
      end,
   }
end

-- Number of hooks.
function List:count() return #self.items end

-- Whether the user has added one.
function List:is_used()
   for _, entry in ipairs(self.items) do
      if not entry.by then return true end
   end
   return false
end

-- Runs fn(module, values...) of every entry; results that are not nil replace the values.
function List:run(module, values)
   for _, entry in ipairs(self.items) do
      local r = pack(entry.fn(module, unpack(values, 1, values.n)))
      if r.n > 0 and r[1] ~= nil then values = r end
   end
   return values
end

-- Runs fn(module, inputs, outputs...), both packed lists.
function List:run_after(module, inputs, outputs)
   for _, entry in ipairs(self.items) do
      local r = pack(entry.fn(module, inputs, unpack(outputs, 1, outputs.n)))
      if r.n > 0 and r[1] ~= nil then outputs = r end
   end
   return outputs
end

-- ---- a call with hooks --------------------------------------------------------------------------

local function is_tracked(v) return type(v) == 'cdata' and v.requires_grad end

-- Passes the tracked tensors of a packed list through an identity whose backward runs the hooks.
local function through(module, hooks, values)
   local at, tensors = {}, {}
   for i = 1, values.n do
      if is_tracked(values[i]) then
         at[#at + 1], tensors[#tensors + 1] = i, values[i]
      end
   end
   if #at == 0 then return values end
   local identity = tide.grad.func {
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

-- What stands for the backward hooks of a module that no gradient leaves (its inputs are ids): they
-- run when the gradients of its outputs are there, with none, as in PyTorch.
local function without_inputs(hooks)
   local list = {}
   for _, entry in ipairs(hooks.items) do
      if not entry.needs_inputs then list[#list + 1] = entry end
   end
   if #list == 0 then return nil end
   return { run = function(_, module, dy)
      for _, entry in ipairs(list) do
         if entry.fn(module) ~= nil then
            err.raise('E_STATE', 'nn.Module.hook_backward', 'no input of this %s carries a '
               .. 'gradient that the hook could replace; it must return nothing', module.class_name)
         end
      end
      return dy
   end }
end

-- What fn(module, ...) returns, with the module's hooks around it. inputs: a packed list.
function hook.call(self, fn, inputs)
   err.type('nn.hook.call', 'self', self, 'table')
   err.type('nn.hook.call', 'inputs', inputs, 'table')
   local recording, behind = tide.is_grad_enabled(), nil
   if active(self._pre) then inputs = self._pre:run(self, inputs) end
   if recording and active(self._bwd) then
      if has_tracked(inputs) then
         inputs = through(self, self._bwd, inputs)
      else
         behind = without_inputs(self._bwd)
      end
   end
   local outputs = pack(fn(self, unpack(inputs, 1, inputs.n)))
   if active(self._post) then outputs = self._post:run_after(self, inputs, outputs) end
   if behind then outputs = through(self, behind, outputs) end
   if recording and active(self._bwd_pre) then outputs = through(self, self._bwd_pre, outputs) end
   return unpack(outputs, 1, outputs.n)
end

return hook
