-- Functions that every template can call, and `self`.

local bind = require 'tide.chat.bind'
local each = require 'tide.util.each'
local fault = require 'tide.chat.fault'
local show = require 'tide.chat.show'
local value = require 'tide.chat.value'

local most = 100000                                   -- members of a range

local G = {}

local function range_bounds(args)
   local n = {}
   for i, v in ipairs(args) do
      n[i] = value.integer(v)
      if not n[i] then
         fault.raise('%s', value.is_undefined(v) and v.message
            or ("'%s' object cannot be interpreted as an integer"):format(value.type_name(v)))
      end
   end
   if #n == 1 then return 0, n[1], 1 end
   if #n < 2 or #n > 3 then fault.raise('range expected 1 to 3 arguments, got %d', #n) end
   return n[1], n[2], n[3] or 1
end

function G.range(_, args)
   local start, stop, step = range_bounds(args)
   if step == 0 then fault.raise 'range() arg 3 must not be zero' end
   local count = math.max(0, math.ceil((stop - start) / step))
   if count > most then
      fault.raise('a range of %.0f members is too big; at most %d', count, most)
   end
   local list = { start = start, stop = stop, step = step }
   for i = 1, count do list[i] = start + (i - 1) * step end
   return setmetatable(list, value.Range)
end

-- Fills a dict from dict(x, name = value): x is a dict or pairs.
local function fill(dict, args, kwargs)
   local from = args[1]
   if value.class(from) == value.Dict then
      for _, key in ipairs(from.keys) do dict:set(key, from:get(key)) end
   elseif from ~= nil then
      for _, pair in ipairs(value.iterate(from)) do
         local items = value.iterate(pair)
         if #items ~= 2 then fault.raise 'dict() takes pairs of a key and a value' end
         dict:set(items[1], items[2])
      end
   end
   for _, name in ipairs(kwargs and kwargs.names or {}) do dict:set(name, kwargs.map[name]) end
   return dict
end

function G.dict(_, args, kwargs) return fill(value.dict(), args, kwargs) end

-- Raises if a namespace must not have a field of this name.
local function check_field(name)
   if name:sub(1, 1) == '_' then
      fault.raise("a namespace has no fields that begin with '_', got '%s'", name)
   end
end

function G.namespace(_, args, kwargs)
   local fields = fill(value.dict(), args, kwargs)
   for _, name in ipairs(fields.keys) do check_field(show.str(name)) end
   return setmetatable({ fields = fields }, value.Namespace)
end

function G.raise_exception(_, args, kwargs)
   local message = bind.values('raise_exception', args, kwargs, { 'message' }, 1)
   fault.raise('the template refuses its input: %s', show.str(message))
end

function G.strftime_now(rt, args, kwargs)
   local form = bind.values('strftime_now', args, kwargs, { 'format' }, 1)
   return os.date(' ' .. show.str(form), rt.now):sub(2)
end

function G.joiner(_, args, kwargs)
   local sep, used = bind.values('joiner', args, kwargs, { 'sep' }), false
   return value.callable('joiner', function()
      if used then return sep or ', ' end
      used = true
      return ''
   end)
end

-- The cycler object of Jinja: next(), current, reset().
local Cycler = { type_name = 'Cycler' }

-- Returns an attribute of a cycler, or nil.
function Cycler.attribute(v, name)
   if name == 'current' then return v.items[v.at] end
   if name == 'next' then
      return value.callable('next', function()
         local item = v.items[v.at]
         v.at = v.at % #v.items + 1
         return item
      end)
   elseif name == 'reset' then
      return value.callable('reset', function()
         v.at = 1
         return value.none
      end)
   end
end

function G.cycler(_, args)
   if #args == 0 then fault.raise 'at least one item has to be provided' end
   return setmetatable({ items = args, at = 1 }, Cycler)
end

-- The blocks of a template by name.
local Self = { type_name = 'jinja2.runtime.TemplateReference' }

-- Returns no attribute: the subset has no blocks.
function Self.attribute() return nil end

local globals = { table = { self = setmetatable({}, Self) }, check_field = check_field }
for name, fn in each(G) do globals.table[name] = value.callable(name, fn) end

return globals
