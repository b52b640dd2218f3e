-- The README.md of a published folder: it describes the weights, and the user extends it.

local units = require 'tide.util.units'

local card = {}

local text = [[
---
library_name: transformers
pipeline_tag: text-generation
tags: [tide]
---

# %s

A %s model of %s parameters, stored in %s. Written by tide.

Not described yet: the data, the training, its purpose and its limits.

    local model = tide.model.load '%s'

    model = transformers.AutoModelForCausalLM.from_pretrained("%s")
]]

-- Returns the text of README.md for a source of save.lua that is written to dir.
function card.text(source, dir)
   local name = dir:gsub('/+$', ''):match '[^/]+$' or dir
   return text:format(name, source.plain.family, units.count(source.numel), source.dtype, name,
      name)
end

return card
