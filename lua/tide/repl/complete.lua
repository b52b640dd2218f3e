-- Completion at a place of a line: names, fields, methods, options of a call, commands, files. It
-- reads fields and calls nothing.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local help = require 'tide.repl.help'
local signature = require 'tide.util.signature'

local complete = {}

local keywords = { 'and', 'break', 'do', 'else', 'elseif', 'end', 'false', 'for', 'function', 'if',
   'in', 'local', 'nil', 'not', 'or', 'repeat', 'return', 'then', 'true', 'until', 'while' }

local function tensor_names()
   local ok, op = pcall(require, 'tide.ffi.op')
   return ok and help.names(op) or {}
end

-- Returns the names below a value: table fields, or the methods of a tensor.
local function names_of(value)
   if type(value) == 'table' then return help.names(value) end
   if type(value) == 'cdata' then return tensor_names() end
   return {}
end

-- Returns base .. name for the names of a list that begin with stem, each once and sorted.
local function beginning(list, stem, base)
   local seen, found = {}, {}
   for _, name in ipairs(list) do
      if name:sub(1, #stem) == stem and not seen[name] then
         seen[name] = true
         found[#found + 1] = base .. name
      end
   end
   table.sort(found)
   return found
end

-- ---- files -----------------------------------------------------------------------------------

-- Returns the completions of the file name at the end of a text; folders end with a slash.
local function files(word)
   local folder, stem = word:match '^(.*/)([^/]*)$'
   folder, stem = folder or '', stem or word
   local home = os.getenv 'HOME'
   local place = folder:gsub('^~/', home and home .. '/' or '~/')
   local ok, list = pcall(fs.list, 'repl.complete', place ~= '' and place or '.')
   if not ok then return {}, word end
   local named = {}
   for _, name in ipairs(list) do
      if stem ~= '' or name:sub(1, 1) ~= '.' then
         named[#named + 1] = name .. (fs.is_dir(fs.join(place ~= '' and place or '.', name))
            and '/' or '')
      end
   end
   return beginning(named, stem, folder), word
end

-- Returns the text of a quoted string that is open at the end of `before`; nil outside of strings.
local function open_string(before)
   local quote, from = nil, nil
   local i = 1
   while i <= #before do
      local c = before:sub(i, i)
      if c == '\\' then i = i + 1
      elseif quote and c == quote then quote = nil
      elseif not quote and (c == '"' or c == "'") then quote, from = c, i + 1
      elseif not quote and before:find('^%-%-', i) then break end
      i = i + 1
   end
   return quote and before:sub(from) or nil
end

-- ---- options of calls ------------------------------------------------------------------------

-- Returns the names of the options of the call around the end of `before`: "f { a = 1, b",
-- "f(x, { b"; nil if there is no such call.
local function options(env, before)
   local name = before:match '([%a_][%w_%.:]*)%s*{[^{}()]*$'
      or before:match '([%a_][%w_%.:]*)%s*%([^()]*{[^{}()]*$'
   local stem = before:match '[{,;]%s*([%w_]*)$'
   local fn = name and stem and help.value_of(env, name)
   if type(fn) == 'table' then
      local mt = getmetatable(fn)
      fn = rawget(fn, 'class_name') and fn.init or type(mt) == 'table' and mt.calls or fn.new
   end
   local door = type(fn) == 'function' and signature.of(fn)
   if not door or not door.opts then return nil end
   local list = {}
   for _, row in ipairs(door.opts) do list[#list + 1] = row.name end
   list = beginning(list, stem, '')
   for i, option in ipairs(list) do list[i] = option .. ' = ' end
   return #list > 0 and list or nil, stem
end

-- ---- all -------------------------------------------------------------------------------------

local function names(env, word)
   local base, mark, stem = word:match '^(.*)([%.:])([%w_]*)$'
   if base then return beginning(names_of(help.value_of(env, base)), stem, base .. mark), word end
   local list = help.names(env)
   for _, k in ipairs(help.names(_G)) do list[#list + 1] = k end
   for _, k in ipairs(keywords) do list[#list + 1] = k end
   return beginning(list, word, ''), word
end

-- Returns the completions of the end of `before`, the line up to the place: full replacements of
-- its last word, sorted, and that word. After a blank they are options, commands and files only.
function complete.matches(env, before)
   err.type('repl.complete.matches', 'env', env, 'table')
   err.type('repl.complete.matches', 'before', before, 'string')
   local started = before:match '^%s*:(%a*)$'
   if started then
      return beginning(require('tide.repl.command').beginnings(), started, ''), started
   end
   local file = before:match '^%s*:[sl]%a+%s+(%S*)$' or before:match '^%s*:plot%s.*%sto%s+(%S*)$'
      or open_string(before)
   if file then return files(file) end
   local list, stem = options(env, before)
   if list then return list, stem end
   local word = before:match '[%w_%.:]*$'
   if word == '' and not before:match '%S$' then return {}, '' end
   return names(env, word)
end

return complete
