-- The recipes over ranks: training on any mesh is training on one rank, runs go on from one mesh to
-- another, plans run nothing, and mistakes are told.

local tide = require 'tide'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local wide = require 'spec.support.wide'
local write = require('spec.support.files').write

local run, losses = recipe.ranks, recipe.losses

local function ok(n, words)
   local out, status = run(n, words)
   assert.equal(0, status, out)
   return out
end

local function bad(n, words, ...)
   local out, status = run(n, words)
   assert.is_true(status == 1 or status == 2, out)
   assert.is_nil(out:find 'stack traceback', out)
   for _, text in ipairs { ... } do assert.matches(text, out, 1, true) end
   return out
end

local function with_data(fn)
   tmp.with(function(dir)
      local words, list = { 'alpha ', 'beta ', 'gamma, ', 'delta. ' }, {}
      for i = 1, 900 do list[i] = words[(i * i + math.floor(i / 7)) % 4 + 1] end
      write(dir .. '/text.txt', table.concat(list))
      fn(dir, ('pretrain.lua --data %s/text.txt --threads 1 --dim 24 --heads 4 --kv-heads 2 '
         .. '--layers 2 --seq 19 --batch 12 --warmup 2 --schedule constant --val-windows 4 '
         .. '--sample 0 --out %s/'):format(dir, dir))
   end)
end

local function same(want, got, first, last)
   for s = first, last do
      assert.is_true(math.abs(want[s] - got[s]) <= 1e-5 * want[s],
         ('step %d: %.9g, one rank %.9g'):format(s, got[s] or 0, want[s]))
   end
   assert.is_nil(got[last + 1])
end

