-- Qwen3-VL and Qwen3-VL-MoE over ranks: a step of plain gradient descent on texts with images and
-- videos has the loss, the gradients and the logits of one rank. Deepstack features lie where the
-- tokens of their images do.

local over = require 'spec.lua.vlm_ranks_case'
local wide = require 'spec.support.wide'

local sequence = over.sequence

local cases = {
   { 'cp 2, images of several rows', 2, { cp = 2 }, { case = 'images' } },
   { 'dp_shard 2, one without images', 2, { dp_shard = 2 },
      { case = 'mixed', rows = true, text = true } },
   { 'tp 2', 2, { tp = 2 }, { case = 'mixed' } },
   { 'cp 2 x tp 2 with sequence_parallel', 4, { cp = 2, tp = 2 }, { case = 'mixed' }, sequence },
   { 'two stages, one micro-batch without images', 2, { pp = 2 },
      { case = 'mixed', rows = true, text = true, layers = 3 } },
   { 'experts, cp 2', 2, { cp = 2 }, { case = 'moe_mixed' } },
   { 'experts that stay on their ranks, one without images', 2, { dp_shard = 2 },
      { case = 'moe_mixed', rows = true, text = true }, { fsdp = { ep_size = 2 } } },
   { 'experts, tp 2 with sequence_parallel', 2, { tp = 2 }, { case = 'moe_mixed' }, sequence },
}
for _, row in ipairs(wide and {
   { 'cp 3, fewer images than ranks', 3, { cp = 3 }, { case = 'image' } },
   { 'dp_shard 2 x cp 2', 4, { dp_shard = 2, cp = 2 }, { case = 'mixed', rows = true } },
   { 'dp_shard 2 x tp 2 with sequence_parallel, one without images', 4, { dp_shard = 2, tp = 2 },
      { case = 'mixed', rows = true, text = true }, sequence },
   { 'experts, dp_shard 2, one without images', 2, { dp_shard = 2 },
      { case = 'moe_mixed', rows = true, text = true } },
   { 'two stages, cp 2', 4, { pp = 2, cp = 2 }, { case = 'mixed', layers = 3 } },
   { 'two stages, tp 2 with sequence_parallel', 4, { pp = 2, tp = 2 },
      { case = 'mixed', layers = 3 }, sequence },
   { 'experts on their ranks, cp 2', 2, { cp = 2 }, { case = 'moe_mixed' },
      { fsdp = { ep_size = 2 } } },
} or {}) do cases[#cases + 1] = row end

describe('qwen3_vl over ranks', function()
   for _, row in ipairs(cases) do
      it('computes and learns what one rank does: ' .. row[1], function()
         row[4].plan, row[4].of = row[5], 'qwen3_vl'
         over.check(row[2], row[3], row[4])
      end)
   end
end)
