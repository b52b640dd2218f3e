-- Adapters of experts and routers as PEFT keeps them with transformers 5, whose layers have the
-- weights of all experts as two parameters, gate_up_proj [E, 2 I, C] and down_proj [E, C, I]:
--
--    BLOCK.experts.base_layer.lora_A.weight [E R, C], .lora_B.weight [2 I, R E]   gate_up_proj
--    BLOCK.experts.lora_A.weight [E r, I], .lora_B.weight [C, r E]                down_proj
--    BLOCK.gate.lora_A.weight, .lora_B.weight                                     the router
--
-- without base_layer where only one of the two has adapters. gate_up_proj has one adapter, tide one
-- for each half. Two of rank r are one of rank R = 2 r, whose B is block-diagonal; so PEFT joins
-- the adapters of older files, which have each expert apart (BLOCK.experts.0.gate_proj.lora_A
-- .weight). One of rank R that is not block-diagonal is two of rank R with the same A.
-- Legend: E experts, C width, I hidden size of an expert.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local low_rank = require 'tide.nn.low_rank'
local lora_moe = require 'tide.nn.lora_moe'
local mixtures = require 'tide.nn.mixtures'

local peft_moe = {}

local joint = '.*\\.gate_up_proj'              -- PEFT's pattern of its rank and alpha

-- The names by which PEFT finds experts and routers of transformers 4. It takes a target that ends
-- in one of them for that of experts, so a Linear layer of such a name is named as a parameter.
local taken = { gate_proj = true, up_proj = true, down_proj = true, gate = true, w1 = true,
   w2 = true, w3 = true }

-- Families whose layers in transformers have these parameters, in a part `mlp`.
local known = { mixtral = true, olmoe = true, qwen2_moe = true, qwen3_moe = true, glm4_moe = true,
   glm4_moe_lite = true, deepseek_v2 = true, deepseek_v3 = true }

-- Returns whether folders of a family (nil: of a class of the user) have names for the adapters of
-- experts.
function peft_moe.knows(name) return name == nil or known[name] == true end

-- ---- numbers -----------------------------------------------------------------------------------

-- Returns B [out, r E] of a file from that of all experts [E, out, r].
local function flat_b(B) return B:permute(2, 3, 1):reshape(B:size(2), -1) end

-- Returns the B of all experts [E, out, r] from that of a file.
local function deep_b(B, experts)
   return B:reshape(B:size(1), -1, experts):permute(3, 1, 2):contiguous()
end

local function flat_a(A) return A:reshape(-1, A:size(3)) end
local function deep_a(A, experts) return A:reshape(experts, -1, A:size(2)) end

local function zeros(t, ...) return tide.zeros({ ... }, { dtype = t.dtype, device = t.device }) end

-- Returns A and B of gate_up_proj from those of its halves.
local function join(gate, up)
   local E, I, r = unpack(gate.B.shape)
   local none = zeros(gate.B, E, I, r)
   return tide.cat({ gate.A, up.A }, 2), tide.cat({ tide.cat({ gate.B, none }, 3),
      tide.cat({ none, up.B }, 3) }, 2)
end

local function is_zero(t) return t:numel() == 0 or t:abs():amax():item() == 0 end

-- Returns the adapters of the halves of gate_up_proj. rank: of other layers.
local function split(A, B, rank)
   local I, R = B:size(2) / 2, A:size(2)
   local top, bottom, r = B:narrow(2, 1, I), B:narrow(2, I + 1, I), R / 2
   if R == 2 * rank and is_zero(top:narrow(3, r + 1, r)) and is_zero(bottom:narrow(3, 1, r)) then
      return { A = A:narrow(2, 1, r), B = top:narrow(3, 1, r) },
         { A = A:narrow(2, r + 1, r), B = bottom:narrow(3, r + 1, r) }
   end
   return { A = A, B = top }, { A = A, B = bottom }
end

