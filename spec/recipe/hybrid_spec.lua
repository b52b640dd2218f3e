-- recipes/pretrain_hybrid.lua as people run it: alone, over ranks with the same losses, resumed.

local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local fs = require 'tide.util.fs'

local small = ' --steps 8 --dim 16 --heads 2 --mamba-head-dim 8 --state 4 --groups 2 --seq 32'
   .. ' --batch 4 --warmup 2 --val-windows 2 --threads 1 --pattern M*-M --log-every 100'
   .. ' --sample 12 --data ' .. recipe.path 'README.md'

local losses = recipe.losses

local function run(n, words) return recipe.ranks(n, 'pretrain_hybrid.lua ' .. words) end

local function train(dir, n, words)
   local out, status = run(n, small .. ' --out ' .. dir .. ' ' .. words)
   assert.equal(0, status, out)
   return losses(dir), out
end

local function same(want, got)
   assert.equal(#want, #got)
   for i = 1, #want do assert.is_true(math.abs(got[i] / want[i] - 1) < 1e-5) end
end

describe('recipes/pretrain_hybrid.lua', function()
   it('over ranks has the losses of one, by both methods, packed too', function()
      tmp.with(function(dir)
         local want, out = train(dir .. '/one', 1, '')
         assert.matches('sample:\n%-%- ', out)
         assert.equal(8, #want)
         same(want, (train(dir .. '/a', 4, '--mesh.dp_shard 2 --mesh.cp 2 --cp.mamba hidden')))
         same(want, (train(dir .. '/b', 2, '--mesh.cp 2 --cp.mamba state --cp.method a2a')))
         same(want, (train(dir .. '/c', 4, '--mesh.cp 2 --mesh.tp 2 --cp.mamba hidden')))
         want = train(dir .. '/packed', 1, '--packed')
         same(want, (train(dir .. '/d', 2, '--packed --mesh.cp 2 --cp.mamba state')))
         same(want, (train(dir .. '/e', 2, '--packed --mesh.cp 2 --cp.layout document')))
      end)
   end)

   it('with heads over ranks and the sequence between layers has the losses of one', function()
      tmp.with(function(dir)
         local long = '--steps 8 --groups 1 --sample 0 '
         local want = train(dir .. '/one', 1, long)
         same(want, (train(dir .. '/tp', 2, long .. '--mesh.tp 2')))
         same(want, (train(dir .. '/sp', 2, long .. '--mesh.tp 2 --sequence-parallel')))
         same(want, (train(dir .. '/cp', 4, long
            .. '--mesh.tp 2 --mesh.cp 2 --sequence-parallel --cp.mamba state')))
         same(want, (train(dir .. '/dp', 4, long .. '--mesh.tp 2 --mesh.dp_shard 2')))
      end)
   end)

   it('with experts over ranks has the losses of one', function()
      tmp.with(function(dir)
         local experts = '--pattern ME*E --experts 4 --expert-hidden 6 --sample 0 '
         local want, out = train(dir .. '/one', 1, experts)
         assert.equal(8, #want, out)
         same(want, (train(dir .. '/cp', 4, experts .. '--mesh.dp_shard 2 --mesh.cp 2')))
         same(want, (train(dir .. '/sp', 2, experts .. '--mesh.tp 2 --sequence-parallel')))
         local dealt, text = train(dir .. '/ep', 2, experts .. '--mesh.ep 2')
         same(want, dealt)
         assert.equal(out:match '%d+ parameters', text:match '%d+ parameters')
         assert.is_nil(text:find 'of them trained')
         assert.matches('2 ranks: dp=2 x tp=1, ep=2', text, 1, true)
      end)
   end)

   it('resumes over other ranks, and generate.lua goes on from it', function()
      tmp.with(function(dir)
         local want = train(dir .. '/one', 1, '--schedule constant')
         train(dir .. '/two', 2, '--schedule constant --mesh.cp 2 --set steps=4')
         local out, status = run(2, '--out ' .. dir
            .. '/two --resume --steps 8 --threads 1 --mesh.dp_shard 2')
         assert.equal(0, status, out)
         same(want, losses(dir .. '/two'))
         out = recipe.luajit('generate.lua --from ' .. dir .. '/one --tokens 5 --prompt ab')
         assert.matches('^ab', out)
      end)
   end)

   it('refuses in one line', function()
      tmp.with(function(dir)
         for words, text in require 'tide.util.each' {
            ['--mesh.cp 2 --cp.mamba state --cp.layout document'] = "use 'hidden' (any layout)",
            ['--cp.mamba heads'] = 'cp.mamba', ['--pattern MX'] = 'hybrid_override_pattern',
            ['--pattern ME --experts-per-token 9'] = '(num_experts_per_tok is --experts-per-token, '
               .. 'n_routed_experts is --experts)',
            ['--pattern ME --mesh.ep 2'] = 'ranks (ep_size is --mesh.ep)',
            ['--pattern M- --experts 4'] = '--experts is of experts, and --pattern M- has none',
            ['--pattern M- --shared-hidden 4'] = '--shared-hidden is of experts',
         } do
            local out, status = run(words:find 'cp 2' and 2 or 1,
               small .. ' --out ' .. dir .. '/bad ' .. words)
            assert.is_true(status ~= 0, out)
            assert.matches(text, out, 1, true)
            assert.is_nil(out:find('stack traceback', 1, true), out)
         end
         assert.is_false(fs.exists(dir .. '/bad'))
      end)
   end)
end)
