-- Mixtures of experts: against a loop over tokens, in every shape, and what they refuse.

local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local nn = tide.nn

local function random(seed, shape, dtype)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to(dtype or 'f64')
end

-- The output of a layer for x [N, C], token after token, expert after expert.
local function by_hand(m, x)
   local rows = {}
   for n = 1, x:size(1) do
      local row = x:narrow(1, n, 1)
      local p = tide.linear(row, m.router):softmax(-1)
      local w, ids = p:topk(m.topk, -1)
      if m.norm_topk then w = w / w:sum() end
      local y = tide.zeros({ 1, x:size(2) }, { dtype = x.dtype })
      for k = 1, m.topk do
         local e = tonumber(ids:at(1, k)) + 1
         local h = tide.linear(row, m.gate_proj:select(1, e)):silu()
            * tide.linear(row, m.up_proj:select(1, e))
         y = y + tide.linear(h, m.down_proj:select(1, e)) * w:narrow(2, k, 1)
      end
      rows[n] = y
   end
   return tide.cat(rows, 1)
end

-- The output and the gradients of fn(m, x) for a loss that weighs each number differently.
local function run(fn, m, x)
   m:zero_grad()
   x = x:detach():requires_grad_()
   local y = fn(m, x)
   local loss = (y * random(9, y.shape, y.dtype)):sum()
   loss:backward()
   local list = { y = y:detach(), x = x.grad }
   for _, e in ipairs(m:named_parameters()) do list[e.name] = e.param.grad end
   return list
end

local function near(want, got, tolerance, what)
   local off = (want:to 'f64' - got:to 'f64'):abs():amax():item()
   assert.is_true(off <= tolerance * math.max(1, want:abs():amax():item()), what)
end

