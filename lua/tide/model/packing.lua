-- How the weights of published files are packed, by quantization_config of config.json. Folders in
-- 8 bits (FP8 in blocks, as DeepSeek-V3 and Qwen3 publish them) are read as plain numbers.

local err = require 'tide.util.err'

local packing = {}

-- Returns the rows and columns of the weights that share a scale, of a configuration whose file has
-- FP8; nil: it has none. The second result is the problem of one that is not supported.
function packing.fp8_block(config)
   local how = config.quantization_config
   if type(how) ~= 'table' or how.quant_method ~= 'fp8' then return nil end
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
   return { block[1], block[2] }
end

-- Returns how the weights of a folder are packed: 'mxfp4', a block of FP8, or nil (plain). own:
-- nil, or fn(config) of a family whose files may be packed in another way. Raises E_ARG for ways
-- that are not supported.
function packing.of(op, config, own)
   local block, problem = packing.fp8_block(config)
   if block then return block end
   err.raise_if(problem, 'E_ARG', op, '%s', problem)
   if own then return own(config) end
   local how = config.quantization_config
   err.raise_if(type(how) == 'table' and how.quant_method ~= nil, 'E_ARG', op, "field "
      .. "'quantization_config.quant_method' is %s; only 'fp8' is supported: load the model with "
      .. 'another program and save it in bf16', err.show(type(how) == 'table' and how.quant_method))
   return nil
end

-- Takes quantization_config of FP8 out of the fields of a configuration, which has none once its
-- weights are read.
function packing.translate(fields, problems)
   local block, problem = packing.fp8_block(fields)
   problems[#problems + 1] = problem
   if block or problem then fields.quantization_config = nil end
end

return packing
