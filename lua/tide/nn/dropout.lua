-- Dropout: zeroes elements with probability p while training and scales the rest by 1/(1-p).
-- The mask is drawn by the context's counter-based generator, so recomputation replays it.

local tide = require 'tide'
local class = require 'tide.class'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local Module = require 'tide.nn.module'

local Dropout = class('Dropout', Module)
Dropout.mixes = false

-- Makes a layer that sets a share p of the elements, in [0, 1), to zero while training.
function Dropout:init(p)
   Module.init(self)
   self.p = p
end

-- Returns x, of any shape, with the share p of its elements set to zero; x itself in eval mode.
function Dropout:forward(x)
   if not self.training or self.p == 0 then return x end
   return tide.dropout(x, self.p)
end
private.note(Dropout.forward)

-- Returns p, for the text of a model.
function Dropout:detail() return ('p = %g'):format(self.p) end

return signature.doors('nn.Dropout', Dropout, { init = 'p: number in [0, 1)' })
