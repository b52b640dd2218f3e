-- Which heads and groups of a Mamba-2 layer each rank works on, head by head.

local split = require 'tide.parallel.mamba.split'
local tp_mamba = require 'tide.parallel.tp.mamba'
local refused = require 'spec.support.refused'

-- Calls fn(heads, groups, ranks) for small layers.
local function each_layer(fn)
   for H = 1, 12 do
      for G = 1, H do
         for size = 1, 5 do
            if H % G == 0 then fn(H, G, size) end
         end
      end
   end
end

describe('heads of a Mamba-2 layer', function()
   it('go to ranks in even runs, each with the groups that it reads', function()
      each_layer(function(H, G, size)
         local parts, h = split.heads(H, G, size), 0
         assert.equal(size, #parts)
         for r, part in ipairs(parts) do
            local n = math.floor(H / size) + (r <= H % size and 1 or 0)
            assert.same({ h, n }, { part.head, part.heads })
            if n == 0 then
               assert.same({ 0, 0 }, { part.group, part.groups })
               assert.is_nil(part.list)
            end
            local seen, count = {}, 0
            local list, plain = part.list or {}, {}
            for k = 0, part.groups - 1 do plain[k + 1] = k end
            if not part.list then list = plain end
            for i = 0, n - 1 do                       -- the rule of the layer, among local groups
               assert.equal(0, n % #list)
               local group = part.group + list[math.floor(i * #list / n) + 1]
               assert.equal(math.floor((h + i) * G / H), group)
               if not seen[group] then seen[group], count = true, count + 1 end
            end
            assert.equal(count, part.groups)
            if n > 0 and n % part.groups == 0 then
               local rule = true
               for i = 0, n - 1 do
                  rule = rule and math.floor(i * part.groups / n) + part.group
                     == math.floor((h + i) * G / H)
               end
               assert.equal(rule, part.list == nil)
            end
            h = h + n
         end
      end)
      refused('E_ARG', 'a multiple of groups', split.heads, 4, 3, 2)
   end)

   it('have their channels of x, B, C and dt', function()
      each_layer(function(H, G, size)
         local s = { heads = H, head_dim = 3, groups = G, state = 2 }
         for _, part in ipairs(split.heads(H, G, size)) do
            local at, want = 5, { {}, {}, {}, {} }
            local function take(list, first, count, n, width)
               for k = 0, n - 1 do
                  for _ = 1, width do
                     if k >= first and k < first + count then list[#list + 1] = at end
                     at = at + 1
                  end
               end
            end
            take(want[1], part.head, part.heads, H, 3)
            take(want[2], part.group, part.groups, G, 2)
            take(want[3], part.group, part.groups, G, 2)
            take(want[4], part.head, part.heads, H, 1)
            for _, after in ipairs { false, true } do
               local runs = split.runs(part, s, 5, after)
               assert.equal(after and 4 or 3, #runs)
               for i, run in ipairs(runs) do
                  assert.equal(#want[i], run[2])
                  assert.is_true(run[2] == 0 or run[1] == want[i][1])
               end
            end
         end
      end)
   end)

   it('are parts of products whose rows add up to the layer', function()
      local function sum(list)
         local n = 0
         for _, v in ipairs(list) do n = n + v end
         return n
      end
      each_layer(function(H, G, size)
         local m = { heads = H, head_dim = 3, groups = G, state = 2, norm = { group = 3 } }
         local plan = tp_mamba.plan(m, size)
         assert.equal(H, sum(plan.heads))
         assert.equal(3 * H, sum(plan.inner))
         local channels, apart = 0, true
         for _, counts in ipairs(plan.conv) do
            assert.equal(size, #counts)
            channels = channels + sum(counts)
         end
         assert.equal(3 * H + 4 * G, channels)
         for r = 2, size do                            -- no group has heads on two ranks
            local last, part = plan.parts[r - 1], plan.parts[r]
            if part.heads > 0 and last.group + last.groups > part.group then apart = false end
         end
         assert.equal(apart, plan.gathered == nil)
         assert.equal(apart and 3 or 2, #plan.conv)
         assert.equal(#plan.conv + 2, #plan.rows)
         assert.same({ plan.inner, plan.heads }, { plan.rows[1], plan.rows[#plan.rows] })
         for r = 1, size do assert.equal(3 * plan.heads[r], plan.inner[r]) end
      end)
   end)
end)
