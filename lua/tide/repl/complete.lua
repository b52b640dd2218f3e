-- Completion of dotted names in an environment. Looks, never calls: only fields are followed.

local help = require 'tide.repl.help'

local complete = {}

local keywords = { 'and', 'break', 'do', 'else', 'elseif', 'end', 'false', 'for', 'function', 'if',
   'in', 'local', 'nil', 'not', 'or', 'repeat', 'return', 'then', 'true', 'until', 'while' }

local function field(t, name)
   local ok, value = pcall(function() return t[name] end)
   if ok then return value end
end

-- Names below a value: table fields, or the methods of a tensor.
local function names_of(value, tensor_names)
   if type(value) == 'table' then return help.names(value) end
   if type(value) == 'cdata' then return tensor_names() end
   return {}
end

local function tensor_names()
   local ok, op = pcall(require, 'tide.ffi.op')
   return ok and help.names(op) or {}
end

-- Full replacements of `text` in env, sorted; nil inside an open string, where files are meant.
function complete.matches(env, text, line)
   local before = line:sub(1, #line - #text)
   local _, quotes = before:gsub('["\']', '')
   if quotes % 2 == 1 then return nil end
   local base, mark, stem = text:match '^(.*)([%.:])([%w_]*)$'
   local found, list = {}
   if base then
      local value = env
      for name in base:gmatch '[^%.:]+' do value = value ~= nil and field(value, name) or nil end
      list = names_of(value, tensor_names)
   else
      base, mark, stem = '', '', text
      list = help.names(env)
      for _, k in ipairs(help.names(_G)) do list[#list + 1] = k end
      for _, k in ipairs(keywords) do list[#list + 1] = k end
   end
   local seen = {}
   for _, name in ipairs(list) do
      if name:sub(1, #stem) == stem and not seen[name] then
         seen[name] = true
         found[#found + 1] = base .. mark .. name
      end
   end
   table.sort(found)
   return found
end

return complete
