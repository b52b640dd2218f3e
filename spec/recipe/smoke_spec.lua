-- Every recipe runs as people run it: as a program, in seconds, with readable errors.

local list_of = require('spec.support.files').lines_of
local recipe = require 'spec.support.recipe'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local run = recipe.luajit

local function ok(words)
   local out, status = run(words)
   assert.equal(0, status, out)
   return out
end

-- A mistake of the user: reported without a stack trace, as under the tide program.
-- Status 2 after a mistake on the command line itself (E_ARG), else 1.
local function bad(words, pattern)
   local out, status = run(words)
   assert.equal(out:find('(E_ARG)', 1, true) and 2 or 1, status, out)
   assert.is_nil(out:find 'stack traceback', out)
   assert.matches(pattern, out, 1, true)
   return out
end

local small = ' --steps 6 --dim 16 --heads 2 --layers 1 --seq 32 --batch 4 --warmup 2 --sample 20'
   .. ' --val-windows 2 --threads 1 '

local function with_data(fn)
   tmp.with(function(dir)
      write(dir .. '/text.txt', ('abcdefgh ijklmnop. '):rep(200))
      fn(dir, '--data ' .. dir .. '/text.txt --out ' .. dir .. '/run')
   end)
end

local function lines_of(path)
   local n, last = 0, nil
   for line in io.lines(path) do n, last = n + 1, line end
   return n, last
end

describe('recipes/tensor_tour.lua', function()
   it('runs', function()
      local out = ok 'tensor_tour.lua'
      assert.matches('slope 3.000, offset -1.000', out, 1, true)
      assert.matches('equal again:\ttrue', out, 1, true)
   end)
end)

