-- data/sampler: order as a pure function, independence of the number of ranks, exact resumption.

local sampler = require 'tide.data.sampler'

local function new(o)
   return sampler.new {
      count = o.count or 1000, seq = o.seq or 10, batch = o.batch or 8, seed = o.seed or 3,
      rank = o.rank, size = o.size,
   }
end

describe('data.sampler', function()
   it('permutes: every number once, another order for another epoch or seed', function()
      for _, n in ipairs { 1, 2, 3, 7, 64, 100, 1023 } do
         local p, seen = sampler.permutation(n, 5, 0), {}
         for i = 0, n - 1 do
            local v = p(i)
            assert.is_true(v >= 0 and v < n and v == math.floor(v) and not seen[v])
            seen[v] = true
         end
      end
      local function order(seed, epoch)
         local p, t = sampler.permutation(50, seed, epoch), {}
         for i = 1, 50 do t[i] = p(i - 1) end
         return table.concat(t, ' ')
      end
      assert.equal(order(1, 2), order(1, 2))
      assert.are_not.equal(order(1, 2), order(1, 3))
      assert.are_not.equal(order(1, 2), order(2, 2))
   end)

   it('gives windows inside the data, each token range once an epoch', function()
      local s = new { batch = 1 }
      local seen = {}
      for _ = 1, s.windows do
         local start = s:next()[1]
         assert.is_true(start >= 0 and start + 10 < 1000)
         assert.is_nil(seen[start])
         seen[start] = true
      end
      assert.equal(1, s:epochs())
   end)

   it('gives the same global batch whatever the number of ranks', function()
      for _, size in ipairs { 2, 4, 8 } do
         local whole, ranks = new {}, {}
         for r = 0, size - 1 do ranks[r + 1] = new { rank = r, size = size } end
         for _ = 1, 40 do
            local joined = {}
            for r = 1, size do
               for _, v in ipairs(ranks[r]:next()) do joined[#joined + 1] = v end
            end
            assert.same(whole:next(), joined)
         end
      end
   end)

   it('continues from its state, also on another number of ranks', function()
      local a = new {}
      for _ = 1, 17 do a:next() end
      local state = a:state()
      local b, c = new {}, new { rank = 1, size = 2 }
      b:restore(state)
      c:restore(state)
      local want = a:next()
      assert.same(want, b:next())
      assert.same({ unpack(want, 5, 8) }, c:next())
   end)

   it('works down to a single window', function()
      local s = new { count = 11, batch = 2 }
      assert.same({ 0, 0 }, s:next())
   end)

   it('refuses bad input', function()
      local function bad(o) assert.has_error(function() new(o) end) end
      bad { count = 10 }
      local ok, e = pcall(new, { count = 10 })
      assert.is_false(ok)
      assert.matches('a window needs 11 tokens, the data has 10', tostring(e), 1, true)
      bad { batch = 7, size = 2, rank = 0 }
      bad { seq = 1.5 }
      bad { batch = 0 }
      bad { rank = 2, size = 2 }
      bad { seed = -1 }
      local s = new {}
      assert.has_error(function() s:restore { seed = 4, position = 0, seq = 10, count = 1000 } end)
      assert.has_error(function() s:restore { seed = 3, position = -1, seq = 10, count = 1000 } end)
      assert.has_error(function() s:restore(nil) end)
   end)
end)
