-- Training on emulated CUDA.

local emulated = require 'spec.cuda.emulated'
local case = require 'spec.recipe.finetune_case'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local vl = require 'spec.lua.vl_chat_case'
local wide = require 'spec.support.wide'
local write = require('spec.support.files').write
local build, folder, capture = emulated.build, emulated.folder, emulated.capture

if not emulated.here() then return end

-- Losses of a recipe as metrics.jsonl has them; options: what follows its name; data: options that
-- say what is read, or nil for sources of the tree.
local function run(program, options, data)
   local out = os.tmpname()
   os.remove(out)
   local text = capture(('timeout 800 %s recipes/%s %s --out %s')
      :format(program, options, data or '--data core/base --val-windows 1 --sample 4', out))
   local list = {}
   local file = assert(io.open(out .. '/metrics.jsonl'), text)
   for line in file:lines() do list[#list + 1] = tonumber(line:match '"loss":([%d.]+)') end
   file:close()
   os.execute('rm -rf ' .. out)
   return list, text
end

local function equal(want, got, least)
   assert.is_true(#want >= least)
   assert.equal(#want, #got)
   for i = 1, #want do
      assert.is_true(math.abs(want[i] - got[i]) < 1e-3, ('step %d: %g and %g')
         :format(i, want[i], got[i]))
   end
end

describe('the pretrain recipe on emulated CUDA', function()
   local steps = wide and 10 or 5
   local function losses(device, dtype, more)
      return (run(([[luajit -e "package.path = 'bindings/?.lua;lua/?.lua;lua/?/init.lua;' .. ]]
         .. [[package.path; package.loaded['tide.host'] = { library = '%s/libtide.so', ]]
         .. [[host_library = '%s/libtide_host.so' }"]]):format(folder, build),
         ('pretrain.lua --device %s --dtype %s --steps %d --batch 2 --seq 40 --layers 2 --dim 32 '
         .. '--heads 2 --kv-heads 1 --recompute 1 %s'):format(device, dtype, steps, more or '')))
   end
   for _, words in ipairs(wide and { 'f32', 'bf16', 'f32 --fp8' } or { 'bf16', 'f32 --fp8' }) do
      it('has the losses of the CPU in ' .. words, function()
         equal(losses('cpu', words), losses('cuda', words), steps)
      end)
   end

   it('has the same losses to the last bit where the step is captured', function()
      local want, got = losses('cuda', 'f32', '--accum 2'), losses('cuda', 'f32',
         '--accum 2 --captured')
      assert.is_true(#want >= steps)
      assert.same(want, got)
   end)

   local with_experts = { qwen3_moe = { moe_intermediate_size = 8 },
      gpt_oss = { intermediate_size = 8, head_dim = 8, sliding_window = 5 },
      glm4_moe = { moe_intermediate_size = 8, n_routed_experts = 6, head_dim = 8 } }
   for family, config in pairs(with_experts) do
      it('has the losses of the CPU where the step of a model with experts is captured: '
         .. family, function()
         tmp.with(function(dir)
            config.vocab_size, config.hidden_size, config.num_hidden_layers = 258, 16, 2
            config.num_attention_heads, config.num_experts_per_tok = 2, 2
            config.num_experts = not config.n_routed_experts and 6 or nil
            local more = family == 'glm4_moe' and ' --router-bias-rate 0.05' or ''
            tide.model.save(tide.model[family](config, { seed = 1 }), dir .. '/m')
            local function losses_on(device)
               return (run(('env LD_LIBRARY_PATH=%s %s/tide run'):format(folder, build),
                  ('pretrain.lua --from %s/m --device %s --steps 3 --batch 1 --seq 24%s'):format(
                  dir, device, more)))
            end
            equal(losses_on 'cpu', losses_on 'cuda --captured', 3)
         end)
      end)
   end

   it('says in one line what --fp8 needs of a GPU', function()
      tmp.with(function(dir)
         local text = capture(('env TIDE_EMULATE_CAPABILITY=80 LD_LIBRARY_PATH=%s %s/tide run '
            .. 'recipes/pretrain.lua --device cuda --fp8 --steps 1 --dim 32 --layers 1 --heads 2 '
            .. '--seq 16 --batch 1 --data core/base --out %s/run'):format(folder, build, dir))
         assert.is_truthy(text:find('needs a GPU of compute capability 8.9', 1, true), text)
         assert.is_nil(text:find('traceback', 1, true), text)
      end)
   end)
end)

describe('the finetune recipe on emulated CUDA', function()
   for _, words in ipairs(wide and { 'f32', 'bf16' } or { 'bf16' }) do
      it('has the losses of the CPU with a base in NF4, in ' .. words, function()
         case.with_data(function(_, data)
            data = data:gsub('%-%-seq 96 %-%-batch 4', '--seq 32 --batch 1')
               :gsub('%-%-val%-every 3', '--val-every 0 --val-windows 1')
            local function losses(device)
               return (run(('env LD_LIBRARY_PATH=%s %s/tide run'):format(folder, build),
                  ('finetune.lua --device %s --dtype %s --steps 3 --lora.rank 4 '
                  .. '--lora.quantise nf4'):format(device, words), data))
            end
            equal(losses 'cpu', losses 'cuda', 3)
         end)
      end)
   end

   it('has the losses of the CPU with experts in NF4 and their adapters', function()
      case.with_data(function(dir, data)
         case.save(dir .. '/moe', tide.model.qwen3_moe({ vocab_size = 258, hidden_size = 16,
            num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 8,
            moe_intermediate_size = 8, num_experts = 4, num_experts_per_tok = 2,
            max_position_embeddings = 128 }, { seed = 5 }))
         data = data:gsub('%-%-seq 96 %-%-batch 4', '--seq 32 --batch 1')
            :gsub('%-%-val%-every 3', '--val-every 0 --val-windows 1')
            :gsub('%-%-from %S+', '--from ' .. dir .. '/moe')
         local function losses(device)
            return (run(('env LD_LIBRARY_PATH=%s %s/tide run'):format(folder, build),
               ('finetune.lua --device %s --steps 3 --lora.rank 4 --lora.quantise nf4'):format(
               device), data))
         end
         equal(losses 'cpu', losses 'cuda', 3)
      end)
   end)

   it('has the losses of the CPU on chats with images', function()
      tmp.with(function(dir)
         vl.write(dir)
         write(dir .. '/c.jsonl', vl.chats(8))
         local data = ('--from %s/m --data %s/c.jsonl --seq 150 --batch 1 --val-share 0 '
            .. '--val-every 0 --threads 1'):format(dir, dir)
         local function losses(device, ranks, mesh)
            return (run(('env TIDE_EMULATE_DEVICES=2 LD_LIBRARY_PATH=%s %s/tide run -n %d'):format(
               folder, build, ranks), ('finetune.lua --steps 2 --device %s %s'):format(device,
               mesh), data))
         end
         local want = losses('cpu', 1, '')
         equal(want, losses('cuda', 1, ''), 2)
         -- ranks over NCCL that share images while their GPUs work
         if wide then equal(want, losses('cuda', 2, '--mesh.cp 2'), 2) end
      end)
   end)
end)

describe('ranks of the pretrain recipe that share an emulated GPU', function()
   -- Ranks are threads of the program, which finds the emulated device beside its library.
   local function losses(device, what)
      return run(('env LD_LIBRARY_PATH=%s %s/tide run -n 2'):format(folder, build),
         ('%s --device %s --steps 3 --batch 2 --seq 24 --dim 16 --heads 2 --threads 1')
         :format(what, device))
   end
   for i, what in ipairs {
      'pretrain.lua --layers 2', 'pretrain.lua --layers 2 --mesh.dp_shard 2',
      'pretrain.lua --layers 1 --mesh.tp 2 --sequence-parallel',
      'pretrain_hybrid.lua --pattern M*- --mamba-heads 2 --state 8 --mesh.cp 2',
      'pretrain.lua --layers 2 --mesh.tp 2', 'pretrain.lua --layers 2 --mesh.cp 2',
      'pretrain.lua --layers 1 --mesh.cp 2 --cp.method a2a',
   } do
      if i > 4 and not wide then break end
      it('have the losses of ranks on the CPU: ' .. what, function()
         equal(losses('cpu', what), losses('cuda', what), 3)
      end)
   end

   it('are not fewer GPUs than ranks, but one', function()
      local program = ('env TIDE_EMULATE_DEVICES=2 LD_LIBRARY_PATH=%s %s/tide run -n 3')
         :format(folder, build)
      local text = capture(program .. ' recipes/pretrain.lua --device cuda')
      assert.is_truthy(text:find('rank 0 is one of 3 on a machine with 2 GPUs', 1, true), text)
      assert.is_truthy(text:find('CUDA_VISIBLE_DEVICES=0', 1, true), text)
   end)

   it('cannot capture their step', function()
      local program = ('env LD_LIBRARY_PATH=%s %s/tide run -n 2'):format(folder, build)
      local text = capture(program .. ' recipes/pretrain.lua --device cuda --captured')
      assert.is_truthy(text:find("ranks over NCCL; got 2 over 'local'", 1, true), text)
   end)
end)

describe('ranks of the pretrain recipe with an emulated GPU each', function()
   local function losses(device, what)
      return run(('env TIDE_EMULATE_DEVICES=3 LD_LIBRARY_PATH=%s %s/tide run -n 2')
         :format(folder, build), ('%s --device %s --steps 4 --batch 2 --seq 24 --dim 16 --heads 2 '
         .. '--threads 1'):format(what, device))
   end
   for i, what in ipairs {
      'pretrain.lua --layers 1 --mesh.tp 2', 'pretrain.lua --layers 1 --mesh.dp_shard 2',
      'pretrain_hybrid.lua --pattern M*- --mamba-heads 2 --state 8 --mesh.cp 2',
   } do
      if i > 1 and not wide then break end
      it('are joined by NCCL and have the losses of the CPU: ' .. what, function()
         local got, text = losses('cuda', what)
         equal(losses('cpu', what), got, 4)
         assert.is_truthy(text:find('a GPU each, over NCCL', 1, true), text)
      end)
   end

   for _, mesh in ipairs { '--mesh.dp 2', '--mesh.cp 2' } do
      it('have the same losses to the last bit where the step is captured: ' .. mesh, function()
         local what = 'pretrain.lua --layers 1 ' .. mesh
         local want, got = losses('cuda', what), losses('cuda', what .. ' --captured')
         assert.is_true(#want >= 4)
         assert.same(want, got)
      end)
   end
end)
