-- Doors: functions in front of others that check their arguments by a declaration (see
-- tide.util.signature, which reads declarations and has the checks).
--
-- A door has the parameters of its function. Its declaration is read, and its check compiled, when
-- it is first called or asked for, because a program calls few of the doors that it loads.

-- Not compiled, like the checks that they call: see bindings/README.md.
jit.off(true, true)

local compile = require 'tide.compile'
local each = require 'tide.util.each'

local M = {}

-- Errors never name a place in the checks.
local chunk = debug.getinfo(1, 'S').source

-- Returns the names of the parameters of a function, and these as a text, with '...' if there may
-- be more.
local function parameters(fn)
   local list, info = {}, debug.getinfo(fn, 'u')
   for i = 1, info.nparams do list[i] = debug.getlocal(fn, i) end
   local text = table.concat(list, ', ')
   if info.isvararg then text = text == '' and '...' or text .. ', ...' end
   return list, text
end

-- _all: the arguments so far, for bounds and defaults that name one; nil if a single row needs
-- none.
local row_code = '%s = _read(_rows[%d], _op, %s, _all)\n'
local code = 'local _fn, _read, _rows, _op, _options, _hold, _before = ...\nreturn function(%s)\n'
   .. 'local _all = %s\n'
   .. '%sreturn _fn(%s)\nend'

-- Returns a function with the parameters of door.of that checks the arguments of rows, and calls
-- it.
local function checked(door, read, hold)
   local names, list = parameters(door.of)
   local related = #door.args.where > 0
   local place, lines, several = {}, {}, #door.args > 1 or door.read ~= nil or related
      or door.args[1] ~= nil and door.args[1].kind:find('self', 1, true) ~= nil
   for i, name in ipairs(names) do place[name] = i end
   if door.before then
      local rest = table.concat(names, ', ', 2)
      lines[1] = ('%s = _before(_op, %s)\n'):format(rest, rest)
   end
   if place.self and several then lines[#lines + 1] = '_all.self = self\n' end
   for i, row in ipairs(door.args) do
      local name = row.name
      if not place[name] then error(('signature: %s has no %s'):format(door.op, name)) end
      lines[#lines + 1] = row_code:format(name, i, name)
      if several then lines[#lines + 1] = ('_all.%s = %s\n'):format(name, name) end
   end
   if door.read then
      local last = place.opts and 'opts' or names[#names]
      lines[#lines + 1] = ('%s = _options(_op, %s, _all)\n'):format(last, last)
   end
   if related then lines[#lines + 1] = '_hold(_rows.where, _op, _all)\n' end
   local text = code:format(list, several and '{}' or 'nil', table.concat(lines), list)
   return compile(text, chunk)(door.of, read, door.args, door.op, door.read, hold, door.before)
end

-- Returns a maker of functions with these parameters that call the check of a door.
local function maker_of(list)
   local text = 'local _door = ...\nreturn function(%s) return _door.check(%s) end'
   return compile(text:format(list, list), chunk)
end

-- Returns { put, of, all }, described in tide.util.signature. rows(given): the rows of a text or
-- list; options(given): a reader of options and their rows; read: checks one argument; hold:
-- raises unless relations hold.
function M.with(rows, options, read, hold)
   local doors, by_function, makers = {}, setmetatable({}, { __mode = 'k' }), {}

   -- Adds what the declaration says: args, opts, read and check.
   local function open(door)
      local said = door.said
      local parts = { op = door.op, of = door.of, before = said.before, args = rows(said[1]) }
      if said.opts then parts.read, parts.opts = options(said.opts) end
      parts.check = checked(parts, read, hold)
      setmetatable(door, nil)
      for key, value in each(parts) do door[key] = value end
      door.said = nil
   end

   local closed = { __index = function(door, key)
      open(door)
      return door[key]
   end }

   local function put(op, owner, given)
      for name, said in each(given) do
         said = type(said) == 'table' and said or { said }
         local door = setmetatable({ op = said.op or name == 'init' and op or op .. '.' .. name,
            of = rawget(owner, name), said = said }, closed)
         local _, list = parameters(door.of)
         makers[list] = makers[list] or maker_of(list)
         door.fn = makers[list](door)
         rawset(owner, name, door.fn)
         doors[door.op], by_function[door.fn] = door, door
      end
      return owner
   end

   return { put = put, of = function(fn) return by_function[fn] end,
      all = function() return doors end }
end

return M
