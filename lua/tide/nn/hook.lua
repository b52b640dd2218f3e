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

-- opts: first (before those that are there).
function List:add(op, fn, opts)
   err.type(op, 'fn', fn, 'function')
   opts = err.options(op, opts, { 'first' })
   local items = {}
   for i, entry in ipairs(self.items) do items[i] = entry end
   local entry = { fn = fn }
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

-- What calling a module does when it has hooks. inputs: a packed list.
function hook.call(self, inputs)
   err.type('nn.hook.call', 'self', self, 'table')
   err.type('nn.hook.call', 'inputs', inputs, 'table')
   local recording = tide.is_grad_enabled()
   if active(self._pre) then inputs = self._pre:run(self, inputs) end
   if recording and active(self._bwd) then inputs = through(self, self._bwd, inputs) end
   local outputs = pack(self:forward(unpack(inputs, 1, inputs.n)))
   if active(self._post) then outputs = self._post:run_after(self, inputs, outputs) end
   if recording and active(self._bwd_pre) then outputs = through(self, self._bwd_pre, outputs) end
   return unpack(outputs, 1, outputs.n)
end

return hook
