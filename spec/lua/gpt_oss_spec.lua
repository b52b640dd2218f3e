-- GPT-OSS: experts with biases and clamped gates, its configuration, its files (transposed, gate
-- and up in turns; MXFP4), and training on meshes. Numbers of transformers: folder_golden_spec.lua.

local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local mxfp4 = require 'tide.pretrained.mxfp4'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local stored = require 'tide.model.stored'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local nn = tide.nn

local function random(seed, shape, dtype)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to(dtype or 'f64')
end

local function near(want, got, tolerance, what)
   local off = (want:to 'f64' - got:to 'f64'):abs():amax():item()
   assert.is_true(off <= tolerance * math.max(1, want:abs():amax():item()), what)
end

-- ---- experts with biases -----------------------------------------------------------------------

-- The output of a layer for x [N, C], token after token, expert after expert, by the formula.
local function by_hand(m, x)
   local rows = {}
   for n = 1, x:size(1) do
      local row = x:narrow(1, n, 1)
      local top, ids = tide.linear(row, m.router, m.logit_bias):topk(m.topk, -1)
      local w, y = top:softmax(-1), 0
      for k = 1, m.topk do
         local e = tonumber(ids:at(1, k)) + 1
         local function of(name, v)
            return tide.linear(v, m[name]:select(1, e), m[name .. '_bias']:select(1, e))
         end
         local gate, up = of('gate_proj', row), of('up_proj', row)
         if m.limit then gate, up = gate:clamp(nil, m.limit), up:clamp(-m.limit, m.limit) end
         local h = m.limit and (up + 1) * gate * (gate * m.alpha):sigmoid() or up * gate:silu()
         y = of('down_proj', h) * w:narrow(2, k, 1) + y
      end
      rows[n] = y
   end
   return tide.cat(rows, 1)
end

local function layer(changes)
   local o = { dim = 6, hidden = 5, experts = 4, topk = 2, norm_topk = true, bias = true,
      dtype = 'f64', seed = 3 }
   for k, v in each(changes) do o[k] = v end
   local m = nn.MoE(o)
   tide.no_grad(function()
      for i, e in ipairs(m:named_parameters()) do
         e.param:copy_(random(10 + i, e.param.shape, o.dtype))
      end
   end)
   return m
end

describe('experts with biases', function()
   for _, row in ipairs { { 9, {} }, { 9, { limit = 0.7, alpha = 1.3 } },
                          { 7, { limit = 2, experts = 3, topk = 3 } },
                          { 1, { limit = 1, topk = 1 } } } do
      local N, changes = unpack(row)
      it(('are their formula, with its gradients: %d tokens, limit %s'):format(N,
         tostring(changes.limit)), function()
         local m, x = layer(changes), random(N, { N, 6 })
         local function run(fn)
            m:zero_grad()
            local leaf = x:detach():requires_grad_()
            local y = fn(m, leaf)
            ;(y * random(9, y.shape)):sum():backward()
            local list = { y = y:detach(), x = leaf.grad }
            for _, e in ipairs(m:named_parameters()) do list[e.name] = e.param.grad end
            return list
         end
         local got, want = run(function(me, v) return me(v) end), run(by_hand)
         for name, t in each(want) do near(t, got[name], 1e-12, name) end
      end)
   end

   it('have gradients that differences have', function()
      local m, list, names = layer { limit = 0.9 }, { random(1, { 5, 6 }) }, {}
      for i, e in ipairs(m:named_parameters()) do
         list[i + 1], names[i] = e.param:detach():clone(), e.name
      end
      assert.is_true(tide.debug.gradcheck(function(x, ...)
         local own = setmetatable({}, { __index = m })
         for i, name in ipairs(names) do own[name] = select(i, ...) end
         return nn.MoE.forward(own, x):square():sum()
      end, list) ~= false)
   end)

   it('take no token, 16 bits, and a device without numbers', function()
      local m = layer { limit = 7, dtype = 'f32' }
      assert.same({ 0, 6 }, m(tide.zeros { 0, 6 }).shape)
      local half = layer { limit = 7, dtype = 'bf16' }
      local x = random(1, { 3, 6 }, 'f32')
      near(m(x), half(x:to 'bf16'), 6e-2, 'bf16')
      local null = nn.MoE { dim = 4, hidden = 3, experts = 8, topk = 2, bias = true, limit = 7,
         device = 'null' }
      assert.same({ 2, 4 }, null(tide.empty({ 2, 4 }, { device = 'null' })).shape)
      refused('E_ARG', { 'nn.MoE', 'limit' }, layer, { limit = 0 })
   end)

   it('have biases that neither decay nor are matrices of Muon', function()
      local m = layer { limit = 7 }
      local before = m.down_proj_bias:detach():clone()
      local optim = tide.optim.AdamW(m, { lr = 0.1, weight_decay = 0.5 })
      m(random(2, { 3, 6 })):sum():mul(0):backward()
      optim:step()
      assert.is_true(m.down_proj_bias:detach():equal(before))
      local muon = tide.optim.Muon(m, { lr = 0.1 })
      assert.is_false(muon:is_whole('mlp.down_proj_bias', { 4, 6 }))
      assert.is_true(muon:is_whole('mlp.down_proj', { 4, 6, 5 }))
   end)
end)

