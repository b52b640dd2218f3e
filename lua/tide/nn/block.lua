-- Block: the pre-norm residual block  h = x + s mixer(norm1(x));  y = h + s mlp(norm2(h)), where
-- s is 1 unless it is given. With experts the last term is s (mlp(norm2(h)) + experts(norm2(h))).
--
-- Works over any mixer (attention, a state-space layer). Child names are given, so that a model
-- can follow the names of published checkpoints.

local class = require 'tide.class'
local context = require 'tide.nn.context'
local rows_ = require 'tide.nn.rows'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local Module = require 'tide.nn.module'
local norm = require 'tide.nn.norm'

local Block = class('Block', Module)
Block.mixes = false
Block.holds_parts = true

local roles = { 'norm1', 'mixer', 'norm2', 'mlp', 'experts' }

-- Makes a block of its parts.
function Block:init(parts)
   Module.init(self)
   err.arg_if((parts.norm2 == nil) ~= (parts.mlp == nil), 'nn.Block', 'mlp', 'norm2 and mlp '
      .. 'together or neither', parts.mlp)
   err.arg_if(parts.experts and not parts.mlp, 'nn.Block', 'mlp', 'an MLP beside experts', nil)
   local names = err.options('nn.Block', parts.names, roles)
   self._part = {}
   for _, part in ipairs(roles) do
      if parts[part] then
         local name = names[part] or part
         self:child(name, parts[part])
         self._part[part] = name
      end
   end
   if parts.dropout then self:child('dropout', parts.dropout) end
   self.scale = parts.scale
end

-- Returns the child that plays a part: 'norm1', 'mixer', 'norm2', 'mlp' or 'experts'.
function Block:part(name) return self[self._part[name]] end

-- Returns mlp(x), which gets `at`, too, if it is a mixture of experts.
function Block._call_mlp(mlp, x, at)
   if mlp.takes_at then return mlp(x, at) end
   return mlp(x)
end

-- Returns the output of the MLP, and of the experts beside it, for m, which is given up.
local function fed(self, m, at)
   local part = self._part
   local routed = part.experts and Block._call_mlp(self[part.experts], m, at)
   local y = private.replace(m, Block._call_mlp(self[part.mlp], m, at))
   if not routed then return y end
   y = private.replace(y, routed + y)
   private.spend(routed)
   return y
end

-- Returns two tensors whose sum is the result for an input x [B, T, C], and whether the caller may
-- overwrite the first; it may always overwrite the second. With `more` the input is x + more, two
-- such results of the block before, and norm1 computes their sum. `more` is then overwritten, and x
-- if `owned`. at.rows: index [K] of the rows of the result that are needed (see nn.rows); the
-- result is then [1, K, C].
function Block:addends(x, more, owned, at)
   at = context._place('nn.Block', at)
   local part, drop, scale = self._part, self.dropout, self.scale
   local n, made
   if more then
      n, made = self[part.norm1](more, x)
      private.spend(more)
      if owned then private.spend(x) end
      x = made
   else
      n = self[part.norm1](x)
   end
   local a = private.replace(n, self[part.mixer](n, at))
   if drop then a = private.replace(a, drop(a)) end
   if scale ~= 1 then a = private.replace(a, a * scale) end
   if not part.mlp then return x, a, made ~= nil or owned end
   if at.rows then
      a = private.replace(a, rows_.pick(a, at.rows))
      local picked = rows_.pick(x, at.rows)
      private.spend(made)
      x, made = picked, picked
   end
   local m, h = self[part.norm2](a, x)
   private.spend(a, made)
   local y = fed(self, m, at)
   if drop then y = private.replace(y, drop(y)) end
   if scale ~= 1 then y = private.replace(y, y * scale) end
   return h, y, true
end

-- Returns the output [B, T, C] of an input x of the same shape. at: where the tokens lie; the mixer
-- gets it.
function Block:forward(x, at)
   local h, y, owned = self:addends(x, nil, false, at)
   local sum = h + y
   private.spend(y)
   if owned then private.spend(h) end
   return sum
end
private.note(Block.forward)
private.note(Block.addends)

-- Returns whether this block takes at.rows: its MLP then computes these rows alone.
function Block:picks_rows()
   return self._part.mlp and not self.dropout and self.forward == Block.forward
      and self.addends == Block.addends
end

-- Returns whether the block before may leave its last sum to this one: this block has no hooks or
-- wraps, and its first norm takes two addends.
function Block:takes_addends()
   return self.forward == Block.forward and self.addends == Block.addends
      and self._call == Module._call and norm.takes_addends(self[self._part.norm1])
end

return signature.doors('nn.Block', Block, {
   init = { opts = {
      'norm1: module -- before the mixer', 'mixer: module -- attention, a state-space layer',
      'norm2: module? -- before the MLP', 'mlp: module? -- with norm2 or not at all',
      'experts: module? -- beside the MLP: both read the output of norm2, and the sum is added',
      'dropout: module? -- an nn.Dropout on both branches',
      'scale: number = 1 -- factor of both branches before they are added',
      'names: table? -- names of the parts as children' } },
})
