-- Published folders and adapters on a GPU: what is read there computes what the host computes, and
-- what is written from there is what the host would write.
--
-- Not found by its name: emulated_folder_spec.lua runs it on emulated threads.

local each = require 'tide.util.each'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local sizes = { vocab_size = 20, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
   num_key_value_heads = 1, intermediate_size = 12, max_position_embeddings = 16 }
local experts = { num_local_experts = 3, num_experts_per_tok = 2 }
local of_family = { mixtral = experts, gpt_oss = experts, granitemoehybrid = {
   num_local_experts = 3, num_experts_per_tok = 2, layer_types = { 'mamba' }, mamba_n_heads = 2,
   mamba_d_state = 4, shared_intermediate_size = 6 }, qwen3_next = { num_hidden_layers = 2,
   layer_types = { 'linear_attention', 'full_attention' }, head_dim = 8, num_experts = 3,
   num_experts_per_tok = 2, moe_intermediate_size = 6, shared_expert_intermediate_size = 4,
   linear_num_key_heads = 1, linear_num_value_heads = 2, linear_key_head_dim = 4,
   linear_value_head_dim = 6 } }
local ids = { { 5, 6, 7, 8 } }

local function logits(model)
   local x = tide.tensor(ids, { dtype = 'i64', device = model:parameters()[1].device })
   return tide.no_grad(function() return model(x):to('f32'):to 'cpu' end)
end

local function is_near(a, b, bound)
   local d = (logits(a) - logits(b)):abs():amax():item()
   assert.is_true(d <= bound, ('logits differ by %g'):format(d))
end

-- Calls fn with a folder of a small model of the family.
local function with_folder(family, fn)
   tmp.with(function(dir)
      local config = {}
      for _, list in ipairs { sizes, of_family[family] or {} } do
         for k, v in each(list) do config[k] = v end
      end
      tide.model.save(tide.model[family](config, { seed = 3 }), dir .. '/m')
      return fn(dir .. '/m', dir)
   end)
end

describe('tide.model.load onto a GPU', function()
   -- phi3 stores q, k and v as one tensor, so its weights are views of what is stored; mixtral
   -- stores each expert apart, gpt_oss gate and up in turns, granitemoehybrid those of all experts
   -- as one tensor
   for _, family in ipairs { 'llama', 'phi3', 'mixtral', 'gpt_oss', 'granitemoehybrid',
                             'qwen3_next' } do
      for _, dtype in ipairs { 'f32', 'bf16' } do
         it(('gives the model of the host: %s in %s'):format(family, dtype), function()
            with_folder(family, function(m)
               local host = tide.model.load(m, { dtype = dtype })
               local gpu = tide.model.load(m, { dtype = dtype, device = 'cuda' })
               assert.equal('cuda', gpu:parameters()[1].device)
               for i, p in ipairs(gpu:parameters()) do
                  assert.same(host:parameters()[i]:tolist(), p:to('cpu'):tolist())
               end
               is_near(host, gpu, dtype == 'f32' and 1e-5 or 2e-2)
            end)
         end)
      end
   end

   for _, family in ipairs { 'llama', 'mixtral' } do
      it('codes weights in NF4 as the host does: ' .. family, function()
         with_folder(family, function(m)
            local host = tide.model.load(m, { quantise = 'nf4' })
            local gpu = tide.model.load(m, { quantise = 'nf4', device = 'cuda' })
            local list = host:named_buffers()
            assert.is_true(#list >= 14)
            for i, b in ipairs(gpu:named_buffers()) do
               assert.same(list[i].buffer:tolist(), b.buffer:to('cpu'):tolist())
            end
            is_near(host, gpu, 1e-5)
            tide.nn.nf4.dequantise_(gpu)
            is_near(host, gpu, 1e-5)
         end)
      end)
   end

   it('reads adapters, and merges them, as the host does', function()
      with_folder('llama', function(m, dir)
         local tuned = tide.model.load(m)
         tide.nn.lora.attach(tuned, { rank = 2, dora = true })
         for _, p in ipairs(tuned:parameters()) do
            if p.requires_grad then tide.no_grad(function() p:add_(0.1) end) end
         end
         tide.model.save_adapter(tuned, dir .. '/a')
         local host = tide.model.load_adapter(tide.model.load(m), dir .. '/a')
         local gpu = tide.model.load_adapter(tide.model.load(m, { device = 'cuda' }), dir .. '/a')
         is_near(tuned, gpu, 1e-5)
         is_near(host, gpu, 1e-5)
         is_near(host, tide.nn.lora.merge(gpu), 1e-5)
      end)
   end)

   it('and back: tide.model.save writes the bytes that were read', function()
      with_folder('phi3', function(m, dir)
         tide.model.save(tide.model.load(m, { device = 'cuda' }), dir .. '/again')
         local function bytes(folder)
            local file = assert(io.open(folder .. '/model.safetensors', 'rb'))
            local text = file:read '*a'
            file:close()
            return text
         end
         assert.is_true(bytes(m) == bytes(dir .. '/again'))
      end)
   end)
end)

describe('tide.train.sample on a GPU', function()
   for _, family in ipairs { 'llama', 'qwen3_next' } do
      it('continues a prompt with the ids of the host: ' .. family, function()
         with_folder(family, function(m)
            local function continued(device)
               local model = tide.model.load(m, { device = device })
               return (tide.train.sample.generate(model, { 1, 2, 3 },
                  { temperature = 0, tokens = 5 }))
            end
            assert.same(continued 'cpu', continued 'cuda')
         end)
      end)
   end
end)
