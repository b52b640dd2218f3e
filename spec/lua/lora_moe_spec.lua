-- Adapters of experts and routers: folders, logits and gradients of PEFT (spec/golden/lora_moe.py),
-- what targets name, merging, NF4 beneath, and what is refused.

local tide = require 'tide'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local low_rank = require 'tide.nn.low_rank'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local lora, nn = tide.nn.lora, tide.nn
local golden = dofile 'spec/golden/lora_moe.lua'
local tensors = tide.train.checkpoint.tensors 'spec/golden/lora_moe.safetensors'
local ids = tide.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 }, { 5, 3, 5, 8, 9, 7, 9, 3 } },
   { dtype = 'i64' })
local E, C, I = 3, 12, 8

-- The tensors whose names begin so, by the rest of the name.
local function under(before)
   local list = {}
   for name, t in each(tensors) do
      if name:sub(1, #before + 1) == before .. '.' then list[name:sub(#before + 2)] = t end
   end
   return list
end

local function save(dir, name, list, text, config)
   fs.mkdirs('spec', dir)
   fs.io().safetensors_save(fs.join(dir, name), list, { format = 'pt' })
   write(fs.join(dir, config), text)
   return dir
end

-- Calls fn(base, folder, dir): a folder of the base, and a function that writes one of an adapter.
-- name: of the base; default: that of most cases.
local function with_folders(fn, name)
   tmp.with(function(dir)
      local base = save(dir .. '/base', 'model.safetensors', under(name and name .. '.base'
         or 'base'), golden.config[name or 'qwen3_moe'], 'config.json')
      return fn(base, function(case, which, text)
         return save(('%s/%s-%s'):format(dir, case, which), 'adapter_model.safetensors',
            under(case .. '.' .. which), text or golden[case][which], 'adapter_config.json')
      end, dir)
   end)
end

local function off(a, b) return (a:detach() - b:detach()):abs():amax():item() end

-- A mixture with one dense layer.
local mixture = { vocab_size = 29, hidden_size = 16, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4, intermediate_size = 20,
   moe_intermediate_size = 10, num_experts = 4, num_experts_per_tok = 2, mlp_only_layers = { 1 },
   norm_topk_prob = true }

local function made(opts) return tide.model.qwen3_moe(mixture, opts or { seed = 2 }) end

-- Adapters that change something.
local function fill(model)
   tide.no_grad(function()
      for k, e in ipairs(model:named_parameters()) do
         if low_rank.is_name(e.name) then e.param:normal_(0, 0.2, { seed = k }) end
      end
   end)
   return model
end

local function adapted(opts)
   local model = made()
   lora.attach(model, opts or { rank = 3, alpha = 5 })
   return fill(model)
end

-- The gradients of PEFT for B of a parameter of all experts: [E, out, rank].
local function deep(B) return B:reshape(B:size(1), -1, E):permute(3, 1, 2) end

-- Compares the gradients of a model's adapters with those of PEFT. rank: that of PEFT; joined: the
-- halves of gate_up_proj have one A in PEFT; ratio: of PEFT's scale of it to that of other layers,
-- which is in B here.
local function check_gradients(model, case, rank, joined, ratio)
   local want, count = under(case .. '.grad'), 0
   local function near(got, t, what)
      count = count + 1
      local most = math.max(1, t:abs():amax():item())
      assert.is_true(off(got, t) <= 2e-5 * most, ('%s %s: %g of %g'):format(case, what,
         off(got, t), most))
   end
   for name, A in each(want) do
      local path = name:match '^base_model%.model%.(.*)%.lora_A%.weight$'
      local B = path and want[(name:gsub('lora_A', 'lora_B'))]
      local layer = path and path:match '^model%.layers%.%d+%.mlp'
      local m = layer and model:get(layer)
      if path and path:find 'base_layer$' then
         A, B = A:reshape(E, -1, C), deep(B) / (ratio or 1)
         local r = joined and A:size(2) or A:size(2) / 2
         if joined then
            near(m.gate_proj_lora_A.grad + m.up_proj_lora_A.grad, A, path)
         else
            near(m.gate_proj_lora_A.grad, A:narrow(2, 1, r), path)
            near(m.up_proj_lora_A.grad, A:narrow(2, r + 1, r), path)
         end
         near(m.gate_proj_lora_B.grad, B:narrow(2, 1, I):narrow(3, 1, r), path)
         near(m.up_proj_lora_B.grad, B:narrow(2, I + 1, I):narrow(3, joined and 1 or r + 1, r),
            path)
      elseif path and path:find 'experts$' then
         near(m.down_proj_lora_A.grad:narrow(2, 1, rank), A:reshape(E, -1, I), path)
         near(m.down_proj_lora_B.grad:narrow(3, 1, rank), deep(B), path)
      elseif path then
         local owner = layer and m or model:get(path)
         local before = layer and 'router_' or ''
         near(owner[before .. 'lora_A'].grad:narrow(1, 1, rank), A, path)
         near(owner[before .. 'lora_B'].grad:narrow(2, 1, rank), B, path)
      end
   end
   return count
end

describe('nn.lora of experts', function()
   for case, row in pairs {
      apart = { 'given', 2, 2 }, all = { 'kept', 2, 4, true }, down = { 'kept', 3, 3 },
      rslora = { 'kept', 1, 2, true, math.sqrt(2) }, shared = { 'kept', 2, 2, true },
   } do
      it('has the logits and gradients of peft: ' .. case, function()
         with_folders(function(base, folder)
            local which, rank, ours, joined, ratio = unpack(row)
            local model = tide.model.load_adapter(tide.model.load(base), folder(case, which))
            assert.equal(ours, model.adapter.rank)
            local y = model(ids)
            assert.is_true(off(y, tensors[case .. '.logits']) < 1e-5)
            local weights = tide.arange(y:numel(), { dtype = 'f32' }):sin():reshape(y.shape)
            local loss = (y * weights):sum()
            loss:backward()
            local count = check_gradients(model, case, rank, joined, ratio)
            assert.is_true(count >= (case == 'down' and 4 or 8), count)
         end)
      end)
   end

   it('is read from what peft keeps, and written so again', function()
      with_folders(function(base, folder, dir)
         for _, case in ipairs { 'apart', 'down' } do
            local model = tide.model.load_adapter(tide.model.load(base), folder(case, 'kept'))
            assert.is_true(off(model(ids), tensors[case .. '.logits']) < 1e-5)
            tide.model.save_adapter(model, dir .. '/' .. case)
            local got = tide.train.checkpoint.tensors(('%s/%s/adapter_model.safetensors')
               :format(dir, case))
            local want = under(case .. '.kept')
            for name, t in each(want) do assert.equal(0, off(got[name], t)) end
            for name in each(got) do assert.is_truthy(want[name]) end
            local mine = fs.read_json('spec', ('%s/%s/adapter_config.json'):format(dir, case))
            local theirs = tide.json.decode(golden[case].kept)
            for _, field in ipairs { 'r', 'lora_alpha', 'target_modules' } do
               assert.same(theirs[field], mine[field])
            end
            assert.same(next(theirs.rank_pattern) and theirs.rank_pattern, mine.rank_pattern or nil)
            for _, path in ipairs(mine.target_parameters) do
               assert.matches('^model%.layers%.[01]%.mlp%.experts%.%w+_proj$',
                  (path:gsub('gate_up', 'gateup')))
            end
         end
         -- two adapters of another rank and one A go out block-diagonal, and mean the same
         for _, case in ipairs { 'all', 'rslora', 'shared' } do
            local model = tide.model.load_adapter(tide.model.load(base), folder(case, 'kept'))
            tide.model.save_adapter(model, dir .. '/' .. case)
            local again = tide.model.load_adapter(tide.model.load(base), dir .. '/' .. case)
            assert.equal(model.adapter.rank, again.adapter.rank)
            assert.is_true(off(again(ids), tensors[case .. '.logits']) < 1e-5)
         end
      end)
   end)

   for _, case in ipairs { 'oss', 'oss_joint', 'granite', 'nemotron', 'square' } do
      it('of other families has the logits of peft, and is written so again: ' .. case, function()
         with_folders(function(base, folder, dir)
            local model = tide.model.load_adapter(tide.model.load(base), folder(case, 'kept'))
            local want = tensors[case .. '.logits']
            assert.is_true(off(model(ids), want) < 1e-5)
            tide.model.save_adapter(model, dir .. '/a')
            local again = tide.model.load_adapter(tide.model.load(base), dir .. '/a')
            assert.is_true(off(again(ids), want) < 1e-5)
            if case == 'oss_joint' then return end             -- goes out block-diagonal
            local kept, mine = under(case .. '.kept'), {}
            for name, t in each(tide.train.checkpoint.tensors(dir
               .. '/a/adapter_model.safetensors')) do
               mine[(name:gsub('%.backbone%.', '.model.'))] = t      -- peft renames it
            end
            for name, t in each(kept) do assert.equal(0, off(mine[name], t), name) end
            for name in each(mine) do assert.is_truthy(kept[name], name) end
            local theirs = tide.json.decode(golden[case].kept)
            local c = fs.read_json('spec', dir .. '/a/adapter_config.json')
            assert.same(theirs.r, c.r)
            for _, path in ipairs(c.target_parameters) do
               local found = false
               for _, name in ipairs(theirs.target_parameters) do
                  found = found or path:sub(-#name - 1) == '.' .. name or path == name
               end
               assert.is_true(found, path)
            end
            assert.same(next(theirs.rank_pattern) and theirs.rank_pattern, c.rank_pattern or nil)
            assert.same(next(theirs.alpha_pattern) and theirs.alpha_pattern,
               c.alpha_pattern or nil)
         end, golden[case].base)
      end)
   end

   -- peft finds a target by the end of its path in transformers, where the body is `model`
   it('of a hybrid is named by paths that peft finds', function()
      tmp.with(function(dir)
         local model = tide.model.hybrid({ vocab_size = 29, hidden_size = 16,
            hybrid_override_pattern = 'E*-*', num_attention_heads = 2, head_dim = 4,
            intermediate_size = 8, moe_intermediate_size = 8, n_routed_experts = 4 }, { seed = 2 })
         lora.attach(model, { rank = 2, targets = '1.mixer.q_proj|mixer.gate|experts.up_proj' })
         tide.model.save_adapter(fill(model), dir)
         local c = fs.read_json('spec', dir .. '/adapter_config.json')
         table.sort(c.target_parameters)
         assert.same({ 'layers.1.mixer.q_proj' }, setmetatable(c.target_modules, nil))
         assert.same({ 'layers.0.mixer.experts.up_proj', 'layers.0.mixer.gate.weight' },
            setmetatable(c.target_parameters, nil))
      end)
   end)

   it('names Linear layers that peft would take for experts as parameters', function()
      tmp.with(function(dir)
         local model = adapted { rank = 2, targets = 'q_proj|up_proj|gate_proj|gate' }
         tide.model.save_adapter(model, dir .. '/a')
         local c = fs.read_json('spec', dir .. '/a/adapter_config.json')
         assert.same({ 'q_proj' }, setmetatable(c.target_modules, nil))
         table.sort(c.target_parameters)
         assert.same({ 'model.layers.0.mlp.experts.gate_up_proj', 'model.layers.0.mlp.gate.weight',
            'model.layers.1.mlp.gate_proj.weight', 'model.layers.1.mlp.up_proj.weight' },
            setmetatable(c.target_parameters, nil))
         local other = tide.model.load_adapter(made(), dir .. '/a')
         assert.equal(0, off(model(ids), other(ids)))
      end)
   end)

   it('is read from files of Mixtral with each expert apart', function()
      tmp.with(function(dir)
         local function mixtral()
            return tide.model.mixtral({ vocab_size = 29, hidden_size = 16, intermediate_size = 10,
               num_hidden_layers = 1, num_attention_heads = 2, num_local_experts = 3,
               num_experts_per_tok = 2 }, { seed = 2 })
         end
         local model, list = mixtral(), {}
         lora.attach(model, { rank = 2, targets = 'gate_proj|up_proj|down_proj' })
         fill(model)
         local m = model:get 'model.layers.0.mlp'
         for field, name in pairs { gate_proj = 'w1', up_proj = 'w3', down_proj = 'w2' } do
            for e = 0, 2 do
               for _, which in ipairs { 'A', 'B' } do
                  list[('base_model.model.model.layers.0.block_sparse_moe.experts.%d.%s.lora_%s'
                     .. '.weight'):format(e, name, which)] =
                     m[field .. '_lora_' .. which]:detach():select(1, e + 1):contiguous()
               end
            end
         end
         save(dir .. '/a', 'adapter_model.safetensors', list,
            '{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["w1", "w2", "w3"]}',
            'adapter_config.json')
         local read = tide.model.load_adapter(mixtral(), dir .. '/a')
         assert.equal(0, off(read(ids), model(ids)))
         list['base_model.model.model.layers.0.block_sparse_moe.experts.1.w2.lora_A.weight'] = nil
         save(dir .. '/b', 'adapter_model.safetensors', list,
            '{"peft_type": "LORA", "r": 2, "lora_alpha": 4}', 'adapter_config.json')
         refused('E_SHAPE', { "'model.layers.0.block_sparse_moe.experts.1.w2'", '2 of the 3' },
            tide.model.load_adapter, mixtral(), dir .. '/b')
      end)
   end)

   it('has no folder where PEFT has no form for it, and says what to do', function()
      tmp.with(function(dir)
         local function save_of(model, opts)
            lora.attach(model, opts)
            return tide.model.save_adapter, fill(model), dir .. '/a'
         end
         for _, row in ipairs { { 'dora', 'DoRA', true }, { 'dropout', 'dropout', 0.1 } } do
            refused('E_UNSUPPORTED', { "'model.layers.1.mlp.gate_proj' for experts by its name",
               'have no ' .. row[2], 'merged model', 'train without ' .. row[2] },
               save_of(made(), { rank = 2, targets = '1.mlp.gate_proj', [row[1]] = row[3] }))
            local save_it, model = save_of(made(), { rank = 2, targets = 'q_proj',
               [row[1]] = row[3] })
            save_it(model, dir .. '/q')
         end
         local function oss()
            return tide.model.gpt_oss({ vocab_size = 29, hidden_size = 8, num_hidden_layers = 1,
               num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4,
               intermediate_size = 6, num_local_experts = 1, num_experts_per_tok = 1 })
         end
         refused('E_UNSUPPORTED', { "'model.layers.0.mlp.down_proj'", 'single expert',
            'merged model' }, save_of(oss(), { rank = 2, targets = 'experts.down_proj' }))
         local model = oss()
         lora.attach(model, { rank = 1, targets = 'mlp.router' })
         tide.model.save_adapter(model, dir .. '/r')
         local mine = tide.nn.MoE { dim = 8, hidden = 6, experts = 2, topk = 1 }
         refused('E_UNSUPPORTED', { "'down_proj'", 'class of your own', 'Linear layers alone' },
            save_of(mine, { rank = 2, targets = 'down_proj' }))
         assert.is_false(fs.exists(dir .. '/a'))
      end)
   end)

   it('takes experts and routers by all-linear and by the names of published files', function()
      local function modules(targets)
         local model = made { device = 'null' }
         return table.concat(lora.attach(model, { rank = 2, targets = targets }).modules, ' ')
      end
      local mlp = 'model.layers.0.mlp.'
      local all = modules 'all-linear'
      for _, name in ipairs { 'router', 'gate_proj', 'up_proj', 'down_proj' } do
         assert.is_truthy((all .. ' '):find(mlp .. name .. ' ', 1, true), name)
      end
      assert.is_truthy(all:find('model.layers.1.mlp.up_proj', 1, true))
      assert.equal(mlp .. 'down_proj', modules 'experts.down_proj')
      assert.equal('model.layers.1.mlp.down_proj ' .. mlp .. 'down_proj', modules 'down_proj')
      assert.equal(mlp .. 'router', modules 'mlp.gate')
      assert.equal(mlp .. 'gate_proj ' .. mlp .. 'up_proj', modules 'mlp.experts.gate_up_proj')
      assert.equal(mlp .. 'gate_proj ' .. mlp .. 'up_proj',
         modules 'layers.0.mlp.experts.gate_proj|layers.0.mlp.experts.up_proj')
   end)

   it('changes nothing at first, trains adapters alone, and recomputes', function()
      local model = made()
      lora.attach(model, { rank = 3 })
      assert.is_true(off(model(ids), made()(ids)) < 1e-6)
      for _, e in ipairs(model:named_parameters()) do
         assert.equal(low_rank.is_name(e.name), e.param.requires_grad)
      end
      local function gradients(m)
         m:loss(ids, nn.loss.shift(ids)):backward()
         local list = {}
         for _, e in ipairs(m:named_parameters()) do list[e.name] = e.param.grad end
         return list
      end
      local again = adapted()
      tide.parallel.recompute(again, 'full')
      local a, b, count = gradients(adapted()), gradients(again), 0
      for name, g in each(a) do
         assert.equal(0, off(g, b[name]), name)
         count = count + (g:abs():amax():item() > 0 and 1 or 0)
      end
      assert.equal(2 * (8 + 4 + 3), count)
   end)

   it('merges, takes the changes out again, and goes', function()
      local model = adapted()
      local want, plain = model(ids), made()(ids)
      assert.is_true(off(want, plain) > 0.05)
      assert.is_true(off(lora.without(model, function() return model(ids) end), plain) < 1e-6)
      lora.merge(model)
      assert.is_true(off(model(ids), want) < 1e-5)
      lora.unmerge(model)
      assert.is_true(off(model(ids), want) < 1e-5)
      tmp.with(function(dir)
         tide.model.save(model, dir .. '/m')
         assert.is_true(off(tide.model.load(dir .. '/m')(ids), want) < 1e-5)
      end)
      lora.remove(model)
      assert.is_true(off(model(ids), plain) < 1e-5)
      local names, list = {}, made():named_parameters()
      for i, e in ipairs(model:named_parameters()) do names[i] = e.name end
      for i, e in ipairs(list) do assert.equal(e.name, names[i]) end
      assert.equal(#list, #names)
   end)

   it('is in checkpoints, and on experts in NF4', function()
      tmp.with(function(dir)
         local base = nn.nf4.quantise_(made())
         lora.attach(base, { rank = 3, alpha = 5 })
         local model = fill(base)
         assert.equal('f32', model:get 'model.layers.0.mlp'.gate_proj_lora_A.dtype)
         local optim = tide.optim.AdamW(model, { lr = 1e-2 })
         model:loss(ids, nn.loss.shift(ids)):backward()
         optim:step()
         local want = model(ids)
         tide.train.checkpoint.save(dir .. '/run', tide.train.state.collect { model = model,
            optim = optim, step = 1, recipe = {} })
         assert.equal(0, off(tide.model.load(dir .. '/run')(ids), want))
         tide.model.export(dir .. '/run', dir .. '/merged')
         assert.is_true(off(tide.model.load(dir .. '/merged')(ids), want) < 1e-5)
         tide.model.save_adapter(dir .. '/run', dir .. '/a')
         local again = tide.model.load_adapter(nn.nf4.quantise_(made()), dir .. '/a')
         assert.equal(0, off(again(ids), want))
         refused('E_STATE', { 'nn.lora.merge', 'NF4' }, lora.merge, model)
         nn.nf4.dequantise_(model)
         assert.is_true(off(lora.merge(model)(ids), want) < 1e-5)
      end)
   end)

   it('counts the adapters of the experts that a token uses', function()
      local model = adapted()
      local moe = model:get 'model.layers.0.mlp'
      local n = 0
      for _, field in ipairs(moe._param) do
         if not field:find '^router' then n = n + moe[field]:numel() end
      end
      assert.equal(model:num_parameters() - 29 * 16 - n / 2, model:multiplying())
   end)

   it('refuses what PEFT does not have, with what to do', function()
      local function attach(opts)
         return function() lora.attach(made { device = 'null' }, opts) end
      end
      refused('E_UNSUPPORTED', { 'dropout', "'model.layers.0.mlp.router'", 'leave dropout out' },
         attach { rank = 2, dropout = 0.1 })
      refused('E_UNSUPPORTED', { 'dora', "'model.layers.0.mlp.down_proj'", 'experts' },
         attach { rank = 2, dora = true, targets = 'experts.down_proj' })
      refused('E_ARG', { "'model.layers.0.mlp.gate_proj' without 'model.layers.0.mlp.up_proj'",
         'gate_proj|up_proj' }, attach { rank = 2, targets = 'experts.gate_proj' })
      refused('E_ARG', { "rank: 11 is larger than 'model.layers.0.mlp.gate_proj' (16 -> 10)" },
         attach { rank = 11, targets = 'experts.gate_proj|experts.up_proj' })
      refused('E_ARG', { 'matches no layer', 'down_proj' }, attach { rank = 2,
         targets = 'experts.w1' })
      lora.attach(made { device = 'null' }, { rank = 9, targets = 'mlp.gate' })     -- of 4 experts
      with_folders(function(base, folder)
         local model = tide.model.load(base)
         local text = golden.all.kept:gsub('gate_up_proj": 4', 'q_proj": 4')
         refused('E_UNSUPPORTED', { 'rank_pattern', 'q_proj', 'gate_up_proj' },
            tide.model.load_adapter, model, folder('all', 'kept', text))
         refused('E_SHAPE', { 'mlp.experts', '[9, 8]', '4 experts of 12 -> 8' },
            tide.model.load_adapter, tide.model.qwen3_moe({ vocab_size = 23, hidden_size = 12,
               moe_intermediate_size = 8, num_hidden_layers = 2, num_attention_heads = 2,
               num_key_value_heads = 1, head_dim = 4, num_experts = 4, num_experts_per_tok = 2 }),
            folder('down', 'kept'))
      end)
   end)
end)
