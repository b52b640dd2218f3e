-- Arithmetic and names of low-rank adapters: what nn.lora and the folders of adapters share.

local tide = require 'tide'

local low_rank = {}

-- Returns the factor of a change: alpha / rank, with rslora alpha / sqrt(rank).
function low_rank.scale(adapter)
   return adapter.alpha / (adapter.rslora and math.sqrt(adapter.rank) or adapter.rank)
end

-- Returns whether a parameter's name is that of an adapter.
function low_rank.is_name(name) return ('.' .. name):find '[._]lora_[ABm]$' ~= nil end

-- Returns the fields of the adapter of a weight at a field of its module: A, B and, of a Linear
-- layer, the magnitude.
function low_rank.fields(field)
   if field == 'weight' then return 'lora_A', 'lora_B', 'lora_m' end
   return field .. '_lora_A', field .. '_lora_B'
end

-- Returns the names of A and B at a path of model.adapter.modules, and that of the weight. has:
-- whether there is a parameter of a name.
function low_rank.names(path, has)
   if has(path .. '.lora_A') then return path .. '.lora_A', path .. '.lora_B', path .. '.weight' end
   return path .. '_lora_A', path .. '_lora_B', path
end

-- Returns the path of model.adapter.modules that a parameter A belongs to, or nil.
function low_rank.path(name) return name:match '^(.*)[._]lora_A$' end

-- Returns whether the weights of a model hold the changes of its adapters (nn.lora.merge).
function low_rank.is_merged(model)
   local of = rawget(model, '_adapter')
   return of ~= nil and of.merged
end

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