describe('nn.MoE', function()
   for _, row in ipairs { { 7, 6, 5, 4, 2 }, { 7, 6, 5, 4, 2, true }, { 1, 3, 2, 1, 1 },
                          { 5, 4, 3, 3, 3, true }, { 40, 8, 12, 9, 3 } } do
      local N, C, I, E, k, norm = unpack(row)
      it(('is a loop over tokens: %d x %d, %d of %d experts of %d'):format(N, C, k, E, I),
         function()
            local m = nn.MoE { dim = C, hidden = I, experts = E, topk = k, norm_topk = norm,
               dtype = 'f64', seed = 3 }
            local x = random(N, { N, C })
            local got, want = run(function(_, v) return m(v) end, m, x), run(by_hand, m, x)
            for name, t in each(want) do near(t, got[name], 1e-12, name) end
         end)
   end

   it('takes any leading dims, no token, and 16 bits', function()
      local m = nn.MoE { dim = 6, hidden = 5, experts = 4, topk = 2, seed = 1 }
      local x = random(1, { 2, 3, 6 }, 'f32')
      near(m(x:reshape(6, 6)), m(x):reshape(6, 6), 0, 'leading dims')
      assert.same({ 0, 6 }, m(tide.zeros { 0, 6 }).shape)
      local half = nn.MoE { dim = 6, hidden = 5, experts = 4, topk = 2, seed = 1, dtype = 'bf16' }
      local y = half(x:to 'bf16')
      assert.equal('bf16', y.dtype)
      near(m(x), y, 3e-2, 'bf16')
   end)

   it('gives experts without tokens a gradient of zero', function()
      local m = nn.MoE { dim = 4, hidden = 3, experts = 8, topk = 1, seed = 1 }
      m(random(1, { 1, 4 }, 'f32')):sum():backward()
      local used = 0
      for e = 1, 8 do
         used = used + (m.up_proj.grad:select(1, e):abs():amax():item() > 0 and 1 or 0)
      end
      assert.equal(1, used)
   end)

   it('routes without waiting for the device', function()
      local m = nn.MoE { dim = 4, hidden = 3, experts = 8, topk = 2, device = 'null' }
      assert.same({ 2, 5, 4 }, m(tide.empty({ 2, 5, 4 }, { device = 'null' })).shape)
   end)

   it('frees what it makes at its last use, and its input with it', function()
      local function live() return tide.default():stats().live end
      for name, part in each { MoE = nn.MoE { dim = 64, hidden = 8, experts = 4, topk = 3 },
         ['in groups'] = nn.MoE { dim = 64, hidden = 8, experts = 16, topk = 3, groups = 4,
            topk_groups = 2, score = 'sigmoid', wide_router = true },
         MoELayer = nn.MoELayer { routed = nn.MoE { dim = 64, hidden = 8, experts = 4, topk = 3 },
            shared = nn.MLP { dim = 64, hidden = 8 } } } do
         local m = nn.Block { norm1 = nn.RMSNorm(64), mixer = nn.Linear(64, 64),
            norm2 = nn.RMSNorm(64), mlp = part }
         local x = tide.zeros { 1, 512, 64 }
         collectgarbage()
         collectgarbage()
         collectgarbage 'stop'
         local before = live()
         local y = tide.no_grad(m, x)
         local left = live() - before
         collectgarbage 'restart'
         assert.is_true(left < 1.5 * 4 * y:numel(), name .. ': ' .. left)
      end
   end)

   it('refuses what is not of its width', function()
      local m = nn.MoE { dim = 4, hidden = 3, experts = 2, topk = 1 }
      refused('E_ARG', { 'nn.MoE', "'x'", '[.., 4]', '3' }, m, 3)
      refused('E_ARG', { 'nn.MoE', "'x'", '[.., 4]', '[4, 3]' }, m, tide.zeros { 4, 3 })
   end)

   it('chooses experts that exist, and has a loss of NaN, where the router gives NaN', function()
      for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
         local m = nn.MoE { dim = 4, hidden = 3, experts = 5, topk = 2, dtype = dtype }
         tide.no_grad(function() m.router:fill_(0 / 0) end)
         local x = random(1, { 3, 4 }, dtype)
         for _, id in ipairs((m:route(x)):reshape(-1):tolist()) do
            assert.is_true(tonumber(id) >= 0 and tonumber(id) < 5)
         end
         local loss = m(x):sum()
         loss:backward()
         assert.is_true(loss:item() ~= loss:item())
      end
   end)

   it('refuses options that have no effect', function()
      local o = { dim = 4, hidden = 3, experts = 2, topk = 1, alpha = 2 }
      refused('E_ARG', { 'nn.MoE', 'alpha has an effect with limit alone' }, nn.MoE, o)
      o.limit = 7
      assert.equal(2, nn.MoE(o).alpha)
   end)

   it('refuses more experts a token than there are', function()
      refused('E_ARG', { 'nn.MoE', 'topk (3) must be at most experts (2)' }, nn.MoE,
         { dim = 4, hidden = 4, experts = 2, topk = 3 })
   end)
end)

-- ---- models ------------------------------------------------------------------------------------

local config = { vocab_size = 29, hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2,
   moe_intermediate_size = 5, intermediate_size = 12, num_experts = 4, num_experts_per_tok = 2 }

local function with(changes)
   local c = {}
   for _, t in ipairs { config, changes } do
      for k, v in each(t) do c[k] = v end
   end
   return c
end

local function bytes_of(path) return fs.read('spec', path) end

