-- Runs of one recipe that must agree: to the bit where the mesh is the same, within rounding
-- elsewhere.

local files = require 'spec.support.files'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'

local losses = recipe.losses

-- Trains for six steps into dir/NAME; words: options of tide run, then those of the recipe.
local function train(dir, name, ranks, words)
   local out, status = recipe.ranks(ranks, ('pretrain.lua --data %s/text.txt --dim 16 --heads 4 '
      .. '--kv-heads 2 --layers 2 --seq 24 --batch 16 --warmup 2 --steps 6 --val-windows 2 '
      .. '--sample 0 --out %s/%s %s'):format(dir, dir, name, words))
   assert.equal(0, status, out)
end

-- A text for everything that a run has computed: figures of each step, and bytes of all tensors.
local function bits(dir, name)
   local list = {}
   for _, what in ipairs { 'loss', 'grad_norm', 'val_loss' } do
      local numbers = losses(dir .. '/' .. name, what)
      for step = 1, 6 do list[#list + 1] = tostring(numbers[step]) end
   end
   local sums = files.lines_of(('cd %s/%s && cat LATEST && cksum step-*/*.safetensors'):format(dir,
      name))
   assert.is_true(#sums >= 3, 'no checkpoint')
   return table.concat(list, ' ') .. '\n' .. table.concat(sums, '\n')
end

local function with_text(fn)
   tmp.with(function(dir)
      local words, list = { 'alpha ', 'beta ', 'gamma, ', 'delta. ' }, {}
      for i = 1, 900 do list[i] = words[(i * i + math.floor(i / 7)) % 4 + 1] end
      files.write(dir .. '/text.txt', table.concat(list))
      fn(dir)
   end)
end

describe('bit for bit', function()
   it('two runs with the same mesh agree, on any number of threads', function()
      with_text(function(dir)
         for i, mesh in ipairs { '--mesh.dp 1', '--mesh.dp_shard 2',
            '--mesh.tp 2 --sequence-parallel', '--mesh.cp 2 --packed --eos 10' } do
            local n = i == 1 and 1 or 2
            train(dir, 'first' .. i, n, mesh .. ' --threads 1')
            local want = bits(dir, 'first' .. i)
            for _, threads in ipairs { 1, 3 } do
               local name = ('again%d-%d'):format(i, threads)
               train(dir, name, n, ('%s --threads %d'):format(mesh, threads))
               assert.equal(want, bits(dir, name), mesh .. ', threads ' .. threads)
            end
         end
      end)
   end)
end)

describe('--packed', function()
   it('takes the documents of .bin files from the .idx of Megatron, as from --eos', function()
      tmp.with(function(dir)
         local w = require('tide').data.megatron.writer(dir .. '/set', { width = 2 })
         for i = 1, 60 do
            local ids = {}
            for k = 1, 3 + i * i % 17 do ids[k] = 1 + (i * k) % 30 end
            ids[#ids + 1] = 0
            w:add(ids)
         end
         w:finish()
         local function run(name, words)
            local out, status = recipe.ranks(1, ('pretrain.lua --data %s/set.bin --vocab 31 '
               .. '--packed --dim 16 --heads 4 --kv-heads 2 --layers 1 --seq 24 --batch 4 '
               .. '--steps 3 --sample 0 --out %s/%s %s'):format(dir, dir, name, words))
            return status, out
         end
         local status, out = run('index', '')
         assert.equal(0, status, out)
         assert.equal(0, (run('eos', '--eos 0')))
         assert.same(losses(dir .. '/eos'), losses(dir .. '/index'))
         os.remove(dir .. '/set.idx')
         status, out = run('none', '')
         assert.equal(2, status, out)
         assert.matches('needs --eos, the id that ends a document, or the .idx of a Megatron', out,
            1, true)
      end)
   end)
end)

describe('within rounding', function()
   it('one rank and sixteen have the same losses', function()
      with_text(function(dir)
         train(dir, 'one', 1, '--threads 1')
         local want = losses(dir .. '/one')
         for i, mesh in ipairs { '--mesh.dp 16', '--mesh.dp_shard 4 --mesh.tp 2 --mesh.cp 2' } do
            train(dir, 'many' .. i, 16, '--threads 1 ' .. mesh)
            local got = losses(dir .. '/many' .. i)
            for step = 1, 6 do
               assert.is_true(math.abs(got[step] / want[step] - 1) < 1e-6,
                  ('%s, step %d: %.9g, one rank %.9g'):format(mesh, step, got[step], want[step]))
            end
         end
      end)
   end)
end)
