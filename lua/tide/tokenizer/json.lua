-- Reads JSON files for the tokenizer: null becomes nil.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local each = require 'tide.util.each'

local json = {}

local op = 'tokenizer.load'

-- Returns t without the fields whose value is null.
local function without_null(value, null)
   for key, v in each(value) do
      if v == null then value[key] = nil
      elseif type(v) == 'table' and key ~= 'vocab' and key ~= 'merges' then
         without_null(v, null)
      end
   end
   return value
end

-- Returns the value of a file.
function json.read(path, limit)
   local decode = fs.io().json
   local ok, value = pcall(decode.decode, fs.read(op, path), { name = path, limit = limit })
   if not ok then
      local e = err.of(value) or error(value, 0)
      err.raise(e.code, op, '%s', e.message)
   end
   err.raise_if(type(value) ~= 'table', 'E_FORMAT', op, '%s is no object', path)
   return without_null(value, decode.null)
end

return json
