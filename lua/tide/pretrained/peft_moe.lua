-- Adapters of experts and routers as PEFT keeps them with transformers 5, whose layers have the
-- weights of all experts as two parameters, gate_up_proj [E, 2 I, C] and down_proj [E, C, I]:
--
--    BLOCK.experts.base_layer.lora_A.weight [E R, C], .lora_B.weight [2 I, R E]   gate_up_proj
--    BLOCK.experts.lora_A.weight [E r, I], .lora_B.weight [C, r E]                down_proj
--    BLOCK.gate.lora_A.weight, .lora_B.weight                                     the router
--
-- without base_layer where only one of the two has adapters. Experts without a gate have up_proj
-- [E, I, C] in place of gate_up_proj. gate_up_proj has one adapter, tide one for each half. Two of
-- rank r are one of rank R = 2 r, whose B is block-diagonal; so PEFT joins the adapters of older
-- files, which have each expert apart (BLOCK.experts.0.gate_proj.lora_A.weight). One of rank R that
-- is not block-diagonal is two of rank R with the same A.
--
-- A family says by `peft_experts` how transformers has its experts: router (its name), in_turns
-- (gate and up in turns along 2 I), transposed (parameters [E, in, out], whose adapters have the
-- shapes above all the same), takes_names (PEFT takes targets named like projections for experts).
-- Legend: E experts, C width of experts, I hidden size of an expert.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local low_rank = require 'tide.nn.low_rank'
local lora_moe = require 'tide.nn.lora_moe'
local mixtures = require 'tide.nn.mixtures'
local names_ = require 'tide.util.names'
local peft_names = require 'tide.pretrained.peft_names'

local peft_moe = {}

local joint = '.*\\.gate_up_proj'              -- PEFT's pattern of its rank and alpha

-- The names by which PEFT finds experts of transformers 4. With takes_names it takes a target that
-- ends in one of them for experts, so a Linear layer of such a name is named as a parameter.
local taken = { gate_proj = true, up_proj = true, down_proj = true }

local function is_taken(path, form)
   return form and form.takes_names and taken[path:match '[^.]*$']
end

-- Returns why PEFT cannot read the adapters of a model, and which targets it can read; nil if it
-- can. form: peft_experts of the family, or nil; plain, has: as of adapter.lua.
function peft_moe.obstacle(plain, form, has)
   local description = plain.adapter
   local attention = "layers of attention alone (targets = 'self_attn.*')"
   local without = description.dora and 'DoRA' or description.dropout ~= 0 and 'dropout'
   for _, path in ipairs(description.modules) do
      local is_linear = has(path .. '.lora_A')
      if not (is_linear or form) then
         return ("'%s' is the weight of experts or of a router of %s, which have no name in a "
            .. 'folder for PEFT'):format(path, plain.family or 'a class of your own'),
            'Linear layers alone'
      elseif not is_linear and form.transposed and plain.config.num_local_experts == 1
         and not path:find '%.router$' then
         return ("'%s' is the weight of a single expert, and PEFT computes its change in another "
            .. 'layout than the weight has'):format(path), attention
      elseif is_linear and without and is_taken(path, form) then
         return ("PEFT takes the layer '%s' for experts by its name, and its adapters of experts "
            .. 'have no %s'):format(path, without), ('without %s, or %s'):format(without, attention)
      end
   end
end

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

-- Returns B [E, 2 I, R] of gate_up_proj with rows of gate and up in turns, from one with the rows
-- of gate before those of up.
local function in_turns(B)
   local E, rows, R = unpack(B.shape)
   return B:reshape(E, 2, rows / 2, R):permute(1, 3, 2, 4):reshape(E, rows, R)
end

-- Returns what in_turns was given.
local function in_halves(B)
   local E, rows, R = unpack(B.shape)
   return B:reshape(E, rows / 2, 2, R):permute(1, 3, 2, 4):reshape(E, rows, R)
end

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

