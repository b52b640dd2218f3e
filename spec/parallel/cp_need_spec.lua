-- What ranks need of one another when documents lie contiguously: stated cases, and every pair of
-- query and key counted.

local need = require 'tide.parallel.cp.need'
local refused = require 'spec.support.refused'

-- '1x6 2x5 0' -> ids
local function ids_of(text)
   local ids = {}
   for d, n in text:gmatch '(%d+)x(%d+)' do
      for _ = 1, n do ids[#ids + 1] = tonumber(d) end
   end
   return ids
end

describe('segments', function()
   it('of a stretch of tokens', function()
      local ids = ids_of '1x6 2x5 0x1'
      local s = need.segments(ids, 4, 4)
      assert.same({ 4, 0, 8, { 0, 2, 4 }, { 0, 6, 8 } },
         { s.n_real, s.s_first, s.real_end, s.cu_q, s.cu_k })
      s = need.segments(ids, 8, 4)
      assert.same({ 3, 6, 11, { 0, 3 }, { 0, 5 } },
         { s.n_real, s.s_first, s.real_end, s.cu_q, s.cu_k })
      assert.equal(0, need.segments(ids, 11, 1).n_real)
      s = need.segments(ids_of '1x3 2x3 0x2', 2, 2)
      assert.same({ 2, 0, 4, { 0, 1, 2 }, { 0, 3, 4 } },
         { s.n_real, s.s_first, s.real_end, s.cu_q, s.cu_k })
      assert.equal(3, need.segments(ids_of '1x16', 8, 4, 3).back)
   end)

   it('are of a list, or of a tensor of one row', function()
      local ids, tide = ids_of '1x6 2x5 0x1', require 'tide'
      local want = need.segments(ids, 4, 4)
      assert.same(want, need.segments(tide.tensor(ids, { dtype = 'i64' }), 4, 4))
      assert.same(want, need.segments(tide.tensor({ ids }, { dtype = 'i64' }), 4, 4))
   end)

   it('are checked before they are used', function()
      local function bad(words, seg, slice) refused('E_ARG', words, need.check, seg, slice) end
      bad('cu_q ends at 6', { n_real = 5, cu_q = { 0, 2, 6 }, cu_k = { 0, 5, 9 } }, 9)
      bad('cu_k ends at 9', { n_real = 6, cu_q = { 0, 2, 6 }, cu_k = { 0, 5, 9 } }, 8)
      bad('pieces', { n_real = 6, cu_q = { 0, 6 }, cu_k = { 0, 5, 9 } }, 9)
      bad('more queries', { n_real = 6, cu_q = { 0, 2, 6 }, cu_k = { 0, 6, 9 } }, 9)
      local seg = need.segments(ids_of '1x6 2x5 0x1', 4, 4)
      assert.equal(seg, need.check(seg, seg.real_end - seg.s_first))
      refused('E_ARG', 'token 2 belongs to document 2, after padding', need.segments,
         { 1, 0, 2 }, 0, 3)
      refused('E_ARG', 'local_batch_size=1', need.segments, require('tide').ones { 2, 3 }, 0, 3)
      refused('E_ARG', 'multiple', need.plan, { 1, 1, 1 }, 2)
   end)
end)

describe('a plan of transport', function()
   it('is a halo, or an exchange', function()
      local p = need.plan(ids_of '1x6 2x6 3x4', 4)
      assert.same({ true, { 0, 4, 2, 0 }, { 4, 2, 0, 0 }, { 0, 0, 6, 12 }, { 4, 8, 12, 16 } },
         { p.halo, p.recv, p.send, p.s_first, p.real_end })
      assert.same({ 4, 4, 4, 4 }, p.n_real)
      p = need.plan(ids_of '1x16', 4)
      assert.same({ false, { 0, 4, 8, 12 }, { 0, 0, 0, 0 } }, { p.halo, p.recv, p.s_first })
      for src = 1, 4 do
         for dst = 1, 4 do
            assert.equal(dst >= src and 4 or 0, p.give[src][dst])
            assert.equal(p.give[src][dst], p.take[dst][src])
         end
      end
      p = need.plan(ids_of '1x3 2x9 3x2 0x2', 4)
      assert.same({ false, { 0, 1, 5, 0 }, { 1, 5, 0, 0 }, { 0, 3, 3, 12 }, { 4, 8, 12, 14 } },
         { p.halo, p.recv, p.send, p.s_first, p.real_end })
      assert.same({ { 4, 1, 1, 0 }, { 0, 4, 4, 0 }, { 0, 0, 4, 0 }, { 0, 0, 0, 2 } }, p.give)
      assert.same({ { 4, 0, 0, 0 }, { 1, 4, 0, 0 }, { 1, 4, 4, 0 }, { 0, 0, 0, 2 } }, p.take)
      p = need.plan(ids_of '1x3 2x3 0x2', 4)
      assert.same({ true, { 0, 2, 1, 0 }, { 2, 1, 0, 0 }, { 2, 2, 2, 0 } },
         { p.halo, p.recv, p.send, p.n_real })
   end)

   it('holds every key that some query sees, and no other', function()
      local rnd = 9
      for case = 1, 300 do
         local ids, d = {}, 1
         for i = 1, 24 do
            rnd = (rnd * 48271) % 2147483647
            if i > 1 and rnd % 5 == 0 then d = d + 1 end
            ids[i] = i > 24 - case % 7 and 0 or d
         end
         local W, window = ({ 1, 2, 3, 4, 6 })[case % 5 + 1], case % 3 == 0 and case % 4 + 1 or nil
         local p, share = need.plan(ids, W, window), 24 / W
         for r = 0, W - 1 do
            local lo = nil
            for q = r * share + 1, (r + 1) * share do
               for k = 1, q do
                  if ids[q] ~= 0 and ids[k] == ids[q] and q - k <= (window or 99) then
                     lo = math.min(lo or k, k)
                  end
               end
            end
            assert.equal(lo and math.max(0, r * share + 1 - lo) or 0, p.recv[r + 1])
         end
      end
   end)
end)
