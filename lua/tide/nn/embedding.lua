-- Embedding: a table of vectors by token id (0-based). `as_output` uses the same table as an
-- output projection, for tied heads.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local Module = require 'tide.nn.module'

local Embedding = class('Embedding', Module)
Embedding.mixes = false

-- opts: std (0.02), dtype, device, seed.
function Embedding:init(nvocab, dim, opts)
   local op = 'nn.Embedding'
   err.integer(op, 'nvocab', nvocab, 1)
   err.integer(op, 'dim', dim, 1)
   opts = Module.options(op, opts, { 'std' })
   Module.init(self)
   self.nvocab, self.dim = nvocab, dim
   local std = err.number(op, 'std', opts.std or 0.02, 0)
   self:param('weight', { nvocab, dim }, { kind = 'normal', std = std }, opts)
   self:ready(opts)
end

-- ids [..] (integers from 0) -> vectors [.., dim].
function Embedding:forward(ids) return tide.embedding(self.weight, ids) end

-- x [.., dim] -> logits [.., nvocab].
function Embedding:as_output(x) return tide.linear(x, self.weight) end

-- Sizes, for the text of a model.
function Embedding:detail() return ('%d x %d'):format(self.nvocab, self.dim) end

return Embedding
