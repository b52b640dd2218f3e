-- Published folders whose weights are in FP8 with a scale for each block.

local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local block = { 3, 4 }

-- The number of an e4m3 code.
local function number(code)
   local sign, e, m = code < 128 and 1 or -1, math.floor(code / 8) % 16, code % 8
   if e == 0 then return sign * m / 512 end
   return sign * (1 + m / 8) * 2 ^ (e - 7)
end

-- A code that is no NaN, of place i.
local function code_at(i)
   local code = (i * 37 + 11) % 256
   return code % 128 == 127 and 5 or code
end

-- Writes tensors, name -> { dtype, shape, bytes }, as a safetensors file.
local function write(path, tensors)
   local header, data, at = {}, {}, 0
   for name, t in each(tensors) do
      header[name] = { dtype = t[1], shape = t[2], data_offsets = { at, at + #t[3] } }
      data[#data + 1], at = t[3], at + #t[3]
   end
   local text = tide.json.encode(header)
   local n, size = #text, {}
   for i = 1, 8 do
      size[i] = string.char(n % 256)
      n = math.floor(n / 256)
   end
   fs.write('spec', path, table.concat(size) .. text .. table.concat(data))
end

-- The bytes of a plain tensor of a folder, f32.
local function bytes_of(t)
   local ffi = require 'ffi'
   local list = t:reshape(-1):tolist()
   return ffi.string(ffi.new('float[?]', #list, list), 4 * #list)
end

local function is_packed(name) return name:find '_proj%.weight$' ~= nil end

-- Makes the folder dir/packed: a small Qwen3 MoE whose projections are in FP8. Returns the weights
-- that they mean, and the tensors as write takes them.
local function make(dir, change)
   local model = tide.model.qwen3_moe({ vocab_size = 13, hidden_size = 10, num_hidden_layers = 2,
      num_attention_heads = 2, head_dim = 4, moe_intermediate_size = 7, intermediate_size = 9,
      num_experts = 3, num_experts_per_tok = 2, mlp_only_layers = { 0 } }, { seed = 1 })
   tide.model.save(model, dir .. '/plain', { overwrite = true })
   local plain, tensors = tide.train.checkpoint.tensors(dir .. '/plain/model.safetensors'), {}
   for name, t in each(plain) do
      if is_packed(name) then
         local N, K = unpack(t.shape)
         local rows, cols = math.ceil(N / block[1]), math.ceil(K / block[2])
         local codes, scales, want = {}, {}, {}
         for i = 1, rows * cols do scales[i] = 2 ^ -6 * (1 + i % 5 / 8) end
         for i = 0, N * K - 1 do
            local r, c = math.floor(i / K), i % K
            codes[i + 1] = string.char(code_at(i))
            want[i + 1] = number(code_at(i))
               * scales[math.floor(r / block[1]) * cols + math.floor(c / block[2]) + 1]
         end
         tensors[name] = { 'F8_E4M3', { N, K }, table.concat(codes) }
         tensors[name .. '_scale_inv'] = { 'F32', { rows, cols },
            bytes_of(tide.tensor(scales, { dtype = 'f32' })) }
         plain[name] = tide.tensor(want, { dtype = 'f32' }):reshape(N, K):to 'bf16'
      else
         tensors[name] = { 'F32', t.shape, bytes_of(t) }
      end
   end
   fs.mkdirs('spec', dir .. '/packed')
   if change then change(tensors) end
   write(dir .. '/packed/model.safetensors', tensors)
   local text = fs.read('spec', dir .. '/plain/config.json')
   fs.write('spec', dir .. '/packed/config.json', (text:gsub('^{', '{"quantization_config": '
      .. '{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", '
      .. '"weight_block_size": [3, 4]},')))
   return plain
end

-- On a rank: the model of a folder on a mesh, written as a folder.
local function spread(rank, _, dir, mesh, out, plan)
   local t = require 'tide'
   local model, run = t.model.load(dir, { mesh = mesh, dtype = 'bf16', plan = plan })
   if run.sharded or rank == 0 then t.model.save(run.sharded or model, out) end
end

local function check(want, dir)
   for name, t in each(tide.train.checkpoint.tensors(dir .. '/model.safetensors')) do
      assert.is_true(t:to('bf16'):equal(want[name]:to 'bf16'), name)
   end
end

describe('a folder in FP8', function()
   it('is read as bf16, each block with its scale', function()
      tmp.with(function(dir)
         local want = make(dir)
         local model = tide.model.load(dir .. '/packed', { dtype = 'bf16' })
         assert.is_nil(model.config.quantization_config)
         tide.model.save(model, dir .. '/out')
         check(want, dir .. '/out')
      end)
   end)

   for i, row in ipairs { { { dp_shard = 2 } }, { { dp_shard = 1, tp = 2 } },
      { { dp_shard = 2 }, { fsdp = { ep_size = 2 } } } } do
      it('is read over ranks, a part each: ' .. i, function()
         tmp.with(function(dir)
            local want = make(dir)
            ranks.run(2, spread, dir .. '/packed', row[1], dir .. '/out', row[2])
            check(want, dir .. '/out')
         end)
      end)
   end

   it('is refused where codes and scales do not fit, and where it is packed in another way',
      function()
         tmp.with(function(dir)
            local name = 'model.layers.1.mlp.experts.2.up_proj.weight'
            make(dir, function(t) t[name .. '_scale_inv'][2] = { 9, 1 } end)
            refused('E_FORMAT', { name, 'F8_E4M3', 'rounded up', '[9, 1]' }, tide.model.load,
               dir .. '/packed')
            make(dir, function(t) t[name .. '_scale_inv'] = nil end)
            refused('E_FORMAT', { name, 'F8_E4M3', 'expected' }, tide.model.load, dir .. '/packed')
            make(dir, function(t) t[name] = nil end)
            refused('E_FORMAT', { name .. '_scale_inv', ("lacks '%s'"):format(name), 'FP8' },
               tide.model.load, dir .. '/packed')
            local path = dir .. '/packed/config.json'
            local text = fs.read('spec', path)
            for _, row in ipairs { { '%[3, 4%]', 'null', 'weight_block_size' },
                                   { '"e4m3"', '"e5m2"', 'quantization_config.fmt' },
                                   { '"fp8"', '"awq"', "only 'fp8' is supported" } } do
               fs.write('spec', path, (text:gsub(row[1], row[2])))
               refused('E_ARG', { 'config.json', row[3] }, tide.model.load, dir .. '/packed')
            end
         end)
      end)
end)
