-- Attention across ranks against the same attention on one: outputs and all gradients, for each
-- method, layout, mask and head count; layouts are lists of global positions a rank.

local ranks = require 'spec.support.ranks'
local tide = require 'tide'

-- Runs a list of cases on a rank: c = { method, a2a, mask, index, heads, kv, dtype, batch, width
-- (of values) }; c.layout[r + 1] lists the global positions (from 0) of rank r; c.pairs_of[t + 1] =
-- { document, position }.
-- Returns for each the largest errors of out, dq, dk, dv, relative to the largest value of the
-- dense one.
local source = [[
   local rank, n, cases = ...
   local tide = require 'tide'
   local cp_attention = require 'tide.parallel.cp.attention'
   local function errors_of(c)
      local B, D, T = c.batch or 1, 8, #c.pairs_of
      local function draw(seed, heads, width)
         return tide.empty({ B, T, heads, width or D }, { dtype = 'f32' })
            :normal_(0, 1, { seed = seed }):to(c.dtype)
      end
      local full = { draw(1, c.heads), draw(2, c.kv), draw(3, c.kv, c.width),
                     draw(4, c.heads, c.width) }
      local pair = tide.tensor({ c.pairs_of }, { dtype = 'i32' })
      local function pick(t, r)
         return t:index_select(2, tide.tensor(c.layout[r + 1], { dtype = 'i64' }))
      end
      local index = {}
      for r = 0, n - 1 do index[r + 1] = pick(pair, r) end
      local q, k, v = full[1]:clone(), full[2]:clone(), full[3]:clone()
      local sinks = c.sinks and tide.empty({ c.heads }, { dtype = 'f32' })
         :normal_(0, 2, { seed = 5 }):to(c.dtype)
      local function sinks_of() return sinks and sinks:clone():requires_grad_(true) or nil end
      for _, t in ipairs { q, k, v } do t:requires_grad_(true) end
      local mask = { causal = c.mask.causal, window = c.mask.window, softcap = c.mask.softcap }
      local dense_mask = { q_index = pair, k_index = pair }
      for key, value in pairs(mask) do dense_mask[key] = value end
      dense_mask.sinks = sinks_of()
      local dense = tide.attention(q, k, v, dense_mask)
      dense:backward(full[4])

      local inner = cp_attention.new { axis = tide.comm.world(), method = c.method, a2a = c.a2a }
      local lq, lk, lv = pick(full[1], rank), pick(full[2], rank), pick(full[3], rank)
      for _, t in ipairs { lq, lk, lv } do t:requires_grad_(true) end
      local out
      mask.sinks = sinks_of()
      inner:with(index, function()
         out = inner(lq, lk, lv, mask)
         out:backward(pick(full[4], rank))
      end)
      local errors = {}
      for i, case in ipairs { { dense:detach(), out:detach() }, { q.grad, lq.grad },
                              { k.grad, lk.grad }, { v.grad, lv.grad } } do
         local want, got = pick(case[1], rank):to 'f64', case[2]:to 'f64'
         local scale = math.max(1e-3, case[1]:to 'f64':abs():amax():item())
         errors[i] = got:numel() == 0 and 0 or (got - want):abs():amax():item() / scale
         if not (errors[i] < 1e9) then errors[i] = 1e9 end
      end
      if sinks then
         local want, got = dense_mask.sinks.grad:to 'f64', mask.sinks.grad:to 'f64'
         tide.comm.world():all_reduce(got)
         errors[5] = (got - want):abs():amax():item() / want:abs():amax():item()
         if not (errors[5] < 1e9) then errors[5] = 1e9 end
      end
      return errors
   end
   for i, c in ipairs(cases) do cases[i] = errors_of(c) end
   return cases
]]

-- Cases of n ranks, all by one start of them.
local function check(n, cases, tolerance)
   for r, rows in ipairs(ranks.run(n, source, cases)) do
      for k, errors in ipairs(rows) do
         for i, name in ipairs { 'out', 'dq', 'dk', 'dv', 'dsinks' } do
            local off = errors[i] or 0                    -- dsinks: of cases with sinks
            assert.is_true(off < tolerance, ('case %d, %s of rank %d: off by %g'):format(k, name,
               r - 1, off))
         end
      end
   end
end

-- ---- layouts ---------------------------------------------------------------------------------

local layouts = {}

