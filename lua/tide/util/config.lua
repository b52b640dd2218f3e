-- Files of options: JSON, or Lua that returns a table. Data alone.
--
-- Lua runs in a sandbox: no globals, no methods of strings, no bytecode. It is stopped after a
-- million instructions, or when it has allocated 1 MiB. Its result is copied, and may hold texts,
-- numbers, booleans and tables of these, at most 100000 in all.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'

local config = {}

local most_instructions, most_kib, most_depth, most_values = 1e6, 1024, 16, 1e5

-- Raises inside the file when it exceeds a limit; called at each instruction.
local function guard()
   local count, base, over = 0, collectgarbage 'count', false
   local function stop(why)
      over = true                          -- the hook is called on the way out, too
      error(why, 0)
   end
   return function()
      if over then return end
      count = count + 1
      if count > most_instructions then stop 'it runs too long' end
      if collectgarbage 'count' - base > most_kib then stop 'it takes too much memory' end
   end
end

-- Returns the results of pcall(fn) under the limits. Methods of strings are out of reach meanwhile.
local function limited(fn)
   local strings = getmetatable ''
   local methods, hook, mask, n = strings.__index, debug.gethook()
   jit.off(fn, true)
   strings.__index = nil
   debug.sethook(guard(), '', 1)
   local ok, result = pcall(fn)
   debug.sethook(hook, mask, n)
   strings.__index = methods
   return ok, result
end

-- Returns a copy of plain data. where: its name in errors; count: { n }, the values so far. A table
-- that several places hold is copied for each, so few lines can describe any number of values.
local function plain(op, where, v, depth, count)
   count.n = count.n + 1
   err.usage_if(count.n > most_values, op, '%s: the file holds more than %d values', where,
      most_values)
   local kind = type(v)
   if kind == 'string' or kind == 'number' or kind == 'boolean' then return v end
   if kind ~= 'table' or v == fs.io().json.null then
      err.usage(op, '%s: expected a text, a number, a boolean or a table of these, got %s', where,
         kind == 'table' and 'null' or kind == 'cdata' and 'an integer beyond 2^53'
            or 'a ' .. kind)
   end
   err.usage_if(depth > most_depth, op, '%s: tables lie deeper than %d', where, most_depth)
   local copy = {}
   for k, item in each(v) do
      err.usage_if(type(k) ~= 'string' and type(k) ~= 'number', op, '%s: a key is a %s, expected '
         .. 'the name of an option', where, type(k))
      copy[k] = plain(op, where .. '.' .. tostring(k), item, depth + 1, count)
   end
   return copy
end

local function run_lua(op, path)
   local text = fs.read(op, path)
   err.usage_if(text:byte(1) == 27, op, '%s: it is bytecode; give Lua text', path)
   local fn, why = loadstring(text, '@' .. path)
   err.usage_if(not fn, op, '%s is no Lua: %s', path, tostring(why))
   local ok, result = limited(setfenv(fn, {}))
   err.usage_if(not ok, op, '%s: %s; a config holds data: return { lr = 1e-3, .. }', path,
      tostring(result))
   return result
end

-- Returns the table that a file holds. op: the program, in errors. E_ARG: another ending than .lua
-- or .json, or data that is not plain; E_IO, E_FORMAT.
function config.read(op, path)
   local ending = path:match '%.(%w+)$'
   err.usage_if(ending ~= 'lua' and ending ~= 'json', op, '--config %s: expected a file .lua or '
      .. '.json', path)
   local t = ending == 'lua' and run_lua(op, path) or ending == 'json' and fs.read_json(op, path)
   err.usage_if(type(t) ~= 'table', op, '--config %s: expected a table of options, got %s', path,
      err.show(t))
   local copy = plain(op, '--config ' .. path, t, 0, { n = 0 })
   err.usage_if(#copy > 0, op, '--config %s: expected options by name, got a list', path)
   return copy
end

return config