describe('recipes/pretrain.lua', function()
   it('trains a mixture of experts, whose balance the metrics show, and resumes it', function()
      with_data(function(dir, where)
         local words = 'pretrain.lua ' .. where .. small .. '--experts 3 --sample 0 '
         assert.matches('plan of Mixtral', ok(words .. '--plan'), 1, true)
         ok(words .. '--steps 2')
         local out = ok(('pretrain.lua --threads 1 --out %s/run --resume --steps 3'):format(dir))
         assert.matches('step 3/3 .* | busiest expert [%d.]+ | idlest expert [%d.]+ | ', out)
         local _, last = lines_of(dir .. '/run/metrics.jsonl')
         local most, least = last:match '"busiest_expert":([%d.]+),"idlest_expert":([%d.]+)'
         assert.is_true(tonumber(most) >= 2 / 3 and tonumber(least) <= 2 / 3, last)
         local file = require('tide.util.fs').read('spec', dir .. '/run/step-00000003/config.json')
         for _, field in ipairs { '"num_local_experts":3', '"num_experts_per_tok":2',
            '"output_router_logits":true', '"router_aux_loss_coef":0.01' } do
            assert.matches(field, file, 1, true)
         end
         words = words .. '--overwrite '
         bad(words .. '--experts-per-token 4', '--experts-per-token')
         bad('pretrain.lua ' .. where .. small .. '--overwrite --balance 1',
            '--balance is of experts, and the model has none')
         local on = ('pretrain.lua %s%s--out %s/on --from %s/run --steps 1 '):format(where, small,
            dir, dir)
         bad(on .. '--experts-per-token 2', '--experts-per-token is of experts, which the model of')
         bad(on .. '--router-bias-rate 0.1', '--router-bias-rate: a Mixtral has no correction')
         ok(on .. '--balance 0.5')
         file = require('tide.util.fs').read('spec', dir .. '/on/step-00000001/config.json')
         assert.matches('"router_aux_loss_coef":0.5', file, 1, true)
      end)
   end)

   -- its checkpoints could not be read: transformers has no such loss there
   it('refuses --balance for a family without the loss', function()
      with_data(function(dir, where)
         local model = tide.model.deepseek_v3({ vocab_size = 258, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 2,
            intermediate_size = 8, moe_intermediate_size = 4, n_routed_experts = 4,
            num_experts_per_tok = 2, n_group = 1, topk_group = 1, first_k_dense_replace = 0,
            q_lora_rank = 4, kv_lora_rank = 4, qk_nope_head_dim = 4, qk_rope_head_dim = 4,
            v_head_dim = 4 }, { seed = 1 })
         tide.model.save(model, dir .. '/ds')
         bad(('pretrain.lua %s%s--from %s/ds --balance 0.1'):format(where, small, dir),
            '--balance: a DeepseekV3 has no loss that balances its experts')
      end)
   end)

   it('trains, evaluates, saves, samples; generate.lua goes on from there', function()
      with_data(function(dir, where)
         local out = ok('pretrain.lua ' .. where .. small .. '--val-every 3 --save-every 3')
         assert.matches('validation loss %d', out)
         assert.matches('order%-2 entropy of the training bytes: [%d.]+', out)
         assert.matches('sample:\n%-%- ', out)
         assert.equal(6, (lines_of(dir .. '/run/metrics.jsonl')))
         local text = ok('generate.lua --from ' .. dir .. '/run --tokens 12 --prompt abc')
         assert.matches('^abc', text)
         assert.equal(text, ok('generate.lua --from ' .. dir .. '/run --tokens 12 --prompt abc'))
      end)
   end)

   it('trains in FP8', function()
      with_data(function(dir, where)
         local function last(words)
            ok('pretrain.lua ' .. where .. small .. '--sample 0 --overwrite ' .. words)
            local _, line = lines_of(dir .. '/run/metrics.jsonl')
            return tonumber(line:match '"loss":([%d.]+)')
         end
         local plain, fp8 = last '', last '--fp8'
         assert.are_not.equal(plain, fp8)
         local block = last '--fp8 --fp8-scaling block'
         assert.are_not.equal(fp8, block)
         for _, loss in ipairs { fp8, block } do
            assert.is_true(math.abs(plain - loss) < 0.05 * plain, plain .. ' and ' .. loss)
         end
         bad('pretrain.lua ' .. where .. small .. '--overwrite --fp8-scaling block',
            'needs --fp8; give both')
      end)
   end)

   it('resumes and ends at the same weights as without a break', function()
      with_data(function(dir, where)
         local function weights(name)
            local path = dir .. '/' .. name .. '/step-00000006/model.safetensors'
            local f = assert(io.open(path, 'rb'))
            local s = f:read '*a'
            f:close()
            return s
         end
         local constant = ' --schedule constant --sample 0'
         ok('pretrain.lua ' .. where .. small .. constant .. ' --set steps=4')
         ok('pretrain.lua ' .. where .. small .. constant .. ' --resume')
         ok('pretrain.lua ' .. where .. small .. constant .. ' --out ' .. dir .. '/straight')
         assert.equal(weights 'straight', weights 'run')
         assert.equal(6, (lines_of(dir .. '/run/metrics.jsonl')))
      end)
   end)

   it('goes on from any folder with a --data that was given relative to another', function()
      with_data(function(dir)
         local function within(folder, words)
            return (recipe.shell(('cd "%s" && %s %s %s'):format(folder, recipe.timeout,
               os.getenv 'TIDE_LUAJIT' or 'luajit', recipe.path(words))))
         end
         local words = 'recipes/pretrain.lua --data ./text.txt --out ' .. dir .. '/run --sample 0'
         assert.matches('step 6/6', within(dir, words .. small), 1, true)
         local out = within('/', 'recipes/pretrain.lua --resume --steps 7 --out ' .. dir .. '/run')
         assert.matches('step 7/7', out, 1, true)
         assert.is_nil(out:find('--data', 1, true))
         local kept = require('tide').train.checkpoint.recipe(dir .. '/run')
         assert.equal(dir .. '/text.txt', kept.data)
      end)
   end)

   local function read(path)
      local f = assert(io.open(path, 'rb'))
      local s = f:read '*a'
      f:close()
      return s
   end

   it('takes the options of the run that it resumes', function()
      with_data(function(dir, where)
         ok('pretrain.lua ' .. where .. small .. '--steps 4 --sample 0')
         local again = 'pretrain.lua --threads 1 --out ' .. dir .. '/run --resume '
         local out = ok(again)
         assert.matches('already at step 4 of 4', out, 1, true)
         assert.matches('resuming from ' .. dir .. '/run/step-00000004\n', out, 1, true)
         assert.matches('validation loss %d', out)
         out = ok(again .. '--steps 2')
         assert.matches('already at step 4 of 2: no step is left to do', out, 1, true)
         out = ok(again .. '--steps 5 --lr 1')
         assert.matches('--lr 0.003 in the checkpoint, now 1\n', out, 1, true)
         assert.is_nil(out:find('--dim', 1, true))
         assert.matches('step 5/5', out, 1, true)
         out = ok(again .. '--steps 5')
         assert.matches('/run/step-00000005, the newest of 2 checkpoints\n', out, 1, true)
         bad(again .. '--steps 6 --batch 8', '--batch: the checkpoint was saved with 4')
         bad(again .. '--steps 6 --seq 16', '--seq: the checkpoint was saved with 32')
         bad(again .. '--steps 6 --seed 9', '--seed: the checkpoint was saved with 1')
         bad(again .. '--steps 6 --packed', '--packed: the checkpoint was saved with windows')
         local text = read(dir .. '/text.txt')
         write(dir .. '/text.txt', 'X' .. text:sub(2))          -- the same length
         bad(again .. '--steps 6', '--data: the training tokens are not those of the checkpoint')
         write(dir .. '/text.txt', text)
         ok(again .. '--steps 6')
      end)
   end)

   it('keeps the schedule of the run that it resumes, unless it is told', function()
      with_data(function(dir, where)
         local function rates()
            local list = {}
            for line in io.lines(dir .. '/run/metrics.jsonl') do
               list[#list + 1] = tonumber(line:match '"lr":([%d.e+-]+)')
            end
            return list
         end
         local out = ok('pretrain.lua ' .. where .. small .. '--warmup 5 --sample 0')
         assert.matches('--warmup 5 is cut to 3, half of the 6 steps of the schedule', out, 1, true)
         local first = rates()
         local again = 'pretrain.lua --threads 1 --sample 0 --out ' .. dir .. '/run --resume '
         out = ok(again .. '--steps 8')
         assert.matches("schedule of 6 steps; --schedule-steps 8 sets a new length\n",
            out, 1, true)
         assert.is_nil(out:find('warmup', 1, true))
         local second = rates()
         assert.same({ unpack(first, 1, 6) }, { unpack(second, 1, 6) })
         assert.equal(second[6], second[8])             -- it stays at its end
         out = ok(again .. '--steps 12 --schedule-steps 12')
         assert.matches('--schedule-steps 6 in the checkpoint, now 12\n', out, 1, true)
         local third = rates()
         assert.is_true(third[9] > third[8] and third[12] < third[9])
         assert.equal(3e-4, third[12])
      end)
   end)

   it('writes over a run only when told to', function()
      with_data(function(dir, where)
         ok('pretrain.lua ' .. where .. small .. '--save-every 2 --sample 0')
         local before = read(dir .. '/run/metrics.jsonl')
         bad('pretrain.lua ' .. where .. small, '/run holds a run at step 6; add --resume')
         bad('pretrain.lua ' .. where .. small .. '--overwrite --resume', 'exclude each other')
         bad('pretrain.lua ' .. where .. small .. '--overwrite --heads 3', 'must be a multiple of')
         assert.equal(before, read(dir .. '/run/metrics.jsonl'))
         write(dir .. '/run/note', 'mine')
         ok('pretrain.lua ' .. where .. small .. '--steps 3 --overwrite --sample 0')
         assert.equal(3, (lines_of(dir .. '/run/metrics.jsonl')))
         assert.equal('step-00000003\n', read(dir .. '/run/LATEST'))
         assert.is_nil(io.open(dir .. '/run/step-00000004/state.json'))
         assert.equal('mine', read(dir .. '/run/note'))
      end)
   end)

   it('goes on from the checkpoint that it is told to, and keeps those after it', function()
      with_data(function(dir, where)
         local first = 'pretrain.lua ' .. where .. small .. '--save-every 2 --sample 0 '
         local again = 'pretrain.lua --threads 1 --sample 0 '
         local run_ = dir .. '/run'
         ok(first)
         local want = recipe.losses(run_)
         bad('pretrain.lua --threads 1 --resume --out ' .. run_ .. '/step-00000004',
            run_ .. '/step-00000004 is a checkpoint, not the folder of a run; give '
               .. '--resume-from '
               .. run_ .. '/step-00000004 to resume from it')
         bad(first .. '--out ' .. run_ .. '/step-00000004', 'is a checkpoint, not the folder')
         local out = ok(again .. '--resume-from ' .. run_ .. '/step-00000004')
         assert.matches('resuming from ' .. run_ .. '/step-00000004\n', out, 1, true)
         assert.matches('the run continues from step 4; its later checkpoints are kept in ' .. run_
            .. '/aside-1', out, 1, true)
         assert.same(want, recipe.losses(run_))
         assert.same(want, recipe.losses(run_ .. '/aside-1'))
         for _, name in ipairs { '2', 'step-00000002', run_ .. '/step-00000002/' } do
            ok(again .. '--out ' .. run_ .. ' --resume-from ' .. name)
            assert.same(want, recipe.losses(run_))
         end
         ok('generate.lua --tokens 4 --prompt ab --from ' .. run_ .. '/aside-3')
         bad(again .. '--out ' .. run_ .. ' --resume-from 5', run_ .. '/step-00000005: there is no '
            .. 'such folder; there are ' .. run_ .. '/step-00000002, ')
         bad(again .. '--overwrite --resume-from 2 --out ' .. run_, 'exclude each other')
      end)
   end)

   it('forks a run into a new folder, and leaves the run as it is', function()
      with_data(function(dir, where)
         ok('pretrain.lua ' .. where .. small .. '--save-every 2 --sample 0')
         local again = 'pretrain.lua --threads 1 --sample 0 '
         local run_, fork = dir .. '/run', dir .. '/fork'
         local want = recipe.losses(run_)
         ok(again .. '--resume-from ' .. run_ .. '/step-00000004 --out ' .. fork)
         assert.same({ want[5], want[6] }, { recipe.losses(fork)[5], recipe.losses(fork)[6] })
         assert.same(want, recipe.losses(run_))
         assert.equal('step-00000006\n', read(run_ .. '/LATEST'))
         assert.is_nil(io.open(run_ .. '/aside-1'))
         assert.equal(read(run_ .. '/step-00000006/model.safetensors'),
            read(fork .. '/step-00000006/model.safetensors'))
         bad(again .. '--out ' .. run_ .. ' --resume-from ' .. fork .. '/step-00000006',
            'belongs to another run than the one in --out ' .. run_ .. ', which is at step 6; '
               .. 'to fork, give an --out without a run')
      end)
   end)

   it('names the checkpoint before a damaged one, which it can go on from', function()
      with_data(function(dir, where)
         ok('pretrain.lua ' .. where .. small .. '--save-every 3 --sample 0')
         local again = 'pretrain.lua --threads 1 --sample 0 --out ' .. dir .. '/run '
         for _, name in ipairs { 'model.safetensors', 'state.json' } do
            local path = dir .. '/run/step-00000006/' .. name
            local text = read(path)
            write(path, text:sub(1, -8))
            local out = bad(again .. '--resume', 'the checkpoint before it is ' .. dir
               .. '/run/step-00000003')
            assert.matches('--resume-from ' .. dir .. '/run/step-00000003', out, 1, true)
            write(path, text)
         end
         write(dir .. '/run/step-00000006/optim.safetensors', '')
         local path = dir .. '/run/step-00000003/state.json'
         local text = read(path)
         write(path, text:sub(1, -8))
         bad(again .. '--resume-from 3', 'a later checkpoint of its run is ' .. dir
            .. '/run/step-00000006')
         write(path, text)
         ok(again .. '--resume-from 3')
         ok(again .. '--resume --steps 7')
      end)
   end)

   it('says what to do where the only checkpoint is damaged', function()
      with_data(function(dir, where)
         ok('pretrain.lua ' .. where .. small .. '--save-every 0 --sample 0')
         local again = 'pretrain.lua --threads 1 --sample 0 --out ' .. dir .. '/run '
         for _, name in ipairs { 'model.safetensors', 'state.json', 'manifest.json' } do
            local path = dir .. '/run/step-00000006/' .. name
            local text = read(path)
            write(path, text:sub(1, -8))
            bad(again .. '--resume', 'its run has no other checkpoint: restore this one from a '
               .. 'copy, or start over (overwrite = true, or --overwrite)')
            write(path, text)
         end
         ok(again .. '--resume --steps 7')
      end)
   end)

   it('keeps others out of its folder, and clears what a killed run has left', function()
      with_data(function(dir, where)
         local io_ = require 'tide.ffi.io'
         local folder = dir .. '/run'
         for _, name in ipairs { '.staging-step-00000003', '.old-step-00000002' } do
            io_.mkdir(folder .. '/' .. name)
            write(folder .. '/' .. name .. '/state.json', '{}')
         end
         write(folder .. '/LATEST.tmp-1a-2b-0', '')
         write(folder .. '/mine.tmp-1a-2b-0', '')
         local lock = assert(io_.lock(folder .. '/.lock'))
         bad('pretrain.lua ' .. where .. small, folder .. ' is in use by another run')
         assert.is_true(io_.exists(folder .. '/LATEST.tmp-1a-2b-0'))
         lock:release()
         ok('pretrain.lua ' .. where .. small .. '--sample 0')
         assert.same({ '.lock', 'LATEST', 'loss.svg', 'metrics.jsonl', 'mine.tmp-1a-2b-0',
            'step-00000006' }, io_.listdir(folder))
      end)
   end)

   it('learns in bf16, with accumulation and recomputation', function()
      with_data(function(_, where)
         ok('pretrain.lua ' .. where .. small .. '--dtype bf16 --accum 2 --sample 0')
         ok('pretrain.lua ' .. where .. small
            .. '--recompute 1 --sample 0 --kv-heads 1 --no-tie --overwrite')
      end)
   end)

   it('lists its options', function()
      local out = ok 'pretrain.lua --help'
      for _, name in ipairs { '--mesh.dp', '--resume', '--kv-heads', '--val-every', '--set' } do
         assert.matches(name, out, 1, true)
      end
   end)

   it('as every recipe, has --help, and answers a misspelt option with the nearest', function()
      local recipes = list_of 'ls recipes/*.lua'
      assert.is_true(#recipes >= 6)
      for _, path in ipairs(recipes) do
         local name = path:match '[^/]+$'
         local out = ok(name .. ' --help')
         assert.matches('options:\n', out, 1, true)
         assert.matches('  --help ', out, 1, true)
         bad(name .. ' --hlep', "unknown option '--hlep'; did you mean '--help'?")
      end
   end)

   it('says what is wrong', function()
      with_data(function(dir, where)
         bad('pretrain.lua --stpes 3', "unknown option '--stpes'; did you mean '--steps'?")
         bad('pretrain.lua --steps 2.5', 'option --steps: expected an integer >= 1')
         bad('pretrain.lua --lr nan', 'option --lr')
         bad('pretrain.lua --seed 9007199254740993', 'option --seed: expected an integer >= 0 that')
         bad('pretrain.lua --data ' .. dir .. '/none', 'there is no such file or folder')
         write(dir .. '/empty.txt', '')
         bad('pretrain.lua --data ' .. dir .. '/empty.txt', 'there is no text')
         bad('pretrain.lua ' .. where .. small .. '--heads 3', 'must be a multiple of')
         for _, words in ipairs { 'pretrain.lua ' .. where .. small .. '--heads 3',
            'pretrain_hybrid.lua ' .. where .. ' --dim 64 --heads 3 --mamba-head-dim 8' } do
            local out = bad(words, '(hidden_size is --dim, num_attention_heads is --heads)')
            assert.is_nil(out:find('head_dim', 1, true), out)
         end
         bad('pretrain.lua ' .. where .. small .. '--dim 20 --heads 4',
            'head_dim is --dim / --heads')
         bad('pretrain.lua --lerning 1', "unknown option '--lerning'; did you mean '--lr'?")
         bad('pretrain.lua --window 3', "did you mean '--sliding-window'?")
         bad('pretrain.lua ' .. where .. small .. '--heads 4 --kv-heads 3', 'must be a multiple of')
         bad('pretrain.lua ' .. where .. small .. '--batch 5 --accum 2', 'pretrain: --batch (5)')
         bad('pretrain.lua ' .. where .. small .. '--mesh.dp 2', '--mesh.dp 2, but the run has 1')
         bad('pretrain.lua ' .. where .. small .. '--resume', 'no checkpoint in')
         bad('pretrain.lua ' .. where .. small .. '--seq 100000', '--seq 100000: a window '
            .. 'needs 100001 tokens, the training part of --data has')
         bad('pretrain.lua ' .. where .. small .. '--out /proc/nowhere', '/proc/nowhere')
         bad('generate.lua --from ' .. dir .. '/none', 'no checkpoint in')
      end)
   end)

   it('refuses data of the wrong kind, and leaves the run that is there', function()
      with_data(function(dir, where)
         ok('pretrain.lua ' .. where .. small .. '--sample 0')
         local over = 'pretrain.lua --overwrite --out ' .. dir .. '/run' .. small
            .. '--data ' .. dir
         write(dir .. '/program', '\127ELF\2\1\1\0' .. ('x'):rep(900))
         bad(over .. '/program', 'program is not text, byte 8 of it is 0: it is a program')
         write(dir .. '/wide.bin', ('a\1\0\0b\0\0\0'):rep(200))
         bad(over .. '/wide.bin --vocab 500', '--token-bytes 4')
         bad(over .. '/wide.bin --vocab 300 --token-bytes 4', 'token 0 is id 353; the model\'s '
            .. 'vocab_size is 300 (--vocab)')
         assert.equal('step-00000006\n', read(dir .. '/run/LATEST'))
         local out = ok('pretrain.lua --out ' .. dir .. '/bin' .. small .. '--sample 0 '
            .. '--vocab 500 --token-bytes 4 --data ' .. dir .. '/wide.bin')
         assert.matches('nothing is evaluated: the validation data has 20 tokens, a window needs '
            .. '33', out, 1, true)
      end)
   end)

   it('takes several files and folders', function()
      local help = ok 'pretrain.lua --help'
      assert.matches('may be repeated', help, 1, true)
      with_data(function(dir, where)
         write(dir .. '/more.md', ('0123456789 '):rep(90))
         local out = ok('pretrain.lua ' .. where .. small .. '--steps 2 --sample 0 --data '
            .. dir .. '/more.md')
         assert.matches('2 files,', out, 1, true)
         out = ok('pretrain.lua --resume --steps 3 --sample 0 --threads 1 --out ' .. dir .. '/run')
         assert.matches('2 files,', out, 1, true)
         assert.is_nil(out:find('--data', 1, true))
      end)
   end)

   it('notices a damaged checkpoint before using it', function()
      with_data(function(dir, where)
         ok('pretrain.lua ' .. where .. small .. '--sample 0')
         local path = dir .. '/run/step-00000006/model.safetensors'
         local f = assert(io.open(path, 'rb'))
         local text = f:read '*a'
         f:close()
         write(path, text:sub(1, -2))
         bad('pretrain.lua ' .. where .. small .. '--resume', 'the file is damaged')
         bad('generate.lua --from ' .. dir .. '/run', 'the file is damaged')
      end)
   end)
end)

describe('a recipe under plain luajit', function()
   it('says in one message, without a stack trace, that the library is not built', function()
      for _, words in ipairs { 'tokenizer.lua', 'pretrain.lua --data x --out y' } do
         local out, status = recipe.shell(('mkdir bindings && cp -r %s bindings && ln -s %s %s '
            .. '. && env -u LUA_PATH -u LUA_CPATH luajit recipes/%s'):format(
            recipe.path 'bindings/tide', recipe.path 'lua', recipe.path 'recipes', words))
         assert.equal(1, status)
         assert.matches('^tide: load: libtide%.so was not found; build it %(run make%)', out)
         assert.is_nil(out:find 'stack traceback')
         assert.equal(1, select(2, out:gsub('was not found', '')))
      end
   end)

   -- Output and status of a long run that gets signals once it has made a step. It runs in the
   -- foreground: a shell lets what is in the background ignore SIGINT.
   local function signalled(dir, where, kill)
      local words = 'recipes/pretrain.lua ' .. where .. small .. '--steps 100000 --val-every 0'
      return recipe.shell(([[( for i in $(seq 600); do
            sleep 0.1; test -s %s/run/metrics.jsonl && break
         done; p=$(cat %s/pid); %s ) & sh -c 'echo $$ >%s/pid; ulimit -t 200; exec %s %s']])
         :format(dir, dir, kill, dir, os.getenv 'TIDE_LUAJIT' or 'luajit', recipe.path(words)))
   end

   it('saves a checkpoint when it is told to stop, and goes on from it', function()
      for name, status in pairs { INT = 130, TERM = 143 } do
         with_data(function(dir, where)
            local out, got = signalled(dir, where, 'kill -' .. name .. ' $p')
            assert.equal(status, got, out)
            local step = tonumber(out:match 'interrupted after step (%d+); the checkpoint is')
            assert.equal(step, require('tide').train.checkpoint.load(dir .. '/run').plain.step)
            ok('pretrain.lua --resume --threads 1 --sample 0 --val-every 0 --steps ' .. step + 2
               .. ' --out ' .. dir .. '/run')
         end)
      end
   end)
end)
