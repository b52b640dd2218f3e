-- The Mamba-2 layer and the models made of it: equal to PyTorch (spec/golden/ssd.py), named as
-- published, the same in one pass, in pieces and token by token, packed or apart.

local tide = require 'tide'
local close = require 'spec.support.close'

local folder = 'spec/golden/ssd/'
local golden = dofile(folder .. 'index.lua')

local function get(case, name, dtype)
   local entry, n = case[name], 1
   for _, s in ipairs(entry.shape) do n = n * s end
   local f = assert(io.open(folder .. case.file, 'rb'))
   f:seek('set', entry.at)
   local bytes = f:read(4 * n)
   f:close()
   return tide.from_string(bytes, entry.shape, { dtype = 'f32' }):to(dtype)
end

local function check(got, want, rel, what)
   local ok, message = pcall(close, got:to 'f64', want:to 'f64',
      { rel = 0, abs = rel * want:to('f64'):abs():amax():item() })
   if not ok then error(what .. ': ' .. tostring(message), 2) end
end

-- fn(...) must raise an error of this code that says the words.
local function refused(code, words, fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok)
   assert.equal(code, e.code, tostring(e))
   assert.is_truthy(tostring(e):find(words, 1, true), tostring(e))
end

local function layer_of(case, dtype)
   return tide.nn.Mamba2 { dim = case.dim, heads = case.heads, head_dim = case.head_dim,
      groups = case.groups, state = case.state, gate_last = case.gate_last, chunk = 4,
      dt_limit = { 0, 100 }, dtype = dtype }
end

local function ids(B, T, vocab, seed)
   return tide.rand({ B, T }, { dtype = 'f32' }):uniform_(0, vocab, { seed = seed })
      :floor():clamp(0, vocab - 1):to 'i64'
end

local small = { vocab_size = 40, hidden_size = 32, hybrid_override_pattern = 'M-M*-M',
   num_attention_heads = 4, num_key_value_heads = 2, mamba_head_dim = 8, ssm_state_size = 8,
   n_groups = 2, chunk_size = 4 }

