-- Arithmetic and names of low-rank adapters: what nn.lora and the folders of adapters share.

local tide = require 'tide'

local low_rank = {}

-- Returns the factor of a change: alpha / rank, with rslora alpha / sqrt(rank).
function low_rank.scale(adapter)
   return adapter.alpha / (adapter.rslora and math.sqrt(adapter.rank) or adapter.rank)
end

-- Returns whether a parameter's name is that of an adapter.
function low_rank.is_name(name) return ('.' .. name):find '%.lora_[ABm]$' ~= nil end

-- Returns the change of a weight, in f32: scale B A.
function low_rank.change(A, B, scale) return tide.matmul(B:to 'f32', A:to 'f32') * scale end

-- Returns the weight of a layer with its change in it, in f32. W: the weight. m: nil, or of DoRA.
function low_rank.changed(W, A, B, m, scale)
   W = W:to 'f32'
   local changed = W + low_rank.change(A, B, scale)
   if not m then return changed end
   local function norms(t) return (t * t):sum(2):sqrt() end
   return changed * ((norms(W) + m:to 'f32') / norms(changed)):unsqueeze(2)
end

return low_rank
