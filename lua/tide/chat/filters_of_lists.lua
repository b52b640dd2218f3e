-- Filters of templates over sequences and dicts: fn(rt, v, args, kwargs).

local access = require 'tide.chat.access'
local bind = require 'tide.chat.bind'
local fault = require 'tide.chat.fault'
local methods = require 'tide.chat.methods'
local number = require 'tide.chat.number'
local show = require 'tide.chat.show'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local F = {}

-- Returns the parts of a dotted attribute: names, and ints for digits.
local function parts_of(attribute)
   if attribute == nil or attribute == value.none then return {} end
   local name = value.text(attribute)
   if not name then return { attribute } end
   local parts = {}
   for part in (name .. '.'):gmatch '(.-)%.' do
      parts[#parts + 1] = part:find '^%d+$' and tonumber(part) or part
   end
   return parts
end

-- Returns fn(item) -> its attribute. default: replaces an undefined attribute.
local function getter(rt, attribute, default)
   local parts = parts_of(attribute)
   if default == value.none then default = nil end
   return function(item)
      for _, part in ipairs(parts) do
         item = access.item(rt, item, part)
         if default ~= nil and value.is_undefined(item) then item = default end
      end
      return item
   end
end

-- Returns the sort key of a value: texts are lowered unless case_sensitive is set.
local function folded(v, case_sensitive)
   local s = not case_sensitive and value.text(v)
   return s and utf.lower(s) or v
end

-- Returns a sorted copy of a list (a stable merge sort), by the keys at the same places.
local function sorted(items, keys, reverse)
   local order = {}
   for i = 1, #items do order[i] = i end
   local function before(a, b)                        -- strictly, so that equal ones stay in order
      if reverse then return value.less(keys[b], keys[a]) end
      return value.less(keys[a], keys[b])
   end
   local width, n = 1, #order
   while width < n do
      local merged = {}
      for first = 1, n, 2 * width do
         local i, j = first, first + width
         local i_stop, j_stop = math.min(first + width, n + 1), math.min(first + 2 * width, n + 1)
         while i < i_stop or j < j_stop do
            local right = i >= i_stop or j < j_stop and before(order[j], order[i])
            if right then merged[#merged + 1], j = order[j], j + 1
            else merged[#merged + 1], i = order[i], i + 1 end
         end
      end
      order, width = merged, width * 2
   end
   local out = value.list()
   for i, at in ipairs(order) do out[i] = items[at] end
   return out
end

local function truth_of(v) return v ~= nil and value.truth(v) end

-- ---- order -------------------------------------------------------------------------------------

function F.sort(rt, v, args, kwargs)
   local reverse, case, attribute = bind.values('sort', args, kwargs,
      { 'reverse', 'case_sensitive', 'attribute' })
   local items, keys, getters = value.iterate(v), {}, {}
   local names = value.text(attribute)
   for name in ((names or '') .. ','):gmatch '(.-),' do
      getters[#getters + 1] = getter(rt, names and name or attribute)
   end
   for i, item in ipairs(items) do
      keys[i] = value.list()
      for k, get in ipairs(getters) do keys[i][k] = folded(get(item), truth_of(case)) end
   end
   return sorted(items, keys, truth_of(reverse))
end

function F.dictsort(_, v, args, kwargs)
   local case, by, reverse = bind.values('dictsort', args, kwargs,
      { 'case_sensitive', 'by', 'reverse' })
   if value.class(v) ~= value.Dict then
      fault.raise('dictsort takes a dict, got %s', value.type_name(v))
   end
   local at = by == nil and 1 or by == 'key' and 1 or by == 'value' and 2
      or fault.raise 'You can only sort by either "key" or "value"'
   local items, keys = methods.items(v), {}
   for i, pair in ipairs(items) do keys[i] = folded(pair[at], truth_of(case)) end
   return sorted(items, keys, truth_of(reverse))
end

function F.unique(rt, v, args, kwargs)
   local case, attribute = bind.values('unique', args, kwargs, { 'case_sensitive', 'attribute' })
   local get, seen, out = getter(rt, attribute), {}, {}
   for _, item in ipairs(value.iterate(v)) do
      local key = value.hash_key(folded(get(item), truth_of(case)))
      if not seen[key] then seen[key], out[#out + 1] = true, item end
   end
   return value.gen(out)
end

local function extreme(name, better)
   return function(rt, v, args, kwargs)
      local case, attribute = bind.values(name, args, kwargs, { 'case_sensitive', 'attribute' })
      local get, best, best_key = getter(rt, attribute), nil, nil
      for _, item in ipairs(value.iterate(v)) do
         local key = folded(get(item), truth_of(case))
         if best == nil or better(key, best_key) then best, best_key = item, key end
      end
      if best ~= nil then return best end
      return value.undefined 'No aggregated item, sequence was empty.'
   end
end

F.min = extreme('min', function(a, b) return value.less(a, b) end)
F.max = extreme('max', function(a, b) return value.less(b, a) end)

function F.reverse(_, v)
   local s = value.text(v)
   local items, out = value.iterate(v), {}
   for i = #items, 1, -1 do out[#out + 1] = items[i] end
   if s then return type(v) == 'string' and table.concat(out) or value.markup(table.concat(out)) end
   return value.gen(out)
end

-- ---- members -----------------------------------------------------------------------------------

function F.first(_, v)
   if value.class(v) == value.Gen then
      v.at = v.at + 1
      if v.at - 1 <= #v.list then return v.list[v.at - 1] end
   else
      local found = value.iterate(v)[1]
      if found ~= nil then return found end
   end
   return value.undefined 'No first item, sequence was empty.'
end

function F.last(_, v)
   if value.class(v) == value.Gen then fault.raise "'generator' object is not reversible" end
   local items = value.iterate(v)
   if #items > 0 then return items[#items] end
   return value.undefined 'No last item, sequence was empty.'
end

function F.list(_, v) return value.list(value.copied(value.iterate(v))) end

function F.items(_, v)
   if value.is_undefined(v) then return value.gen {} end
   if value.class(v) ~= value.Dict then fault.raise 'Can only get item pairs from a mapping.' end
   return value.gen(methods.items(v))
end

function F.join(rt, v, args, kwargs)
   local between, attribute = bind.values('join', args, kwargs, { 'd', 'attribute' })
   local sep, get, out = between and show.str(between) or '', getter(rt, attribute), {}
   local size = 0
   for i, item in ipairs(value.iterate(v)) do
      out[i] = show.str(get(item))
      size = size + #out[i] + #sep
      rt:room(size)
   end
   return table.concat(out, sep)
end

function F.sum(rt, v, args, kwargs)
   local attribute, start = bind.values('sum', args, kwargs, { 'attribute', 'start' })
   local get, total = getter(rt, attribute), start or 0
   for _, item in ipairs(value.iterate(v)) do
      total = number.binary(rt, '+', total, get(item))
   end
   return total
end

-- ---- batches and groups ------------------------------------------------------------------------

function F.batch(rt, v, args, kwargs)
   local n, fill = bind.values('batch', args, kwargs, { 'linecount', 'fill_with' }, 1)
   local out, row = {}, nil
   n = bind.integer('batch', 'linecount', n)
   for _, item in ipairs(value.iterate(v)) do
      if not row or #row == n then
         row = value.list()
         out[#out + 1] = row
      end
      row[#row + 1] = item
   end
   rt:spend(n)
   while row and fill ~= nil and fill ~= value.none and #row < n do row[#row + 1] = fill end
   return value.gen(out)
end

function F.slice(rt, v, args, kwargs)
   local n, fill = bind.values('slice', args, kwargs, { 'slices', 'fill_with' }, 1)
   local items, out, offset = value.iterate(v), {}, 0
   n = bind.integer('slice', 'slices', n)
   rt:spend(n)
   local each_has, extra = math.floor(#items / n), #items % n
   for k = 0, n - 1 do
      local start = offset + k * each_has
      if k < extra then offset = offset + 1 end
      local row = value.list()
      for i = start + 1, offset + (k + 1) * each_has do row[#row + 1] = items[i] end
      if fill ~= nil and fill ~= value.none and k >= extra then row[#row + 1] = fill end
      out[#out + 1] = row
   end
   return value.gen(out)
end

function F.groupby(rt, v, args, kwargs)
   local attribute, default, case = bind.values('groupby', args, kwargs,
      { 'attribute', 'default', 'case_sensitive' }, 1)
   local get, items, keys = getter(rt, attribute, default), value.iterate(v), {}
   for i, item in ipairs(items) do keys[i] = folded(get(item), truth_of(case)) end
   local out, last = value.list(), nil
   for _, item in ipairs(sorted(items, keys, false)) do
      local key = folded(get(item), truth_of(case))
      if last == nil or not value.equal(last, key) then
         out[#out + 1] = setmetatable({ get(item), value.list() }, value.Group)
         last = key
      end
      local group = out[#out][2]
      group[#group + 1] = item
   end
   return out
end

-- ---- map and select ----------------------------------------------------------------------------

local function rest_of(args, from)
   local out = {}
   for i = from, #args do out[#out + 1] = args[i] end
   return out
end

local function named(rows, name, what)
   local row = value.text(name) and rows[value.text(name)]
   if not row then fault.raise("there is no %s '%s'", what, show.str(name)) end
   return row
end

function F.map(rt, v, args, kwargs)
   local out, fn = {}
   if #args == 0 then
      local attribute, default = bind.values('map', args, kwargs, { 'attribute', 'default' })
      if attribute == nil then fault.raise 'map requires a filter argument' end
      fn = getter(rt, attribute, default)
   else
      local filter, more = named(rt.filters, args[1], 'filter'), rest_of(args, 2)
      fn = function(item) return filter(rt, item, more, kwargs) end
   end
   if not value.truth(v) then return value.gen(out) end
   for i, item in ipairs(value.iterate(v)) do out[i] = fn(item) end
   return value.gen(out)
end

-- Returns a filter that keeps items whose test result is `wanted`. by_attribute: tests the
-- attribute of an item that the first argument names.
local function selector(wanted, by_attribute)
   return function(rt, v, args, kwargs)
      local out, get, off = {}, getter(rt, nil), 0
      if not value.truth(v) then return value.gen(out) end
      if by_attribute then
         if args[1] == nil then fault.raise 'Missing parameter for attribute name' end
         get, off = getter(rt, args[1]), 1
      end
      local test = args[1 + off] ~= nil and named(rt.tests, args[1 + off], 'test')
      local more = rest_of(args, 2 + off)
      for _, item in ipairs(value.iterate(v)) do
         local x = get(item)
         local holds
         if test then holds = test(rt, x, more, kwargs) else holds = value.truth(x) end
         if holds == wanted then out[#out + 1] = item end
      end
      return value.gen(out)
   end
end

F.select, F.reject = selector(true, false), selector(false, false)
F.selectattr, F.rejectattr = selector(true, true), selector(false, true)

return F
