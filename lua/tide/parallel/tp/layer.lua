-- How a style changes a module: the collectives around it.
--
-- A module answers how a style cuts it (see Module.tp), and gets a wrap that runs its forward on
-- parts of the parameters between two changes of layout. Each change is a collective whose
-- backward is its adjoint (see collective_op), so gradients need no code here.
--
-- env, one for a model: axis; length (tokens of the whole sequence of the call under way, which a
-- rank with a part of them cannot know; set by the embedding and by each block).
-- Legend: R alike on all ranks; S(1) cut along dim 2 of [B, T, C]; S(-1) cut along the last dim.

local tide = require 'tide'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local layout = require 'tide.parallel.layout'
local collective = require 'tide.parallel.collective_op'
local placement = require 'tide.parallel.placement'
local wrap = require 'tide.nn.wrap'

local tp_layer = {}

local balanced = layout.balanced

local function tokens(env, T) return balanced(T, env.axis.size) end

local function sequence_of(x)
   err.arg_if(x.ndim < 3, 'parallel.tensor_parallel', 'x', 'a tensor [batch, tokens, width]', x)
   return x
end

-- ---- changes of layout -----------------------------------------------------------------------

-- Returns x for products with parts of a weight: the gradient of each rank is a part, and backward
-- adds them.
function tp_layer.into_parts(env, x, from)
   if from == 'S(1)' then
      return collective.all_gather_v(sequence_of(x), env.axis, 2, tokens(env, env.length))
   end
   return collective.copy_to(x, env.axis)
end

-- Returns x for a computation that is the same on every rank.
function tp_layer.into_whole(env, x, from)
   if from ~= 'S(1)' then return x end
   return collective.gather_from(sequence_of(x), env.axis, 2, tokens(env, env.length))
end

-- Returns the sum over ranks of y, products with parts of the summed dim, in layout `to`.
function tp_layer.sum_parts(env, y, to)
   if to == 'S(1)' then
      return collective.reduce_scatter_v(sequence_of(y), env.axis, 2, tokens(env, y:size(2)))
   end
   return collective.reduce_from(y, env.axis)
end

-- Returns the parts y of all ranks joined, products with parts of the rows of a weight, in layout
-- `to`.
function tp_layer.join_parts(env, y, to, counts)
   if to == 'S(-1)' then return y end
   local all = collective.gather_from(y, env.axis, -1, counts)
   if to ~= 'S(1)' then return all end
   local part = collective.scatter_to(sequence_of(all), env.axis, 2, tokens(env, all:size(2)))
   if not rawequal(all, y) and not rawequal(all, part) then private.spend(all) end
   return part
end

-- Returns this rank's part of x [B, T, ..], alike on all ranks, as layers have it between them
-- where the sequence is cut. The gradient is whole on every rank.
function tp_layer.cut(env, x)
   return collective.scatter_to(x, env.axis, 2, tokens(env, x:size(2)))
end

-- ---- parameters ------------------------------------------------------------------------------

-- Returns how a tensor of that shape lies on the axis. dim: which is cut; nil: none. blocks: the
-- number of equal blocks of dim that are cut one by one, or a list of counts a rank for each.
function tp_layer.layout(env, shape, dim, blocks)
   local counts
   if type(blocks) == 'table' then counts, blocks = #blocks > 1 and blocks or blocks[1], #blocks end
   return layout.new {
      axis = env.axis, shape = shape, blocks = dim and blocks or nil, counts = counts,
      placement = dim and placement.shard(dim) or placement.replicate(),
   }
end

-- Replaces a whole parameter by its local part.
function tp_layer.place(module, field, env, dim, blocks)
   local whole = module[field]
   local entry = layout.set(module, field, tp_layer.layout(env, whole.shape, dim, blocks))
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

-- ---- wraps -------------------------------------------------------------------------------------

local function finish(x, made, ...)
   if not rawequal(made, x) then private.spend(made) end
   return ...
end

-- Returns next(self, made, ...), where made is x in another layout, which is freed afterwards.
function tp_layer.through(next, self, x, made, ...)
   return finish(x, made, next(self, made, ...))
end

-- Wraps a method of a module in fn(next, self, ...), inside hooks and wraps of the user. opts:
-- name ('tp'), of ('forward').
function tp_layer.around(module, fn, opts)
   opts = opts or {}
   local of = opts.of or 'forward'
   module:wrap(opts.name or 'tp', fn, { of = of, order = wrap.order.tp, by = 'tp' })
end

