-- Functions around the calls of a module: ordered, named, removable.
--
-- A wrap is a function around the call module(...), or around a method of the class. Wraps are
-- composed when one is added or removed: a call runs one chain, and a module without wraps pays for
-- a field look-up. The chain of a method is a field of the instance under the method's name, so
-- self:method(...) runs it. The chain of the call is the field _call.

local err = require 'tide.util.err'
local private = require 'tide.util.private'

local wrap = {}

-- The orders of the library's wraps; a user's wrap has 0. A larger order is further outside.
wrap.order = { lora = -30, tp = -20, cp = -10, hooks = 10, recompute = 20, ranges = 30 }

local no_entries = {}

-- Returns the wraps around a method of a module ('call': its call), innermost first: { name, fn,
-- order, by }. The caller must not change the list.
function wrap.list(module, of)
   local all = rawget(module, '_wraps')
   return all and all[of or 'call'] or no_entries
end

-- Returns the entry of a name, or nil.
function wrap.find(module, name, of)
   for _, entry in ipairs(wrap.list(module, of)) do
      if entry.name == name then return entry end
   end
end

-- Returns fn as a function of the library: values that user code sees belong to the user from then
-- on.
local function sheltered(fn)
   if private.has(fn) then return fn end
   return private.note(function(self, ...) return private.call(fn, self, ...) end)
end

local function wrapped(entry, inner)
   local around = entry.fn
   if entry.by then return function(self, ...) return around(inner, self, ...) end end
   return function(self, ...) return private.call(around, inner, self, ...) end
end

-- Returns a function that calls fn(self, ...) inside the wraps of a list.
function wrap.compose(list, fn)
   if #list == 0 then return fn end
   fn = sheltered(fn)
   for _, entry in ipairs(list) do fn = private.note(wrapped(entry, fn)) end
   return fn
end

-- Replaces the list of a method and its chain.
local function set(module, of, list, base)
   local all = rawget(module, '_wraps') or { base = {} }
   if rawget(module, '_wraps') == nil then rawset(module, '_wraps', all) end
   local field = of == 'call' and '_call' or of
   if all[of] == nil then all.base[of] = rawget(module, field) or false end
   all[of] = #list > 0 and list or nil
   if #list == 0 then
      rawset(module, field, all.base[of] or nil)
      all.base[of] = nil
   else
      rawset(module, field, wrap.compose(list, base))
   end
end

-- Returns the innermost function of a method, which its wraps call.
function wrap.base(module, of)
   local all = rawget(module, '_wraps')
   local field = of == 'call' and '_call' or of
   if not (all and all[of]) then return module[field] end
   return all.base[of] or getmetatable(module)[field]
end

-- Adds fn(next, self, ...) around a method. opts: of, order, by.
function wrap.add(module, name, fn, opts)
   local of, order = opts.of or 'call', opts.order or 0
   local entry = { name = name, fn = fn, order = order, by = opts.by }
   local list, at = {}, 1
   for i, other in ipairs(wrap.list(module, of)) do
      list[i] = other
      if other.order <= order then at = i + 1 end
   end
   table.insert(list, at, entry)
   set(module, of, list, wrap.base(module, of))
   return entry
end

-- Removes an entry; idempotent.
function wrap.remove(module, entry, of)
   local list, found = {}, false
   for _, other in ipairs(wrap.list(module, of)) do
      if other == entry then found = true else list[#list + 1] = other end
   end
   if found then set(module, of or 'call', list, wrap.base(module, of or 'call')) end
end

-- Removes the entry of a name, if there is one.
function wrap.drop(module, name, of)
   local entry = wrap.find(module, name, of)
   if entry then wrap.remove(module, entry, of) end
end

-- Returns whether a method has wraps other than those named `but`.
function wrap.is_around(module, of, but)
   for _, entry in ipairs(wrap.list(module, of)) do
      if entry.name ~= but then return true end
   end
   return false
end

local known = { 'of', 'order', 'by' }

-- Returns the arguments of Module.wrap, checked. methods: the class whose methods are refused.
function wrap.check(op, module, name, opts, root)
   err.type(op, 'name', name, 'string')
   opts = err.options(op, opts, known)
   local of = opts.of or 'call'
   err.type(op, 'of', of, 'string')
   if opts.order ~= nil then err.number(op, 'order', opts.order) end
   local is_method = type(module[of]) == 'function' and (of == 'forward' or root[of] == nil)
   if of ~= 'call' and not is_method then
      err.arg(op, 'of', "'call', 'forward' or a method of " .. module.class_name, of)
   end
   if name == '' or wrap.find(module, name, of) then
      err.raise('E_ARG', op, name == '' and "argument 'name': expected a name, got ''"
         or "the wrap '%s' is around this %s already; remove it, or take another name", name, of)
   end
   return opts
end

return wrap
