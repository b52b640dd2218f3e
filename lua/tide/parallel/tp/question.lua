-- The question that tensor parallelism asks a module: m:tp(style, question), see Module.tp. The
-- answer is a table that says which parameters are cut and which layouts the call takes and gives.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local layer = require 'tide.parallel.tp.layer'
local layout = require 'tide.parallel.layout'
local tp_delta = require 'tide.parallel.tp.delta'
local tp_mamba = require 'tide.parallel.tp.mamba'

local question = {}

local op = 'parallel.parallelize_module'

-- Refuses numbers of attention heads that n ranks do not divide, those of keys first.
function question.check_heads(config, n)
   local name = 'parallel.tensor_parallel'
   config = config.text_config or config
   for _, field in ipairs { 'num_key_value_heads', 'num_attention_heads' } do
      local heads = config[field]
      err.raise_if(heads and heads % n ~= 0, 'E_ARG', name, '%s (%d) must be divisible by the '
         .. 'tensor parallel size (%d); use a size that divides it, or dp_shard or cp instead of '
         .. 'tp', field, heads, n)
   end
end

local Question = {}
Question.__index = Question

-- Raises E_ARG with the path of the module.
function Question:refuse(text, ...) err.raise('E_ARG', op, "'%s': " .. text, self.path, ...) end

-- Refuses fewer things than ranks.
function Question:check_size(what, size)
   if size < self.ranks then
      self:refuse('%s (%d) is less than the %d ranks', what, size, self.ranks)
   end
end

-- Returns how a tensor of that shape lies on the axis where dim is cut; blocks as in Module.tp, or
-- a list of counts a rank for each.
function Question:layout(shape, dim, blocks) return layer.layout(self.env, shape, dim, blocks) end

-- Returns the number of things (from 0) before those of this rank, of n that are shared out evenly.
function Question:first(n) return dims.sum(layout.balanced(n, self.ranks), self.rank) end

-- Refuses all but: the children `into` leave their result cut along the last dim and `out` takes
-- it, or none does. Returns whether they do. Children that the module has not are left out.
function Question:all_or_none(into, out, text)
   local cut, all = 0, 0
   for _, name in ipairs(into) do
      local style = self.children[name]
      all = all + (self.module[name] and 1 or 0)
      cut = cut + (style and style.output == 'S(-1)' and 1 or 0)
   end
   local after = self.children[out] ~= nil and self.children[out].input == 'S(-1)'
   if cut == 0 and not after then return false end
   if cut < all or not after then self:refuse('%s, all or none', text) end
   return true
end

-- Refuses numbers of attention heads that the ranks do not divide.
function Question:check_heads(heads, kv_heads)
   question.check_heads({ num_key_value_heads = kv_heads, num_attention_heads = heads }, self.ranks)
end

-- Cuts a parameter of the module along dim, for the function `done` of an answer.
function Question:cut(field, dim) layer.place(self.module, field, self.env, dim) end

-- Returns the answer of a Mamba-2 layer that is cut by heads.
function Question:by_heads()
   local m, env = self.module, self.env
   local plan = tp_mamba.plan(m, self.ranks)
   return {
      give = { in_proj = { blocks = plan.rows, after = tp_mamba.after(m, env, plan) },
         out_proj = { blocks = { plan.inner } } },
      done = function() tp_mamba.apply(m, env, plan) end,
   }
end

-- Returns the answer of a gated delta net that is cut by heads of keys.
function Question:by_key_heads()
   local m, env = self.module, self.env
   local plan = tp_delta.plan(m, self.ranks)
   return { give = tp_delta.cuts(m, plan), summed = { 'norm' },
      done = function() tp_delta.apply(m, env, plan) end }
end

-- Gathers what the method `spread` of a LatentAttention gives in the layout `from`. The latent then
-- feeds a product whose gradients are added over ranks, and the other channels the heads of this
-- rank alone.
function Question:spread_latents(from)
   local env = self.env
   layer.around(self.module, function(next, me, latent, rot)
      latent, rot = next(me, latent, rot)
      return layer.into_whole(env, latent, from), layer.into_parts(env, rot, from)
   end, { of = 'spread' })
end

local answer_fields = { 'cut', 'takes', 'gives', 'late', 'call', 'after', 'length', 'done', 'give',
   'summed' }
local into_layouts = { ['R S(1)'] = true, ['R R'] = true, ['S(-1) R'] = true,
   ['S(-1) S(-1)'] = true, ['S(1) S(1)'] = true }
local out_layouts = { ['P R'] = true, ['P S(1)'] = true, ['S(-1) S(-1)'] = true,
   ['S(-1) R'] = true, ['S(-1) S(1)'] = true, ['R R'] = true, ['S(1) S(1)'] = true }

-- Refuses an answer that names unknown fields, or that does not fit the style.
function Question:check(style, answer)
   local name = ('%s.tp'):format(self.module.class_name)
   err.options(name, answer, answer_fields)
   if not answer.cut then return end
   for field in each(err.type(name, 'cut', answer.cut, 'table')) do
      if not tide.is_tensor(self.module[field]) then err.arg(name, 'cut', 'parameters', field) end
   end
   if not style then self:refuse('%s cuts parameters, and the plan gives no style', name) end
   local takes, gives = answer.takes or 'R', answer.gives or 'R'
   if not answer.length and not into_layouts[takes .. ' ' .. style.input]
      or not out_layouts[gives .. ' ' .. style.output] then
      self:refuse('the module takes %s and gives %s, which does not fit the style %s', takes, gives,
         tostring(style))
   end
end

-- Makes a question. fields: module, path, children (name -> style), given (by the parent of the
-- module), env (see layer.lua).
function question.new(fields)
   fields.ranks, fields.rank = fields.env.axis.size, fields.env.axis.rank
   return setmetatable(fields, Question)
end

return question
