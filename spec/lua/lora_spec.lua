-- nn.lora: PEFT's numbers, what is trained and what is frozen, merging, folders of adapters, ranks,
-- and mistakes.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local low_rank = require 'tide.nn.low_rank'
local inputs = require('spec.lua.decoder_case').inputs
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local lora = tide.nn.lora
local golden = dofile 'spec/golden/lora.lua'

local config = { vocab_size = 29, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 4,
   num_key_value_heads = 2, intermediate_size = 20 }

local function adapters(model)
   local list = {}
   for _, e in ipairs(model:named_parameters()) do
      if low_rank.is_name(e.name) then list[#list + 1] = e end
   end
   table.sort(list, function(a, b) return a.name < b.name end)
   return list
end

-- Adapters that change something, by the names alone.
local function fill(model)
   tide.no_grad(function()
      for k, e in ipairs(adapters(model)) do
         local t = (tide.arange(e.param:numel(), { dtype = 'f64' }) * 0.7 + 1.3 * (k - 1)):sin()
         e.param:copy_((t * 0.3):reshape(e.param.shape))
      end
   end)
   return model
end

local function adapted(opts)
   local model = tide.model.llama(config, { seed = 2 })
   lora.attach(model, opts or { rank = 3, alpha = 5, targets = 'q_proj|down_proj' })
   return fill(model)
end

local ids = tide.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 } }, { dtype = 'i64' })

local function off(a, b) return (a:detach() - b:detach()):abs():amax():item() end

