-- recipes/finetune.lua with a base in NF4: equal losses on every mesh that has it whole, exact
-- resumption, the adapters and the merged model that are written, and what is refused.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local fs = require 'tide.util.fs'

local ok, bad, losses, same_losses = case.ok, case.bad, case.losses, case.same_losses
local ids = tide.tensor({ { 5, 6, 7, 8 } }, { dtype = 'i64' })

-- The largest difference of two models' logits.
local function off(a, b) return (a(ids) - b(ids)):abs():amax():item() end

describe('a base in NF4 in recipes/finetune.lua', function()
   it('loses on every mesh what it loses on one rank, and its adapters are read', function()
      case.with_data(function(dir, words)
         words = words .. '--lora.rank 4 --lora.quantise nf4 --lr 3e-2 --steps 4 '
         ok(1, ('%s--out %s/one --export %s/merged'):format(words, dir, dir))
         local one = losses(dir .. '/one')
         assert.is_true(one[4] < one[1])
         local base = tide.model.load(dir .. '/m', { quantise = 'nf4' })
         local a = tide.model.load_adapter(base, dir .. '/one/adapter')
         assert.is_true(off(a, tide.model.load(dir .. '/merged')) < 1e-5)
         assert.is_true(off(a, tide.model.load(dir .. '/one')) == 0)
         assert.is_true(off(a, tide.model.load_adapter(tide.model.load(dir .. '/m'),
            dir .. '/one/adapter')) > 1e-4)                 -- the base was rounded
         for i, mesh in ipairs { { 2, '--mesh.dp 2' }, { 2, '--mesh.dp_shard 2 --recompute full' },
                                 { 2, '--mesh.cp 2' } } do
            ok(mesh[1], ('%s%s --out %s/run%d'):format(words, mesh[2], dir, i))
            same_losses(one, losses(dir .. '/run' .. i))
            local b = tide.model.load_adapter(tide.model.load(dir .. '/m', { quantise = 'nf4' }),
               ('%s/run%d/adapter'):format(dir, i))
            assert.is_true(off(a, b) < 1e-4)
         end
      end)
   end)

   it('goes on bit for bit, whole and sharded', function()
      case.with_data(function(dir, words)
         words = words .. '--lora.rank 4 --lora.quantise nf4 --lr 3e-2 --steps 4 --save-every 2 '
         for n, mesh in ipairs { '', '--mesh.dp_shard 2 ' } do
            local to = dir .. '/r' .. n
            ok(n, ('%s%s--out %s'):format(words, mesh, to))
            ok(n, ('--resume-from %s/step-00000002 --out %s-again'):format(to, to))
            local name = '/adapter/adapter_model.safetensors'
            assert.is_true(fs.read('spec', to .. name) == fs.read('spec', to .. '-again' .. name))
         end
      end)
   end)

   it('is refused where it cannot be', function()
      case.with_data(function(dir, words)
         words = words .. '--steps 2 --out ' .. dir .. '/run --lora.quantise nf4 '
         bad(words, 'weights in NF4 are not trained')
         bad(words .. '--lora.rank 4 --lora.dora', 'leave out dora, or NF4')
         bad(words .. '--lora.rank 4 --fp8', 'multiplies in FP8; leave out fp8')
         bad(words .. '--lora.rank 4 --mesh.tp 2 --plan', 'weights in NF4 are not cut over ranks')
         bad(words .. '--lora.rank 4 --device cuda', 'there is no product with NF4 on a GPU')
         bad(words:gsub('nf4', 'fp4') .. '--lora.rank 4', 'one of nf4')
      end)
   end)
end)
