-- How the parameters of a flat buffer are cut among ranks, against elements counted one by one.

local layout = require 'tide.parallel.fsdp.layout'

describe('the cut of a flat buffer', function()
   it('falls on the row boundary that is nearest to an even share, the later of two', function()
      math.randomseed(4)
      for _ = 1, 300 do
         local shapes, bounds, of, total = {}, { 0 }, {}, 0
         for i = 1, math.random(1, 5) do
            local shape = {}
            for d = 1, math.random(0, 3) do shape[d] = math.random(0, 4) end
            shapes[i] = shape
            local rows, width = shape[1] or 1, 1
            for d = 2, #shape do width = width * shape[d] end
            for row = 0, rows - 1 do
               for _ = 1, width do
                  total = total + 1
                  of[total] = { i, row }
               end
               bounds[#bounds + 1] = total
            end
            local numel, rows_, width_ = layout.measure(shape)
            assert.same({ rows * width, rows, width }, { numel, rows_, width_ })
         end
         local size = math.random(1, 5)
         local got, cuts = layout.new(shapes, size), {}
         for r = 0, size do
            local at, best = total * r / size, nil
            for _, b in ipairs(bounds) do
               if not best or math.abs(b - at) <= math.abs(best - at) then best = b end
            end
            cuts[r + 1] = best
         end
         assert.equal(total, got.total)
         assert.same(cuts, got.cuts)
         for r = 1, size do
            assert.equal(cuts[r + 1] - cuts[r], got.counts[r])
            local seen = 0
            for _, p in ipairs(got.pieces[r]) do
               local item = got.items[p.index]
               assert.is_true(p.numel > 0)
               assert.same({ seen, p.rows * item.width, p.row * item.width },
                  { p.offset, p.numel, p.start })
               for k = 1, p.numel do
                  local e = of[cuts[r] + seen + k]
                  assert.same({ p.index, p.row + math.floor((k - 1) / item.width) }, e)
               end
               seen = seen + p.numel
            end
            assert.equal(got.counts[r], seen)
         end
      end
   end)
end)
