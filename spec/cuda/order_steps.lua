-- A program: two training steps of a small model on packed documents, on device cuda, and then the
-- bits of losses and weights as one line of hex. orders.lua runs it under the orders and answers
-- that a chip may give.
--
--    luajit spec/cuda/order_steps.lua llama|hybrid bf16|f32 TOKENS

local tide = require 'tide'

local name, dtype, T = arg[1], arg[2], tonumber(arg[3])

local model = name == 'llama' and tide.model.llama({ vocab_size = 40, hidden_size = 32,
      intermediate_size = 48, num_hidden_layers = 1, num_attention_heads = 2,
      num_key_value_heads = 1 }, { dtype = dtype, device = 'cuda', seed = 5 })
   or tide.model.hybrid({ vocab_size = 40, hidden_size = 32, intermediate_size = 48,
      hybrid_override_pattern = 'M*-', num_attention_heads = 2, num_key_value_heads = 1,
      head_dim = 16, mamba_num_heads = 2, mamba_head_dim = 16, ssm_state_size = 8 },
      { dtype = dtype, device = 'cuda', seed = 5 })

local step = tide.train.step.new { model = model, clip = 1,
   optim = tide.optim.AdamW(model, { lr = 1e-2 }) }

local function batch(seed)
   local ids = {}
   for i = 1, T do ids[i] = (7 * i * i + 3 * seed * i + seed) % 40 end
   local cu = tide.tensor({ 0, math.floor(T / 2) + 2, T - 3 }, { dtype = 'i32' })
   local t = tide.tensor({ ids }, { dtype = 'i64' })
   return { ids = t:to 'cuda', labels = t:roll(-1, 2):to 'cuda', count = T,
            index = tide.document_index(cu, T):to 'cuda' }
end

local bits = {}
for i = 1, 2 do
   local got = step:run { batch(i) }
   bits[#bits + 1] = ('%.17g %.17g'):format(got.loss, got.grad_norm)
end
for _, p in ipairs(model:parameters()) do bits[#bits + 1] = p:to('cpu'):to_string_bytes() end
print((table.concat(bits, '\n'):gsub('.', function(c) return ('%02x'):format(c:byte()) end)))
