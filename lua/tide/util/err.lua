-- Structured errors for argument checks made in Lua.
--
-- Same form as the errors of the binding: a table {code, name, op, message, where} whose text is
-- "recipe.lua:12: tide.optim.adamw: argument 'lr': expected ..., got ... (E_ARG)". `where` is the
-- first Lua frame outside tide, so that the line shown is the caller's. Layer 8, no dependencies.

local each = require 'tide.util.each'
local near = require 'tide.util.near'

local err = {}

local names = {
   E_ARG = 'bad argument', E_SHAPE = 'shapes do not fit', E_IO = 'input or output failed',
   E_FORMAT = 'malformed data', E_STATE = 'not possible in this state',
}

local mt = {}
mt.__index = mt
function mt.__tostring(e)
   if e.brief then return e.op .. ': ' .. e.message .. ' (' .. e.code .. ')' end
   local at = e.where and e.where .. ': ' or ''
   return at .. 'tide.' .. e.op .. ': ' .. e.message .. ' (' .. e.code .. ')'
end
function mt.__concat(a, b) return tostring(a) .. tostring(b) end

-- True for an error raised in Lua by this file; tide.is_error knows those of the core as well.
function err.is(value) return getmetatable(value) == mt end

-- The folder that holds this library's files, as debug sources name it.
local root = debug.getinfo(1, 'S').source:match '^(.*)util/err%.lua$' or '@lua/tide/'

local function is_inside(source)
   return source:sub(1, #root) == root or source:find('tide/ffi/', 1, true)
end

-- File and line of the first frame that belongs to the caller of the library.
function err.where()
   for level = 3, 60 do
      local info = debug.getinfo(level, 'Sl')
      if not info then return nil end
      if info.what ~= 'C' and info.currentline > 0 and not is_inside(info.source) then
         return info.short_src .. ':' .. info.currentline
      end
   end
end

-- A short text for a value that did not fit.
function err.show(v)
   if type(v) == 'string' then
      return #v > 40 and ('%q...'):format(v:sub(1, 40)) or ('%q'):format(v)
   elseif type(v) == 'number' then
      return ('%.14g'):format(v)
   elseif type(v) == 'table' then
      return rawget(v, 'class_name') or 'a table'
   elseif type(v) == 'cdata' then
      return 'a ' .. (tostring(v):match '^[%a_][%w_]*' or 'cdata')
   end
   return tostring(v)
end

function err.raise(code, op, fmt, ...)
   local message = select('#', ...) > 0 and fmt:format(...) or fmt
   error(setmetatable({
      code = code, name = names[code] or code, op = op, message = message, where = err.where(),
   }, mt), 0)
end

-- ---- mistakes of people: one line, no stack trace --------------------------------------------

-- An error marked `brief` is told in one line. With TIDE_TRACEBACK=1 it says where it came from.
local function shorten(e)
   if e.brief then return e end
   e.brief = true
   if (os.getenv 'TIDE_TRACEBACK' or '') ~= '' then
      e.message = e.message .. debug.traceback('', 3):gsub('stack traceback:', 'raised from:')
   end
   return e
end

-- Refuses what was given on a command line: E_ARG in one line.
function err.usage(op, fmt, ...)
   local message = select('#', ...) > 0 and fmt:format(...) or fmt
   error(setmetatable(shorten { code = 'E_ARG', name = names.E_ARG, op = op, message = message },
      mt), 0)
end

-- Runs fn(...). An error with one of `codes` (a list) that it raises is a mistake of the person who
-- started the program, and told in one line.
function err.people(codes, fn, ...)
   local function mark(e)
      if type(e) == 'string' then return debug.traceback(e, 2) end
      if type(e) ~= 'table' or rawget(e, 'tide_exit') then return e end
      for _, code in ipairs(codes) do
         if rawget(e, 'code') == code then return shorten(e) end
      end
      return e
   end
   local n, given = select('#', ...), { ... }
   local r = { xpcall(function() return fn(unpack(given, 1, n)) end, mark) }
   if not r[1] then error(r[2], 0) end
   return unpack(r, 2, table.maxn(r))
end

function err.arg(op, name, expected, got)
   err.raise('E_ARG', op, "argument '%s': expected %s, got %s", name, expected, err.show(got))
end

-- The text of anything that was raised, also where its __tostring fails or gives none.
function err.text(e)
   local ok, text = pcall(tostring, e)
   if ok and type(text) == 'string' then return text end
   return ('(error value of type %s, whose __tostring %s)'):format(type(e),
      type(text) == 'string' and 'failed: ' .. text or 'failed')
end

local function fits(v, lo, hi)
   return (not lo or v >= lo) and (not hi or v <= hi)
end

local function range(kind, lo, hi)
   if lo and hi then return ('%s in [%g, %g]'):format(kind, lo, hi) end
   if lo then return ('%s >= %g'):format(kind, lo) end
   return kind
end

function err.integer(op, name, v, lo, hi)
   if type(v) ~= 'number' or v ~= math.floor(v) or math.abs(v) > 2^53 or not fits(v, lo, hi) then
      err.arg(op, name, range('an integer', lo, hi), v)
   end
   return v
end

function err.number(op, name, v, lo, hi)
   if type(v) ~= 'number' or v ~= v or math.abs(v) == math.huge or not fits(v, lo, hi) then
      err.arg(op, name, range('a finite number', lo, hi), v)
   end
   return v
end

function err.type(op, name, v, kind)
   if type(v) ~= kind then err.arg(op, name, 'a ' .. kind, v) end
   return v
end

-- A function, or what can be called like one.
function err.func(op, name, v)
   local meta = type(v) == 'table' and getmetatable(v)
   if type(v) ~= 'function' and not (type(meta) == 'table' and meta.__call) then
      err.arg(op, name, 'a function', v)
   end
   return v
end

-- A list of integers of at least lo (nil: any).
function err.integers(op, name, list, lo)
   for i, v in ipairs(err.type(op, name, list, 'table')) do
      err.integer(op, ('%s[%d]'):format(name, i), v, lo)
   end
   return list
end

-- Whether a value that a person gave is this word (or number, or boolean). A tensor is none, and
-- must not be compared: compiled by LuaJIT 2.1.0-beta3, `word == v` came out true although its __eq
-- says false.
function err.same(v, word) return type(v) == type(word) and v == word end

-- One of a list of names, or an error that offers the nearest.
function err.choice(op, name, v, list)
   for _, item in ipairs(list) do
      if err.same(v, item) then return v end
   end
   err.arg(op, name, 'one of ' .. table.concat(list, ', '), v)
end

-- Refuses keys of an option table that are not in `known` (a list), naming the nearest.
function err.options(op, opts, known)
   if type(opts) == 'nil' then return {} end          -- a null pointer equals nil
   err.type(op, 'options', opts, 'table')
   local set = {}
   for _, k in ipairs(known) do set[k] = true end
   for k in each(opts) do
      if not set[k] then
         err.raise('E_ARG', op, "unknown option '%s'%s", tostring(k),
            near.hint(tostring(k), known))
      end
   end
   return opts
end

return err
