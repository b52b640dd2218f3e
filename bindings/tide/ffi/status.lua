-- Errors of calls into C: a status becomes an error of tide/error.lua.
--
-- The record of a context holds more than the number that a call returned. This file also describes
-- tensors and statuses, which tide/error.lua cannot do without FFI.

local ffi = require 'ffi'
local errors = require 'tide.error'
local lib = require 'tide.ffi.lib'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {
   code = errors.code, new = errors.new, raise = errors.raise, bad_arg = errors.arg,
   show = errors.show, throw = errors.throw,
}

-- Returns a tensor with its shape and dtype, or the type of another cdata.
function errors.show_cdata(v)
   if ffi.istype('tide_tensor *', v) then
      if v == nil then return 'a null tensor' end
      if C.tide_tensor_ndim(v) < 0 then return 'a tensor that was released' end
      local dims = {}
      for i = 1, C.tide_tensor_ndim(v) do
         dims[i] = tostring(tonumber(C.tide_tensor_dim(v, i - 1)))
      end
      return ('a tensor [%s] of %s'):format(table.concat(dims, ', '),
         ffi.string(C.tide_dtype_name(C.tide_tensor_dtype(v))))
   end
   return 'foreign cdata (' .. tostring(ffi.typeof(v)) .. ')'
end

-- Explanations for an E_GONE of tensors whose bytes were dropped on purpose: text by tensor id,
-- from tables kept by their owners (see M.tell_gone).
local tellers = setmetatable({}, { __mode = 'k' })

-- Adds fn(owner, id), a text or nil, to an E_GONE of tensor `id` (its x.id). owner: a table, held
-- weakly: the explanation lives as long as it does.
function M.tell_gone(owner, fn)
   errors.type('tell_gone', 'owner', owner, 'table')
   tellers[owner] = errors.func('tell_gone', 'fn', fn)
end

local function about_gone(message)
   local id = tonumber(message:match '%(tensor (%d+)')
   for owner, fn in each(tellers) do
      local text = id and fn(owner, id)
      if text then return '; ' .. text end
   end
   return ''
end

-- Raises the error that the context has recorded for a call that returned the status rc. name: that
-- of the Lua function, if users would not recognise the recorded one.
function M.fail(ctx, rc, extra, name)
   local record = C.tide_error(ctx)
   local op, message = 'call', ffi.string(C.tide_status_text(rc))
   if record ~= nil and record.code == rc then
      if record.op ~= nil then op = ffi.string(record.op) end
      if record.message ~= nil then message = ffi.string(record.message) end
   end
   if rc == C.TIDE_E_GONE then message = message .. about_gone(message) end
   errors.throw(M.new(rc, name or op, message .. (extra or '')))
end

return M
