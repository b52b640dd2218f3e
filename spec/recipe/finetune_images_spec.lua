-- recipes/finetune.lua on chats with images: the losses of PyTorch and transformers, equal losses
-- on every mesh, micro-batches without images, frozen towers, adapters, exact resumption, and what
-- newcomers get wrong.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local fs = require 'tide.util.fs'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local vl = require 'spec.lua.vl_chat_case'
local vlm = require('spec.lua.vlm_case').gemma3_vl
local wide = require 'spec.support.wide'
local write = require('spec.support.files').write

local ok, bad, losses, same_losses = case.ok, case.bad, case.losses, case.same_losses

-- Calls fn(dir, words) with the model in dir/m and n chats beside their images.
local function with_chats(n, fn)
   tmp.with(function(dir)
      vl.write(dir)
      write(dir .. '/c.jsonl', vl.chats(n))
      fn(dir, ('--threads 1 --from %s/m --data %s/c.jsonl --seq 320 --batch 4 --lr 3e-3 '
         .. '--val-every 3 --save-every 0 --steps 4 '):format(dir, dir))
   end)
end

-- The validation losses of a run, by step.
local function validated(dir) return recipe.losses(dir, 'val_loss') end

describe('fine-tuning on chats with images', function()
   for name, words in pairs { full = '', frozen_tower = '--freeze visual' } do
      it('has the losses of a loop of PyTorch: ' .. name, function()
         tmp.with(function(dir)
            vl.write(dir)
            fs.write('spec', dir .. '/c.jsonl', fs.read('spec', vl.golden .. '/chats.jsonl'))
            ok(1, ('--threads 1 --from %s/m --data %s/c.jsonl --seq 256 --batch 4 --pack none '
               .. '--steps %d --lr %g --schedule constant --warmup 0 --weight-decay 0 '
               .. '--val-share 0 --save-every 0 --out %s/run %s'):format(dir, dir, vl.numbers.steps,
               vl.numbers.lr, dir, words))
            local got = losses(dir .. '/run')
            for i, want in ipairs(vl.numbers[name]) do
               assert.is_true(math.abs(want - got[i]) <= 1e-4,
                  ('step %d: %.9g, expected %.9g'):format(i, got[i], want))
            end
         end)
      end)
   end

   -- Compares the losses of meshes with those of a loop of PyTorch. of: a model of vl_chat_case;
   -- meshes: { ranks, name of the losses, options }.
   local function check_meshes(dir, of, meshes)
      vl.write(dir, of.model())
      fs.write('spec', dir .. '/c.jsonl', fs.read('spec', vl.golden .. '/chats.jsonl'))
      for i, row in ipairs(meshes) do
         ok(row[1], ('--threads 1 --from %s/m --data %s/c.jsonl --seq 256 --batch 4 '
            .. '--pack none --steps %d --lr %g --schedule constant --warmup 0 --weight-decay 0 '
            .. '--val-share 0 --save-every 0 --out %s/run%d %s'):format(dir, dir,
            of.numbers.steps, of.numbers.lr, dir, i, row[3]))
         local got = losses(dir .. '/run' .. i)
         for k, want in ipairs(of.numbers[row[2]]) do
            assert.is_true(math.abs(want - got[k]) <= 1e-4,
               ('%s, step %d: %.9g, expected %.9g'):format(row[3], k, got[k], want))
         end
      end
   end

   it('has the losses of a loop of PyTorch with gated delta nets, on every mesh', function()
      tmp.with(function(dir)
         check_meshes(dir, vl.qwen3_5, { { 2, 'full', '--mesh.pp 2' },
            { 2, 'frozen_tower', '--freeze visual --mesh.cp 2' },
            wide and { 1, 'full', '' } or nil,
            wide and { 4, 'full', '--mesh.dp_shard 2 --mesh.tp 2 --recompute full' } or nil })
      end)
   end)

   it('has the losses of a loop of PyTorch with deepstack features, on every mesh', function()
      tmp.with(function(dir)
         check_meshes(dir, vl.qwen3_vl, { { 1, 'full', '' }, { 2, 'full', '--mesh.cp 2' },
            { 2, 'frozen_tower', '--freeze visual --mesh.tp 2 --sequence-parallel' },
            wide and { 2, 'full', '--mesh.dp_shard 2 --recompute full' } or nil })
         local talk = tide.train.sample.generate(tide.model.load(dir .. '/run1/model'), { 1, 2 },
            { tokens = 1, temperature = 0 })
         assert.equal(1, #talk)
      end)
   end)

   it('loses on two ranks what one rank loses where tokens of an image see each other', function()
      local of = 'spec/golden/gemma3_chat/'
      tmp.with(function(dir)
         vl.write(dir, vlm.fill(tide.model.gemma3_vl(tide.json.decode(fs.read('spec', of
            .. 'config.json')))))
         for _, name in ipairs { 'tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja',
            'processor_config.json' } do
            fs.write('spec', dir .. '/m/' .. name, fs.read('spec', of .. name))
         end
         fs.write('spec', dir .. '/c.jsonl', fs.read('spec', of .. 'chats.jsonl'))
         local words = ('--threads 1 --from %s/m --data %s/c.jsonl --seq 128 --batch 1 --steps 2 '
            .. '--val-share 0 --save-every 0 --out %s/'):format(dir, dir, dir)
         ok(1, words .. 'one')
         ok(2, words .. 'two --mesh.cp 2')
         same_losses(losses(dir .. '/one'), losses(dir .. '/two'))
         bad(words .. 'no --max-pixels 64', '--max-pixels: the processor of ' .. dir .. '/m makes '
            .. 'all images of 8 x 8 pixels; leave it out')
      end)
   end)

   it('loses on every mesh what one rank loses, and writes a folder with its processor', function()
      with_chats(24, function(dir, words)
         local out = ok(1, words .. '--out ' .. dir .. '/one')
         assert.matches('36 images: 300 of the tokens', out, 1, true)
         for i, mesh in ipairs { { 4, '--mesh.dp_shard 2 --mesh.cp 2' },
            { 2, '--mesh.tp 2 --sequence-parallel' }, wide and { 2, '--mesh.dp 2' } or nil,
            wide and { 2, '--mesh.dp_shard 2 --recompute full --accum 2' } or nil } do
            local to = dir .. '/run' .. i
            ok(mesh[1], words .. mesh[2] .. ' --out ' .. to)
            same_losses(losses(dir .. '/one'), losses(to))
            for at, loss in pairs(validated(dir .. '/one')) do
               assert.near(loss, validated(to)[at], 1e-6 * loss)
            end
         end
         -- images inside the records
         write(dir .. '/d.jsonl', (vl.chats(24):gsub('"image": "(%w+%.png)"', function(name)
            return ('"image": "%s"'):format(vl.data_url(name))
         end)))
         ok(1, words:gsub('c%.jsonl', 'd.jsonl') .. '--out ' .. dir .. '/inside')
         assert.same(losses(dir .. '/one'), losses(dir .. '/inside'))
         local name = '/processor_config.json'
         assert.equal(fs.read('spec', dir .. '/m' .. name),
            fs.read('spec', dir .. '/one/model' .. name))
         -- a run and its folder are read again, with their processor
         ok(1, words .. ('--from %s/one --steps 1 --out %s/on'):format(dir, dir))
         ok(1, words .. ('--from %s/one/model --dtype bf16 --steps 1 --out %s/half'):format(dir,
            dir))
      end)
   end)

   it('takes micro-batches without images, frozen towers and adapters', function()
      with_chats(16, function(dir, words)
         for i, more in ipairs { '--pack none --batch 8 --accum 4', '--freeze visual',
            '--lora.rank 2 --freeze visual', wide and '--lora.rank 2 --pack none' or nil } do
            local one, two = dir .. '/one' .. i, dir .. '/two' .. i
            ok(1, words .. more .. ' --out ' .. one)
            ok(2, words .. more .. ' --mesh.dp_shard 2 --out ' .. two)
            same_losses(losses(one), losses(two))
         end
         local before = tide.train.checkpoint.tensors(dir .. '/m/model.safetensors')
         local after = tide.train.checkpoint.tensors(dir .. '/two2/model/model.safetensors')
         for name, t in pairs(before) do
            assert.equal(name:find '^visual' ~= nil, t:equal(after[name]), name)
         end
         local adapters = tide.train.checkpoint.tensors(dir
            .. '/two3/adapter/adapter_model.safetensors')
         for name in pairs(adapters) do assert.is_nil(name:find('visual', 1, true), name) end
      end)
   end)

   it('resumes bit for bit where a rank is killed', function()
      with_chats(24, function(dir, words)
         case.survives(dir, 2, 'finetune.lua ' .. words .. '--mesh.dp_shard 2', 'last')
      end)
   end)

   it('are distilled from a teacher that reads images, too', function()
      with_chats(16, function(dir, words)
         local run = case.runs 'distil.lua'
         words = words .. '--teacher ' .. dir .. '/m --lora.rank 2 --alpha 0.5 '
         run(1, words .. '--out ' .. dir .. '/one')
         run(2, words .. '--mesh.dp_shard 2 --out ' .. dir .. '/two')
         run(2, words .. '--mesh.cp 2 --out ' .. dir .. '/cut')
         run(2, words .. '--teacher-top-k 264 --mesh.dp 2 --out ' .. dir .. '/top')
         for _, name in ipairs { 'two', 'cut' } do
            same_losses(losses(dir .. '/one'), losses(dir .. '/' .. name))
         end
         -- all ids are the whole distribution
         assert.near(losses(dir .. '/one')[4], losses(dir .. '/top')[4], 1e-4)
      end)
   end)

   it('learns from pairs with images on every mesh', function()
      with_chats(4, function(dir)
         local list = {}
         for i = 1, 12 do
            list[i] = ('{"prompt": [{"role": "user", "content": [{"type": "image", "image": '
               .. '"%s.png"}, {"type": "text", "text": "%d?"}]}], "chosen": "Yes %d.", "rejected": '
               .. '"No"}\n'):format(('abc'):sub(i % 3 + 1, i % 3 + 1), i, i)
         end
         write(dir .. '/p.jsonl', table.concat(list))
         local run = case.runs 'dpo.lua'
         local words = ('--threads 1 --from %s/m --data %s/p.jsonl --seq 320 --batch 2 --steps 3 '
            .. '--lr 1e-3 --val-share 0 --save-every 0 --out %s/'):format(dir, dir, dir)
         run(1, words .. 'one')
         local one = losses(dir .. '/one')
         assert.near(math.log(2), one[1], 1e-5)
         assert.is_true(one[3] < one[1])
         for name, mesh in pairs { dp = '--mesh.dp 2', cp = '--mesh.cp 2', tp = '--mesh.tp 2' } do
            run(2, words .. name .. ' ' .. mesh)
            local got = losses(dir .. '/' .. name)
            for i = 1, 3 do assert.near(one[i], got[i], 2e-5) end
         end
         assert.matches('priced with', run(1, words .. 'one --plan'))
      end)
   end)

   it('keep template and processor of the model beside the tokenizer of another folder', function()
      with_chats(8, function(dir, words)
         fs.mkdirs('spec', dir .. '/words')
         for _, name in ipairs { 'tokenizer.json', 'tokenizer_config.json' } do
            write(dir .. '/words/' .. name, fs.read('spec', dir .. '/m/' .. name))
         end
         write(dir .. '/words/preprocessor_config.json', '{"patch_size": 14}')
         ok(1, ('%s--tokenizer %s/words --max-pixels 300 --out %s/run'):format(words, dir, dir))
         for _, at in ipairs { '/run', '/run/model' } do
            local again = tide.data.image.processor(dir .. at).config
            assert.same({ 4, 300 }, { again.patch_size, again.max_pixels })
         end
         ok(1, ('--resume --steps 5 --out %s/run'):format(dir))
      end)
   end)

   it('prices the micro-batch with the most patches', function()
      with_chats(24, function(_, words)
         local text = ok(1, words .. '--plan')
         assert.matches('priced with the most patches of a micro%-batch: %d+, of %d+ images', text)
      end)
   end)

   it('refuses what newcomers get wrong, with what to do', function()
      with_chats(8, function(dir, words)
         words = words .. '--out ' .. dir .. '/run '
         case.save(dir .. '/text')
         bad(words .. '--from ' .. dir .. '/text', 'c.jsonl, line 1: messages[1].content[1]: the '
            .. 'record has an image, and the model of --from (Llama) reads texts alone; give the '
            .. 'folder of a model with a vision tower (its config.json has vision_config), or '
            .. '--skip-bad')
         bad(words .. '--seq 8', 'an image is not cut: give a larger seq')
         bad(words .. '--freeze vision', '--freeze vision: the model has no module of this path')
         bad(words .. '--freeze visual --freeze model --freeze lm_head', 'no weight is left')
         local _, bad_teacher = case.runs 'distil.lua'
         local config = vl.model({ device = 'null' }).config
         tide.model.save(tide.model.qwen2({ vocab_size = config.vocab_size, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 8 }, { seed = 1 }),
            dir .. '/t')
         bad_teacher(words .. '--teacher ' .. dir .. '/t', 'reads texts alone, and the chats have '
            .. 'images')
         write(dir .. '/b.png', fs.read('spec', vl.golden .. '/b.png'):sub(1, 200))
         bad(words, dir .. '/b.png: it is a damaged PNG')
         -- what another model left behind
         local stale = { 'preprocessor_config.json', 'special_tokens_map.json' }
         for _, name in ipairs(stale) do write(dir .. '/run/' .. name, '{}') end
         local out = ok(1, words .. '--overwrite --check-images --skip-bad --steps 1')
         assert.matches('4 broken left out', out, 1, true)
         for _, name in ipairs(stale) do assert.is_false(fs.exists(dir .. '/run/' .. name)) end
         words = words .. '--overwrite '
         os.remove(dir .. '/b.png')
         bad(words, 'c.jsonl, line 2: messages[1].content[2]: ')
         bad(words, dir .. '/b.png')
         os.remove(dir .. '/m/processor_config.json')
         bad(words, 'm has no preprocessor_config.json, which says how images become patches')
      end)
   end)
end)