describe('a decoder with experts', function()
   it('counts the experts that a token uses', function()
      local model = tide.model.qwen3_moe(config)
      local idle = 2 * 2 * 3 * 8 * 5                    -- layers, idle experts, projections
      assert.equal(model:num_parameters() - 29 * 8 - idle, model:multiplying())
   end)

   it('has experts in the layers that its configuration says', function()
      local function layers(changes)
         local list = {}
         for i, block in ipairs(tide.model.qwen3_moe(with(changes)).model.layers) do
            list[i] = block.mlp.class_name
         end
         return list
      end
      assert.same({ 'MoE', 'MoE' }, layers {})
      assert.same({ 'MoE', 'MLP' }, layers { mlp_only_layers = { 1 } })
      assert.same({ 'MLP', 'MoE' }, layers { decoder_sparse_step = 2 })
   end)

   it("recomputes its experts as MLPs are, with equal gradients", function()
      local function grads(policy)
         local list = {}
         local model = tide.model.qwen3_moe(with { mlp_only_layers = { 1 } }, { seed = 1 })
         tide.parallel.recompute(model, policy)
         local ids = tide.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 } }, { dtype = 'i64' })
         model:loss(ids, ids, { shift = true }):backward()
         for i, e in ipairs(model:named_parameters()) do list[i] = e.param.grad end
         return list, tide.parallel.recompute.report(model)
      end
      local want = grads 'none'
      local got, report = grads 'mlp'
      assert.same({ 'model.layers.0.mlp', 'model.layers.1.mlp' }, report)
      for i, g in ipairs(want) do assert.is_true(g:equal(got[i])) end
   end)

   it('refuses what it would ignore', function()
      local function make(changes) return tide.model.qwen3_moe, with(changes) end
      refused('E_ARG', { 'mlp_only_layers[1]', '0 to 1', '2' }, make { mlp_only_layers = { 2 } })
      refused('E_ARG', { 'mlp_only_layers', 'list' }, make { mlp_only_layers = { a = 1 } })
      refused('E_ARG', 'sliding_window', make { use_sliding_window = true })
      refused('E_ARG', { 'num_experts_per_tok (5)', 'num_experts (4)' },
         make { num_experts_per_tok = 5 })
      refused('E_ARG', 'output_router_logits', make { output_router_logits = 1 })
      refused('E_ARG', 'router_aux_loss_coef', make { router_aux_loss_coef = -1 })
      refused('E_ARG', { 'mlp_bias', 'no biases' }, make { mlp_bias = true })
      -- transformers would drop the biases of such a folder
      refused('E_ARG', { 'attention_bias', 'no biases' }, tide.model.mixtral, { vocab_size = 9,
         hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2, attention_bias = true })
      refused('E_ARG', 'router_jitter_noise', tide.model.mixtral, { vocab_size = 9,
         hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
         router_jitter_noise = 0.1 })
   end)

   it('takes the fields of published configurations that change nothing', function()
      local qwen = tide.model.qwen3_moe(with { max_window_layers = 48,
         sliding_window = tide.json.null, use_sliding_window = false, router_aux_loss_coef = 0.001,
         mlp_only_layers = {} })
      assert.same({ 'max_window_layers' }, qwen.unused_fields)
      -- transformers reads both names of the field in each family
      local made = tide.model.mixtral { vocab_size = 9, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, num_experts = 3 }
      assert.equal(3, made.model.layers[1].mlp.experts)
   end)

   it('names the tensors of a folder in all that it refuses', function()
      tmp.with(function(dir)
         local path = dir .. '/m/model.safetensors'
         tide.model.save(tide.model.qwen3_moe(config), dir .. '/m')
         local all = tide.train.checkpoint.tensors(path)
         local function load_with(name, t)
            local old = all[name]
            all[name] = t
            fs.io().safetensors_save(path, all, { format = 'pt' })
            all[name] = old
            return tide.model.load, dir .. '/m'
         end
         local gate = 'model.layers.0.mlp.gate.weight'
         refused('E_SHAPE', { 'missing: ' .. gate }, load_with(gate, nil))
         refused('E_FORMAT', { gate, 'model.layers.0.mlp.router', 'remove one' },
            load_with('model.layers.0.mlp.router', all[gate]:clone()))
         local text = fs.read('spec', dir .. '/m/config.json')
         fs.write('spec', dir .. '/m/config.json',
            (text:gsub('("num_experts": ?)4', '%11000000000')))
         refused('E_FORMAT', { 'config.json', '2000000000 experts', 'tensors' },
            load_with(gate, all[gate]))
      end)
   end)

   it('says which expert a folder lacks, and which has another shape', function()
      tmp.with(function(dir)
         local path = dir .. '/m/model.safetensors'
         tide.model.save(tide.model.qwen3_moe(config), dir .. '/m')
         local all = tide.train.checkpoint.tensors(path)
         local name = 'model.layers.1.mlp.experts.3.up_proj.weight'
         local kept = all[name]
         all[name] = nil
         fs.io().safetensors_save(path, all, { format = 'pt' })
         refused('E_STATE', { name, 'missing', '4' }, tide.model.load, dir .. '/m')
         all[name] = kept:narrow(1, 1, 4):contiguous()
         fs.io().safetensors_save(path, all, { format = 'pt' })
         refused('E_SHAPE', { name, '[4, 8]', '[5, 8]' }, tide.model.load, dir .. '/m')
      end)
   end)

   -- On a rank: a step of the folder `dir` on a mesh, with Muon; writes the model to `out`.
   local function step_on(rank, _, dir, mesh, out, sequence)
      local t = require 'tide'
      local model, made = t.model.load(dir, { mesh = mesh,
         plan = mesh.tp and { tp = { sequence_parallel = sequence } } or nil })
      local ids = (t.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 }, { 5, 3, 5, 8, 9, 7, 9, 3 } },
         { dtype = 'i64' }))
      if made.data.size > 1 then ids = ids:narrow(1, made.data.rank + 1, 1) end
      local step = t.train.step.new { model = model:train(), parallel = made.sharded,
         comm = made.comm, optim = t.optim.Muon(made.params, { lr = 1e-2 }) }
      local loss
      for _ = 1, 3 do
         loss = step:run({ { ids = ids, labels = t.nn.loss.shift(ids) } }).loss
      end
      if made.sharded or rank == 0 then t.model.save(made.sharded or model, out) end
      return loss
   end

   it('is the same on every mesh, its experts cut unevenly, and so is what is saved', function()
      tmp.with(function(dir)
         tide.model.save(tide.model.qwen3_moe(config, { seed = 4 }), dir .. '/in')
         local want = ranks.run(1, step_on, dir .. '/in', { dp_shard = 1 }, dir .. '/one')[1]
         local tensors = tide.train.checkpoint.tensors(dir .. '/one/model.safetensors')
         for i, row in ipairs { { 2, { dp_shard = 2 } }, { 2, { dp_shard = 1, tp = 2 }, true },
                                { 4, { dp_shard = 2, tp = 2 } } } do
            local out = ('%s/out%d'):format(dir, i)
            for _, loss in ipairs(ranks.run(row[1], step_on, dir .. '/in', row[2], out, row[3])) do
               assert.near(want, loss, 1e-6 * want)
            end
            local got = tide.train.checkpoint.tensors(out .. '/model.safetensors')
            for name, t in each(tensors) do near(t, got[name], 2e-5, name) end
         end
         assert.matches('"num_experts": ?4', bytes_of(dir .. '/one/config.json'))
      end)
   end)

   it('refuses to cut experts of fewer channels than ranks', function()
      tmp.with(function(dir)
         tide.model.save(tide.model.qwen3_moe(with { moe_intermediate_size = 1 }), dir .. '/in')
         local function cut(_, _, from) require('tide').model.load(from, { mesh = { tp = 2 } }) end
         for _, row in ipairs(ranks.try(2, cut, dir .. '/in')) do
            assert.matches('the hidden size of the experts (1) is less than the 2 ranks',
               row.message, 1, true)
         end
      end)
   end)
end)

describe('Muon', function()
   it('updates the weights of experts as matrices, and taps of a convolution as vectors', function()
      local moe = nn.MoE { dim = 6, hidden = 4, experts = 3, topk = 2, dtype = 'f64', seed = 2 }
      local optim = tide.optim.Muon(moe, { lr = 1e-2 })
      moe(random(3, { 5, 6 })):square():sum():backward()
      optim:step()
      local tensors = optim:state_dict()
      for _, name in ipairs { 'gate_proj', 'up_proj', 'down_proj' } do
         assert.is_truthy(tensors[name .. '.m'])
         assert.is_nil(tensors[name .. '.v'], name)
      end
      assert.is_false(optim:is_whole('conv.weight', { 8, 1, 4 }))
   end)

   it('makes the matrix of each expert orthogonal by itself', function()
      local x = random(1, { 3, 4, 6 })
      local all = tide.optim.Muon.orthogonal(x, 5)
      for e = 1, 3 do
         near(tide.optim.Muon.orthogonal(x:select(1, e), 5), all:select(1, e), 1e-12, e)
      end
   end)
end)
