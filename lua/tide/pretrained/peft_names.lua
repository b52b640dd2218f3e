-- Names of adapters of Linear layers in a folder for PEFT: tensors are named
-- base_model.model.PATH.lora_A.weight and .lora_B.weight, where PATH is that of the module in
-- transformers. Those of experts have a form of their own (peft_moe.lua).
--
-- A family says by `peft` how transformers calls a module, with `rename` the reverse. `from_peft`
-- alone is the reverse for a family whose own names PEFT reads, too; `peft_target` then is the name
-- by which adapter_config.json finds a module (see model/hybrid.lua).

local peft_names = {}

local before = 'base_model.model.'

-- Returns PEFT's name of a parameter such as 'model.layers.0.q_proj.lora_A'. rules: of the family.
function peft_names.published(name, rules)
   if rules.peft then name = rules.peft(name) end
   local path = name:match '^(.*)%.lora_m$'
   return before .. (path and path .. '.lora_magnitude_vector' or name .. '.weight')
end

-- Returns the name in tide of a tensor of PEFT, but for its end. rules: of the family.
function peft_names.inner(name, rules)
   local inner = name:sub(1, #before) == before and name:sub(#before + 1) or name
   local rename = rules.peft and rules.rename or rules.from_peft
   if rename then inner = rename(inner) end
   return (inner:gsub('%.default%f[.%z]', ''))
end

-- Returns tide's name of a parameter of a Linear layer by peft_names.inner, or nil.
function peft_names.own(inner)
   local path, which = inner:match '^(.*)%.lora_([AB])%.weight$'
   if path then return ('%s.lora_%s'):format(path, which) end
   path = inner:match '^(.*)%.lora_magnitude_vector$'
      or inner:match '^(.*)%.lora_magnitude_vector%.weight$'
   return path and path .. '.lora_m'
end

-- Returns the name by which adapter_config.json finds a module or parameter.
function peft_names.target(path, rules)
   local to = rules.peft_target or rules.peft
   return to and to(path) or path
end

-- Returns the last names of modules if they select exactly these of `all`, else nil.
local function last_names(modules, all)
   local has, names, seen = {}, {}, {}
   for _, path in ipairs(modules) do has[path] = true end
   for _, path in ipairs(all) do
      local name = path:match '[^.]*$'
      if has[path] and not seen[name] then
         seen[name] = true
         names[#names + 1] = name
      end
   end
   for _, path in ipairs(all) do
      if seen[path:match '[^.]*$'] and not has[path] then return nil end
   end
   return names
end

-- Returns the value of target_modules: last names if they select exactly these paths, else the
-- paths. Of a model with several parts it is the paths, since a last name would be that of layers
-- of others. all: the paths of all Linear layers.
function peft_names.targets(modules, all, rules)
   local names = not rules.peft and last_names(modules, all)
   if names then return names end
   local list = {}
   for i, path in ipairs(modules) do list[i] = peft_names.target(path, rules) end
   return list
end

return peft_names
