-- Qwen3-VL and Qwen3-VL-MoE against transformers (numbers of spec/golden/qwen3_vl.py): positions,
-- logits, loss and gradients, greedy generation, folders; and what does not fit is refused.

local tide = require 'tide'
local all = require 'spec.lua.vlm_case'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'

local case, far = all.qwen3_vl, all.far

describe('qwen3_vl', function()
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
