-- What `--plan` promises is what the run reports: the peak of memory within 2 %, or 256 KiB of a
-- model of a few MiB (the batch is not priced), with default parameters, over meshes,
-- recomputation, micro-batches and dtypes. Cases of price_spec.lua and spec/deep/price_spec.lua.

local assert = require 'luassert'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local files = require 'spec.support.files'

local options = ' --steps 2 --warmup 1 --val-every 0 --val-windows 2 --threads 1 --sample 0'

local function run(n, words)
   local out, status = recipe.ranks(n, words)
   assert.equal(0, status, out)
   return out
end

local unit = { KiB = 2 ^ 10, MiB = 2 ^ 20, GiB = 2 ^ 30 }

local function promised(words)
   local number, of = run(1, words .. ' --plan'):match '\n%s+peak%s+([%d.]+) (%a+)'
   return tonumber(number) * unit[of]
end

local function check(name, n, words)
   tmp.with(function(dir)
      local data = dir .. '/text.txt'
      files.write(data, ('one two three four five six seven eight\n'):rep(1200))
      words = ('%s --data %s --out %s/run'):format(words, data, dir)
      local want, most = promised(words), 0
      run(n, words)
      for _, bytes in pairs(recipe.losses(dir .. '/run', 'memory_bytes')) do
         most = math.max(most, bytes)
      end
      local bound = math.max(0.02 * want, 256 * 1024)
      assert.is_true(math.abs(most - want) <= bound, ('%s: promised %d bytes, used %d (%.3f)')
         :format(name, want, most, most / want))
   end)
end

local llama = 'pretrain.lua' .. options
local hybrid = 'pretrain_hybrid.lua' .. options

local small = '--dim 32 --layers 2 --seq 64 --batch 4'

-- quick: one of the cases of `make test`; spec/deep/price_spec.lua has the others.
local cases = {
   { 'one rank', 1, '' },
   { 'recompute mlp', 1, '--recompute mlp' },
   { 'recompute full', 1, '--recompute full' },
   { 'recompute every:2', 1, '--recompute every:2' },
   { 'micro-batches', 1, '--accum 3 --batch 24' },
   { 'data parallelism', 2, '--mesh.dp 2' },
   { 'shards', 2, '--mesh.dp-shard 2' },
   { 'ZeRO-1 with micro-batches', 2,
     '--mesh.dp-shard 2 --fsdp.strategy optim --accum 3 --batch 24' },
   { 'ZeRO-3 with micro-batches', 2,
     '--mesh.dp-shard 2 --fsdp.strategy optim_grads_params --accum 3 --batch 12', quick = true },
   { 'shards on the host', 2, '--mesh.dp-shard 2 --offload', quick = true },
   { 'tensor parallelism', 2, '--mesh.tp 2' },
   { 'tensor and sequence parallelism', 2, '--mesh.tp 2 --sequence-parallel' },
   { 'context parallelism by a ring', 2, '--mesh.cp 2' },
   { 'context parallelism by heads', 2, '--mesh.cp 2 --cp.method a2a' },
   { 'shards of shards', 4, '--mesh.dp-shard 2 --mesh.tp 2', quick = true },
   { 'eight micro-batches', 1, '--accum 8 --batch 32' },
   { 'one rank in bf16', 1, '--dtype bf16' },
   { 'recompute full in bf16', 1, '--dtype bf16 --recompute full' },
   { 'micro-batches in bf16', 1, '--dtype bf16 --accum 3 --batch 24' },
   { 'data parallelism in bf16', 2, '--dtype bf16 --mesh.dp 2' },
   { 'shards in bf16', 2, '--dtype bf16 --mesh.dp-shard 2' },
   { 'ZeRO-1 with micro-batches in bf16', 2,
     '--dtype bf16 --mesh.dp-shard 2 --fsdp.strategy optim --accum 3 --batch 24' },
   { 'tensor and sequence parallelism in bf16', 2,
     '--dtype bf16 --mesh.tp 2 --sequence-parallel', quick = true },
   { 'context parallelism in bf16', 2, '--dtype bf16 --mesh.cp 2' },
   { 'shards of shards in bf16', 4, '--dtype bf16 --mesh.dp-shard 2 --mesh.tp 2' },
   { 'AdamW of 8 bits', 1, '--optim adamw8bit' },
   { 'AdamW of 8 bits over shards in bf16', 2,
     '--optim adamw8bit --dtype bf16 --mesh.dp-shard 2', quick = true },
   { 'Lion', 1, '--optim lion' },
   { 'Lion over shards in bf16', 2, '--optim lion --dtype bf16 --mesh.dp-shard 2' },
   { 'Adafactor over shards', 2, '--optim adafactor --mesh.dp-shard 2' },
   { 'Adafactor in bf16', 1, '--optim adafactor --dtype bf16' },
   { 'Muon', 1, '--optim muon', quick = true },
   { 'Muon over shards', 2, '--optim muon --mesh.dp-shard 2' },
   { 'a small model', 1, small },
   { 'a small model in bf16', 1, '--dtype bf16 ' .. small, quick = true },
   { 'shards of a small model', 2, '--mesh.dp-shard 2 ' .. small },
}

local hybrids = {
   { 'one rank', 1, '' },
   { 'recompute full', 1, '--recompute full', quick = true },
   { 'shards', 2, '--mesh.dp-shard 2' },
   { 'context parallelism by a ring', 2, '--mesh.cp 2' },
   { 'tensor and sequence parallelism', 2, '--mesh.tp 2 --sequence-parallel', quick = true },
   { 'one rank in bf16', 1, '--dtype bf16' },
   { 'tensor and sequence parallelism in bf16', 2,
     '--dtype bf16 --mesh.tp 2 --sequence-parallel' },
   { 'context parallelism in bf16', 2, '--dtype bf16 --mesh.cp 2', quick = true },
}

-- The quick cases, or the others: a list of { name, fn }, where fn raises if a promise is broken.
return function(quick)
   local list = {}
   local function add(of, words, name, case)
      if (case.quick or false) ~= quick then return end
      list[#list + 1] = { ('of %s: %s'):format(of, name), function()
         check(name, case[2], words .. ' ' .. case[3])
      end }
   end
   for _, case in ipairs(cases) do add('pretrain.lua', llama, case[1], case) end
   for _, case in ipairs(hybrids) do add('pretrain_hybrid.lua', hybrid, case[1], case) end
   return list
end
