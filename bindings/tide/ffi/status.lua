-- Errors: a status from C, or a bad argument found in Lua, becomes one kind of Lua error (layer 7).
--
-- The one idea: what is raised is a table {code, name, op, message, where} whose text reads
-- "recipe.lua:12: tide.matmul: message (E_SHAPE)". `where` is the first Lua frame that is not part
-- of tide, i.e. the line a person can change.
--
-- code is the name of the status ('E_SHAPE'), status its number, name a short text for it.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local each = pairs -- by another name: see "two faults" in bindings/README.md
local C = lib.C

local M = {}

-- Source prefixes of tide's own files. Frames inside them are never reported as the place.
lib.state.roots = lib.state.roots or {}
local roots = lib.state.roots

-- Declares the folder of a file (given by its debug source, "@.../tide/init.lua") as tide's own.
function M.add_root(source)
   local folder = source:match('^(@.*/)[^/]*$')
   if folder then roots[folder] = true end
end
M.add_root(debug.getinfo(1, 'S').source)

local function is_own(source)
   for folder in each(roots) do
      if source:sub(1, #folder) == folder then return true end
   end
   return false
end

-- "file:line" of the innermost frame outside tide, or nil if there is none.
local function find_place()
   for level = 3, 200 do
      local info = debug.getinfo(level, 'Sl')
      if not info then return nil end
      if info.currentline > 0 and not is_own(info.source) then
         return info.short_src .. ':' .. info.currentline
      end
   end
end

local Error = lib.state.Error or {}
lib.state.Error = Error
Error.__index = Error
Error.__tostring = function(e)
   return (e.where and e.where .. ': ' or '') .. 'tide.' .. e.op .. ': ' .. e.message
      .. ' (' .. e.code .. ')'
end
Error.__concat = function(a, b) return tostring(a) .. tostring(b) end

-- A structured error object; status is a negative number, op the name without "tide.".
function M.new(status, op, message)
   return setmetatable({
      status = status, code = ffi.string(C.tide_status_name(status)),
      name = ffi.string(C.tide_status_text(status)),
      op = op, message = message, where = find_place(),
   }, Error)
end

function M.is_error(value) return getmetatable(value) == Error end

-- Raises an error found in Lua; the message may be a format with arguments.
function M.raise(status, op, message, ...)
   if select('#', ...) > 0 then message = message:format(...) end
   error(M.new(status, op, message), 0)
end

-- Raises E_ARG for an argument: "argument 'dim': expected ..., got ...".
function M.bad_arg(op, arg, expected, value)
   M.raise(C.TIDE_E_ARG, op, "argument '%s': expected %s, got %s", arg, expected, M.show(value))
end

local function show_cdata(v)
   if ffi.istype('tide_tensor *', v) then
      if v == nil then return 'a null tensor' end
      local dims = {}
      for i = 1, C.tide_tensor_ndim(v) do
         dims[i] = tostring(tonumber(C.tide_tensor_dim(v, i - 1)))
      end
      return ('a tensor [%s] of %s'):format(table.concat(dims, ', '),
         ffi.string(C.tide_dtype_name(C.tide_tensor_dtype(v))))
   end
   return 'foreign cdata (' .. tostring(ffi.typeof(v)) .. ')'
end

-- Short text for any Lua value in a message.
function M.show(v)
   local kind = type(v)
   if kind == 'cdata' then return show_cdata(v) end
   if kind == 'string' then
      return #v > 40 and ('string %q...'):format(v:sub(1, 40)) or ('string %q'):format(v)
   end
   if kind == 'number' then return ('%.14g'):format(v) end
   if kind == 'boolean' or kind == 'nil' then return tostring(v) end
   return 'a ' .. kind
end

-- What whoever drops bytes on purpose can tell about a tensor that an E_GONE speaks of: text by
-- tensor id, from tables that must be kept by their owners (see M.tell_gone).
local tellers = setmetatable({}, { __mode = 'k' })

-- owner: a table whose life is that of the knowledge. fn(owner, id): a text, or nil.
function M.tell_gone(owner, fn) tellers[owner] = fn end

local function about_gone(message)
   local id = tonumber(message:match '%(tensor (%d+)')
   for owner, fn in each(tellers) do
      local text = id and fn(owner, id)
      if text then return '; ' .. text end
   end
   return ''
end

-- Raises what the context's record says about a call that returned the status rc.
function M.fail(ctx, rc, extra)
   local record = C.tide_error(ctx)
   local op, message = 'call', ffi.string(C.tide_status_text(rc))
   if record ~= nil and record.code == rc then
      if record.op ~= nil then op = ffi.string(record.op) end
      if record.message ~= nil then message = ffi.string(record.message) end
   end
   if rc == C.TIDE_E_GONE then message = message .. about_gone(message) end
   error(M.new(rc, op, message .. (extra or '')), 0)
end

-- Status names and numbers both ways: code.E_SHAPE == -2, code[-2] == 'E_SHAPE'.
M.code = {}
for status = 1, -64, -1 do
   local name = ffi.string(C.tide_status_name(status))
   if name ~= 'E_UNKNOWN' then
      M.code[name], M.code[status] = status, name
   end
end

return M
