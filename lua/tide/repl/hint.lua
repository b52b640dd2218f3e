-- Adds to messages of LuaJIT at a prompt: the place of a syntax error, and the name that was
-- probably meant.

local err = require 'tide.util.err'
local help = require 'tide.repl.help'
local near = require 'tide.util.near'

local hint = {}

-- ---- syntax ----------------------------------------------------------------------------------

-- Signs that begin with one which is wrong by itself in their place.
local three = { ['...'] = true }
local two = { ['=='] = true, ['~='] = true, ['..'] = true, ['::'] = true }

-- Returns the end of a quoted string that begins at `at`.
local function string_end(source, at)
   local quote, i = source:sub(at, at), at + 1
   while i <= #source and source:sub(i, i) ~= quote and source:sub(i, i) ~= '\n' do
      i = i + (source:sub(i, i) == '\\' and 2 or 1)
   end
   return math.min(i, #source)
end

-- Returns the end of the token that begins at `at`.
local function token_end(source, at)
   local _, stop = source:find('^%-%-[^\n]*', at)
   local level = source:match('^%-?%-?%[(=*)%[', at)
   if level then
      _, stop = source:find(']' .. level .. ']', at)
      return stop or #source
   end
   if stop then return stop end
   _, stop = source:find('^[%a_\128-\255][%w_\128-\255]*', at)
   if not stop then _, stop = source:find('^%.?%d[%w%.]*', at) end
   if stop then return stop end
   if source:find('^["\']', at) then return string_end(source, at) end
   if three[source:sub(at, at + 2)] then return at + 2 end
   return two[source:sub(at, at + 1)] and at + 1 or at
end

-- Returns LuaJIT's message about a source that is wrong; nil if it is right or needs more.
local function wrong(source)
   local fn, message = loadstring(source, '=input')
   local wants = not fn and message:find "near '<eof>'"
   if fn or wants and not message:find 'unfinished string' then return nil end
   return message:match '^input:%d+: (.*)$' or message
end

-- Returns LuaJIT's message about a source, without its place, and the start of the token that it
-- does not accept; nil if it accepts everything or needs more lines. A beginning that is wrong
-- stays wrong with any continuation, so the token is found by halving.
local function first_wrong(source)
   local starts, stops, at = {}, {}, source:find '%S'
   while at do
      local stop = token_end(source, at)
      starts[#starts + 1], stops[#stops + 1] = at, stop
      at = source:find('%S', stop + 1)
   end
   local right, left = #starts, 0                    -- the first `left` tokens are right
   if right == 0 or not wrong(source:sub(1, stops[right])) then return nil end
   while right - left > 1 do
      local middle = math.floor((left + right) / 2)
      if wrong(source:sub(1, stops[middle])) then right = middle else left = middle end
   end
   return wrong(source:sub(1, stops[right])), starts[right]
end

-- Returns the columns that a text of UTF-8 takes: its characters.
local function columns(text) return select(2, text:gsub('[^\128-\191]', '')) end

-- Returns the message about a source that does not compile: line and column, the line, and a caret
-- below the token that is wrong, as an expression or as a statement, whichever goes further.
function hint.syntax(source, message)
   err.type('repl.hint.syntax', 'source', source, 'string')
   local said, at = first_wrong(source)
   local as_value, further = first_wrong('return ' .. source)
   if further and further - 7 > (at or 0) then said, at = as_value, further - 7 end
   if not at then return message end
   local before = source:sub(1, at - 1)
   local _, line = before:gsub('\n', '')
   local start = #before - #(before:match '^.*\n' or '')
   local text = source:sub(at - start):match '^[^\n]*'
   local column = columns(text:sub(1, start)) + 1
   return ('input:%d:%d: %s\n   %s\n   %s^'):format(line + 1, column, said, text,
      (' '):rep(column - 1))
end

-- ---- names -----------------------------------------------------------------------------------

local function nearest(name, value)
   if type(value) ~= 'table' then return nil end
   local best = near.best(name, help.names(value))
   return best ~= name and best or nil
end

-- Returns the name that was probably meant where LuaJIT found nil, for instance "m:forward"; nil
-- without one. source: the line that was run.
function hint.name(message, source, env)
   err.type('repl.hint.name', 'message', message, 'string')
   local kind, name = message:match "attempt to %a+ (%a+) '([%w_]+)' %(a nil value%)"
   if kind == 'global' then
      local list = help.names(env)
      for _, k in ipairs(help.names(_G)) do list[#list + 1] = k end
      return near.best(name, list)
   end
   if kind ~= 'field' and kind ~= 'method' then return nil end
   for base, mark in source:gmatch('([%a_][%w_%.]*)([%.:])' .. name .. '%f[^%w_]') do
      local best = nearest(name, help.value_of(env, base))
      if best then return base .. mark .. best end
   end
end

-- Returns the name of the session's table that lacks the method which LuaJIT did not find.
local function table_without(message, source, env)
   local name = message:match "attempt to call method '([%w_]+)' %(a nil value%)"
   local base = name and source:match('([%a_][%w_%.]*):' .. name .. '%f[^%w_]')
   return base and type(help.value_of(env, base)) == 'table' and base or nil
end

-- Returns a message of a line that failed, with the name that was probably meant.
function hint.error(message, source, env)
   if message:find('size of C type is unknown', 1, true) then
      return message:gsub('size of C type is unknown or too large',
         "tensors are not indexed by []: use x:select(dim, i), x:narrow(dim, first, n) or "
         .. 'x:tolist()')
   end
   local meant = hint.name(message, source, env)
   local place = not meant and table_without(message, source, env)
   if place then return ('%s; ?%s lists what it has'):format(message, place) end
   if not meant then return message end
   return (message:gsub('%(a nil value%)', function(text)
      return ("%s; did you mean '%s'?"):format(text, meant)
   end, 1))
end

return hint
