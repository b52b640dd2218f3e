-- Families of published folders over ranks: the logits, loss and gradients that transformers has
-- (numbers of spec/golden/folders.py).

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local each = require 'tide.util.each'
local inputs = require('spec.lua.decoder_case').inputs
local ranks = require 'spec.support.ranks'
local step = require 'spec.lua.folder_step'
local tmp = require 'spec.support.tmp'
local wide = require 'spec.support.wide'

local golden = dofile 'spec/golden/folders.lua'

-- On a rank: a forward of a GPT-2 whose stream is cut along the sequence.
local function cut_stream(_, _, dir)
   local t = require 'tide'
   local batch = require('spec.lua.decoder_case').inputs
   local model = t.model.load(dir, { mesh = { tp = 2 },
      plan = { tp = { sequence_parallel = true } } })
   model((batch()))
end

local function load_cut(_, _, dir) require('tide').model.load(dir, { mesh = { tp = 2 } }) end

describe('learned positions', function()
   it('refuse sequence parallelism', function()
      tmp.with(function(dir)
         tide.model.save(case.model(golden.gpt2), dir .. '/in')
         for _, row in ipairs(ranks.try(2, cut_stream, dir .. '/in')) do
            assert.matches('sequence_parallel is not supported', row.message, 1, true)
         end
      end)
   end)
end)

-- Families with one head of keys, which no tensor parallelism cuts.
local one_head = { gemma2_uncapped = true, gpt_oss_plain = true, llama_mqa_bias = true,
   olmo2_mqa = true }

-- Meshes of family i by name. Variants, whose names have a _, are on one of two unless `wide`.
local function meshes(name, i)
   local both, list = wide or not name:find '_', {}
   if both or i % 2 == 0 then list['cp 2'] = { cp = 2 } end
   if not both and i % 2 == 0 then return list end
   if one_head[name] then
      list['dp_shard 2'] = { dp_shard = 2 }
   else
      list['dp_shard 2 x tp 2'] = { dp_shard = 2, tp = 2 }
   end
   return list
end

describe('one head of keys', function()
   it('is refused by tensor parallelism, with what to do', function()
      tmp.with(function(dir)
         tide.model.save(case.model(golden.llama_mqa_bias), dir .. '/in')
         for _, row in ipairs(ranks.try(2, load_cut, dir .. '/in')) do
            assert.matches('num_key_value_heads (1) must be divisible by the tensor parallel size '
               .. '(2); use a size that divides it, or dp_shard or cp instead of tp', row.message,
               1, true)
         end
      end)
   end)
end)

-- Returns, in `work`, a folder of a family, and what a step needs beside it.
local function folder(work, name, mesh, sequence)
   tide.model.save(case.model(golden[name], { dtype = 'f64' }), work .. '/in')
   local ids, labels = inputs()
   return work .. '/in', mesh, ids, labels, sequence
end

-- The steps of this file, by the number of ranks: one start for all of them.
local steps = { [2] = step.batch(2, folder), [4] = step.batch(4, folder) }

-- Declares the case that checks a family on a mesh. sequence: see folder_step.
local function declare(title, name, what, mesh, sequence)
   local runs, key = steps[step.count(mesh)], ('%s, %s'):format(name, what)
   runs:add(key, name, mesh, sequence)
   it(('%s: %s'):format(title, sequence and name or key), function()
      local row, got = golden[name], runs:get(key)
      for _, loss in ipairs(got.losses) do assert.near(row.loss, loss, 1e-7 * row.loss) end
      case.check_logits(name, got.logits)
      case.check_grads(name, got.grads)
   end)
end

describe('a family over ranks', function()
   for i, name in ipairs(case.names(golden)) do
      for what, mesh in each(meshes(name, i)) do
         declare('has the numbers of transformers', name, what, mesh)
      end
   end
end)

describe('sequence parallelism', function()
   -- attention cut by heads, latent or not, and as a whole on each rank; an MLP, experts, both
   for _, name in ipairs { 'qwen3_moe', 'phi3', 'olmo2', 'olmoe', 'qwen2_moe', 'glm4_moe',
                           'deepseek_v3', 'deepseek_v2', 'gpt_oss', 'granitemoehybrid',
                           'qwen3_next',
                           'nemotron_moe_latent' } do
      declare('has the numbers of transformers', name, 'sequence', { tp = 2 }, true)
   end
end)
