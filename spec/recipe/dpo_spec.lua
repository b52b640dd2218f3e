-- recipes/dpo.lua: equal losses on every mesh, with and without adapters, exact resumption, the
-- reference, and mistakes.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local fs = require 'tide.util.fs'
local tmp = require 'spec.support.tmp'
local wide = require 'spec.support.wide'
local write = require('spec.support.files').write

local ok, bad = case.runs 'dpo.lua'
local losses, same_losses = case.losses, case.same_losses

-- n pairs of different lengths, as JSON Lines.
local function pairs_of(n)
   local list = {}
   for i = 1, n do
      list[i] = ('{"prompt": [{"role": "user", "content": "say %d%s"}], "chosen": [{"role": '
         .. '"assistant", "content": "%s"}], "rejected": [{"role": "assistant", "content": '
         .. '"no %d"}]}\n'):format(i % 9, ('x'):rep(i % 13),
         ('yes %d '):format(i % 9):rep(1 + i % 4), i % 7)
   end
   return table.concat(list)
end

-- Calls fn(dir, words) with a model in dir/m and pairs in dir/p.jsonl.
local function with_data(fn)
   tmp.with(function(dir)
      case.save(dir .. '/m')
      write(dir .. '/p.jsonl', pairs_of(60))
      fn(dir, ('--threads 1 --from %s/m --data %s/p.jsonl --seq 128 --batch 4 --lr 3e-3 '
         .. '--val-every 3 --save-every 0 '):format(dir, dir))
   end)
end

-- A figure of the steps of a run.
local function figures(out, name)
   local list = {}
   for line in io.lines(out .. '/metrics.jsonl') do
      list[#list + 1] = tonumber(line:match('"' .. name .. '":([%d.e+-]+)'))
   end
   return list
end

local meshes = {
   { 4, '--mesh.dp_shard 2 --mesh.cp 2' }, { 2, '--mesh.tp 2 --sequence-parallel' },
   wide and { 2, '--mesh.dp 2' } or nil,
   wide and { 2, '--mesh.dp_shard 2 --recompute full --offload --accum 2' } or nil,
}

describe('recipes/dpo.lua', function()
   it('loses on every mesh what one rank loses, and learns what is preferred', function()
      with_data(function(dir, words)
         words = words .. '--steps 6 --keep-best '
         local out = ok(1, words .. '--out ' .. dir .. '/one')
         assert.matches('reads 60 pairs', out)
         assert.matches('| accuracy 1 |', out, 1, true)
         local one = losses(dir .. '/one')
         assert.equal(6, #one)
         assert.is_true(math.abs(one[1] - math.log(2)) < 1e-6)
         local margins = figures(dir .. '/one', 'margin')
         assert.equal(0, margins[1])
         assert.is_true(margins[6] > 0.3 and figures(dir .. '/one', 'accuracy')[6] > 0.9)
         assert.equal(2, #figures(dir .. '/one', 'val_accuracy'))
         for i, mesh in ipairs(meshes) do
            local to = dir .. '/run' .. i
            ok(mesh[1], words .. mesh[2] .. ' --out ' .. to)
            same_losses(one, losses(to))
            for step, margin in ipairs(figures(to, 'margin')) do
               assert.is_true(math.abs(margin - margins[step]) < 1e-5)
            end
         end
         assert.is_true(fs.exists(dir .. '/one/model/chat_template.jinja'))
         tide.model.load(dir .. '/one/model')
      end)
   end)

   it('with adapters, too, whose base is the reference', function()
      with_data(function(dir, words)
         words = words .. '--steps 4 --lora.rank 4 --lr 3e-2 --loss ipo '
         ok(1, words .. '--out ' .. dir .. '/one')
         local one = losses(dir .. '/one')
         assert.is_true(math.abs(one[1] - 25) < 1e-4)              -- (1 / (2 beta)) ^ 2
         for i, mesh in ipairs { { 4, '--mesh.tp 2 --mesh.cp 2' },
            wide and { 2, '--mesh.dp_shard 2' } or nil } do
            local to = dir .. '/run' .. i
            ok(mesh[1], ('%s%s --out %s'):format(words, mesh[2], to))
            same_losses(one, losses(to))
         end
         words = words:gsub('%-%-lora.rank 4', '')
         ok(1, ('%s --adapter %s/one/adapter --out %s/on'):format(words, dir, dir))
         assert.is_true(losses(dir .. '/on')[1] < one[4] + 1)      -- it is ahead of its base
      end)
   end)

   it('multiplies in FP8 with scales of blocks, as the reference does, not of tensors', function()
      with_data(function(dir, words)
         words = words .. '--steps 1 --lr 0 --fp8 '
         bad(words .. '--out ' .. dir .. '/no', "fp8 = 'block' is --fp8 --fp8-scaling block")
         for n, to in ipairs { '/one', '/two' } do
            ok(n, ('%s--fp8-scaling block --mesh.dp %d --out %s%s'):format(words, n, dir, to))
            assert.is_true(math.abs(losses(dir .. to)[1] - math.log(2)) < 1e-5)
         end
      end)
   end)

   it('resumes bit for bit with the reference it began with, which may be another model', function()
      with_data(function(dir, words)
         ok(1, words .. '--steps 6 --save-every 3 --out ' .. dir .. '/a')
         ok(1, ('--resume-from %s/a/step-00000003 --out %s/b'):format(dir, dir))
         for _, name in ipairs { 'model', 'optim' } do
            name = ('/step-00000006/%s.safetensors'):format(name)
            local a = fs.read('spec', dir .. '/a' .. name)
            assert.is_true(a == fs.read('spec', dir .. '/b' .. name))
         end
         ok(2, ('--resume-from %s/a/step-00000003 --mesh.dp 2 --out %s/c'):format(dir, dir))
         local whole, rest = losses(dir .. '/a'), losses(dir .. '/c')
         same_losses({ unpack(whole, 4) }, rest)
         ok(1, ('%s--steps 1 --reference %s/a/model --out %s/d'):format(words, dir, dir))
         assert.is_true(losses(dir .. '/d')[1] > 0.8)              -- behind its reference
      end)
   end)

   it('goes on as if nothing was, when the first rank was killed', function() -- the last: distil
      with_data(function(dir, words)
         case.survives(dir, 2, 'dpo.lua ' .. words .. '--mesh.dp 2 --lora.rank 2', 'first')
      end)
   end)

   it('refuses what newcomers get wrong, with what to do', function()
      with_data(function(dir, words)
         words = words .. '--steps 2 --out ' .. dir .. '/run '
         local function data(text)
            write(dir .. '/x.jsonl', text)
            return (words:gsub('p%.jsonl', 'x.jsonl'))
         end
         bad('--data x', '--from is needed')
         bad('--from ' .. dir .. '/m', '--data is needed: JSON Lines of { prompt, chosen,')
         bad(data '{"prompt": "a", "chosen": "b"}\n', 'line 1: rejected: expected an answer')
         bad(data '{"prompt": "a", "chosen": "b", "rejected": " "}\n', 'got an empty one')
         bad(data '{"messages": []}\n', 'chosen: expected an answer')
         bad(words .. '--seq 40', 'groups of 2 documents are longer than seq (40 tokens)')
         bad(words .. '--loss ipo --label-smoothing 0.1', 'label_smoothing is --label-smoothing')
         ok(1, words .. '--seq 64 --long cut')
      end)
   end)
end)
