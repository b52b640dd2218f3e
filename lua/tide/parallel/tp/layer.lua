-- What a style makes of a module: the collectives around it.
--
-- A module cut over ranks gets a forward of its own (a field of the instance, so its
-- class and hooks stay as they are) that does the local product between two changes of layout. Each
-- change is a collective whose backward is its adjoint (see collective_op), so gradients need no
-- code here.
--
-- env, one for a model: axis; length (tokens of the whole sequence of the call under way, which a
-- rank with a part of them cannot know; set by the embedding and by each block).
-- Legend: R alike on all ranks; S(1) cut along dim 2 of [B, T, C]; S(-1) cut along the last dim.

local tide = require 'tide'
local err = require 'tide.util.err'
local in_range = require 'tide.parallel.in_range'
local layout = require 'tide.parallel.layout'
local collective = require 'tide.parallel.collective_op'
local placement = require 'tide.parallel.placement'

local tp_layer = {}

local balanced = layout.balanced

local function tokens(env, T) return balanced(T, env.axis.size) end

local function sequence_of(x)
   if x.ndim < 3 then
      err.arg('parallel.tensor_parallel', 'x', 'a tensor [batch, tokens, width]', x)
   end
   return x
end

-- ---- changes of layout -----------------------------------------------------------------------

-- Into products with parts of a weight: each rank's gradient is a part, and they are added.
function tp_layer.into_parts(env, x, from)
   if from == 'S(1)' then
      return collective.all_gather_v(sequence_of(x), env.axis, 2, tokens(env, env.length))
   end
   return collective.copy_to(x, env.axis)
end

-- Into a computation that is alike on every rank.
function tp_layer.into_whole(env, x, from)
   if from ~= 'S(1)' then return x end
   return collective.gather_from(sequence_of(x), env.axis, 2, tokens(env, env.length))
end

-- Out of products with parts along what was summed.
function tp_layer.sum_parts(env, y, to)
   if to == 'S(1)' then
      return collective.reduce_scatter_v(sequence_of(y), env.axis, 2, tokens(env, y:size(2)))
   end
   return collective.reduce_from(y, env.axis)
end

-- Out of products with parts of the rows of a weight.
function tp_layer.join_parts(env, y, to, counts)
   if to == 'S(-1)' then return y end
   y = collective.gather_from(y, env.axis, -1, counts)
   if to == 'S(1)' then
      return collective.scatter_to(sequence_of(y), env.axis, 2, tokens(env, y:size(2)))
   end
   return y
end

-- ---- parameters ------------------------------------------------------------------------------

-- The local part of a parameter in place of the whole one. dim: which is cut; nil: none. blocks:
-- how many equal ones are cut each for itself, or a list of counts a rank for each.
function tp_layer.place(module, field, env, dim, blocks)
   local whole, counts = module[field], nil
   if type(blocks) == 'table' then
      counts, blocks = #blocks > 1 and blocks or blocks[1], #blocks
   end
   local entry = layout.new {
      axis = env.axis, shape = whole.shape, blocks = dim and blocks or nil, counts = counts,
      placement = dim and placement.shard(dim) or placement.replicate(),
   }
   layout.set(module, field, entry)
   if not dim then return end
   local part
   if whole.device == 'null' then
      part = tide.empty(entry:local_shape(), { dtype = whole.dtype, device = 'null' })
   else
      part = tide.no_grad(function() return entry:cut(whole:detach()) end)
   end
   part:requires_grad_(whole.requires_grad)
   module[field] = part
end

local place = tp_layer.place

-- A forward with parameters whose gradient is this rank's part of the sum.
function tp_layer.summed_gradients(module, env)
   local forward = module.forward
   for _, field in ipairs(module._param) do place(module, field, env) end
   function module.forward(self, ...)
      local fields = {}
      for _, field in ipairs(self._param) do
         fields[field] = collective.copy_to(self[field], env.axis)
      end
      return forward(setmetatable(fields, { __index = self }), ...)
   end
end

-- ---- modules ---------------------------------------------------------------------------------

local function widths(n, blocks, parts)
   local list = balanced(n / blocks, parts)
   for i = 1, #list do list[i] = list[i] * blocks end
   return list
end

local function total(blocks, parts)
   local list = {}
   for r = 1, parts do
      list[r] = 0
      for _, counts in ipairs(blocks) do list[r] = list[r] + counts[r] end
   end
   return list
end

-- Rows of the weight. shared: the owner of the module brings x in the right layout. cut (nil: the
-- blocks of the style): { blocks = counts a rank of each block of rows, after = what is made of
-- this rank's result, or nil }.
function tp_layer.column(module, env, style, shared, cut)
   local blocks, n = cut and cut.blocks or style.blocks, env.axis.size
   local counts = cut and total(blocks, n) or widths(module.nout, blocks, n)
   place(module, 'weight', env, 1, blocks)
   if module.bias then place(module, 'bias', env, 1, blocks) end
   module.nout = counts[env.axis.rank + 1]
   function module.forward(self, x)
      if not shared then x = tp_layer.into_parts(env, x, style.input) end
      local y = self.product(x, self.weight, self.bias)
      if cut and cut.after then y = cut.after(y) end
      return tp_layer.join_parts(env, y, style.output, counts)
   end
end

-- The bias of a row-cut Linear is whole and added once, to the sum.
function tp_layer.add_bias(env, style, self, y)
   if not self.bias then return y end
   return y + (style.output == 'S(1)' and collective.copy_to(self.bias, env.axis) or self.bias)
end

-- Columns of the weight. counts: on each rank (default: as even as can be).
function tp_layer.row(module, env, style, counts)
   counts = counts or balanced(module.nin, env.axis.size)
   place(module, 'weight', env, 2, { counts })
   if module.bias then place(module, 'bias', env) end
   module.nin = counts[env.axis.rank + 1]
   function module.forward(self, x)
      if style.input == 'R' then x = collective.scatter_to(x, env.axis, -1, counts) end
      local y = tp_layer.sum_parts(env, self.product(x, self.weight), style.output)
      return tp_layer.add_bias(env, style, self, y)
   end
end

-- Rows of the table: ids of other ranks give zeros, and the sum over ranks is the whole.
function tp_layer.vocabulary(module, env, style)
   local V = module.nvocab
   local counts, first = balanced(V, env.axis.size), 0
   for r = 1, env.axis.rank do first = first + counts[r] end
   place(module, 'weight', env, 1)
   function module.forward(self, ids)
      in_range('nn.Embedding', ids, V, 'a token id lies outside [0, %d)') -- found on every rank
      env.length = ids:size(-1)
      local n = self.weight:size(1)
      local here = tide.logical_and(ids:ge(first), ids:lt(first + n))
      local y = tide.embedding(self.weight, (ids - first):clamp(0, n - 1))
      return tp_layer.sum_parts(env, y * here:to(y.dtype):unsqueeze(-1), style.output)
   end
   function module.as_output()
      err.raise('E_STATE', 'nn.Embedding', 'the table is cut over ranks; call the model')
   end
   return counts
end

-- Columns of the table.
function tp_layer.embedding_columns(module, env, style)
   local counts = balanced(module.dim, env.axis.size)
   place(module, 'weight', env, 2)
   function module.forward(self, ids)
      env.length = ids:size(-1)
      return tp_layer.join_parts(env, tide.embedding(self.weight, ids), style.output, counts)
   end
end

-- All that a module takes first in another layout.
function tp_layer.convert_input(module, env, convert, from)
   module:hook_pre(function(_, x, ...) return convert(env, x, from), ... end, { by = 'tp' })
end

return tp_layer