describe('nn.Mamba2', function()
   for _, case in ipairs(golden) do
      for dtype, rel in pairs { f64 = 1e-6, f32 = 1e-5, bf16 = 4e-2 } do
         if case.kind == 'layer' then
            it(('equals the peer, gradients too: %s in %s'):format(case.name, dtype), function()
               local layer, state = layer_of(case, dtype), {}
               for _, entry in ipairs(layer:named_parameters()) do
                  state[entry.name] = get(case, entry.name, dtype)
               end
               layer:load_state_dict(state)
               local x = get(case, 'x', dtype):requires_grad_()
               local y = layer(x)
               check(y, get(case, 'out', 'f64'), rel, 'out')
               y:backward(get(case, 'dout', dtype))
               check(x.grad, get(case, 'dx', 'f64'), rel, 'dx')
               for _, entry in ipairs(layer:named_parameters()) do
                  check(entry.param.grad, get(case, 'd ' .. entry.name, 'f64'), rel, entry.name)
               end
            end)
         end
      end
   end

   it('has the parameters of the published layer', function()
      local layer = tide.nn.Mamba2({ dim = 128, groups = 2, device = 'null' })
      local shapes = {}
      for name, t in pairs(layer:state_dict()) do shapes[name] = table.concat(t.shape, ' ') end
      assert.same({
         ['in_proj.weight'] = '1028 128', ['conv1d.weight'] = '768 1 4', ['conv1d.bias'] = '768',
         dt_bias = '4', A_log = '4', D = '4', ['norm.weight'] = '256',
         ['out_proj.weight'] = '128 256',
      }, shapes)
      layer = tide.nn.Mamba2({ dim = 64, per_channel_D = true, bias = true, conv_bias = false,
         device = 'null' })
      local state = layer:state_dict()
      assert.same({ 128 }, state.D.shape)
      assert.same({ 64 }, state['out_proj.bias'].shape)
      assert.is_nil(state['conv1d.bias'])
   end)

   it('begins as published, a function of the seed and the name', function()
      local layer = tide.nn.Mamba2 { dim = 256, head_dim = 4, seed = 5 }
      local A, dt = layer.A_log:exp(), layer.dt_bias:softplus()
      assert.is_true(A:amin():item() >= 1 and A:amax():item() <= 16.001)
      assert.is_near(8.5, A:mean():item(), 1.5)
      assert.is_true(dt:amin():item() >= 0.000999 and dt:amax():item() <= 0.1001)
      assert.is_near((math.log(0.001) + math.log(0.1)) / 2, dt:log():mean():item(), 0.4)
      assert.equal(1, layer.D:amin():item())
      local bound = layer.conv1d.weight:abs():amax():item()
      assert.is_true(bound <= 0.5 and bound > 0.45)
      local again = tide.nn.Mamba2 { dim = 256, head_dim = 4, seed = 5 }
      assert.same(layer.dt_bias:tolist(), again.dt_bias:tolist())
      local floor = tide.nn.Mamba2 { dim = 64, head_dim = 8, dt_range = { 1e-6, 1e-5 } }
      assert.is_near(1e-4, floor.dt_bias:to('f64'):softplus():amax():item(), 1e-8)
   end)

   it('runs through its fields, so that a plan can replace them', function()
      local layer = tide.nn.Mamba2 { dim = 8, head_dim = 4, state = 3 }
      local x, seen = tide.randn { 1, 5, 8 }, {}
      local want = layer(x):tolist()
      for _, name in ipairs { 'inner', 'conv', 'scan' } do
         local old = layer[name]
         layer[name] = function(...)
            seen[#seen + 1] = name
            return old(...)
         end
      end
      assert.same(want, layer(x):tolist())
      assert.same({ 'inner', 'conv', 'scan' }, seen)
   end)

   it('has gradients that differences say, on its smallest form', function()
      local layer = tide.nn.Mamba2 { dim = 4, head_dim = 2, state = 3, chunk = 2, dtype = 'f64' }
      local x = tide.randn({ 1, 5, 4 }):to 'f64'
      local sequence = tide.tensor({ { 0, 0, 1, 1, 1 } }, { dtype = 'i32' })
      local function loss() return layer(x, { sequence = sequence }):square():sum() end
      loss():backward()
      for _, entry in ipairs(layer:named_parameters()) do
         local p = entry.param
         local flat, grad = p:detach():reshape(-1), p.grad:reshape(-1)
         for k = 1, p:numel(), math.max(1, math.floor(p:numel() / 5)) do
            local at, diff = flat:slice(1, k, k), {}
            local was = at:item()
            for i, sign in ipairs { 1, -1 } do
               at:fill_(was + sign * 1e-5)
               diff[i] = tide.no_grad(function() return loss():item() end)
            end
            at:fill_(was)
            local want = (diff[1] - diff[2]) / 2e-5
            assert.is_near(want, grad:slice(1, k, k):item(), 1e-6 * math.max(1, math.abs(want)))
         end
      end
   end)

   it('keeps the numbers of the recurrence in f32 where it is told to', function()
      local layer = tide.nn.Mamba2 { dim = 16, head_dim = 8, state = 4, dtype = 'bf16', seed = 2,
         recurrence_dtype = 'f32' }
      local dtypes = {}
      for name, t in pairs(layer:state_dict()) do dtypes[name] = t.dtype end
      assert.same({ A_log = 'f32', dt_bias = 'f32', D = 'f32', ['in_proj.weight'] = 'bf16',
         ['out_proj.weight'] = 'bf16', ['conv1d.weight'] = 'bf16', ['conv1d.bias'] = 'bf16',
         ['norm.weight'] = 'bf16' }, dtypes)
      -- the same as a bf16 layer whose numbers are those, rounded
      local plain = tide.nn.Mamba2 { dim = 16, head_dim = 8, state = 4, dtype = 'bf16', seed = 2 }
      plain:load_state_dict(layer:state_dict())
      layer:load_state_dict(plain:state_dict())
      local x = tide.randn({ 2, 9, 16 }):to 'bf16'
      local y = layer(x)
      assert.equal('bf16', y.dtype)
      check(y, plain(x), 2e-2, 'y')
      y:float():square():sum():backward()
      assert.equal('f32', layer.A_log.grad.dtype)
      -- a step that bf16 would round away
      local before = layer.A_log:clone()
      tide.no_grad(function() layer.A_log:add_(1e-4) end)
      assert.is_true((layer.A_log - before):amin():item() > 5e-5)
      for _, kind in ipairs { 'mamba2', 'hybrid' } do
         local model = tide.model[kind]({ vocab_size = 9, hidden_size = 16,
            [kind == 'mamba2' and 'num_hidden_layers' or 'hybrid_override_pattern']
               = kind == 'mamba2' and 1 or 'M', [kind == 'mamba2' and 'head_dim'
               or 'mamba_head_dim'] = 8 }, { dtype = 'bf16', recurrence_dtype = 'f32' })
         local mixer = model.backbone.layers:at(1).mixer
         assert.same({ 'f32', 'bf16' }, { mixer.D.dtype, mixer.in_proj.weight.dtype })
      end
      refused('E_ARG', "'recurrence_dtype'", tide.nn.Mamba2, { dim = 64, recurrence_dtype = 'f8' })
   end)

   it('refuses what does not fit', function()
      refused('E_ARG', 'dim', tide.nn.Mamba2, {})
      refused('E_ARG', "'dt_limit': expected two numbers, 0 <= least <= most, got { 2, 1 }",
         tide.nn.Mamba2, { dim = 64, dt_limit = { 2, 1 } })
      refused('E_ARG', 'multiple of head_dim', tide.nn.Mamba2, { dim = 33 })
      refused('E_ARG', 'multiple of groups', tide.nn.Mamba2, { dim = 64, groups = 3 })
      refused('E_ARG', 'conv', tide.nn.Mamba2, { dim = 64, conv = 5 })
      refused('E_ARG', 'dt_limit', tide.nn.Mamba2, { dim = 64, dt_limit = { 2, 1 } })
      refused('E_ARG', "unknown option 'sate'", tide.nn.Mamba2, { dim = 64, sate = 8 })
      refused('E_ARG', 'group (3)', tide.nn.GatedRMSNorm, 8, { group = 3 })
      refused('E_ARG', "'state'", tide.nn.Mamba2, { dim = 64, state = 0 })
      for _, heads in ipairs { 0, 1.5, '4' } do
         refused('E_ARG', "'heads'", tide.nn.Mamba2, { dim = 64, heads = heads })
      end
      for _, name in ipairs { 'bias', 'conv_bias', 'per_channel_D' } do
         refused('E_ARG', name, tide.nn.Mamba2, { dim = 64, [name] = 'yes' })
      end
   end)

   it('refuses calls that do not fit, naming function and argument', function()
      local layer = tide.nn.Mamba2 { dim = 16, head_dim = 8, state = 4 }
      local x = tide.randn { 2, 6, 16 }
      local function seq(list) return { sequence = tide.tensor({ list }, { dtype = 'i32' }) } end
      local function call(...)
         local n, args = select('#', ...), { ... }
         return function() return layer(unpack(args, 1, n)) end
      end
      refused('E_ARG', "nn.Mamba2: argument 'x'", call(nil))
      refused('E_SHAPE', 'nn.Mamba2: x: expected [batch, tokens, 16]', call(tide.randn { 6, 16 }))
      refused('E_SHAPE', 'nn.Mamba2: x', call(tide.randn { 2, 6, 15 }))
      refused('E_DTYPE', 'cast', call(x:to 'bf16'))
      refused('E_ARG', "nn.Mamba2: argument 'at'", call(x, 5))
      refused('E_ARG', "'at.cache'", call(x, { cache = 'a' }))
      local cache = {}
      layer(x, { cache = cache })
      refused('E_SHAPE', 'initial', call(tide.randn { 3, 1, 16 }, { cache = cache }))
      cache.state = nil
      refused('E_ARG', 'conv alone', call(x, { cache = cache }))
      refused('E_ARG', 'state alone', call(x, { cache = { state = cache.conv } }))
      refused('E_ARG', "'context'", call(x, { context = {} }))
      refused('E_SHAPE', 'sequence', call(x, seq { 0, 0, 0, 1, 1 }))
      refused('E_ARG', 'never decrease', call(x, seq { 0, 1, 0, 1, 1, 1 }))
      refused('E_ARG', 'end of the stream', call(x, seq { 0, 0, 1, 1, -1, -1 }))
      layer.A_log:release()
      refused('E_GONE', 'dropped', call(x))
   end)

   it('is of no tokens or no rows what nothing is, gradients too', function()
      local layer = tide.nn.Mamba2 { dim = 16, head_dim = 8, state = 4 }
      for _, shape in ipairs { { 2, 0, 16 }, { 0, 6, 16 } } do
         local x = tide.zeros(shape):requires_grad_()
         local y = layer(x)
         assert.same(shape, y.shape)
         y:sum():backward()
         assert.same(shape, x.grad.shape)
         assert.equal(0, layer.in_proj.weight.grad:abs():amax():item())
      end
   end)
end)

describe('model.mamba2', function()
   local config = { vocab_size = 30, hidden_size = 32, num_hidden_layers = 2, head_dim = 8,
      state_size = 8, chunk_size = 4 }

   it('has the names of published checkpoints', function()
      local names = {}
      for _, e in ipairs(tide.model.mamba2(config, { device = 'null' }):named_parameters()) do
         names[e.name] = table.concat(e.param.shape, ' ')
      end
      assert.equal('30 32', names['backbone.embeddings.weight'])
      assert.equal('32', names['backbone.layers.1.norm.weight'])
      assert.equal('152 32', names['backbone.layers.1.mixer.in_proj.weight'])
      assert.equal('80 1 4', names['backbone.layers.1.mixer.conv1d.weight'])
      assert.equal('8', names['backbone.layers.0.mixer.A_log'])
      assert.equal('32', names['backbone.norm_f.weight'])
      assert.is_nil(names['lm_head.weight'])
   end)

   it('generates in constant memory what the whole pass says', function()
      local model = tide.model.mamba2(config, { seed = 2 })
      local tokens, caches = ids(1, 14, 30, 4), { {}, {} }
      tide.no_grad(function()
         local want, size = model(tokens), nil
         for t = 1, 14 do
            local got = model(tokens:slice(2, t, t), { caches = caches })
            close(got:select(2, 1), want:select(2, t), { rel = 1e-4, abs = 1e-5 })
            local now = 0
            for _, cache in ipairs(caches) do
               for _, v in pairs(cache) do now = now + v:numel() end
            end
            assert.equal(size or now, now)
            size = now
         end
      end)
      local prompt = { 1, 2, 3 }
      local out = tide.train.sample.generate(model, prompt, { tokens = 5, temperature = 0 })
      for _ = 1, 5 do
         local best = model(tide.tensor({ prompt }, { dtype = 'i64' })):select(2, #prompt)
            :argmax(-1):tolist()[1]
         prompt[#prompt + 1] = tonumber(best)
      end
      assert.same({ unpack(prompt, 4) }, out)
   end)

   it('refuses a configuration that does not fit', function()
      refused('E_ARG', "unknown field 'hiden_size'", tide.model.mamba2, { hiden_size = 3 })
      refused('E_ARG', 'vocab_size', tide.model.mamba2, { hidden_size = 32 })
      refused('E_ARG', 'hidden_act', tide.model.mamba2, { vocab_size = 3, hidden_size = 64,
         num_hidden_layers = 1, hidden_act = 'gelu' })
   end)
end)

-- Standard deviation and mean of a parameter's values.
local function spread_of(t)
   local v = t:detach():to 'f64':reshape(-1)
   local mean = v:mean():item()
   return (v - mean):square():mean():sqrt():item(), mean
end

-- Raises unless every parameter of model has the standard deviation that want(name) says (within
-- 7 %: a few thousand values each), or is constant where it says nothing.
local function check_initial(model, want)
   local seen = 0
   for _, e in ipairs(model:named_parameters()) do
      local std = want(e.name)
      if std then
         local got, mean = spread_of(e.param)
         assert.is_true(math.abs(got / std - 1) < 0.07 and math.abs(mean) < 0.07 * std,
            ('%s: std %g, mean %g, expected %g'):format(e.name, got, mean, std))
         seen = seen + 1
      end
   end
   return seen
end

describe('initial weights', function()
   -- The four projections into the residual stream start smaller by the root of the number of
   -- layers, which keeps the variance of the stream independent of depth.
   local function expected(std, layers)
      return function(name)
         if name:find('mixer%.out_proj%.weight$') or name:find('mixer%.down_proj%.weight$')
            or name:find('mixer%.o_proj%.weight$') then
            return std / math.sqrt(layers)
         end
         if name:find('proj%.weight$') or name:find('embeddings%.weight$')
            or name == 'lm_head.weight' then
            return std
         end
      end
   end

   it('of hybrid: std, and std / sqrt(layers) into the residual stream', function()
      local model = tide.model.hybrid({ vocab_size = 200, hidden_size = 64,
         hybrid_override_pattern = 'M-M*M-M*-', mamba_head_dim = 16, ssm_state_size = 16,
         num_attention_heads = 4, initializer_range = 0.03 }, { seed = 2 })
      assert.equal(24, check_initial(model, expected(0.03, 9)))
   end)

   it('of mamba2: the same', function()
      local model = tide.model.mamba2({ vocab_size = 200, hidden_size = 64, head_dim = 16,
         num_hidden_layers = 6, state_size = 16, tie_word_embeddings = false }, { seed = 2 })
      assert.equal(14, check_initial(model, expected(0.1, 6)))
   end)

   it('of both have the defaults of published configurations', function()
      local m = tide.model.mamba2({ vocab_size = 9, hidden_size = 64, num_hidden_layers = 1,
         head_dim = 16 }, { device = 'null' }).config
      assert.same({ 0.1, 1e-5, 4, 2, 128, 0.001, 0.1, 1e-4 }, { m.initializer_range,
         m.layer_norm_epsilon, m.conv_kernel, m.expand, m.state_size, m.time_step_min,
         m.time_step_max, m.time_step_floor })
      local h = tide.model.hybrid({ vocab_size = 9, hidden_size = 64, hybrid_override_pattern = 'M',
         mamba_head_dim = 16 }, { device = 'null' }).config
      assert.same({ 0.02, 1e-5, 4, 2, 128, 'relu2', 256 }, { h.initializer_range,
         h.layer_norm_epsilon, h.conv_kernel, h.expand, h.ssm_state_size, h.mlp_hidden_act,
         h.intermediate_size })
   end)
end)

describe('a field of mamba2 or hybrid that cannot be', function()
   it('is named as the configuration has it', function()
      for _, name in ipairs { 'mamba2', 'hybrid' } do
         local ok, e = pcall(tide.model[name], { vocab_size = 9, hidden_size = 64, conv_kernel = 9,
            num_hidden_layers = 1, hybrid_override_pattern = name == 'hybrid' and 'M' or nil },
            { device = 'null' })
         assert.is_false(ok)
         assert.matches("field 'conv_kernel'", tostring(e), 1, true)
      end
   end)
end)

describe('model.hybrid', function()
   it('is what the pattern says', function()
      local model = tide.model.hybrid(small, { device = 'null' })
      local kinds = {}
      for i = 1, 6 do kinds[i] = model.backbone.layers:at(i).mixer.class_name end
      assert.same({ 'Mamba2', 'MLP', 'Mamba2', 'Attention', 'MLP', 'Mamba2' }, kinds)
      assert.equal('relu2', model.backbone.layers:at(2).mixer.act)
      assert.same({ 40, 32 }, model.lm_head.weight.shape)
      assert.is_true(model:flops_per_token(128) > 6 * model:num_parameters() / 2)
   end)

   it('gives the same token by token, in pieces and at once', function()
      local model = tide.model.hybrid(small, { seed = 3 })
      local tokens = ids(2, 12, 40, 9)
      local want = model(tokens)
      local ones = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }
      for _, cuts in ipairs { ones, { 5, 6, 12 }, { 11, 12 } } do
         local caches, from, list = {}, 1, {}
         for i = 1, 6 do caches[i] = {} end
         for k, to in ipairs(cuts) do
            list[k] = model(tokens:slice(2, from, to), { caches = caches })
            from = to + 1
         end
         close(tide.cat(list, 2), want, { rel = 1e-4, abs = 2e-6 })
      end
   end)

   it('keeps the sequences of a packed stream apart, gradients too', function()
      local model = tide.model.hybrid(small, { seed = 3 })
      local tokens, labels, cu = ids(1, 12, 40, 9), ids(1, 12, 40, 10), { 0, 1, 6, 12 }
      local index = tide.document_index(tide.tensor(cu, { dtype = 'i32' }), 12)
      model:loss(tokens, labels, { index = index, count = 12 }):backward()
      local packed = {}
      for k, e in ipairs(model:named_parameters()) do packed[k] = e.param.grad:clone() end
      model:zero_grad()
      for i = 1, 3 do
         local function cut(t) return t:slice(2, cu[i] + 1, cu[i + 1]) end
         model:loss(cut(tokens), cut(labels), { count = 12 }):backward()
      end
      for k, e in ipairs(model:named_parameters()) do
         check(packed[k], e.param.grad, 1e-5, e.name)
      end
   end)

   it('learns', function()
      local model = tide.model.hybrid(small, { seed = 1 })
      local optim = tide.optim.AdamW(model, { lr = 3e-3 })
      local tokens, first, last = ids(2, 16, 40, 3), nil, nil
      for _ = 1, 40 do
         local loss = model:loss(tokens, tokens, { shift = true })
         loss:backward()
         optim:step()
         model:zero_grad()
         last = loss:item()
         first = first or last
      end
      assert.is_true(last < 0.5 * first)
   end)

   it('refuses a configuration that does not fit', function()
      local function with(changes)
         local c = {}
         for k, v in pairs(small) do c[k] = v end
         for k, v in pairs(changes) do c[k] = v end
         return c
      end
      refused('E_ARG', 'hybrid_override_pattern', tide.model.hybrid,
         with { hybrid_override_pattern = 'MX' })
      refused('E_ARG', 'is not the length', tide.model.hybrid, with { num_hidden_layers = 3 })
      refused('E_ARG', 'num_key_value_heads', tide.model.hybrid, with { num_key_value_heads = 3 })
      refused('E_ARG', 'mlp_hidden_act', tide.model.hybrid, with { mlp_hidden_act = 'silo' })
      local model = tide.model.hybrid(small)
      refused('E_ARG', 'tensor [batch, tokens]', function() return model(tide.zeros { 3 }) end)
      local tokens = ids(1, 6, 40, 1)
      for name, value in pairs { caches = 5, positions = 5, sequence = 'x',
                                 index = tide.zeros { 1, 6 } } do
         refused('E_ARG', "model.hybrid: argument '" .. name .. "'",
            function() return model(tokens, { [name] = value }) end)
      end
      refused('E_ARG', "'opts'", function() return model:loss(tokens, tokens, 5) end)
      for _, net in ipairs { model, tide.model.llama { vocab_size = 40, hidden_size = 8,
         num_hidden_layers = 6, num_attention_heads = 2 } } do
         for words, caches in pairs {
            ['list of 6 tables, one for each layer, {} before the first call, got a list of 1'] =
               { 1 },
            ["argument 'caches[6]': expected a table, got 5"] = { {}, {}, {}, {}, {}, 5 } } do
            refused('E_ARG', words, function() return net(tokens, { caches = caches }) end)
         end
      end
      local layer, x = tide.nn.Attention { dim = 8, heads = 2 }, tide.ones { 1, 2, 8 }
      for words, cache in pairs { ['expected a table, got false'] = false,
         ['or neither, got k = 1, v = nil'] = { k = 1 },
         ['or neither, got k = nil, v = a tensor [1, 2, 8] of f32'] = { v = x } } do
         refused('E_ARG', "nn.Attention: argument 'at.cache': expected", layer, x,
            { cache = cache })
         refused('E_ARG', words, layer, x, { cache = cache })
      end
   end)

   it('without attention needs no heads of it', function()
      local model = tide.model.hybrid { vocab_size = 9, hidden_size = 16, mamba_head_dim = 8,
         hybrid_override_pattern = 'M-', ssm_state_size = 4 }
      assert.same({ 1, 5, 9 }, model(ids(1, 5, 9, 1)).shape)
   end)

   it('keeps padding (document -1) apart from the documents', function()
      local model = tide.model.hybrid(small)
      local tokens = ids(1, 9, 40, 1)
      local index = tide.document_index(tide.tensor({ 0, 4, 7 }, { dtype = 'i32' }), 9)
      local all = model(tokens, { index = index })
      local cut = model(tokens:slice(2, 1, 7), { index = index:slice(2, 1, 7) })
      check(all:slice(2, 1, 7), cut, 1e-5, 'documents')
   end)
end)
