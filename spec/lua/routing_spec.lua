-- Routing by softmax and by sigmoid, in groups, against a choice written out; shared experts.

local refused = require 'spec.support.refused'
local routing = require 'tide.nn.routing'
local tide = require 'tide'
local nn = tide.nn

local function random(seed, shape)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to 'f64'
end

local function softmax(row)
   local sum, out = 0, {}
   for i, v in ipairs(row) do
      out[i] = math.exp(v)
      sum = sum + out[i]
   end
   for i, v in ipairs(out) do out[i] = v / sum end
   return out
end

local function sigmoid(row)
   local out = {}
   for i, v in ipairs(row) do out[i] = 1 / (1 + math.exp(-v)) end
   return out
end

-- The places, from 1, of the n largest numbers of a list, the largest first.
local function best(list, n)
   local at = {}
   for i = 1, #list do at[i] = i end
   table.sort(at, function(a, b) return list[a] > list[b] end)
   return { unpack(at, 1, n) }
end

-- The experts of a row of logits, from 0, and their factors.
local function choose(row, o, bias)
   local p = (o.score == 'sigmoid' and sigmoid or softmax)(row)
   local by, allowed = {}, {}
   for i, v in ipairs(p) do by[i] = v + (bias and bias[i] or 0) end
   local size, sums = #row / o.groups, {}
   for g = 1, o.groups do
      local part = { unpack(by, (g - 1) * size + 1, g * size) }
      local list = best(part, o.score == 'sigmoid' and 2 or 1)
      sums[g] = part[list[1]] + (part[list[2] or 0] or 0)
   end
   for _, g in ipairs(best(sums, o.topk_groups)) do allowed[g] = true end
   for i = 1, #by do
      if not allowed[math.ceil(i / size)] then by[i] = -1e9 end
   end
   local ids, w, sum = best(by, o.topk), {}, 0
   for j, i in ipairs(ids) do
      w[j], ids[j] = p[i], i - 1
      sum = sum + p[i]
   end
   for j in ipairs(w) do w[j] = w[j] / (o.norm_topk and sum or 1) * o.scale end
   return ids, w
end

