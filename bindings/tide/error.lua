-- The errors that calls into C and checks in Lua raise, in one form, and these checks.
--
-- An error is a table {code, status, name, op, message, where} whose text reads "recipe.lua:12:
-- tide.matmul: message (E_SHAPE)". code is the name of the status ('E_SHAPE'), status its number,
-- name a short text for it, op the function without "tide.", and `where` the first Lua frame
-- outside tide, i.e. a line that the user can change.
--
-- Plain Lua, without FFI: the binding and the library raise through it, and so does code that runs
-- before libtide is loaded.

local near = require 'tide.near'
local pack = require 'tide.ffi.pack'
local each = pairs -- by another name: see "faults" in bindings/README.md

local err = {}

-- Survives a reload of this file: the metatable, by which errors are recognised, the roots, the
-- form in which this Lua state raises errors, and the last error that it raised as text.
local registry = debug.getregistry()
local state = registry['tide.error'] or { mt = {}, roots = {} }
registry['tide.error'] = state

-- ---- statuses --------------------------------------------------------------------------------

-- The rows of core/base/status.def from E_ARG, which is -1, on; spec/meta/abi_spec.lua compares.
local rows = {
   { 'E_ARG', 'an argument has a value it cannot have; the message names it' },
   { 'E_SHAPE', 'shapes do not fit; the message holds them' },
   { 'E_DTYPE', 'the dtype is wrong here; cast first' },
   { 'E_DEVICE', 'operands are on different devices, or the device cannot be used' },
   { 'E_NOMEM', 'out of memory; release tensors, use smaller batches or recompute' },
   { 'E_UNSUPPORTED', 'this build or device cannot do it; the message says what can' },
   { 'E_GONE', "the tensor's bytes were dropped (scope end, explicit drop, reshard)" },
   { 'E_STATE', 'the call does not fit what happened before' },
   { 'E_IO', 'the system refused a file operation; the message holds path and reason' },
   { 'E_FORMAT', 'a file is not what it claims to be; nothing was loaded' },
   { 'E_COMM', 'ranks disagree about a collective; both sides are in the message' },
   { 'E_TIMEOUT', 'ranks did not arrive in time; the message names them' },
   { 'E_PEER', 'another rank failed first; its message is the cause' },
   { 'E_HOST', 'host code is needed to go on, or it failed' },
   { 'E_INTERNAL', 'a bug in tide; please report the message' },
   { 'E_INTERRUPT', 'interrupted on request' },
}

-- Names and numbers both ways, code.E_SHAPE == -2 and code[-2] == 'E_SHAPE'; texts by name.
err.code, err.name = { OK = 0, MORE = 1, [0] = 'OK', 'MORE' }, {}
for i, row in ipairs(rows) do
   err.code[row[1]], err.code[-i], err.name[row[1]] = -i, row[1], row[2]
end

-- ---- the object ------------------------------------------------------------------------------

local mt = state.mt
mt.__index = mt
function mt.__tostring(e)
   if e.brief then return e.op .. ': ' .. e.message .. ' (' .. e.code .. ')' end
   local at = e.where and e.where .. ': ' or ''
   return at .. 'tide.' .. e.op .. ': ' .. e.message .. ' (' .. e.code .. ')'
end
function mt.__concat(a, b) return tostring(a) .. tostring(b) end

-- Returns whether a value is an error of tide, raised by C or in Lua.
function err.is(value) return getmetatable(value) == mt end

-- Declares the folder of a file (given by its debug source, "@.../tide/init.lua") as tide's own:
-- frames of files below it are never shown as the place of an error.
function err.add_root(source)
   local folder = source:match '^(@.*/)[^/]*$'
   if folder then state.roots[folder] = true end
end
err.add_root(debug.getinfo(1, 'S').source)