-- Compares logits, loss and norms of gradients with those of peft, which computes norms in f32 also
-- among doubles.
local function check(row, got, tolerance)
   local function near(want, v, what)
      assert(math.abs(want - v) <= tolerance * math.max(1, math.abs(want)),
         ('%s: %.12g ~= %.12g'):format(what, want, v))
   end
   for i, want in ipairs(row.logits) do near(want, got.logits[i], 'logit ' .. i) end
   near(row.loss, got.loss, 'loss')
   assert.equal(#row.grads, #got.grads)
   for i, g in ipairs(got.grads) do near(row.grads[i], g.norm, 'gradient of ' .. g.name) end
end

describe('nn.lora', function()
   for _, name in ipairs(case.names(golden)) do
      it('gives the logits, loss and gradients of peft: ' .. name, function()
         local row = golden[name]
         for dtype, tolerance in pairs { f64 = 2e-5, f32 = 5e-5 } do
            local model = case.model(row, { dtype = dtype })
            lora.attach(model, { rank = row.rank, alpha = row.alpha, rslora = row.rslora,
               dora = row.dora, targets = row.targets })
            fill(model)
            local got, list = {}, adapters(model)
            local x, labels = inputs()
            local logits, loss = model(x), model:loss(x, labels)
            loss:backward()
            got.loss, got.grads = loss:item(), {}
            got.logits = { logits:at(1, 1, 1), logits:at(2, 9, 23), logits:at(1, 5, 12) }
            for i, e in ipairs(list) do
               got.grads[i] = { name = e.name, norm = e.param.grad:norm():item() }
            end
            check(row, got, tolerance)
            for _, e in ipairs(model:named_parameters()) do
               assert.equal(low_rank.is_name(e.name), e.param.grad ~= nil)
            end
         end
      end)
   end

   it('changes nothing at first, and trains adapters alone', function()
      local model = tide.model.llama(config, { seed = 2 })
      local before = model(ids):detach()
      local adapter = lora.attach(model, { rank = 4 })
      assert.equal(14, #adapter.modules)
      assert.equal(8, adapter.alpha)
      assert.equal(0, off(model(ids), before))
      local frozen = {}
      for _, e in ipairs(model:named_parameters()) do
         if not low_rank.is_name(e.name) then frozen[e.name] = e.param:detach():clone() end
      end
      local optim = tide.optim.AdamW(model, { lr = 1e-2, weight_decay = 0.5 })
      local step = tide.train.step { model = model, optim = optim, comm = tide.comm.solo() }
      local labels = tide.tensor({ { 1, 4, 1, 5, 9, 2, 6, 5 } }, { dtype = 'i64' })
      local first = step:run({ { ids = ids, labels = labels, count = 8 } }).loss
      for _ = 1, 4 do step:run { { ids = ids, labels = labels, count = 8 } } end
      assert.is_true(step:run({ { ids = ids, labels = labels, count = 8 } }).loss < first)
      for _, e in ipairs(model:named_parameters()) do
         if frozen[e.name] then
            assert.equal(0, off(e.param, frozen[e.name]))
            assert.is_nil(optim.state[e.name])
         else
            assert.is_table(optim.state[e.name])
         end
      end
   end)

   it('computes the same in one op and around a wrap inside, for few rows and many', function()
      for dtype, bound in each { f64 = 1e-12, f32 = 2e-6, bf16 = 4e-2 } do
         for _, rows in ipairs { 1, 50 } do
            for _, dora in ipairs { false, true } do
               local layer = tide.nn.Linear(24, 20, { seed = 3, dtype = dtype })
               local model = tide.nn.Stack { layer }
               lora.attach(model, { rank = 5, alpha = 9, dora = dora })
               fill(model)
               local x = tide.randn({ 2, rows, 24 }, { dtype = dtype }):requires_grad_()
               local weigh = tide.randn({ 2, rows, 20 }, { dtype = dtype })
               local function results()
                  local list, y = {}, model(x);
                  (y * weigh):sum():backward()
                  for _, e in ipairs(adapters(model)) do list[#list + 1] = e.param.grad:clone() end
                  list[#list + 1], list[#list + 2] = y, x.grad:clone()
                  x:zero_grad()
                  model:zero_grad()
                  return list
               end
               local one, calls = results(), 0
               layer:wrap('mine', function(next, self, v)
                  calls = calls + 1
                  return next(self, v)
               end, { of = 'forward', order = -40 })
               for i, want in ipairs(results()) do
                  local size = math.max(1, want:detach():abs():amax():item())
                  assert.is_true(off(one[i], want) <= bound * size,
                     ('%s, %d rows, result %d: %g off'):format(dtype, rows, i, off(one[i], want)))
               end
               assert.equal(1, calls)
            end
         end
      end
   end)

   it('merges, takes the changes out again, and goes', function()
      local model = adapted()
      local want = model(ids):detach()
      local base = lora.without(model, function() return model(ids):detach() end)
      assert.is_true(off(want, base) > 1e-3)
      lora.merge(lora.merge(model))
      assert.is_true(off(model(ids), want) < 1e-5)
      lora.unmerge(lora.unmerge(model))
      assert.is_true(off(model(ids), want) < 1e-5)
      lora.remove(model)
      assert.is_true(off(model(ids), base) < 1e-5)
      assert.equal(0, #adapters(model))
      for _, e in ipairs(model:named_parameters()) do assert.is_true(e.param.requires_grad) end
      lora.remove(lora.merge(adapted()))
      assert.equal(14, #lora.attach(model, {}).modules)
   end)

   it('adapts a layer in two places once', function()
      local layer = tide.nn.Linear(6, 6, { seed = 1 })
      local model = tide.nn.Stack { layer, layer }
      assert.equal(1, #lora.attach(model, { rank = 2 }).modules)
      fill(model)
      local x = tide.randn { 3, 6 }
      local want = model(x):detach()
      assert.is_true(off(want, lora.without(model, function() return model(x) end)) > 1e-3)
      assert.is_true(off(lora.merge(model)(x), want) < 1e-5)
      assert.is_true(off(lora.unmerge(model)(x), want) < 1e-5)
      assert.equal(2, #adapters(model))
      local a, b = tide.nn.Linear(6, 6, { seed = 1 }), tide.nn.Linear(6, 6, { seed = 2 })
      b.weight = a.weight
      refused('E_UNSUPPORTED', { "'0' and '1' share one weight", 'leave one of them out' },
         lora.attach, tide.nn.Stack { a, b }, { rank = 2 })
      assert.is_nil(a.lora_A)
   end)

   it('merges changes with norms (DoRA), and writes them as peft does', function()
      tmp.with(function(dir)
         local model = adapted { rank = 2, alpha = 3, dora = true }
         local want = model(ids):detach()
         assert.is_true(off(want, adapted({ rank = 2, alpha = 3 })(ids)) > 1e-3)
         tide.model.save_adapter(model, dir .. '/a')
         tide.model.save(model, dir .. '/m')
         assert.is_true(off(lora.merge(model)(ids), want) < 1e-5)
         tide.model.save_adapter(model, dir .. '/merged')
         refused('E_STATE', 'are merged, so its weights hold their changes; call nn.lora.unmerge',
            tide.model.load_adapter, model, dir .. '/a')
         assert.is_true(off(tide.model.load_adapter(tide.model.llama(config, { seed = 2 }),
            dir .. '/merged')(ids), want) < 1e-5)
         assert.is_true(off(lora.unmerge(model)(ids), want) < 1e-5)
         assert.is_true(off(tide.model.load(dir .. '/m')(ids), want) < 1e-5)
         local again = tide.model.load_adapter(tide.model.llama(config, { seed = 2 }), dir .. '/a')
         assert.is_true(off(again(ids), want) < 1e-5)
         local names = tide.train.checkpoint.tensors(dir .. '/a/adapter_model.safetensors')
         local W = tide.model.llama(config, { seed = 2 }):get('model.layers.0.mlp.up_proj').weight
         local m = names['base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector']
         local own = model:get('model.layers.0.mlp.up_proj').lora_m
         assert.is_true(off(m, (W * W):sum(2):sqrt() + own) < 1e-6)
         assert.equal(14, #lora.attach(lora.remove(model), { dora = true }).modules)
         assert.equal(0, off(model(ids), lora.without(model, function() return model(ids) end)))
      end)
   end)

   it('drops while training only, alike for a seed', function()
      local model = adapted { rank = 3, dropout = 0.5 }
      local function out()
         tide.default():seed(5)
         return model(ids):detach()
      end
      model:train()
      local a = out()
      assert.equal(0, off(a, out()))
      model:eval()
      local b = out()
      assert.is_true(off(a, b) > 1e-4)
      assert.equal(0, off(b, model(ids)))
   end)

   it('goes out to a folder of peft and in again, and out merged', function()
      tmp.with(function(dir)
         local model = adapted { rank = 3, alpha = 5, rslora = true,
            targets = 'layers.1.mlp.up_proj|q_proj' }
         local want = model(ids):detach()
         tide.model.save_adapter(model, dir .. '/a', { base = 'the/base' })
         local c = fs.read_json('spec', dir .. '/a/adapter_config.json')
         assert.equal('the/base', c.base_model_name_or_path)
         assert.equal(3, c.r)
         assert.equal(3, #c.target_modules)             -- one up_proj of two: by its path
         local names = {}
         for name in pairs(tide.train.checkpoint.tensors(dir .. '/a/adapter_model.safetensors')) do
            names[#names + 1] = name
         end
         table.sort(names)
         assert.equal(6, #names)
         assert.equal('base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight', names[1])
         local again = tide.model.load_adapter(tide.model.llama(config, { seed = 2 }), dir .. '/a')
         assert.equal(0, off(again(ids), want))
         assert.same(model.adapter, again.adapter)
         local path = dir .. '/a/adapter_config.json'
         local written = fs.read('spec', path)
         for said, dropout in pairs { ['"lora_dropout":0.25,'] = 0.25, [''] = 0 } do
            local text, n = written:gsub('"lora_dropout":[%d.]+,', said)
            assert.equal(1, n)
            fs.write('spec', path, text)
            again = tide.model.load_adapter(tide.model.llama(config, { seed = 2 }), dir .. '/a')
            assert.equal(dropout, again.adapter.dropout)
         end
         tide.model.save(model, dir .. '/m')
         assert.is_true(off(tide.model.load(dir .. '/m')(ids), want) < 1e-5)
         tide.model.save(lora.merge(model), dir .. '/n')
         assert.is_true(off(tide.model.load(dir .. '/n')(ids), want) < 1e-5)
      end)
   end)

   it('keeps frozen bf16 weights of a sharded model in bf16', function()
      local model = tide.model.llama(config, { dtype = 'bf16', device = 'null' })
      lora.attach(model, { rank = 2 })
      local sharded = tide.parallel.fully_shard(model, tide.comm.solo(), { device = 'cpu' })
      for _, p in ipairs(sharded:named_parameters()) do
         assert.equal(low_rank.is_name(p.name) and 'f32' or 'bf16', p.param.dtype)
      end
   end)

   it('refuses what does not fit, with what to do', function()
      local model = tide.model.llama(config, { seed = 2 })
      local function attach(code, text, opts) refused(code, text, lora.attach, model, opts) end
      attach('E_ARG', "'q_pro' matches no layer; did you mean 'q_proj'? (those of",
         { targets = 'q_pro' })
      attach('E_ARG', "'wholly_other' matches no layer (those of the model: q_proj, k_proj",
         { targets = 'wholly_other' })
      attach('E_UNSUPPORTED', 'is of class Embedding; adapters are for Linear',
         { targets = 'embed_tokens' })
      attach('E_UNSUPPORTED', 'but the output head', { targets = 'lm_head' })
      attach('E_ARG', "rank: 17 is larger than 'model.layers.0.self_attn.q_proj' (16 -> 16)",
         { rank = 17 })
      attach('E_ARG', 'rank', { rank = 0 })
      assert.is_nil(model.adapter)
      for _, e in ipairs(model:named_parameters()) do assert.is_true(e.param.requires_grad) end
      refused('E_STATE', 'the model has no adapters', lora.merge, model)
      lora.attach(model, {})
      attach('E_STATE', 'has adapters already', {})
      refused('E_ARG', 'bias', tide.nn.lora.attach, tide.model.llama(config), { bias = 'all' })
   end)

   it('refuses adapters of another base, and what peft has more', function()
      tmp.with(function(dir)
         local model = adapted()
         tide.model.save_adapter(model, dir .. '/a', { base = 'the/base' })
         local function load(code, text, fields)
            local other = {}
            for k, v in pairs(config) do other[k] = fields and fields[k] or v end
            refused(code, text, tide.model.load_adapter, tide.model.llama(other, { seed = 2 }),
               dir .. '/a')
         end
         load('E_SHAPE', 'is of another base model (the/base): 2 of its 4 layers are not in this',
            { num_hidden_layers = 1 })
         load('E_SHAPE', 'shapes differ', { hidden_size = 32 })
         refused('E_IO', 'has no adapter_config.json', tide.model.load_adapter, model, dir)
         local path = dir .. '/a/adapter_config.json'
         local text = fs.read('spec', path)
         for field, value in pairs { r = 'rank is 9', lora_alpha = 'alpha is 9',
                                     use_rslora = 'rslora is true', use_dora = 'dora is true' } do
            local new = value:match 'true' or '9'
            fs.write('spec', path, (text:gsub(('"%s":[^,}]+'):format(field), ('"%s":%s'):format(
               field, new))))
            refused('E_STATE', value .. ', and ', tide.model.load_adapter, model, dir .. '/a')
         end
         fs.write('spec', path, (text:gsub('"bias":"none"', '"bias":"all"')))
         load('E_UNSUPPORTED', 'bias = all is not known here')
         fs.write('spec', path, (text:gsub('"LORA"', '"IA3"')))
         load('E_UNSUPPORTED', "peft_type is 'IA3'")
      end)
   end)
end)
