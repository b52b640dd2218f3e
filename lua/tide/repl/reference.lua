-- The text of lua/guide/reference.md and of the type annotations for editors.
--
-- Both cover what `require 'tide'` reaches: names and parameters of functions, the comments
-- above them, and the signatures that they declare (util.signature). `make reference` writes the
-- page, and the build writes the annotations into build/types.

local tide = require 'tide'
local each = require 'tide.util.each'
local help = require 'tide.repl.help'
local signature = require 'tide.util.signature'

local reference = {}

-- ---- finding ---------------------------------------------------------------------------------

local function is_class(t) return rawget(t, 'class_name') ~= nil and type(t.new) == 'function' end

local function is_public(name) return type(name) == 'string' and name:find '^%a' ~= nil end

-- Returns the names of a table and of what it loads late, in order.
local function names_of(t)
   local list, seen, mt = {}, {}, getmetatable(t)
   local late = type(mt) == 'table' and type(mt.entries) == 'table' and mt.entries or {}
   for _, from in ipairs { t, late } do
      for name in each(from) do
         if is_public(name) and not seen[name] then seen[name], list[#list + 1] = true, name end
      end
   end
   table.sort(list)
   return list
end

-- Fields of classes of models that describe a family to the library.
local inner = { family = true, form = true }

-- Adds an entry { name, fn, is_class } for every function and class that t reaches.
local function walk(list, seen, t, path)
   if seen[t] then return end
   seen[t] = path
   if is_class(t) then
      list[#list + 1] = { name = path, fn = t.init, is_class = true }
      seen[t.init or t] = path
   end
   for _, name in ipairs(names_of(t)) do
      local v = rawget(t, name)
      if v == nil and not is_class(t) then v = t[name] end
      local inside = type(v) == 'table' and name ~= 'super'
         and not (is_class(t) and (is_class(v) or inner[name]))
      if inside and (path ~= 'tide' or name ~= 'default') then
         walk(list, seen, v, path .. '.' .. name)
      elseif type(v) == 'function' and not seen[v] and not (is_class(t) and name == 'new') then
         seen[v] = path
         list[#list + 1] = { name = path .. (is_class(t) and ':' or '.') .. name, fn = v }
      end
   end
end

-- Returns all functions that the library makes public, by name; and methods of tensors.
function reference.entries()
   local list, seen = {}, {}
   walk(list, seen, tide, 'tide')
   local methods = require('tide.ffi.lib').state.methods
   for _, name in ipairs(names_of(methods)) do
      list[#list + 1] = { name = 'tide.Tensor:' .. name, fn = methods[name], is_method = true }
   end
   local known = {}
   for _, entry in ipairs(list) do known[entry.name:gsub(':', '.')] = true end
   for op, door in each(signature.all()) do
      local name = 'tide.' .. op
      if not seen[door.fn] and not known[name] then
         list[#list + 1] = { name = name, fn = door.fn }
      end
   end
   for _, entry in ipairs(list) do entry.part = entry.name:match '^tide%.(%w+)[%.:]' or 'tide' end
   table.sort(list, function(a, b)
      if a.part ~= b.part then return a.part < b.part end
      return a.name < b.name
   end)
   return list
end

-- Returns the parameters of an entry. The first one of a tensor's method is the tensor itself.
local function parameters(entry)
   local list, more = {}, true
   if entry.fn then list, more = help.parameters(entry.fn) end
   if entry.is_method then table.remove(list, 1) end
   if more then list[#list + 1] = '...' end
   return list
end

-- ---- the reference ---------------------------------------------------------------------------

local function count(text, set) return select(2, text:gsub(set, '')) end

-- Returns the first sentence of the comment above a function: up to a full stop or a semicolon that
-- is neither inside brackets nor part of '..', or up to a colon before an example.
local function meaning(fn)
   local text = table.concat(help.comment(fn), ' ')
   for last in (text .. ' '):gmatch '()[%.;:]%s' do
      local head, mark = text:sub(1, last - 1), text:sub(last, last)
      local ends = mark ~= ':' and head:sub(-1) ~= '.' or text:find('^:   ', last)
      if ends and count(head, '[%(%[{]') == count(head, '[%)%]}]') then return head .. '.' end
   end
   return text
end

local function row_text(row, prefix)
   local text = ('`%s%s: %s%s`'):format(prefix, row.name, row.kind .. (row.optional and '?' or ''),
      row.shown and ' = ' .. row.shown or '')
   return text .. (row.meaning and ' ' .. row.meaning or '')
end

local function line_of(entry)
   local parts, door = {}, entry.fn and signature.of(entry.fn)
   for _, row in ipairs(door and door.args or {}) do parts[#parts + 1] = row_text(row, '') end
   for _, row in ipairs(door and door.opts or {}) do parts[#parts + 1] = row_text(row, '.') end
   return ('- `%s(%s)` %s%s'):format(entry.name, table.concat(parameters(entry), ', '),
      entry.fn and meaning(entry.fn) or '',
      #parts > 0 and ' Takes ' .. table.concat(parts, '; ') .. '.' or '')
end

local head = [[
# Reference

This page lists every public function: its parameters, the first sentence of its comment, and the
types that it declares. `.name` is an option, `name: type?` may be left out, and `= value` is the
default. `?tide.nn.Linear` at the prompt shows the whole comment. `make reference` writes this page.
]]

-- Returns the text of lua/guide/reference.md.
function reference.guide()
   local lines, section = { head }, nil
   for _, entry in ipairs(reference.entries()) do
      if entry.part ~= section then
         lines[#lines + 1] = (section and '\n' or '') .. '## ' .. entry.part .. '\n'
         section = entry.part
      end
      lines[#lines + 1] = (line_of(entry):gsub('%s+$', ''))
   end
   return table.concat(lines, '\n') .. '\n'
end

-- ---- annotations -----------------------------------------------------------------------------

local function field(row)
   local _, annotation = signature.type_text(row)
   return ('%s%s: %s'):format(row.name, (row.optional or row.shown) and '?' or '', annotation)
end

-- Returns the lines of an entry: ---@param for what it declares, and an empty function.
local function annotated(entry)
   local lines, params = {}, parameters(entry)
   local door, by_name = signature.of(entry.fn), {}
   for _, row in ipairs(door and door.args or {}) do by_name[row.name] = row end
   for _, name in ipairs(params) do
      local row = by_name[name]
      if row then
         local _, annotation = signature.type_text(row)
         lines[#lines + 1] = ('---@param %s%s %s'):format(name,
            (row.optional or row.shown) and '?' or '', annotation)
      end
   end
   if door and door.opts then
      local fields = {}
      for i, row in ipairs(door.opts) do fields[i] = field(row) end
      lines[#lines + 1] = ('---@param %s? { %s }'):format(params[#params],
         table.concat(fields, ', '))
   end
   local name = entry.is_class and entry.name .. '.new' or entry.name
   lines[#lines + 1] = ('function %s(%s) end'):format(name, table.concat(params, ', '))
   return table.concat(lines, '\n')
end

-- Returns the text of the annotations.
function reference.types()
   local lines = { '---@meta',
      '-- Made from the declarations of the library: lua/tide/repl/reference.lua.', '',
      'tide = { Tensor = {} }', '---@class tide.Tensor', '' }
   local made = { tide = true, ['tide.Tensor'] = true }
   for _, entry in ipairs(reference.entries()) do
      local owner = entry.is_class and entry.name or entry.name:match '^(.*)[%.:]'
      local path
      for part in owner:gmatch '[^%.]+' do
         path = path and path .. '.' .. part or part
         if not made[path] then
            made[path] = true
            if entry.is_class and path == owner then lines[#lines + 1] = '---@class ' .. path end
            lines[#lines + 1] = path .. ' = {}'
         end
      end
      if entry.fn then lines[#lines + 1] = annotated(entry) end
   end
   return table.concat(lines, '\n') .. '\n'
end

return reference
