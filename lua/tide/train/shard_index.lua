-- shards.json, read with care: each tensor is a list of boxes in files, and the boxes tile it.
--
-- What it says is checked before a byte is loaded: types, ranges, and the layout. Boxes that
-- overlap, or leave a hole, would load as a mixture or as uninitialised memory.

local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local index = {}

local counts = 'integer[] >= 0'
signature.record('stored_box', 'a table', { 'file: string', 'name: string?', 'offset: ' .. counts,
   'size: ' .. counts, "where not file:find('/', 1, true) -- file: a name without '/'" })
signature.record('stored_tensor', 'a table', { 'shape: ' .. counts, 'pieces: stored_box[]',
   "dtype: 'f32' | 'f64' | 'bf16' | 'f16' | 'i32' | 'i64' | 'u8' | 'bool'" })

-- Returns what is wrong with a box of a tensor of this shape, or nil.
local function wrong_box(p, shape)
   if #p.offset ~= #shape or #p.size ~= #shape then
      return ('a piece of %d dims at %d, where the tensor has %d'):format(#p.size, #p.offset,
         #shape)
   end
   for d = 1, #shape do
      if p.offset[d] + p.size[d] > shape[d] then
         return ('a piece at %s of %s, outside %s'):format(dims.text(p.offset), dims.text(p.size),
            dims.text(shape))
      end
   end
end

-- Returns what is wrong with how boxes lie in a tensor, or nil. Boxes go by their first row; each
-- is compared with those before it that reach into its rows.
local function wrong_layout(pieces, shape)
   local sorted, open, sum = {}, {}, 0
   for i, p in ipairs(pieces) do sorted[i], sum = p, sum + dims.numel(p.size) end
   if #shape > 0 then table.sort(sorted, function(a, b) return a.offset[1] < b.offset[1] end) end
   for _, p in ipairs(sorted) do
      local still = {}
      for _, q in ipairs(open) do
         if dims.overlap(p, q) then
            return ('pieces that overlap, at %s in %s and at %s in %s'):format(dims.text(q.offset),
               q.file, dims.text(p.offset), p.file)
         end
         if q.offset[1] + q.size[1] > p.offset[1] then still[#still + 1] = q end
      end
      still[#still + 1] = p
      open = still
   end
   if sum ~= dims.numel(shape) then
      return ('pieces of %d elements in all, %s has %d'):format(sum, dims.text(shape),
         dims.numel(shape))
   end
end

local function wrong_row(row)
   local why = signature.wrong(row, 'stored_tensor')
   if why then return why end
   for _, p in ipairs(row.pieces) do
      local wrong = wrong_box(p, row.shape)
      if wrong then return wrong end
   end
   return wrong_layout(row.pieces, row.shape)
end

-- Returns `value`, what shards.json at `path` holds, or raises E_FORMAT for op. version: the one
-- that is read.
function index.check(op, path, value, version)
   err.raise_if(value.version ~= version, 'E_FORMAT', op, '%s: version %s, this library reads %d',
      path, err.show(value.version), version)
   for _, kind in ipairs { 'model', 'optim' } do
      err.raise_if(type(value[kind]) ~= 'table', 'E_FORMAT', op, "%s has no list '%s'", path, kind)
      for name, row in each(value[kind]) do
         local wrong = type(name) ~= 'string' and 'no name' or wrong_row(row)
         err.raise_if(wrong, 'E_FORMAT', op, '%s: %s %s has %s', path, kind, err.show(name), wrong)
      end
   end
   return value
end

return index
