-- Bounded text form of any Lua value: sorted keys, limited depth, width and number of entries.
--
-- For the read-eval-print loop, error messages and the resolved options of a run. Tables with a
-- __tostring print through it; tables met twice on the way down print as <cycle>. There are no
-- addresses of objects, which differ from rank to rank.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local pretty = {}

local function order(a, b)
   local ta, tb = type(a), type(b)
   if ta ~= tb then return ta == 'number' or (tb ~= 'number' and ta < tb) end
   if ta == 'number' or ta == 'string' then return a < b end
   return tostring(a) < tostring(b)
end

-- Returns the keys of a table in a fixed order: numbers first, then by type.
function pretty.sorted_keys(t)
   local keys = {}
   for k in each(err.type('util.pretty.sorted_keys', 't', t, 'table')) do keys[#keys + 1] = k end
   table.sort(keys, order)
   return keys
end

local function key_text(k, nlist)
   if type(k) == 'number' and k >= 1 and k <= nlist and k == math.floor(k) then return '' end
   if type(k) == 'string' and k:match '^[%a_][%w_]*$' then return k .. ' = ' end
   return '[' .. (type(k) == 'string' and ('%q'):format(k) or tostring(k)) .. '] = '
end

local function scalar(v)
   if type(v) == 'string' then
      return (('%q'):format(v):gsub('\\\n', '\\n'))
   elseif type(v) == 'number' then
      return v == math.floor(v) and math.abs(v) < 1e15 and ('%d'):format(v) or ('%.7g'):format(v)
   elseif type(v) == 'function' then
      local door = signature.of(v)
      local info = debug.getinfo(door and door.of or v, 'S')
      if info.what == 'C' then return '<function>' end
      return ('<function %s:%d>'):format(info.short_src, info.linedefined)
   end
   return tostring(v)
end

local function has_text(v)
   local mt = getmetatable(v)
   return type(mt) == 'table' and mt.__tostring ~= nil
end

local render

local function entries(t, state, depth)
   local list, shown = {}, 0
   local keys = pretty.sorted_keys(t)
   for _, k in ipairs(keys) do
      if shown == state.entries then
         list[#list + 1] = ('... %d more'):format(#keys - shown)
         break
      end
      shown = shown + 1
      list[#list + 1] = key_text(k, #t) .. render(t[k], state, depth + 1)
   end
   return list
end

local function render_table(t, state, depth)
   if has_text(t) then
      return (tostring(t):gsub('^([%a_][%w_]*): 0x%x+$', '<%1>'))   -- a class without a text
   end
   if state.seen[t] then return '<cycle>' end
   if next(t) == nil then return '{}' end
   if depth >= state.depth then return '{...}' end
   state.seen[t] = true
   local list = entries(t, state, depth)
   state.seen[t] = nil
   local line = '{ ' .. table.concat(list, ', ') .. ' }'
   if #line + 3 * depth <= state.width and not line:find('\n', 1, true) then return line end
   local pad = (' '):rep(3 * (depth + 1))
   return '{\n' .. pad .. table.concat(list, ',\n' .. pad) .. '\n' .. (' '):rep(3 * depth) .. '}'
end

function render(v, state, depth)
   if type(v) == 'table' then return render_table(v, state, depth) end
   return scalar(v)
end

-- Returns the text of a value.
function pretty.format(v, opts)
   opts.seen = {}
   return render(v, opts, 0)
end

return signature.doors('util.pretty', pretty, {
   format = { opts = {
      'depth: integer >= 0 = 4 -- levels of tables within tables',
      'entries: integer >= 0 = 40 -- entries of a table',
      'width: integer >= 0 = 96 -- characters of a line' } },
})