describe('routing', function()
   for i, o in ipairs {
      { score = 'softmax', topk = 2, groups = 1, topk_groups = 1, scale = 1, E = 5 },
      { score = 'softmax', topk = 3, groups = 4, topk_groups = 2, scale = 2.5, E = 12 },
      { score = 'sigmoid', topk = 3, groups = 1, topk_groups = 1, scale = 1, E = 4 },
      { score = 'sigmoid', topk = 4, groups = 3, topk_groups = 2, scale = 0.5, E = 9, bias = true },
      { score = 'sigmoid', topk = 2, groups = 2, topk_groups = 1, scale = 1, E = 4, bias = true,
         norm_topk = true },
   } do
      it(('chooses as a sort does: %s, %d of %d in %d of %d groups'):format(o.score, o.topk, o.E,
         o.topk_groups, o.groups), function()
         local logits = random(i, { 40, o.E })
         local bias = o.bias and random(90 + i, { o.E }) or nil
         local ids, w = routing.choose(logits, o, bias)
         local rows, factors = ids:tolist(), w:tolist()
         for n, row in ipairs(logits:tolist()) do
            local want, want_w = choose(row, o, bias and bias:tolist())
            for j = 1, o.topk do
               assert.equal(want[j], tonumber(rows[n][j]))
               assert.near(want_w[j], factors[n][j], 1e-12)
            end
         end
      end)
   end

   it('gives experts that exist where logits are NaN or no token comes', function()
      local o = { score = 'sigmoid', topk = 2, groups = 2, topk_groups = 1, scale = 1 }
      local ids = routing.choose(tide.full({ 3, 6 }, 0 / 0), o)
      for _, id in ipairs(ids:reshape(-1):tolist()) do
         assert.is_true(tonumber(id) >= 0 and tonumber(id) < 6)
      end
      assert.same({ 0, 2 }, (routing.choose(tide.zeros { 0, 6 }, o)).shape)
   end)

   it('lets no gradient through the choice, and none to the correction', function()
      local m = nn.MoE { dim = 4, hidden = 3, experts = 6, topk = 2, score = 'sigmoid',
         correction = true, dtype = 'f64', seed = 1 }
      assert.is_false(m.router_bias.requires_grad)
      m(random(1, { 5, 4 })):square():sum():backward()
      assert.is_true(m.router.grad:abs():amax():item() > 0)
   end)

   it('has a correction of zeros where a module gets its bytes late', function()
      local opts = { dim = 4, hidden = 3, experts = 40, topk = 2, score = 'sigmoid',
         correction = true, device = 'null' }
      local function zeros(m)
         assert.equal('cpu', m.router_bias.device)
         assert.equal(0, m.router_bias:abs():amax():item())
      end
      for _ = 1, 3 do                              -- bytes of tensors that are gone hold numbers
         tide.full({ 40 }, 7):release()
         zeros(nn.MoE(opts):materialise('cpu', 1))
         local m = nn.MoE(opts)
         tide.parallel.fully_shard(m, tide.comm.solo(), { device = 'cpu' })
         zeros(m)
      end
   end)

   it('refuses groups that do not fit', function()
      local function make(more)
         return nn.MoE, (require 'tide.util.copy')(more, { dim = 4, hidden = 4, experts = 6,
            topk = 2 })
      end
      refused('E_ARG', { 'topk_groups (3)', 'groups (2)' }, make { groups = 2, topk_groups = 3 })
      refused('E_ARG', { 'experts (6)', 'groups (4)' }, make { groups = 4 })
      refused('E_ARG', { 'experts (6)', 'two of each' }, make { groups = 6 })
      refused('E_ARG', { 'topk (4)', 'topk_groups (1)' }, make { topk = 4, groups = 2 })
      refused('E_ARG', "score = 'sigmoid'", make { correction = true })
   end)
end)

describe('nn.MoELayer', function()
   local function layer(gate)
      return nn.MoELayer {
         routed = nn.MoE { dim = 6, hidden = 5, experts = 4, topk = 2, dtype = 'f64', seed = 1 },
         shared = nn.MLP { dim = 6, hidden = 3, dtype = 'f64', seed = 2 },
         gate = gate and nn.Linear(6, 1, { bias = false, dtype = 'f64', seed = 3 }) or nil }
   end

   it('adds the shared expert to the routed ones, with a gate or not', function()
      local x = random(1, { 2, 3, 6 })
      local m = layer(false)
      assert.is_true((m(x) - m.routed(x) - m.shared(x)):abs():amax():item() < 1e-14)
      m = layer(true)
      local want = m.routed(x) + m.shared_gate(x):sigmoid() * m.shared(x)
      assert.is_true((m(x) - want):abs():amax():item() < 1e-14)
      assert.same({ 0, 6 }, m(tide.zeros({ 0, 6 }, { dtype = 'f64' })).shape)
   end)

   it('refuses parts of other classes, and names of no part', function()
      local routed = nn.MoE { dim = 6, hidden = 5, experts = 4, topk = 2 }
      local mlp = nn.MLP { dim = 6, hidden = 3 }
      local function make(parts)
         return nn.MoELayer, (require 'tide.util.copy')(parts, { routed = routed, shared = mlp })
      end
      refused('E_ARG', { "'routed'", 'an nn.MoE', 'MLP' }, make { routed = mlp })
      refused('E_ARG', { "'shared'", 'an nn.MLP', 'MoE' }, make { shared = routed })
      refused('E_ARG', { "'gate'", 'one number', 'Linear' }, make { gate = nn.Linear(6, 6) })
      refused('E_ARG', { 'share', 'shared' }, make { names = { share = 'a' } })
      refused('E_ARG', { "'counts'", '[layers, experts]', '[3]' }, nn.balance.shares,
         tide.ones { 3 }, 1)
   end)
end)