describe('pretraining over ranks', function()
   it('equals one rank: 30 steps on two axes, the sequence cut', function()
      with_data(function(dir, where)
         local more = ' --steps 30 --val-every 15 --sample 12'
         local one = ok(1, where .. 'one' .. more)
         local four = ok(4, where .. 'four --mesh.dp_shard 2 --mesh.tp 2 --sequence-parallel'
            .. more)
         local want, got = losses(dir .. '/one'), losses(dir .. '/four')
         same(want, got, 1, 30)
         assert.is_true(want[30] < 0.7 * want[1])
         assert.matches('4 ranks: dp_shard=2 x tp=2', four, 1, true)
         local prefixed = four:gsub('%[r0%] ', '')
         for _, part in ipairs { 'validation loss [%d.]+', 'sample:\n.*$' } do
            assert.equal(one:match(part), prefixed:match(part))
         end
      end)
   end)

   it('equals one rank on every mesh', function()
      with_data(function(dir, where)
         ok(1, where .. 'one --steps 5')
         local want = losses(dir .. '/one')
         local cases = {
            { 2, '--mesh.dp 2 --async-save --save-every 3' },
            { 2, '--mesh.tp 2 --sequence-parallel --async-tp --recompute mlp' },
            { 3, '--mesh.dp_shard 3 --offload --async-save --save-every 3 --recompute full' },
            { 4, '--mesh.dp 2 --mesh.tp 2 --recompute every:2' },
            { 4, '--mesh.dp_shard 4 --fsdp.reshard 2' },
            { 3, '--mesh.dp_shard 3 --fsdp.strategy optim --accum 2' },
            { 4, '--mesh.dp_replicate 2 --mesh.dp_shard 2 --fsdp.reshard no' },
         }
         for i = 1, wide and #cases or 5 do
            local c = cases[i]
            ok(c[1], ('%s%d --steps 5 %s'):format(where, i, c[2]))
            same(want, losses(dir .. '/' .. i), 1, 5)
         end
      end)
   end)

   it('sums gradients in the dtype that it is told', function()
      with_data(function(dir, where)
         ok(1, where .. 'one --steps 4')
         ok(2, where .. 'two --steps 4 --mesh.dp_shard 2 --fsdp.reduce bf16')
         local want, got = losses(dir .. '/one'), losses(dir .. '/two')
         local most = 0
         for s = 1, 4 do most = math.max(most, math.abs(want[s] - got[s]) / want[s]) end
         assert.is_true(most < 0.01 and most > 1e-7, most)
      end)
   end)

   it('goes on on another mesh', function()
      with_data(function(dir, where)
         ok(1, where .. 'whole --steps 8')
         local want = losses(dir .. '/whole')
         ok(4, where .. 'small --steps 4 --mesh.dp_shard 2 --mesh.tp 2 --sequence-parallel')
         for i, c in ipairs { { 3, '--mesh.dp_shard 3' }, { 1, '--mesh.dp 1' }, { 4, '' },
            { 4, '--mesh.dp_replicate 2 --mesh.tp 2' },
            wide and { 2, '--mesh.dp 2' } or nil, wide and { 2, '--mesh.tp 2' } or nil } do
            local name = 'run' .. i
            os.execute(('cp -r %s/small %s/%s'):format(dir, dir, name))
            ok(c[1], where .. name .. ' --resume --steps 8 ' .. c[2])
            same(want, losses(dir .. '/' .. name), 1, 8)
         end
         local out = ok(2, where .. 'run1 --resume --steps 9 --mesh.dp_shard 1 --mesh.tp 2')
         assert.matches('--mesh.dp-shard 3 in the checkpoint, now 1\n', out, 1, true)
         bad(1, where .. 'small --resume --steps 10', '--mesh.dp_shard 2 x --mesh.tp 2, but the '
            .. 'run has 1 rank (tide run -n 4, or mpirun -np 4); the mesh is that of the '
            .. 'checkpoint: start as many ranks, or give the mesh to resume on, e.g. --mesh.dp 1')
         out = ok(2, where .. 'small --resume --steps 5 --mesh.dp 2')
         assert.matches('--sequence-parallel true in the checkpoint, now false\n', out, 1, true)
         ok(1, where .. 'plain --steps 4')
         ok(4, where .. 'plain --resume --steps 8 --mesh.dp_shard 2 --mesh.tp 2')
         same(want, losses(dir .. '/plain'), 1, 8)
      end)
   end)

   it('prints a plan for ranks that are not there, and runs nothing', function()
      with_data(function(dir, where)
         local out = ok(1, where .. 'p --plan --mesh.dp_shard 6 --mesh.tp 2 --sequence-parallel '
            .. '--recompute mlp')
         for _, part in ipairs { 'over 12 ranks: dp_shard=6 x tp=2', 'model.layers.*.mlp (2)',
            'rank 0 of 12, 2 x 19 tokens', 'activations', 'collectives a step   all_gather' } do
            assert.matches(part, out, 1, true)
         end
         out = ok(1, where .. 'p --plan --mesh.dp_shard 4 --fsdp.reshard 2')
         assert.matches('reshard_after_forward 2', out, 1, true)
         assert.matches('stays +%d.-among fewer ranks', out)
         assert.is_false(tide.util.fs.exists(dir .. '/p'))
         assert.matches('plain data parallelism over 3 ranks', ok(1, where .. 'p --plan '
            .. '--mesh.dp 3'), 1, true)
         assert.matches('[r0] plan of', ok(2, where .. 'p --plan --mesh.dp_shard 2'), 1, true)
      end)
   end)

   it('says what is wrong, and leaves everything as it was', function()
      with_data(function(dir, where)
         where = where .. 'run '
         bad(1, where .. '--mesh.dp_shard 2 --mesh.tp 2',
            '--mesh.dp_shard 2 x --mesh.tp 2, but the run has 1 rank (tide run -n 4, '
               .. 'or mpirun -np 4)')
         bad(4, where .. '--mesh.tp 4', 'num_key_value_heads (2) must be divisible')
         bad(4, where .. '--mesh.tp 4', '(num_key_value_heads is --kv-heads, or --heads without '
            .. 'it, tensor parallel size is --mesh.tp)')
         bad(3, where .. '--mesh.tp 2', '--mesh.tp 2, but the run has 3 ranks')
         bad(2, where .. '--mesh.tp 2 --async-tp', '--async-tp requires --sequence-parallel')
         bad(2, where .. '--sequence-parallel', 'requires --mesh.tp of 2 or more')
         bad(2, where .. '--mesh.dp_shard 2 --fsdp.reshard 3', 'must divide the 2 ranks')
         bad(1, where .. '--fsdp.reshard some', '--fsdp.reshard: expected auto, yes, no')
         bad(1, where .. '--fsdp.strategy zero', 'option --fsdp.strategy')
         bad(1, where .. '--recompute mpl', "no module of the model is named 'mpl'; "
            .. 'policies are none, selective, mlp, full and every:k')
         bad(2, where .. '--mesh.dp_shard 2 --batch 5', '--batch (5) must be a multiple')
         bad(2, where .. '--mesh.pd 2', "did you mean '--mesh.dp'?")
         bad(4, where .. '--mesh.dp 4 --mesh.dp_replicate 3', 'dp (4) must be divisible by')
         assert.is_false(tide.util.fs.exists(dir .. '/run'))
         ok(2, where .. '--steps 2 --mesh.dp_shard 2')
         for _, mesh in ipairs { '--mesh.dp_shard 2', '--mesh.tp 2 --mesh.dp_shard 1' } do
            bad(2, where .. '--resume --steps 3 --dim 32 ' .. mesh,
               'the checkpoint is of another model', 'model.embed_tokens.weight')
         end
         assert.equal(2, #losses(dir .. '/run'))
         ok(2, where .. '--resume --steps 3 --mesh.tp 2')
         assert.equal(3, #losses(dir .. '/run'))
      end)
   end)
end)

describe('recipes/generate.lua', function()
   it('prints its text once on any number of ranks', function()
      with_data(function(dir, where)
         ok(1, where .. 'run --steps 2')
         local words = 'generate.lua --threads 1 --from ' .. dir .. '/run --prompt ab --tokens 12 '
            .. '--temperature 0'
         local one = ok(1, words)
         assert.equal(one, (ok(3, words):gsub('%[r0%] ', '')))
      end)
   end)
end)

describe('recipes/logprob.lua', function()
   it('scores text alike on any number of ranks, from any checkpoint', function()
      with_data(function(dir, where)
         ok(4, where .. 'run --steps 6 --mesh.dp_shard 2 --mesh.tp 2')
         local words = ('logprob.lua --threads 1 --from %s/run --text "alpha beta, gamma delta '
            .. 'alpha beta gamma" --seq 8'):format(dir)
         local one = ok(1, words)
         assert.matches('^40 bytes, log%-probability %-%d', one)
         for _, n in ipairs { 2, 3, 8 } do
            assert.equal(one, (ok(n, words .. ' --batch 2'):gsub('%[r0%] ', '')))
         end
         local lines = ok(1, words .. ' --tokens')
         assert.equal(42, select(2, lines:gsub('\n', '\n')))
      end)
   end)

   it('agrees with the loss of the model', function()
      with_data(function(dir, where)
         ok(1, where .. 'run --steps 6')
         local text = 'gamma, delta. alpha'
         local model = tide.model.llama(tide.train.checkpoint.load(dir .. '/run').plain.config)
         model:load_state_dict(tide.train.checkpoint.load(dir .. '/run').model)
         local ids = tide.data.bytes:encode(text)
         table.insert(ids, 1, tide.data.bytes.eos)
         local at = { dtype = 'i64' }
         local x = tide.tensor({ { unpack(ids, 1, #ids - 1) } }, at)
         local y = tide.tensor({ { unpack(ids, 2) } }, at)
         local want = -model:loss(x, y, { count = 1 }):item()
         local out = ok(2, ('logprob.lua --threads 1 --from %s/run --text %q'):format(dir, text))
         local got = tonumber(out:match 'log%-probability (%-[%d.]+)')
         assert.is_true(math.abs(got - want) < 1e-3, ('%g, loss %g'):format(got, want))
      end)
   end)

   it('says what is wrong', function()
      with_data(function(dir, where)
         bad(1, 'logprob.lua --from ' .. dir .. '/none --text a', 'no checkpoint in')
         bad(2, 'logprob.lua --from ' .. dir .. '/none --text a', 'no checkpoint in')
         bad(1, 'logprob.lua --from ' .. dir, 'give one of --text, --file, --choices and --ids')
         bad(1, 'logprob.lua --text a --file b', 'give one of --text, --file, --choices and --ids')
         bad(1, 'logprob.lua --text ""', 'nothing to score')
         bad(1, 'logprob.lua --file ' .. dir .. '/none', 'none')
         ok(1, where .. 'run --steps 1')
         local path = dir .. '/run/step-00000001/model.safetensors'
         local f = assert(io.open(path, 'rb'))
         local text = f:read '*a'
         f:close()
         write(path, text:sub(1, -2))
         bad(2, 'logprob.lua --text a --from ' .. dir .. '/run', 'the file is damaged')
      end)
   end)
end)

describe('optimisers of a recipe', function()
   it('make the steps of one rank on a mesh, go on, and keep groups and tokens', function()
      with_data(function(dir, where)
         for _, name in ipairs { 'lion', 'adafactor', 'muon', 'adamw8bit' } do
            local more = (' --steps 4 --optim %s --group embed:lr=1e-4,weight-decay=0')
               :format(name)
            ok(1, where .. 'one-' .. name .. more)
            ok(2, where .. 'two-' .. name .. more .. ' --mesh.tp 2')
            local want = losses(dir .. '/one-' .. name)
            same(want, losses(dir .. '/two-' .. name), 1, 4)
            ok(2, ('pretrain.lua --resume --steps 5 --out %s/one-%s --mesh.dp_shard 2')
               :format(dir, name))
         end
         local words = where .. 'tokens --steps 4 --warmup-tokens 456 --schedule-tokens 684'
         ok(1, words)
         local rates = losses(dir .. '/tokens', 'lr')
         assert.same({ 1.5e-3, 3e-3, 3e-3, 3e-3 }, rates)
         ok(1, where .. 'short --steps 2 --schedule linear --schedule-tokens 1 --min-lr 0')
         assert.same({ 3e-3, 3e-3 }, losses(dir .. '/short', 'lr'))  -- no step but the last: lr
      end)
   end)

   it('tell mistakes of groups and tokens', function()
      with_data(function(_, where)
         bad(1, where .. 'a --group zzz:lr=1', "pattern 'zzz' matches no parameter")
         bad(1, where .. 'a --group embed', 'no pattern before a colon')
         bad(1, where .. 'a --group embed:lr=high', "'lr=high' is no NAME=NUMBER")
         bad(1, where .. 'a --schedule linear --warmup-tokens 900 --schedule-tokens 800',
            '--warmup-tokens: expected fewer')
         bad(1, where .. 'a --optim adm', '--optim')
      end)
   end)
end)