-- Returns t with zeros up to `size` along dim.
local function padded(t, dim, size)
   if t:size(dim) == size then return t end
   local shape = {}
   for i, n in ipairs(t.shape) do shape[i] = i == dim and size - n or n end
   return tide.cat({ t, zeros(t, unpack(shape)) }, dim)
end

-- ---- writing -----------------------------------------------------------------------------------

-- Adds the weights with adapters of one layer by add(name, t); returns the target_parameters.
local function write_layer(path, fields, read, add)
   local block, list = lora_moe.block(path), {}
   local function of(field)
      local a, b = low_rank.fields(field)
      local before = path == '' and '' or path .. '.'
      return { A = read(before .. a), B = read(before .. b) }
   end
   if fields.router then
      local t = of 'router'
      add(block .. '.gate.lora_A', t.A)
      add(block .. '.gate.lora_B', t.B)
      list[1] = block .. '.gate.weight'
   end
   local experts = block .. '.experts.'
   local function put(name, A, B, is_inner)
      list[#list + 1] = experts .. name
      local at = experts .. (is_inner and 'base_layer.' or '')
      add(at .. 'lora_A', flat_a(A))
      add(at .. 'lora_B', flat_b(B))
   end
   if fields.gate_proj then
      local A, B = join(of 'gate_proj', of 'up_proj')
      put('gate_up_proj', A, B, fields.down_proj)
   end
   if fields.down_proj then
      local t = of 'down_proj'
      put('down_proj', t.A, t.B)
   end
   return list
end

-- Adds the adapters of experts and routers. description: model.adapter; has(name): whether there is
-- a parameter. Returns the modules that are Linear layers, and the fields of adapter_config.json
-- that say the rest. is_mixture: whether the model has experts.
function peft_moe.write(description, is_mixture, has, read, add)
   local linear, paths, of, parameters = {}, {}, {}, {}
   local can_name = description.dropout == 0 and not description.dora
   for _, path in ipairs(description.modules) do
      if has(path .. '.lora_A') then
         if is_mixture and can_name and taken[path:match '[^.]*$'] then
            parameters[#parameters + 1] = path .. '.weight'
         else
            linear[#linear + 1] = path
         end
      else
         local parent, field = ('.' .. path):match '^(.*)%.([^.]+)$'
         parent = parent:sub(2)
         if not of[parent] then paths[#paths + 1], of[parent] = parent, {} end
         of[parent][field] = true
      end
   end
   local joined
   for _, path in ipairs(paths) do
      for _, name in ipairs(write_layer(path, of[path], read, add)) do
         parameters[#parameters + 1] = name
      end
      joined = joined or of[path].gate_proj
   end
   local fields = { target_parameters = #parameters > 0 and parameters or nil }
   if joined then
      fields.rank_pattern = { [joint] = 2 * description.rank }
      fields.alpha_pattern = { [joint] = description.alpha
         * (description.rslora and math.sqrt(2) or 2) }
   end
   return linear, fields
end

-- ---- reading -----------------------------------------------------------------------------------

-- Refuses ranks and alphas of other layers than gate_up_proj.
function peft_moe.check(op, path, c)
   for _, name in ipairs { 'rank_pattern', 'alpha_pattern' } do
      for key in each(type(c[name]) == 'table' and c[name] or {}) do
         err.raise_if(key ~= joint, 'E_UNSUPPORTED', op, "%s: %s has '%s'; only that of the "
            .. "experts, '%s', is known here", path, name, key, joint)
      end
   end
end

local before_block = { gate_proj = 'w1', up_proj = 'w3', down_proj = 'w2' }     -- Mixtral's names

-- Takes the adapter at a name out of tensors; nil where it has none.
local function take(tensors, name)
   local a, b = name .. '.lora_A.weight', name .. '.lora_B.weight'
   local A, B = tensors[a], tensors[b]
   if not (A and B) then return nil end
   tensors[a], tensors[b] = nil, nil
   return A, B
end

-- Takes the adapters of a projection that a file has for each expert apart.
local function take_apart(op, tensors, block, field, experts)
   local older = block:gsub('%.mlp$', '.block_sparse_moe')
   for _, names in ipairs { { block, field }, { older, before_block[field] },
                            { block, before_block[field] } } do
      local As, Bs, missing = {}, {}, nil
      for e = 0, experts - 1 do
         local name = ('%s.experts.%d.%s'):format(names[1], e, names[2])
         local A, B = take(tensors, name)
         missing = missing or not A and name
         As[#As + 1], Bs[#Bs + 1] = A and A:unsqueeze(1), B and B:unsqueeze(1)
      end
      err.raise_if(missing and #As > 0, 'E_SHAPE', op, "there is no adapter '%s', and %d of the %d "
         .. 'experts have one', missing, #As, experts)
      if #As > 0 then return { A = tide.cat(As, 1), B = tide.cat(Bs, 1) } end
   end
end

-- Takes the adapter of a parameter of all experts, whatever it is of: { A, B }, and its name.
local function take_joined(op, tensors, name, m)
   local A, B = take(tensors, name)
   if not A then return nil end
   local E, I, C = m.experts, m.hidden, m.dim
   local of = A:size(2) == C and B:size(1) == 2 * I and 'gate_up_proj'
      or A:size(2) == I and B:size(1) == C and 'down_proj'
   err.raise_if(not of or A:size(1) % E ~= 0 or A:size(1) ~= B:size(2), 'E_SHAPE', op, "'%s' has "
      .. 'lora_A %s and lora_B %s, which fit no parameter of %d experts of %d -> %d', name,
      dims.text(A.shape), dims.text(B.shape), E, C, I)
   return { A = deep_a(A, E), B = deep_b(B, E) }, of
end

-- Takes the adapters of one layer; returns them by field.
local function take_layer(op, c, tensors, m, block)
   local found = {}
   local function scale(alpha, rank)
      return alpha / (c.use_rslora == true and math.sqrt(rank) or rank)
   end
   local alphas = type(c.alpha_pattern) == 'table' and c.alpha_pattern or {}
   local A, B = take(tensors, block .. '.gate')
   if A then found.router = { A = A, B = B } end
   for _, name in ipairs { block .. '.experts.base_layer', block .. '.experts' } do
      local t, field = take_joined(op, tensors, name, m)
      if field == 'gate_up_proj' then
         local ratio = scale(alphas[joint] or c.lora_alpha, t.A:size(2)) / scale(c.lora_alpha, c.r)
         found.gate_proj, found.up_proj = split(t.A, ratio == 1 and t.B or t.B * ratio, c.r)
      elseif field then
         found.down_proj = t
      end
   end
   for _, field in ipairs(m:_fields()) do
      found[field] = found[field] or take_apart(op, tensors, block, field, m.experts)
   end
   return found
end

-- Takes the adapters of experts and routers out of tensors (name in transformers -> tensor).
-- Returns those by tide's names, and the configuration c with a rank that all layers have; smaller
-- ones get zeros, also those that stay in tensors.
function peft_moe.read(op, model, c, tensors)
   local own, rank = {}, c.r
   for _, layer in ipairs(mixtures(model)) do
      local before = layer.path == '' and '' or layer.path .. '.'
      for field, t in each(take_layer(op, c, tensors, layer.m, lora_moe.block(layer.path))) do
         local a, b = low_rank.fields(field)
         own[before .. a], own[before .. b] = t.A, t.B
         rank = math.max(rank, t.B:size(-1))
      end
   end
   if rank == c.r then return own, c end
   local wider = setmetatable({ r = rank, lora_alpha = c.lora_alpha
      * (c.use_rslora == true and math.sqrt(rank / c.r) or rank / c.r) }, { __index = c })
   for _, list in ipairs { own, tensors } do
      for name, t in each(list) do
         if name:find 'lora_A' then list[name] = padded(t, t.ndim - 1, rank) end
         if name:find 'lora_B' then list[name] = padded(t, t.ndim, rank) end
      end
   end
   return own, wider
end

return peft_moe
