-- Gemma 3 with images against transformers (numbers of spec/golden/gemma3_vl.py): logits, loss and
-- gradients, greedy generation, folders; and what does not fit is refused.

local all = require 'spec.lua.vlm_case'

local case = all.gemma3_vl

describe('gemma3_vl', function()
   for _, name in ipairs(case.names()) do
      it('has the numbers of transformers: ' .. name, function() case.check_numbers(name) end)
      it('goes on as transformers does, and goes through a folder: ' .. name, function()
         case.check_answers(name)
      end)
   end

   it('reads packed documents as it reads them alone', function()
      case.check_packed('images', 3)
   end)
end)