-- ---- the family --------------------------------------------------------------------------------

local config = { vocab_size = 23, hidden_size = 64, intermediate_size = 32, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4, num_local_experts = 4,
   num_experts_per_tok = 2, sliding_window = 3, max_position_embeddings = 64 }

local function with(changes)
   local c = {}
   for _, t in ipairs { config, changes } do
      for k, v in each(t) do c[k] = v end
   end
   return c
end

-- A model whose biases and sinks are not 0.
local function model_of(changes, opts)
   local model = tide.model.gpt_oss(with(changes), opts or { seed = 4 })
   tide.no_grad(function()
      for i, e in ipairs(model:named_parameters()) do
         if e.name:find 'bias' or e.name:find 'sinks' then
            e.param:copy_(random(i, e.param.shape, e.param.dtype))
         end
      end
   end)
   return model
end

local function ids_of()
   return tide.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 }, { 5, 3, 5, 8, 9, 7, 9, 3 } }, { dtype = 'i64' })
end

describe('GPT-OSS', function()
   it('has a window in each second layer, and usual positions where a file says none', function()
      local layers = tide.model.gpt_oss(config).model.layers
      assert.same({ 2, -1 }, layers[1].self_attn.window)
      assert.is_nil(layers[2].self_attn.window)
      local null = tide.json.null
      for _, row in ipairs { { {}, 'yarn' }, { { rope_scaling = null }, 'yarn' },
         { { rope_parameters = { rope_type = 'default', rope_theta = 500 } }, 'default' },
         { { rope_scaling = { rope_type = 'default' } }, 'default' } } do
         local c = tide.model.gpt_oss(with(row[1])).config
         assert.equal(row[2], c.rope_scaling.rope_type)
         assert.equal(row[2], tide.model.gpt_oss(c).config.rope_scaling.rope_type)
      end
      assert.equal(4, tide.model.gpt_oss(with { experts_per_token = 4,
         num_experts_per_tok = null, initial_context_length = 4096 }).config.num_experts_per_tok)
   end)

   it('refuses what its experts do not have, and weights in other codes', function()
      local function make(changes) return tide.model.gpt_oss, with(changes) end
      refused('E_ARG', { 'mlp_bias', 'biases' }, make { mlp_bias = true })
      refused('E_ARG', { 'sliding_window', 'layer 0' }, make { sliding_window = tide.json.null })
      refused('E_ARG', { 'quantization_config.quant_method', '"awq"', "'fp8' and 'mxfp4'" },
         make { quantization_config = { quant_method = 'awq' } })
      refused('E_ARG', { 'swiglu_limit' }, make { swiglu_limit = 0 })
      refused('E_ARG', { 'num_experts_per_tok (5)', 'num_local_experts (4)' },
         make { num_experts_per_tok = 5 })
      assert.is_nil(tide.model.gpt_oss(with { quantization_config = { quant_method = 'mxfp4' } })
         .config.quantization_config)
   end)

   it('computes packed documents as it computes each alone', function()
      local model = model_of({}, { dtype = 'f64', seed = 4 }):eval()
      local ids = ids_of():narrow(1, 1, 1)
      local cu = tide.tensor({ 0, 5, 8 }, { dtype = 'i64' })
      local index = tide.document_index(cu, 8)
      local at = tide.tensor({ { 0, 1, 2, 3, 4, 0, 1, 2 } }, { dtype = 'i64' })
      local got = model(ids, { index = index, positions = at })
      near(model(ids:narrow(2, 1, 5)), got:narrow(2, 1, 5), 1e-12, 'first')
      near(model(ids:narrow(2, 6, 3)), got:narrow(2, 6, 3), 1e-12, 'second')
   end)

   it('has the same gradients under every way to recompute', function()
      local model, ids = model_of({}, { dtype = 'f64', seed = 4 }), ids_of()
      local function gradients(policy)
         tide.parallel.recompute(model, policy)
         model:zero_grad()
         model:loss(ids, ids):backward()
         local list = {}
         for _, e in ipairs(model:named_parameters()) do list[e.name] = e.param.grad:clone() end
         return list
      end
      local want = gradients 'none'
      for _, policy in ipairs { 'selective', 'mlp', 'full', { ops = { 'attention' } } } do
         local got = gradients(policy)
         for name, t in each(want) do near(t, got[name], 1e-12, name) end
      end
   end)

   -- On a rank: steps of the folder `dir` on a mesh; writes the model to `out`.
   local function step_on(rank, _, dir, mesh, out, sequence)
      local t = require 'tide'
      -- f64: Muon's directions magnify rounding
      local model, made = t.model.load(dir, { mesh = mesh, dtype = 'f64',
         plan = mesh.tp and { tp = { sequence_parallel = sequence } } or nil })
      local ids = t.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 }, { 5, 3, 5, 8, 9, 7, 9, 3 } },
         { dtype = 'i64' })
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

   it('trains alike on every mesh, and so is what is saved', function()
      tmp.with(function(dir)
         tide.model.save(model_of { intermediate_size = 33 }, dir .. '/in')
         local want = ranks.run(1, step_on, dir .. '/in', { dp_shard = 1 }, dir .. '/one')[1]
         local tensors = tide.train.checkpoint.tensors(dir .. '/one/model.safetensors')
         for i, row in ipairs { { 2, { dp_shard = 2 } }, { 2, { dp_shard = 1, tp = 2 }, true },
                                { 4, { dp_shard = 2, tp = 2 } } } do
            local out = ('%s/out%d'):format(dir, i)
            for _, loss in ipairs(ranks.run(row[1], step_on, dir .. '/in', row[2], out, row[3])) do
               assert.near(want, loss, 1e-10 * want)
            end
            local got = tide.train.checkpoint.tensors(out .. '/model.safetensors')
            for name, t in each(tensors) do near(t, got[name], 1e-9, name) end
         end
      end)
   end)
