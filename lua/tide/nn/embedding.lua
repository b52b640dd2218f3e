-- Embedding: a table of vectors by token id (0-based). `as_output` uses the same table as an
-- output projection, for tied heads.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local in_range = require 'tide.nn.in_range'
local Module = require 'tide.nn.module'

local Embedding = class('Embedding', Module)
Embedding.mixes = false

-- Makes a table of nvocab vectors [dim].
function Embedding:init(nvocab, dim, opts)
   Module.init(self)
   self.nvocab, self.dim = nvocab, dim
   self:param('weight', { nvocab, dim }, { kind = 'normal', std = opts.std }, opts)
   self:ready(opts)
end

-- Returns the vectors [.., dim] of ids [..] (integers from 0).
function Embedding:forward(ids) return tide.embedding(self.weight, ids) end
private.note(Embedding.forward)

-- Returns the logits [.., nvocab] of x [.., dim], with this table as the output projection.
function Embedding:as_output(x)
   err.raise_if(self.is_cut, 'E_STATE', 'nn.Embedding', 'the table is cut over ranks; call the '
      .. 'model')
   return tide.linear(x, self.weight)
end

-- Returns vectors from a part of the table, rows from `first` on; zeros for ids of other ranks.
-- Every rank raises for an id beyond the whole table of V rows.
local function part_of(self, ids, first, V)
   in_range('nn.Embedding', ids, V, 'a token id lies outside [0, %d)')
   local n = self.weight:size(1)
   local here = tide.logical_and(ids:ge(first), ids:lt(first + n))
   local y = tide.embedding(self.weight, (ids - first):clamp(0, n - 1))
   return private.replace(y, y * here:to(y.dtype):unsqueeze(-1))
end

-- Returns how the table is cut, see Module.tp.
function Embedding:tp(style, on)
   if not style then return nil end
   if style.shard == 'rows' then
      on:check_size('the width', self.dim)
      return { cut = { weight = 2 }, gives = 'S(-1)', length = -1 }
   elseif style.shard == 'columns' then
      local V = self.nvocab
      on:check_size('vocab_size', V)
      local first = on:first(V)
      return { cut = { weight = 1 }, gives = 'P', length = -1,
         call = function(_, me, ids) return part_of(me, ids, first, V) end,
         done = function() self.is_cut = true end }
   end
   on:refuse('an Embedding cannot be %s', tostring(style))
end

-- Returns the sizes, for the text of a model.
function Embedding:detail() return ('%d x %d'):format(self.nvocab, self.dim) end

return signature.doors('nn.Embedding', Embedding, {
   init = { 'nvocab: integer >= 1; dim: integer >= 1', opts = {
      'std: number >= 0 = 0.02 -- initial standard deviation', Module.common } },
})