function layouts.contiguous(n, T)
   local list = {}
   for r = 1, n do list[r] = {} end
   for t = 0, T - 1 do
      local own = list[math.min(n, math.floor(t / math.ceil(T / n)) + 1)]
      own[#own + 1] = t
   end
   return list
end

function layouts.zigzag(n, T)
   local c, list = T / (2 * n), {}
   for r = 0, n - 1 do
      local own = {}
      for i = 0, c - 1 do own[#own + 1] = r * c + i end
      for i = 0, c - 1 do own[#own + 1] = (2 * n - 1 - r) * c + i end
      list[r + 1] = own
   end
   return list
end

-- Round robin with the last rank empty: rows of every rank everywhere.
function layouts.scattered(n, T)
   local list = {}
   for r = 1, n do list[r] = {} end
   local k = math.max(1, n - 1)
   for t = 0, T - 1 do
      local own = list[(t * 7) % k + 1]
      own[#own + 1] = t
   end
   return list
end

local function one_document(T)
   local list = {}
   for t = 0, T - 1 do list[t + 1] = { 0, t } end
   return list
end

-- Documents of these lengths, then padding of document -1.
local function documents(T, lengths)
   local list = {}
   for d, n in ipairs(lengths) do
      for t = 0, n - 1 do list[#list + 1] = { d - 1, t } end
   end
   while #list < T do list[#list + 1] = { -1, 0 } end
   return list
end

local masks = {
   full = {}, causal = { causal = true }, window = { causal = true, window = { 5, -1 } },
   both = { window = { 3, 2 } }, softcap = { causal = true, softcap = 2 },
}

describe('attention across ranks', function()
   local T = 24
   for _, n in ipairs { 1, 2, 3, 4 } do
      for _, method in ipairs { 'ring', 'allgather', 'a2a' } do
         for _, layout in ipairs { 'contiguous', 'zigzag', 'scattered' } do
            it(('equals one rank: %s, %s, %d ranks'):format(method, layout, n), function()
               local list = {}
               for _, name in ipairs { 'full', 'causal', 'window', 'both', 'softcap' } do
                  list[#list + 1] = { method = method, mask = masks[name], heads = 4, kv = 2,
                     dtype = 'f32', layout = layouts[layout](n, T), pairs_of = one_document(T) }
               end
               for _, lengths in ipairs { { 9, 1, 14 }, { 1, 0, 7, 2, 10 }, { 3 } } do
                  list[#list + 1] = { method = method, mask = masks.causal, heads = 4, kv = 4,
                     dtype = 'f32', layout = layouts[layout](n, T), batch = 2,
                     pairs_of = documents(T, lengths) }
               end
               check(n, list, 1e-5)
            end)
         end
      end
   end

   it('splits heads that do not divide', function()
      for _, n in ipairs { 2, 3, 4 } do
         local list = {}
         for i, h in ipairs { { 7, 7 }, { 6, 1 }, { 6, 2 }, { 6, 3 }, { 2, 1 }, { 3, 3 } } do
            list[i] = { method = 'a2a', mask = masks.causal, heads = h[1], kv = h[2],
               dtype = 'f32', layout = layouts.zigzag(n, T), pairs_of = one_document(T) }
         end
         check(n, list, 1e-5)
      end
   end)

   it('takes values of another width than the queries', function()
      local list = {}
      for _, method in ipairs { 'ring', 'allgather', 'a2a' } do
         for _, h in ipairs { { 4, 2 }, { 6, 1 } } do
            list[#list + 1] = { method = method, mask = masks.causal, heads = h[1], kv = h[2],
               width = 5, dtype = 'f32', layout = layouts.zigzag(3, T),
               pairs_of = one_document(T) }
         end
      end
      check(3, list, 1e-5)
   end)

   it('nests an exchange of heads in a ring', function()
      for _, case in ipairs { { 4, 2 }, { 4, 4 }, { 4, 1 }, { 6, 3 } } do
         check(case[1], { { method = 'a2a+p2p', a2a = case[2], mask = masks.causal, heads = 4,
            kv = 2, dtype = 'f32', layout = layouts.zigzag(case[1], T),
            pairs_of = documents(T, { 5, 12, 4 }) } }, 1e-5)
      end
   end)

   it('keeps to the precision of bf16 and f64', function()
      for dtype, tolerance in pairs { bf16 = 2e-2, f64 = 1e-13 } do
         local list = {}
         for _, method in ipairs { 'ring', 'allgather', 'a2a' } do
            for _, kv in ipairs { 2, 1 } do           -- 1: both ranks' gradients of it are summed
               list[#list + 1] = { method = method, mask = masks.causal, heads = 4, kv = kv,
                  dtype = dtype, layout = layouts.zigzag(2, T), pairs_of = one_document(T) }
            end
         end
         check(2, list, tolerance)
      end
   end)

   it('gives sinks their share once, whatever the method', function()
      for _, n in ipairs { 1, 2, 3 } do
         local list = {}
         for _, method in ipairs { 'ring', 'allgather', 'a2a' } do
            for _, name in ipairs { 'full', 'causal', 'window' } do
               list[#list + 1] = { method = method, mask = masks[name], heads = 4, kv = 2,
                  sinks = true, dtype = 'f32', layout = layouts.scattered(n, T),
                  pairs_of = name == 'causal' and documents(T, { 9, 1, 10 }) or one_document(T) }
            end
         end
         check(n, list, 1e-5)
      end
      check(4, { { method = 'a2a+p2p', a2a = 2, mask = masks.causal, heads = 4, kv = 2,
         sinks = true, dtype = 'f64', layout = layouts.zigzag(4, T),
         pairs_of = documents(T, { 5, 12, 4 }) },
         { method = 'a2a', mask = masks.causal, heads = 3, kv = 1, sinks = true, dtype = 'bf16',
            layout = layouts.zigzag(4, T), pairs_of = one_document(T) } }, 2e-2)
   end)

   it('works with more ranks than tokens', function()
      local list = {}
      for i, method in ipairs { 'ring', 'allgather', 'a2a' } do
         list[i] = { method = method, mask = masks.causal, heads = 2, kv = 1, dtype = 'f32',
            sinks = i == 1, layout = layouts.contiguous(4, 3), pairs_of = one_document(3) }
      end
      check(4, list, 1e-5)
   end)
end)

describe('what travels', function()
   local blocks = require 'tide.parallel.cp.blocks'

   local function index(layout, pairs_of)
      local list = {}
      for r, own in ipairs(layout) do
         local rows = {}
         for i, t in ipairs(own) do rows[i] = pairs_of[t + 1] end
         list[r] = tide.tensor({ rows }, { dtype = 'i32' })
      end
      return list
   end

   it('is half a block from ranks below in a causal zigzag, all of one from above', function()
      local list = index(layouts.zigzag(4, 32), one_document(32))
      local hops = blocks.hops(list, 1, { causal = true })
      local rows = {}
      for i, hop in ipairs(hops) do rows[i] = { hop.from, hop.recv.first, hop.recv.count } end
      assert.same({ { 0, 1, 4 }, { 3, 1, 8 }, { 2, 1, 8 } }, rows)
   end)

   it("is a window's halo, not the ring", function()
      local list = index(layouts.contiguous(4, 32), one_document(32))
      for rank = 0, 3 do
         local hops = blocks.hops(list, rank, { causal = true, window = { 3, -1 } })
         assert.equal(1, #hops)
         assert.same(rank == 0 and { first = 1, count = 0 } or { first = 6, count = 3 },
            hops[1].recv)
         assert.same(rank == 3 and { first = 1, count = 0 } or { first = 6, count = 3 },
            hops[1].send)
      end
   end)

   it('is nothing between documents that lie on ranks of their own', function()
      local list = index(layouts.contiguous(2, 16), documents(16, { 8, 8 }))
      local hops, own = blocks.hops(list, 0, {})
      assert.equal(0, #hops)
      assert.is_true(own)
   end)

   it('agrees with a search over all pairs', function()
      local draw = tide.util and math.random
      math.randomseed(7)
      for _ = 1, 300 do
         local function some(n, sees_on)
            local rows = {}
            for i = 1, n do
               rows[i] = { draw(-1, 2), draw(0, 9), sees_on and draw(0, 12) or nil }
            end
            return rows
         end
         local q, k = some(draw(1, 9), draw(2) == 1), some(draw(1, 9), draw(2) == 1)
         local mask = { causal = draw(2) == 1, window = { draw(-1, 4), draw(-1, 4) } }
         -- per document, the range of positions represents the positions
         local lo, hi, most = {}, {}, {}
         for _, p in ipairs(q) do
            most[p[1]] = math.max(most[p[1]] or -99, p[3] or p[2])
            lo[p[1]] = math.min(lo[p[1]] or 99, p[2])
            hi[p[1]] = math.max(hi[p[1]] or -99, p[2])
         end
         local first, last
         for j, p in ipairs(k) do
            local d = p[1]
            local seen = d >= 0 and lo[d] ~= nil and not (mask.causal and p[2] > most[d])
               and not (mask.window[1] >= 0 and p[2] < lo[d] - mask.window[1])
               and not (mask.window[2] >= 0 and p[2] > hi[d] + mask.window[2])
            if seen then first, last = first or j, j end
         end
         local f, n = tide.attention_rows(tide.tensor({ q }, { dtype = 'i32' }),
            tide.tensor({ k }, { dtype = 'i32' }), mask)
         assert.same({ first or 1, first and last - first + 1 or 0 }, { f, n })
      end
   end)
end)

describe('ranks that differ', function()
   -- On a rank: what attention raises if rank 1 alone does what c.odd says.
   local function attempt(rank, n, c)
      local t = require 'tide'
      local cp = t.parallel.cp
      local axis, odd = t.dist.world(), rank == 1 and c.odd or nil
      local function length() return odd == 'length' and 22 or 24 end
      local index = t.parallel.cp.document_index_of(t.ones({ 1, length() }, { dtype = 'i64' }))
      if odd == 'index' then index:slice(2, 3, 4):slice(3, 1, 1):fill_(5) end
      local map = t.parallel.cp_map.new { kind = odd == 'layout' and 'contiguous' or 'zigzag',
         axis = axis, length = length(), cu = { 0, odd == 'documents' and 5 or 8, length() } }
      local context = cp.context { map = map, method = odd == 'method' and 'allgather' or c.method,
         index = (c.odd == 'index' or c.odd == 'length') and index or nil }
      if c.odd == 'pairs' then
         local list = {}
         for r = 0, n - 1 do list[r + 1] = map:document_index('cpu', r):clone() end
         if odd then list[1]:slice(2, 2, 2):fill_(1) end
         context = cp.context { axis = axis, pairs = list, method = c.method }
      end
      local inner = require('tide.parallel.cp.attention').new { axis = axis }
      local x = t.randn { 1, context:tokens()[rank + 1], odd == 'heads' and 6 or 3, 8 }
      local ok, e = pcall(inner, x, x, x, { causal = odd ~= 'mask', context = context,
         window = odd == 'window' and { 3, -1 } or nil })
      return ok and 'nothing was raised' or tostring(e)
   end

   for _, method in ipairs { 'ring', 'allgather', 'a2a' } do
      it('all hear who: ' .. method, function()
         for _, odd in ipairs { 'index', 'documents', 'pairs', 'layout', 'length', 'mask', 'window',
            'method', 'heads' } do
            if not (odd == 'method' and method == 'allgather') then
               for _, text in ipairs(ranks.run(3, attempt, { odd = odd, method = method })) do
                  assert.matches('different attention; rank 1: ', text, 1, true)
                  assert.matches('; ranks 0, 2: ', text, 1, true)
                  assert.matches('E_COMM', text, 1, true)
               end
            end
         end
      end)
   end

   it('are asked once for a context, not in each layer', function()
      local function calls()
         local t = require 'tide'
         local axis = t.dist.world()
         local inner = require('tide.parallel.cp.attention').new { axis = axis }
         local context = t.parallel.cp.context { map = t.parallel.cp_map.new { axis = axis,
            length = 24 } }
         local gathers, plain = 0, getmetatable(axis).__index.all_gather_bytes
         getmetatable(axis).__index.all_gather_bytes = function(...)
            gathers = gathers + 1
            return plain(...)
         end
         local x = t.randn { 1, 12, 2, 8 }
         for _ = 1, 5 do inner(x, x, x, { causal = true, context = context }) end
         inner(x, x, x, { causal = true, window = { 3, -1 }, context = context })
         getmetatable(axis).__index.all_gather_bytes = plain
         return gathers
      end
      assert.same({ 2, 2 }, ranks.run(2, calls))
   end)
end)

describe('mistakes', function()
   local refused = require 'spec.support.refused'
   local cp_attention = require 'tide.parallel.cp.attention'
   local comm = require('tide.comm').world()
   local x = tide.zeros { 1, 4, 2, 8 }
   local pairs_ = tide.zeros({ 1, 4, 2 }, { dtype = 'i32' })

   it('are refused by name', function()
      refused('E_ARG', { 'method', 'ring' }, cp_attention.new, { axis = comm, method = 'rings' })
      refused('E_ARG', 'axis', cp_attention.new, {})
      refused('E_ARG', 'a2a', cp_attention.new, { axis = comm, method = 'a2a+p2p' })
      refused('E_ARG', 'a2a', cp_attention.new, { axis = comm, method = 'ring', a2a = 2 })
      refused('E_ARG', 'must equal', cp_attention.new, { axis = comm, method = 'a2a+p2p', a2a = 3 })
      local inner = cp_attention.new { axis = comm }
      refused('E_STATE', 'no batch', inner, x, x, x, {})
      refused('E_ARG', 'index', inner.with, inner, {}, function() end)
      refused('E_ARG', 'index[1]', inner.with, inner, { x }, function() end)
      inner:with({ pairs_ }, function()
         refused('E_UNSUPPORTED', 'bias', inner, x, x, x, { bias = x })
         refused('E_UNSUPPORTED', 'q_start', inner, x, x, x, { q_start = 2 })
         refused('E_ARG', 'q_index', inner, x, x, x, { q_index = pairs_:clone() })
         refused('E_ARG', 'windows', inner, x, x, x, { windows = 3 })
         refused('E_SHAPE', '4 tokens', inner, x:slice(2, 1, 3), x, x, {})
      end)
      refused('E_STATE', 'no batch', inner, x, x, x, {})
   end)

   it('leave the context as it was', function()
      local inner = cp_attention.new { axis = comm, method = 'p2p' }
      assert.is_false(pcall(inner.with, inner, { pairs_ }, function() error 'x' end))
      assert.is_nil(inner.context)
   end)
end)