end)

-- ---- files -------------------------------------------------------------------------------------

describe('tensors of a file that hold parts in turns', function()
   -- Entries over two parameters [2, 3, 4].
   local function entry_of(alternate, transposed, along)
      local shape = { 2, 3, 4 }
      shape[along] = shape[along] * 2
      if transposed then shape[2], shape[3] = shape[3], shape[2] end
      return { name = 'x', transposed = transposed, alternate = alternate, along = along,
         shape = shape, parts = { { name = 'a', shape = { 2, 3, 4 }, first = 0 },
            { name = 'b', shape = { 2, 3, 4 }, first = alternate and 1 or ({ 2, 3, 4 })[along] } } }
   end

   it('give back each box of each part', function()
      local of = { a = random(1, { 2, 3, 4 }), b = random(2, { 2, 3, 4 }) }
      math.randomseed(1)
      for _, alternate in ipairs { false, true } do
         for _, transposed in ipairs { false, true } do
            for along = 1, 3 do
               local entry = entry_of(alternate or nil, transposed or nil, along)
               local whole = stored.whole(entry, function(name) return of[name] end)
               assert.same(entry.shape, whole.shape)
               for _, part in ipairs(entry.parts) do
                  local at, n, want = {}, {}, of[part.name]
                  for d = 1, 3 do
                     at[d] = math.random(0, part.shape[d] - 1)
                     n[d] = math.random(1, part.shape[d] - at[d])
                     want = want:narrow(d, at[d] + 1, n[d])
                  end
                  local from, size = stored.box(entry, part, at, n)
                  local t = whole
                  for d = 1, 3 do t = t:narrow(d, from[d] + 1, size[d]) end
                  assert.is_true(stored.part(entry, part, t):equal(want))
               end
            end
         end
      end
   end)

   it('are read expert by expert, by ranks only what they keep', function()
      tmp.with(function(dir)
         tide.model.save(model_of {}, dir .. '/in')
         local function bytes(_, _, from, mesh, ep)
            local _, made = require('tide').model.load(from, { mesh = mesh,
               plan = { fsdp = { ep_size = ep } } })
            return made.nbyte
         end
         local whole = ranks.run(1, bytes, dir .. '/in', { dp_shard = 1 })[1]
         for ep = 1, 2 do
            for _, n in ipairs(ranks.run(2, bytes, dir .. '/in', { dp_shard = 2 }, ep)) do
               assert.is_true(n < 0.6 * whole, n)
            end
         end
      end)
   end)
end)

