-- Qwen3.5 with a vision tower over ranks: a step of plain gradient descent on texts with images and
-- videos has the loss, the gradients and the logits of one rank. Gated delta nets and attention
-- share each sequence out over a context in their own ways.

local over = require 'spec.lua.vlm_ranks_case'
local wide = require 'spec.support.wide'

local sequence = over.sequence

local cases = {
   { 'cp 2, images of several rows', 2, { cp = 2 }, { case = 'images' } },
   { 'dp_shard 2, one without images', 2, { dp_shard = 2 },
      { case = 'mixed', rows = true, text = true } },
   { 'cp 2 x tp 2 with sequence_parallel', 4, { cp = 2, tp = 2 }, { case = 'mixed' }, sequence },
   { 'two stages, one micro-batch without images', 2, { pp = 2 },
      { case = 'mixed', rows = true, text = true } },
   { 'experts that stay on their ranks, one without images', 2, { dp_shard = 2 },
      { case = 'moe_mixed', rows = true, text = true }, { fsdp = { ep_size = 2 } } },
}
for _, row in ipairs(wide and {
   { 'dp_shard 2 x cp 2', 4, { dp_shard = 2, cp = 2 }, { case = 'mixed', rows = true } },
   { 'tp 2', 2, { tp = 2 }, { case = 'mixed' } },
   { 'experts, cp 2', 2, { cp = 2 }, { case = 'moe_mixed' } },
   { 'experts, tp 2 with sequence_parallel', 2, { tp = 2 }, { case = 'moe_mixed' }, sequence },
   { 'two stages, cp 2', 4, { pp = 2, cp = 2 }, { case = 'mixed' } },
   { 'two stages, tp 2 with sequence_parallel', 4, { pp = 2, tp = 2 }, { case = 'mixed' },
      sequence },
} or {}) do cases[#cases + 1] = row end

describe('qwen3_5_vl over ranks', function()
   for _, row in ipairs(cases) do
      it('computes and learns what one rank does: ' .. row[1], function()
         row[4].plan, row[4].of = row[5], 'qwen3_5_vl'
         over.check(row[2], row[3], row[4])
      end)
   end
end)