local around = tp_layer.around

-- Returns a view of the module whose named parameters get gradients that are parts of a sum over
-- ranks.
local function summing(env, self, names)
   local fields = {}
   for _, name in ipairs(names) do fields[name] = collective.copy_to(self[name], env.axis) end
   return setmetatable(fields, { __index = self })
end

-- Adds up the gradients of the parameters over ranks, each of which has a part.
function tp_layer.summed_gradients(module, env)
   for _, field in ipairs(module._param) do place(module, field, env) end
   around(module, function(next, self, ...) return next(summing(env, self, self._param), ...) end)
end

-- Wraps a module, which then gets its first argument in another layout.
function tp_layer.convert_input(module, env, convert, from)
   around(module, function(next, self, x, ...)
      return tp_layer.through(next, self, x, convert(env, x, from), ...)
   end, { name = 'tp.input', of = 'call' })
end

-- Takes the length of the whole sequence from the context of a block's call.
function tp_layer.watch_length(block, env)
   around(block, function(next, self, x, at, ...)
      if at and at.length then
         env.length = at.length
      elseif at and at.positions then
         env.length = at.positions:size(2)
      end
      return next(self, x, at, ...)
   end, { name = 'tp.length', of = 'call' })
end

-- ---- answers -----------------------------------------------------------------------------------

local function total(lists, parts)
   local list = {}
   for r = 1, parts do
      list[r] = 0
      for _, counts in ipairs(lists) do list[r] = list[r] + counts[r] end
   end
   return list
end

-- Cuts the parameters and buffers that an answer names; returns the names of the other parameters
-- but `late`, and what each rank has of the dim that the first one is cut along.
local function cut_fields(m, env, answer)
   local rest, counts = {}, nil
   for _, field in ipairs(m._buffer) do
      local how = answer.cut[field]
      if how then
         counts = total(layout.set(m, field, how.layout).blocks, env.axis.size)
         how.place()
      end
   end
   for _, field in ipairs(m._param) do
      local how = answer.cut[field]
      if how then
         local dim = type(how) == 'table' and how.dim or how
         local blocks = type(how) == 'table' and how.blocks or 1
         place(m, field, env, dim, blocks)
         counts = counts or total(layout.get(m, field).blocks, env.axis.size)
      else
         place(m, field, env)
         if field ~= answer.late then rest[#rest + 1] = field end
      end
   end
   return rest, counts
end

-- Returns x, which has the layout `from`, in the layout that the module takes.
local function enter(env, x, from, takes, counts)
   if takes == 'R' then return tp_layer.into_parts(env, x, from) end
   if from == takes or takes == 'S(1)' then return x end
   return collective.scatter_to(x, env.axis, -1, counts)
end

-- Returns y, which has the layout `gives`, in the layout `to` of the style.
local function leave(env, y, gives, to, counts)
   if gives == 'P' then return tp_layer.sum_parts(env, y, to) end
   if gives == 'S(-1)' then return tp_layer.join_parts(env, y, to, counts) end
   return y
end

-- Adds the parameter `name`, which is whole, once to y, in the sum of all ranks.
function tp_layer.add_late(env, style, self, y, name)
   local bias = name and self[name]
   if not bias then return y end
   return private.replace(y, y + (style.output == 'S(1)'
      and collective.copy_to(bias, env.axis) or bias))
end

-- Cuts a module as it has answered for a style (see Module.tp), and wraps its forward. shared: its
-- parent gives x in the right layout.
function tp_layer.answered(m, env, style, answer, shared)
   local rest, counts = cut_fields(m, env, answer)
   if answer.done then answer.done(counts and counts[env.axis.rank + 1]) end
   local late, call, after, length = answer.late, answer.call, answer.after, answer.length
   local takes = answer.takes or 'R'
   around(m, function(next, self, x, ...)
      local given = x
      if length then env.length = x:size(length) elseif not shared then
         x = enter(env, x, style.input, takes, counts)
      end
      local inner = self
      if #rest > 0 then inner = summing(env, self, rest) end
      if late and self[late] then inner = setmetatable({ [late] = false }, { __index = inner }) end
      local y
      if call then y = call(next, inner, x, ...) else y = next(inner, x, ...) end
      if not rawequal(x, given) then private.spend(x) end
      if after then y = private.replace(y, after(y)) end
      y = private.replace(y, leave(env, y, answer.gives, style.output, counts))
      return tp_layer.add_late(env, style, self, y, late)
   end)
end

return tp_layer
