-- Gemma 3 with images over ranks: a step of plain gradient descent on texts with images has the
-- loss, the gradients and the logits of one rank, also where the tokens of an image lie on several.

local over = require 'spec.lua.vlm_ranks_case'
local wide = require 'spec.support.wide'

local sequence = over.sequence

local cases = {
   { 'cp 2, a ring', 2, { cp = 2 }, { case = 'images' } },
   { 'cp 3, keys gathered', 3, { cp = 3 }, { case = 'linear' }, { cp = { method = 'allgather' } } },
   { 'cp 2, contiguous, heads against tokens', 2, { cp = 2 }, { case = 'beside' },
      { cp = { method = 'a2a', layout = 'contiguous' } } },
   { 'dp_shard 2, one without images', 2, { dp_shard = 2 },
      { case = 'images_right', rows = true, text = true } },
   { 'tp 2 with sequence_parallel', 2, { tp = 2 }, { case = 'beside' }, sequence },
   { 'two stages, one micro-batch without images', 2, { pp = 2 },
      { case = 'images_right', rows = true, text = true } },
}
for _, row in ipairs(wide and {
   { 'cp 2 x tp 2 with sequence_parallel', 4, { cp = 2, tp = 2 }, { case = 'beside' }, sequence },
   { 'two stages, cp 2', 4, { pp = 2, cp = 2 }, { case = 'images' } },
   { 'dp_shard 2 x cp 2', 4, { dp_shard = 2, cp = 2 }, { case = 'images_right', rows = true } },
} or {}) do cases[#cases + 1] = row end

describe('gemma3_vl over ranks', function()
   for _, row in ipairs(cases) do
      it('computes and learns what one rank does: ' .. row[1], function()
         row[4].plan, row[4].of = row[5], 'gemma3_vl'
         over.check(row[2], row[3], row[4])
      end)
   end
end)
