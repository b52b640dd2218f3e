-- Help on a name: the comment above the function's definition, its parameters, or a table's names.
--
-- Help is taken from doc comments in the sources and from the declarations of functions
-- (util.signature). Without the source file (a library packed into a program) it shows parameters,
-- declarations and place.

local each = require 'tide.util.each'
local edit = require 'tide.ffi.edit'
local instead = require 'tide.ffi.instead'
local near = require 'tide.util.near'
local signature = require 'tide.util.signature'

local help = {}

local function read_lines(path)
   local f = io.open(path, 'rb')
   if not f then return nil end
   local lines = {}
   for line in f:lines() do lines[#lines + 1] = line end
   f:close()
   return lines
end

-- Returns the value of a dotted name below a value, or nil, and the table in which the last part
-- was looked up. Only fields are followed.
function help.value_of(value, path)
   local place
   for name in path:gmatch '[^%.:]+' do
      local ok, inner = pcall(function() return value[name] end)
      place, value = value, ok and inner or nil
      if value == nil then break end
   end
   return value, place
end

-- Returns the comment lines directly above a line, without their dashes.
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

-- Returns the names of the parameters, from the debug information, without self; and whether more
-- may follow.
function help.parameters(fn)
   local info, list = debug.getinfo(fn, 'u'), {}
   for i = 1, info.nparams do
      local param = debug.getlocal(fn, i)
      if i > 1 or param ~= 'self' then list[#list + 1] = param end
   end
   return list, info.isvararg
end

-- Returns "name(a, b, ...)".
function help.signature(name, fn)
   local list, more = help.parameters(fn)
   if more then list[#list + 1] = '...' end
   return name .. '(' .. table.concat(list, ', ') .. ')'
end

-- Returns the comment above a function (the one that its door calls), and "file:line"; nothing
-- without the source.
function help.comment(fn)
   local door = signature.of(fn)
   local info = debug.getinfo(door and door.of or fn, 'S')
   local path = info.source:match '^@(.*)$'
   local lines = path and read_lines(path)
   if not lines then return {} end
   return help.comment_above(lines, info.linedefined),
      ('%s:%d'):format(info.short_src, info.linedefined)
end

local function about_row(row, prefix)
   return ('      %s%s: %s%s%s%s'):format(prefix, row.name, row.kind, row.optional and '?' or '',
      row.shown and ' = ' .. row.shown or '', row.meaning and '  ' .. row.meaning or '')
end

local function about_function(name, fn)
   local out, door = { help.signature(name, fn) }, signature.of(fn)
   local comment, place = help.comment(fn)
   for _, line in ipairs(comment) do out[#out + 1] = '   ' .. line end
   for _, row in ipairs(door and door.args or {}) do out[#out + 1] = about_row(row, '') end
   for _, row in ipairs(door and door.opts or {}) do out[#out + 1] = about_row(row, 'opts.') end
   if place then out[#out + 1] = '   (' .. place .. ')' end
   return table.concat(out, '\n')
end

-- Returns the names of a table, of what it loads lazily, and of the class it belongs to; sorted.
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

-- Returns what calling a table does: the constructor of a class, the `calls` of a metatable; or
-- nil.
local function called(t)
   local mt = getmetatable(t)
   if rawget(t, 'class_name') and type(t.init) == 'function' then return t.init end
   return type(mt) == 'table' and type(mt.calls) == 'function' and mt.calls or nil
end

-- Columns for what the prompt prints.
help.columns = edit.width

-- Returns the names of a table in lines, which fit the terminal.
function help.listing(t)
   local out, line, most = {}, '  ', math.min(help.columns(), 100) - 1
   for _, k in ipairs(help.names(t)) do
      if #line + 1 + #k > most then out[#out + 1], line = line, '  ' end
      line = line .. ' ' .. k
   end
   out[#out + 1] = line
   return table.concat(out, '\n')
end

local function about_table(name, t)
   local out = { name .. ':', help.listing(t) }
   if called(t) then table.insert(out, 2, about_function(name, called(t))) end
   return table.concat(out, '\n')
end

help.intro = [[
tide: tensors, gradients, models, training.
   x = tide.randn{2, 3}  statements run, expressions print; a last ';' hides
   ?tide.matmul          help on a name, or help(tide.matmul); ?tide.nn too
   ?tide, ?x:sum         what there is; what a method of a value does
   :help                 the commands: :time, :mem, :plot, :save, :mesh, ...
   %0 x, %0,2-3 x        with several ranks: a line on some of them
   Tab completes names, Ctrl-R searches earlier lines, Ctrl-C stops what runs;
   exit, quit or Ctrl-D leave]]

-- Returns the help on a name. value: its value or nil; known: the names among which it was looked
-- up.
function help.text(name, value, known)
   if name == '' then return help.intro end
   if type(value) == 'function' then return about_function(name, value) end
   if type(value) == 'table' then return about_table(name, value) end
   if value == nil then
      local base, last = name:match '^(.-)([^%.:]*)$'
      local found = known and near.best(last, known)
      local other = instead[last] and '; instead: ' .. instead[last]
         or found and ("; did you mean '%s'?"):format(base .. found)
      return ("no '%s' here%s"):format(name, other or '')
   end
   return name .. ' = ' .. tostring(value)
end

return help