-- Adds the weights with adapters of one layer by add(name, t); returns the paths of the parameters
-- in transformers. of: peft_experts of the family.
local function write_layer(path, of, fields, read, add)
   local block, list = lora_moe.block(path), {}
   local function adapter_of(field)
      local a, b = low_rank.fields(field)
      return { A = read(names_.join(path, a)), B = read(names_.join(path, b)) }
   end
   if fields.router then
      local t, router = adapter_of 'router', block .. '.' .. of.router
      add(router .. '.lora_A', t.A)
      add(router .. '.lora_B', t.B)
      list[1] = router .. '.weight'
   end
   local experts = block .. '.experts.'
   local function put(name, A, B, is_inner)
      list[#list + 1] = experts .. name
      local at = experts .. (is_inner and 'base_layer.' or '')
      add(at .. 'lora_A', flat_a(A))
      add(at .. 'lora_B', flat_b(B))
   end
   if fields.gate_proj then
      local A, B = join(adapter_of 'gate_proj', adapter_of 'up_proj')
      put('gate_up_proj', A, of.in_turns and in_turns(B) or B, fields.down_proj)
   elseif fields.up_proj then
      local t = adapter_of 'up_proj'
      put('up_proj', t.A, t.B, fields.down_proj)
   end
   if fields.down_proj then
      local t = adapter_of 'down_proj'
      put('down_proj', t.A, t.B)
   end
   return list
end

-- Adds the adapters of experts and routers. description: model.adapter; rules: of the family of a
-- model with experts, or empty; has(name): whether there is a parameter. Returns the modules that
-- are Linear layers, and the fields of adapter_config.json that say the rest.
function peft_moe.write(description, rules, has, read, add)
   local linear, paths, fields_of, parameters = {}, {}, {}, {}
   local of = rules.peft_experts
   for _, path in ipairs(description.modules) do
      if not has(path .. '.lora_A') then
         local parent, field = names_.split(path)
         if not fields_of[parent] then paths[#paths + 1], fields_of[parent] = parent, {} end
         fields_of[parent][field] = true
      elseif is_taken(path, of) then
         parameters[#parameters + 1] = path .. '.weight'
      else
         linear[#linear + 1] = path
      end
   end
   local joined
   for _, path in ipairs(paths) do
      for _, name in ipairs(write_layer(path, of, fields_of[path], read, add)) do
         parameters[#parameters + 1] = name
      end
      joined = joined or fields_of[path].gate_proj
   end
   for i, name in ipairs(parameters) do parameters[i] = peft_names.target(name, rules) end
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
            .. "experts, '%s', is known here; merge the adapter into its base with PEFT "
            .. '(merge_and_unload), and load that', path, name, key, joint)
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

-- Returns whether target_parameters of a configuration name a parameter. path: in tide.
local function is_target(c, path, rules)
   path = '.' .. peft_names.target(path, rules)
   for _, name in ipairs(type(c.target_parameters) == 'table' and c.target_parameters or {}) do
      name = '.' .. peft_names.inner(tostring(name), rules)
      if path:sub(-#name) == name or name:sub(-#path) == path then return true end
   end
   return false
end

-- Takes the adapters of the parameters of all experts: { A, B } by the name in transformers.
local function take_joined(op, c, tensors, m, block, rules)
   local E, first, found = m.experts, m:_is_gated() and 'gate_up_proj' or 'up_proj', {}
   local I, C = m:_shape 'up_proj'
   local rows = m:_is_gated() and 2 * I or I
   local experts = block .. '.experts'
   for _, name in ipairs { experts .. '.base_layer', experts } do
      local A, B = take(tensors, name)
      if A then
         local fits_first = A:size(2) == C and B:size(1) == rows and not found[first]
         local fits_down = A:size(2) == I and B:size(1) == C
         err.raise_if(not (fits_first or fits_down) or A:size(1) % E ~= 0
            or A:size(1) ~= B:size(2), 'E_SHAPE', op, "'%s' has lora_A %s and lora_B %s, which "
            .. 'fit no parameter of %d experts of %d -> %d', name, dims.text(A.shape),
            dims.text(B.shape), E, C, I)
         if fits_first and fits_down and name == experts then            -- a square weight
            fits_first = is_target(c, experts .. '.' .. first, rules)
         end
         found[fits_first and first or 'down_proj'] = { A = deep_a(A, E), B = deep_b(B, E) }
      end
   end
   return found
end

-- Takes the adapters of one layer; returns them by field. rules: of the family.
local function take_layer(op, c, tensors, m, block, rules)
   local found, of = take_joined(op, c, tensors, m, block, rules), rules.peft_experts
   local function scale(alpha, rank)
      return alpha / (c.use_rslora == true and math.sqrt(rank) or rank)
   end
   local alphas = type(c.alpha_pattern) == 'table' and c.alpha_pattern or {}
   local router_A, router_B = take(tensors, block .. '.' .. of.router)
   if router_A then found.router = { A = router_A, B = router_B } end
   local t = found.gate_up_proj
   if t then
      local ratio = scale(alphas[joint] or c.lora_alpha, t.A:size(2)) / scale(c.lora_alpha, c.r)
      local B = of.in_turns and in_halves(t.B) or t.B
      found.gate_proj, found.up_proj = split(t.A, ratio == 1 and B or B * ratio, c.r)
      found.gate_up_proj = nil
   end
   for _, field in ipairs(m:_fields()) do
      found[field] = found[field] or take_apart(op, tensors, block, field, m.experts)
   end
   return found
end

-- Takes the adapters of experts and routers out of tensors (name -> tensor, see peft_names.inner).
-- rules: of the family. Returns those by tide's names, and the configuration c with a rank that all
-- layers have; smaller ones get zeros, also those that stay in tensors.
function peft_moe.read(op, model, rules, c, tensors)
   local own, rank = {}, c.r
   for _, layer in ipairs(mixtures(model)) do
      local block = lora_moe.block(layer.path)
      for field, t in each(take_layer(op, c, tensors, layer.m, block, rules)) do
         local a, b = low_rank.fields(field)
         own[names_.join(layer.path, a)], own[names_.join(layer.path, b)] = t.A, t.B
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
