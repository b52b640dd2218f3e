-- Cases of spec/golden/qwen2_5_vl.py: the models, with the weights and pixels that the script gives
-- them, and what transformers computes.

local tide = require 'tide'
local dims = require 'tide.util.dims'

local case = { golden = dofile 'spec/golden/qwen2_5_vl.lua' }

local numbers

-- Names of the cases, sorted.
function case.names()
   local list = {}
   for name in require 'tide.util.each'(case.golden) do list[#list + 1] = name end
   table.sort(list)
   return list
end

-- Returns the stored numbers of a case: field -> tensor.
function case.numbers(name)
   numbers = numbers or tide.train.checkpoint.tensors 'spec/golden/qwen2_5_vl.safetensors'
   local out = {}
   for key, t in require 'tide.util.each'(numbers) do
      local field = key:match('^' .. name .. '%.([%w_]+)$')
      if field then out[field] = t end
   end
   return out
end

local function sines(k, shape)
   return ((tide.arange(dims.numel(shape), { dtype = 'f64' }) * 0.7 + 1.3 * k):sin() * 0.3)
      :reshape(shape)
end

-- Returns the parameters of a model, { name, param }, in the order of their names.
function case.parameters(model)
   local list = model:named_parameters()
   table.sort(list, function(a, b) return a.name < b.name end)
   return list
end

-- Fills the parameters of a model by their places in that order.
function case.fill(model)
   tide.no_grad(function()
      for k, e in ipairs(case.parameters(model)) do
         local t = sines(k - 1, e.param.shape)
         if e.name:find('norm', 1, true) or e.name:find('.ln_', 1, true) then t = t / 3 + 1 end
         e.param:copy_(t)
      end
   end)
   return model
end

-- Returns the configuration of a case.
function case.config(name) return tide.json.decode(case.golden[name], { nonfinite = true }) end

-- Returns the model of a case, in eval mode. opts: of modules.
function case.model(name, opts)
   return case.fill(tide.model.qwen2_5_vl(case.config(name), opts)):eval()
end

-- Returns what a case gives a model beside ids. dtype: of the pixels.
function case.images(name, dtype)
   local n, v, out = case.numbers(name), case.config(name).vision_config, {}
   local numel = v.in_channels * v.temporal_patch_size * v.patch_size ^ 2
   for grid, pixels in require 'tide.util.each' { image_grid_thw = 'pixel_values',
      video_grid_thw = 'pixel_values_videos' } do
      if n[grid] then
         local patches = 0
         for _, g in ipairs(n[grid]:tolist()) do patches = patches + g[1] * g[2] * g[3] end
         out[grid], out[pixels] = n[grid], (sines(5, { patches, numel }) * 3):to(dtype or 'f32')
      end
   end
   out.second_per_grid_ts = n.second_per_grid_ts
   return out
end

-- Returns samples of a gradient: the largest, and those at the places that the script takes.
function case.samples(row, grad, n)
   local state, list, numel = row, {}, grad:numel()
   for i = 1, n do
      state = state * 16807 % 2147483647
      list[i] = state % numel
   end
   local flat = grad:reshape(numel)
   return tide.cat({ flat:abs():amax():reshape(1),
      flat:index_select(1, tide.tensor(list, { dtype = 'i64' })) }, 1)
end

return case