local function is_inside(source)
   for folder in each(state.roots) do
      if source:sub(1, #folder) == folder then return true end
   end
   return false
end

-- Functions of C and of tide, whose frames no error names. To look where a function was made takes
-- ten times as long as to look here.
local passed = setmetatable({}, { __mode = 'k' })

-- Returns "file:line" of the innermost frame that belongs to the caller of the library, or nil.
function err.where()
   for level = 2, 200 do
      local frame = debug.getinfo(level, 'f')
      if not frame then return nil end
      local fn = frame.func
      if not passed[fn] then
         local info = debug.getinfo(level, 'Sl')
         if info.currentline > 0 and not is_inside(info.source) then
            return info.short_src .. ':' .. info.currentline
         end
         passed[fn] = true
      end
   end
end

-- Returns a text for a foreign value (cdata). The binding, which knows tensors, replaces it.
function err.show_cdata() return 'cdata' end

-- Describes a table: a class, "a Linear" for an object of one, or "a table".
local function table_text(v)
   local meta = getmetatable(v)
   local name = type(meta) == 'table' and (rawget(meta, 'class_name') or rawget(meta, '__name'))
   if rawget(v, 'class_name') or type(name) ~= 'string' then
      return rawget(v, 'class_name') or 'a table'
   end
   return (name:find '^[AEIOU]' and 'an ' or 'a ') .. name
end

-- Returns a text in quotes, in one line.
local function quoted(text) return (('%q'):format(text):gsub('\\\n', '\\n')) end

-- Returns a short text for a value that did not fit.
function err.show(v)
   local kind = type(v)
   if kind == 'string' then
      return #v > 40 and quoted(v:sub(1, 40)) .. '...' or quoted(v)
   elseif kind == 'number' then
      return ('%.14g'):format(v)
   elseif kind == 'table' then
      return table_text(v)
   elseif kind == 'cdata' then
      return err.show_cdata(v)
   elseif kind == 'boolean' or kind == 'nil' then
      return tostring(v)
   end
   return 'a ' .. kind
end

-- Shortens a long word of a message, as a damaged file may hold one, at whole characters.
local function short_word(word)
   return word:sub(1, 200):gsub('[\192-\255][\128-\191]*$', '') .. '[..]'
      .. word:sub(-40):gsub('^[\128-\191]+', '')
end

-- Returns a message as it can be printed: without control characters but for the ends of lines,
-- and with lines and words of bounded length.
local function printable(message)
   if type(message) ~= 'string' then return message end
   if message:find '[%z\1-\8\11-\31\127]' then
      message = message:gsub('[%z\1-\8\11-\31\127]', function(c)
         return ('\\%d'):format(c:byte())
      end)
   end
   if #message <= 400 then return message end
   message = message:gsub('%S+', function(word) return #word > 400 and short_word(word) or nil end)
   return (message:gsub('[^\n]+', function(line)
      if #line <= 4000 then return nil end
      return line:sub(1, 4000):gsub('[\192-\255][\128-\191]*$', '') .. '[..]'
   end))
end

-- Returns an error object, not raised. code: a name ('E_SHAPE') or a number; op: the function's
-- name without "tide.".
function err.new(code, op, message)
   local status = err.code[code]
   if type(code) == 'number' then code, status = status or 'E_UNKNOWN', code end
   return setmetatable({ code = code, status = status, name = err.name[code] or code, op = op,
      message = printable(message), where = err.where() }, mt)
end

-- Sets the form of the errors that tide raises in this Lua state from now on: 'object' (the
-- default), or 'text' for a host that reads errors by lua_tostring, which is null for a table.
-- Returns the form before.
function err.set_form(form)
   err.choice('set_error_form', 'form', form, { 'object', 'text' })
   local before = state.form or 'object'
   state.form = form
   return before
end

-- Raises an error object in the form of this Lua state; any other value as it is.
function err.throw(e)
   if state.form ~= 'text' or not err.is(e) then error(e, 0) end
   state.last = { text = tostring(e), object = e }
   error(state.last.text, 0)
end

-- Returns the error object of a value that pcall caught: the object itself, or the last one that
-- tide raised as text in this Lua state, if the caught text contains it (callers may add to it).
-- nil if tide did not raise it.
function err.of(caught)
   if err.is(caught) then return caught end
   local last = state.last
   if last and type(caught) == 'string' and caught:find(last.text, 1, true) then
      return last.object
   end
end

-- Raises an error object with a code; fmt is a format if there are values for it.
function err.raise(code, op, fmt, ...)
   err.throw(err.new(code, op, select('#', ...) > 0 and fmt:format(...) or fmt))
end

-- Raises if `failed` is true: err.raise_if(n % 2 ~= 0, 'E_ARG', op, '%d is odd', n). The values are
-- computed in any case.
function err.raise_if(failed, code, op, fmt, ...)
   if failed then err.raise(code, op, fmt, ...) end
end

-- ---- user errors: one line, no stack trace ---------------------------------------------------

-- Marks an error as `brief`: it is printed in one line. With TIDE_TRACEBACK=1 it keeps its
-- traceback.
local function shorten(e)
   if e.brief then return e end
   e.brief = true
   if (os.getenv 'TIDE_TRACEBACK' or '') ~= '' then
      e.message = e.message .. debug.traceback('', 3):gsub('stack traceback:', 'raised from:')
   end
   return e
end

-- Raises an error that is printed in one line, as err.raise does.
function err.brief(code, op, fmt, ...)
   local e = err.new(code, op, select('#', ...) > 0 and fmt:format(...) or fmt)
   e.where = nil
   err.throw(shorten(e))
end

-- Refuses an argument of a command line: E_ARG in one line.
function err.usage(op, fmt, ...) err.brief('E_ARG', op, fmt, ...) end

-- Refuses an argument as err.usage does, if `failed` is true.
function err.usage_if(failed, op, fmt, ...)
   if failed then err.usage(op, fmt, ...) end
end

-- Returns a caught error; a raw Lua error has the stack trace of where it was raised, once.
function err.traced(e)
   if type(e) ~= 'string' or err.of(e) or e:find('\nstack traceback:', 1, true) then return e end
   local text = debug.traceback(e, 2)             -- a tail call would leave out the innermost frame
   return text
end

-- Runs fn(...). An error with one of `codes` (a list) counts as a user error and is printed in one
-- line.
function err.people(codes, fn, ...)
   local function mark(e)
      e = err.of(e) or e
      if type(e) == 'string' then return err.traced(e) end
      if type(e) ~= 'table' or rawget(e, 'tide_exit') then return e end
      for _, code in ipairs(codes) do
         if rawget(e, 'code') == code then return shorten(e) end
      end
      return e
   end
   local given = pack(...)
   local r = pack(xpcall(function() return fn(unpack(given, 1, given.n)) end, mark))
   if not r[1] then err.throw(r[2]) end
   return unpack(r, 2, r.n)
end

-- Returns a table that was raised without a __tostring: its fields, as far as they are short.
local function fields_text(t)
   local list = {}
   for k, v in each(t) do list[#list + 1] = ('%s = %s'):format(tostring(k), err.show(v)) end
   table.sort(list)
   if #list > 8 then list[8] = ('%d more'):format(#list - 7) end
   return ('(error value of type table: { %s })'):format(table.concat(list, ', ', 1,
      math.min(#list, 8)))
end

-- Returns the text of anything that was raised, also where its __tostring fails or returns another
-- type.
function err.text(e)
   local meta = getmetatable(e)
   if type(e) == 'table' and (meta == nil or type(meta) == 'table' and not meta.__tostring) then
      return fields_text(e)
   end
   local ok, text = pcall(tostring, e)
   if ok and type(text) == 'string' then return text end
   return ('(error value of type %s, whose __tostring %s)'):format(type(e),
      type(text) == 'string' and 'failed: ' .. text or 'failed')
end

-- ---- checks of arguments: each returns the value, or raises E_ARG -----------------------------

-- Raises E_ARG for an argument; text describes the value, and is printed without quotes.
function err.arg_text(op, name, expected, text)
   err.raise('E_ARG', op, "argument '%s': expected %s, got %s", name, expected, text)
end

-- Raises E_ARG for an argument: "argument 'dim': expected ..., got ...".
function err.arg(op, name, expected, got) err.arg_text(op, name, expected, err.show(got)) end

-- Raises E_ARG as err.arg does, if `failed` is true.
function err.arg_if(failed, op, name, expected, got)
   if failed then err.arg(op, name, expected, got) end
end

-- Calls fn(...), a check of arguments, for data that were read. Returns nil and its result, or the
-- message of E_ARG and E_UNSUPPORTED as one about data: "field 'x': expected ..", without a field
-- where the argument has no name (''). Raises other errors again.
function err.problem(fn, ...)
   local ok, result = pcall(fn, ...)
   if ok then return nil, result end
   local e = err.of(result)
   if not e or e.code ~= 'E_ARG' and e.code ~= 'E_UNSUPPORTED' then error(result, 0) end
   return (e.message:gsub("^argument '': ", ''):gsub("^argument '", "field '"))
end

local of_machine = { E_NOMEM = true, E_DEVICE = true, E_INTERRUPT = true }

-- Returns what is wrong with data: the message of an error that was caught while they were read.
-- Raises the error again where it is about the machine: memory, a device, an interrupt.
function err.fault(caught)
   local e = err.of(caught)
   if e and of_machine[e.code] or caught == 'not enough memory' then error(caught, 0) end
   return e and e.message or err.text(caught)
end

local function fits(v, lo, hi) return (not lo or v >= lo) and (not hi or v <= hi) end

local function range(kind, lo, hi)
   if lo and hi then return ('%s in [%.14g, %.14g]'):format(kind, lo, hi) end
   if lo then return ('%s >= %.14g'):format(kind, lo) end
   if hi then return ('%s <= %.14g'):format(kind, hi) end
   return kind
end

-- Returns v if it is an integer that a Lua number holds exactly, in [lo, hi] if given.
function err.integer(op, name, v, lo, hi)
   if type(v) ~= 'number' or v ~= math.floor(v) or math.abs(v) > 2^53 or not fits(v, lo, hi) then
      err.arg(op, name, range('an integer', lo, hi), v)
   end
   return v
end

-- Returns whether a value is an integer >= 0 that a Lua number holds exactly.
function err.is_count(v) return type(v) == 'number' and v >= 0 and v % 1 == 0 and v < 2^53 end

-- Returns whether require(module) failed with e because there is no such module.
function err.is_missing_module(e, module)
   return tostring(e):find("module '" .. module .. "' not found", 1, true) ~= nil
end

-- Returns v if it is a number, neither infinite nor NaN, in [lo, hi] if given.
function err.number(op, name, v, lo, hi)
   if type(v) ~= 'number' or v ~= v or math.abs(v) == math.huge or not fits(v, lo, hi) then
      err.arg(op, name, range('a finite number', lo, hi), v)
   end
   return v
end

-- Returns v if it has this Lua type.
function err.type(op, name, v, kind)
   if type(v) ~= kind then err.arg(op, name, 'a ' .. kind, v) end
   return v
end

-- Returns v if it is a function, or a value that can be called like one.
function err.func(op, name, v)
   local meta = type(v) == 'table' and getmetatable(v)
   if type(v) ~= 'function' and not (type(meta) == 'table' and meta.__call) then
      err.arg(op, name, 'a function', v)
   end
   return v
end

-- Returns list if it holds integers of at least lo (nil: any).
function err.integers(op, name, list, lo)
   for i, v in ipairs(err.type(op, name, list, 'table')) do
      err.integer(op, ('%s[%d]'):format(name, i), v, lo)
   end
   return list
end

-- Returns whether a value is this word (or number, or boolean). A tensor is not, and must not be
-- compared: compiled by LuaJIT 2.1.0-beta3, `word == v` was true although its __eq returned false.
function err.same(v, word) return type(v) == type(word) and v == word end

-- Returns v if it is one of a list of names.
function err.choice(op, name, v, list)
   for _, item in ipairs(list) do
      if err.same(v, item) then return v end
   end
   err.arg(op, name, 'one of ' .. table.concat(list, ', '), v)
end

local function is_known(known, k)
   if type(k) ~= 'string' then return false end
   if known[k] == true then return true end
   for i = 1, #known do
      if known[i] == k then return true end
   end
   return false
end

local function unknown_option(op, k, known)
   local names = {}
   for key, v in each(known) do names[#names + 1] = v == true and key or v end
   table.sort(names)
   err.raise('E_ARG', op, "unknown option '%s'%s", k, near.hint(k, names))
end

-- Returns a table of options, whose keys are all in `known` (a list of names, or a set: name =
-- true); nil gives an empty one. The error for an unknown key suggests the nearest name. An object
-- (a communicator, a module) is refused by its kind.
function err.options(op, opts, known)
   if type(opts) == 'nil' then return {} end          -- a null pointer equals nil
   err.type(op, 'options', opts, 'table')
   local unknown
   for k in each(opts) do
      k = not is_known(known, k) and tostring(k)
      if k and (not unknown or k < unknown) then unknown = k end
   end
   if not unknown then return opts end
   if getmetatable(opts) then err.arg(op, 'options', 'a table { name = value }', opts) end
   unknown_option(op, unknown, known)
end

return err