-- ---- MXFP4 -------------------------------------------------------------------------------------

local values = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6 }

-- Writes a folder whose experts are in MXFP4, and one with the same numbers. Returns the tensors of
-- the first and the path of its weights.
local function write_packed(dir)
   tide.model.save(model_of {}, dir .. '/plain')
   tide.model.save(model_of {}, dir .. '/packed')
   local plain = tide.train.checkpoint.tensors(dir .. '/plain/model.safetensors')
   local packed, k = {}, 0
   for name, t in each(plain) do
      packed[name] = t
      if name:find 'experts%.%a+_?%a*_proj$' then
         local E, C, R = unpack(t.shape)
         local codes = (tide.arange(E * R * C / 2, { dtype = 'i64' }) * 37 + k):tolist()
         local powers = (tide.arange(E * R * C / 32, { dtype = 'i64' }) * 5 + k):tolist()
         local numbers = {}
         for i, code in ipairs(codes) do
            codes[i] = tonumber(code) % 256
            local p = 2 ^ (tonumber(powers[math.floor((i - 1) / 16) + 1]) % 7 - 5)
            numbers[2 * i - 1] = values[codes[i] % 16 + 1] * p
            numbers[2 * i] = values[math.floor(codes[i] / 16) + 1] * p
         end
         for i, power in ipairs(powers) do powers[i] = tonumber(power) % 7 + 122 end
         plain[name] = tide.tensor(numbers):reshape { E, R, C }:transpose(2, 3):contiguous()
         packed[name] = nil
         packed[name .. '_blocks'] = tide.tensor(codes, { dtype = 'u8' })
            :reshape { E, R, C / 32, 16 }
         packed[name .. '_scales'] = tide.tensor(powers, { dtype = 'u8' }):reshape { E, R, C / 32 }
         k = k + 11
      end
   end
   local path = dir .. '/packed/model.safetensors'
   fs.io().safetensors_save(dir .. '/plain/model.safetensors', plain, { format = 'pt' })
   fs.io().safetensors_save(path, packed, { format = 'pt' })
   local file = dir .. '/packed/config.json'
   local text = fs.read('spec', file):gsub('^{', '{"quantization_config":{"quant_method":"mxfp4",'
      .. '"modules_to_not_convert":["model.layers.*.self_attn"]},')
   fs.write('spec', file, text)
   return packed, path
end

