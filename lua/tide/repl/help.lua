-- Help on a name: the comment above the function's definition, its parameters, or a table's names.
--
-- Doc comments in the sources are the only place where help is written; without the source file
-- (a library packed into a program) parameters and place are still shown.

local each = require 'tide.util.each'
local instead = require 'tide.ffi.instead'

local help = {}

local function read_lines(path)
   local f = io.open(path, 'rb')
   if not f then return nil end
   local lines = {}
   for line in f:lines() do lines[#lines + 1] = line end
   f:close()
   return lines
end

-- The comment lines directly above a line, without their dashes.
function help.comment_above(lines, at)
   local found = {}
   local i = at - 1
   while i >= 1 and lines[i]:match '^%s*%-%-' do
      if lines[i]:match '^%s*%-%- %-%-%-' then break end      -- a section rule
      table.insert(found, 1, (lines[i]:gsub('^%s*%-%-%s?', '')))
      i = i - 1
   end
   return found
end

-- "name(a, b, ...)" from the debug information; self is not written where it is called.
function help.signature(name, fn)
   local info, list = debug.getinfo(fn, 'Su'), {}
   if info.what == 'C' then return name .. '(...)' end
   for i = 1, info.nparams or 0 do
      local param = debug.getlocal(fn, i)
      if i > 1 or param ~= 'self' then list[#list + 1] = param end
   end
   if info.isvararg then list[#list + 1] = '...' end
   return name .. '(' .. table.concat(list, ', ') .. ')'
end

local function about_function(name, fn)
   local out = { help.signature(name, fn) }
   local info = debug.getinfo(fn, 'S')
   local path = info.source:match '^@(.*)$'
   local lines = path and read_lines(path)
   if lines then
      for _, line in ipairs(help.comment_above(lines, info.linedefined)) do
         out[#out + 1] = '   ' .. line
      end
      out[#out + 1] = ('   (%s:%d)'):format(info.short_src, info.linedefined)
   end
   return table.concat(out, '\n')
end

-- Names of a table, of what it loads lazily, and of the class it belongs to; sorted.
function help.names(t)
   local seen, list = {}, {}
   local function add(source)
      for k in each(source) do
         if type(k) == 'string' and not seen[k] and not k:match '^_' then
            seen[k] = true
            list[#list + 1] = k
         end
      end
   end
   for _ = 1, 16 do
      add(t)
      local mt = getmetatable(t)
      if type(mt) ~= 'table' then break end
      if type(mt.entries) == 'table' then add(mt.entries) end
      if type(mt.__index) ~= 'table' or mt.__index == t then break end
      t = mt.__index
   end
   table.sort(list)
   return list
end

-- What calling a table does: the constructor of a class, the `calls` of a metatable; or nil.
local function called(t)
   local mt = getmetatable(t)
   if rawget(t, 'class_name') and type(t.init) == 'function' then return t.init end
   return type(mt) == 'table' and type(mt.calls) == 'function' and mt.calls or nil
end

local function about_table(name, t)
   local out = { name .. ':' }
   local line = '  '
   for _, k in ipairs(help.names(t)) do
      if #line + #k > 90 then
         out[#out + 1], line = line, '  '
      end
      line = line .. ' ' .. k
   end
   out[#out + 1] = line
   if called(t) then table.insert(out, 2, about_function(name, called(t))) end
   return table.concat(out, '\n')
end

help.intro = [[
tide: tensors, gradients, models, training.
   x = tide.randn{2, 3}     a statement runs, an expression prints; ';' at the end silences
   ?tide.matmul             help on a name, as help(tide.matmul); ?tide.nn lists a table
   help                     this text (?tide lists what there is)
   Tab completes names, Ctrl-C drops the line, exit, quit or Ctrl-D leave]]

-- name: what followed the question mark; value: what it stands for, nil if nothing.
function help.text(name, value)
   if name == '' then return help.intro end
   if type(value) == 'function' then return about_function(name, value) end
   if type(value) == 'table' then return about_table(name, value) end
   if value == nil then
      local other = instead[name:match '[^%.:]*$']
      return ("no '%s' here%s"):format(name, other and '; instead: ' .. other or '')
   end
   return name .. ' = ' .. tostring(value)
end

return help
