-- How the weights of published files are packed, by quantization_config of config.json. Weights in
-- 8 bits (FP8 in blocks, as DeepSeek-V3 and Qwen3 publish them) and in 4 bits (MXFP4, of gpt-oss)
-- are read as plain numbers.

local err = require 'tide.util.err'

local packing = {}

-- Kinds of packing by quant_method. Each returns { kind, block } of the table, or nil and the
-- problem of one that is not supported.
local kinds = {}

function kinds.fp8(how)
   local block = how.weight_block_size
   local fits = type(block) == 'table' and #block == 2
   for i = 1, fits and 2 or 0 do
      fits = fits and type(block[i]) == 'number' and block[i] >= 1 and block[i] % 1 == 0
   end
   if not fits then
      return nil, ("field 'quantization_config.weight_block_size': expected the rows and columns "
         .. 'that share a scale, got %s'):format(err.show(block))
   end
   if how.fmt ~= nil and how.fmt ~= 'e4m3' then
      return nil, ("field 'quantization_config.fmt' is %s; only 'e4m3' is supported"):format(
         err.show(how.fmt))
   end
   return { kind = 'fp8', block = { block[1], block[2] } }
end

function kinds.mxfp4() return { kind = 'mxfp4' } end

-- Returns how the weights of a configuration's file are packed, nil if they are plain. The second
-- result is the problem of a kind that is not supported. own: the kinds of a family beside FP8, or
-- nil.
local function read(config, own)
   local how, names = config.quantization_config, { 'fp8', unpack(own or {}) }
   if type(how) ~= 'table' or how.quant_method == nil then return nil end
   for _, name in ipairs(names) do
      if how.quant_method == name then return kinds[name](how) end
   end
   return nil, ("field 'quantization_config.quant_method' is %s; only '%s' %s supported: load the "
      .. 'model with another program and save it in bf16'):format(err.show(how.quant_method),
      table.concat(names, "' and '"), #names == 1 and 'is' or 'are')
end

-- Returns how the weights of a folder are packed: nil (plain), or kind, 'fp8' or 'mxfp4', and of
-- FP8 block, the rows and columns that share a scale. own: the kinds of the family beside FP8, or
-- nil. Raises E_ARG for kinds that are not supported.
function packing.of(op, config, own)
   local how, problem = read(config, own)
   err.raise_if(problem, 'E_ARG', op, '%s', problem)
   return how
end

-- Takes quantization_config out of the fields of a configuration, which has none once its weights
-- are read.
function packing.translate(fields, problems, own)
   local how, problem = read(fields, own)
   problems[#problems + 1] = problem
   if how or problem then fields.quantization_config = nil end
end

return packing
