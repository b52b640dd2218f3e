-- recipes/finetune.lua against PyTorch's own loop over 50 steps: same order, same masks.

local case = require 'spec.recipe.sft_case'
local golden = dofile 'spec/golden/sft.lua'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'

describe('fine-tuning', function()
   for _, kind in ipairs { 'full', 'lora' } do
      it('has the losses of a loop of PyTorch: ' .. kind, function()
         tmp.with(function(dir)
            case.write(dir)
            local out, status = recipe.ranks(1, 'finetune.lua ' .. case.words(dir, kind))
            assert(status == 0, out)
            local got = recipe.losses(dir .. '/' .. kind)
            assert.equal(case.steps, #got)
            for i, want in ipairs(golden[kind]) do
               assert.is_true(math.abs(want - got[i]) <= 1e-4,
                  ('step %d: %.9g, expected %.9g'):format(i, got[i], want))
            end
            assert.is_true(got[50] < 0.95 * got[1])
         end)
      end)
   end
end)