describe('weights in MXFP4', function()
   it('are read as the numbers that they are, and written plain', function()
      tmp.with(function(dir)
         write_packed(dir)
         local want = tide.model.load(dir .. '/plain')
         local got = tide.model.load(dir .. '/packed', { dtype = 'f32' })
         local wanted = want:state_dict()
         for name, t in each(got:state_dict()) do assert.is_true(t:equal(wanted[name]), name) end
         tide.model.save(got, dir .. '/out')
         local tensors = tide.train.checkpoint.tensors(dir .. '/out/model.safetensors')
         for name, t in each(tide.train.checkpoint.tensors(dir .. '/plain/model.safetensors')) do
            assert.is_true(t:equal(tensors[name]), name)
         end
         assert.is_nil(fs.read('spec', dir .. '/out/config.json'):find 'quantization_config')
         local function sum(_, _, from, mesh, ep)
            local t = require 'tide'
            local model, made = t.model.load(from, { mesh = mesh, dtype = 'f32',
               plan = { fsdp = { ep_size = ep } } })
            return { model:loss(t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' }),
               t.tensor({ { 1, 4, 1, 5, 9 } }, { dtype = 'i64' })):item(), made.nbyte }
         end
         local ids = tide.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
         local loss = got:loss(ids, tide.tensor({ { 1, 4, 1, 5, 9 } }, { dtype = 'i64' })):item()
         local whole = ranks.run(1, sum, dir .. '/packed', { dp_shard = 1 })[1][2]
         for ep = 1, 2 do
            for _, row in ipairs(ranks.run(2, sum, dir .. '/packed', { dp_shard = 2 }, ep)) do
               assert.near(loss, row[1], 1e-5 * loss)
               assert.is_true(row[2] < 0.65 * whole, row[2] .. ' of ' .. whole)
            end
         end
      end)
   end)

   it('are nan where a scale is', function()
      local x = mxfp4.box({ 0, 0, 0 }, { 1, 64, 1 }, function(what)
         if what == '_blocks' then return tide.zeros({ 1, 1, 2, 16 }, { dtype = 'u8' }) end
         return tide.tensor({ { { 255, 254 } } }, { dtype = 'u8' })
      end)
      assert.equal(32, x:narrow(2, 1, 32):ne(x:narrow(2, 1, 32)):sum():item())
      assert.equal(0, x:narrow(2, 33, 32):abs():amax():item())
   end)

   it('are refused where they do not fit together', function()
      tmp.with(function(dir)
         local tensors, path = write_packed(dir)
         local name = 'model.layers.0.mlp.experts.down_proj'
         local function load_with(changes)
            local list = {}
            for _, t in ipairs { tensors, changes } do
               for k, v in each(t) do list[k] = v or nil end
            end
            fs.io().safetensors_save(path, list, { format = 'pt' })
            return tide.model.load, dir .. '/packed'
         end
         refused('E_FORMAT', { name .. '_blocks', name .. '_scales', '[4, 64, 1, 16]' },
            load_with { [name .. '_scales'] = tensors[name .. '_scales']:narrow(2, 1, 3)
               :contiguous() })
         refused('E_FORMAT', { name, 'remove one' }, load_with { [name] = tide.zeros { 1 } })
         for _, row in ipairs { { 'blocks', 'scales' }, { 'scales', 'blocks' } } do
            refused('E_FORMAT', { ("lacks '%s_%s'"):format(name, row[1]), name .. '_' .. row[2] },
               load_with { [name .. '_' .. row[1]] = false })
         end
         local text = fs.read('spec', dir .. '/packed/config.json')
         fs.write('spec', dir .. '/packed/config.json', (text:gsub('mxfp4', 'bitsandbytes')))
         refused('E_ARG', { 'config.json', 'quant_method', 'bitsandbytes' }, load_with {})
         fs.write('spec', dir .. '/packed/config.json',
            (text:gsub('"quantization_config".-},', '')))
         refused('E_FORMAT', { '_blocks', 'U8' }, load_with {})
      end)
   end)
end)
