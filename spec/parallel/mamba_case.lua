-- Mamba-2 and gated delta nets over ranks beside the same layer on one, for the specs:
-- case.check(ranks, cases, tolerance).

local ranks = require 'spec.support.ranks'

local case = {}

-- Runs a list of cases on a rank. c: method, kind (of the plan), length, cu, rows, sequence, layer
-- (options of nn.Mamba2), class (of nn, another than Mamba2), dtype. Returns for each the largest
-- errors relative to the largest value of the dense one: out, dx, then every parameter by name; and
-- bytes sent and priced.
local source = [[
   local rank, n, cases = ...
   local tide = require 'tide'
   local mamba_cp, cp_map = tide.parallel.mamba_cp, tide.parallel.cp_map
   local comm = tide.comm.world()
   local function errors_of(c)
      local dtype = c.dtype or 'f32'
      local opts = { dtype = dtype, seed = 3 }
      for k, v in pairs(c.layer) do opts[k] = v end
      local layer = tide.nn[c.class or 'Mamba2'](opts)
      tide.no_grad(function()                        -- parameters that differ from head to head
         if c.class then layer.dt_bias:uniform_(-1, 1, { seed = 11 }) end
         if not c.class then layer.D:uniform_(-1, 1, { seed = 11 }) end
         layer.norm.weight:uniform_(0.5, 1.5, { seed = 12 })
      end)
      local map = cp_map.new { kind = c.kind, axis = comm, length = c.length, cu = c.cu }
      local T, B = map.padded, c.rows or 1
      local function draw(seed)
         return tide.empty({ B, T, layer.dim }, { dtype = 'f32' }):normal_(0, 1, { seed = seed })
            :to(dtype)
      end
      local x, dy = draw(1), draw(2)
      local sequence
      if c.sequence then
         sequence = tide.tensor(c.sequence, { dtype = 'i32' })
      elseif c.cu then
         local cu = {}
         for i = 1, #map.cu_slot do cu[i] = map.cu_slot[i] end
         if cu[#cu] < T then cu[#cu + 1] = T end
         sequence = tide.sequence_index(tide.tensor(cu, { dtype = 'i32' }), T)
      end
      local function pick(t) return t:index_select(2, map:index('i64', 'cpu')) end
      local dense_x = x:clone():requires_grad_()
      local dense = layer(dense_x, { sequence = sequence })
      dense:backward(dy)
      local want = {}
      for _, e in ipairs(layer:named_parameters()) do
         want[e.name] = e.param.grad:to 'f64'
      end
      layer:zero_grad()

      local on = mamba_cp.attach(layer, comm, { method = c.method })
      local lx, out = pick(x):clone():requires_grad_()
      local index = c.sequence and tide.stack({ sequence, sequence * 0 }, 3)
      local context = tide.parallel.cp.context { map = map, index = index }
      tide.no_grad(layer, lx, { context = context }) -- the first call also compares what ranks hold
      local before = comm:traffic()
      out = layer(lx, { context = context })
      out:backward(pick(dy))
      local sent = comm:traffic().nbyte[1] - before.nbyte[1]
      local price = mamba_cp.price(layer, map, { rows = B, dtype = dtype, rank = rank })
      on:restore()
      local errors, names = {}, {}
      local function compare(name, a, b, part)
         local scale = math.max(1e-3, a:abs():amax():item())
         if part then a = pick(a) end
         local off = (a - b:to 'f64'):abs():amax():item() / scale
         names[#names + 1], errors[#errors + 1] = name, off < 1e9 and off or 1e9
      end
      compare('out', dense:detach():to 'f64', out:detach(), true)
      compare('dx', dense_x.grad:to 'f64', lx.grad, true)
      for _, e in ipairs(layer:named_parameters()) do
         local g = e.param.grad:to 'f64'
         compare(e.name, want[e.name], comm:all_reduce(g))
      end
      return { errors = errors, names = names, sent = sent, priced = price[c.method].bytes }
   end
   for i, c in ipairs(cases) do cases[i] = errors_of(c) end
   return cases
]]

-- Outputs, gradients and bytes of every rank: of a case, or of a list by one start of the ranks.
function case.check(n, cases, tolerance)
   if cases.method then cases = { cases } end
   for r, rows in ipairs(ranks.run(n, source, cases)) do
      for k, got in ipairs(rows) do
         for i, name in ipairs(got.names) do
            if got.errors[i] >= (tolerance or 1e-5) then
               error(('case %d, %s of rank %d: off by %g'):format(k, name, r - 1, got.errors[i]), 2)
            end
         end
         if got.priced ~= got.sent then
            error(('case %d: rank %d sent %d bytes, priced %d'):format(k, r - 1, got.sent,
               got.priced), 2)
         end
      end
   end
end

-- Runs on a rank: a layer over a stream of documents, then with NaN in each of them in turn, in the
-- input or in the gradient; what others give must be the same to the bit. True or what is wrong.
local isolated = [[
   local _, _, c = ...
   local tide = require 'tide'
   local comm = tide.comm.world()
   local layer = c.delta and tide.nn.GatedDeltaNet { dim = 12, heads = 6, key_heads = 2,
      head_dim = 4, key_dim = 5, seed = 3 } or tide.nn.Mamba2 { dim = 12, heads = 6, groups = 2,
      head_dim = 4, state = 5, chunk = 4, seed = 3 }
   local cu, T = { 0, 1, 5, 14, 23, 24, 36 }, 36
   local map = tide.parallel.cp_map.new { kind = c.kind, axis = comm, cu = cu, length = T }
   local on = tide.parallel.mamba_cp.attach(layer, comm, { method = c.method })
   local function draw(seed)
      return tide.empty({ 1, T, 12 }, { dtype = 'f32' }):normal_(0, 1, { seed = seed })
   end
   local function run(at, where)
      local x, dy = draw(1), draw(2)
      if at then (where == 'x' and x or dy):slice(2, at, at):fill_(0 / 0) end
      local function pick(t) return t:index_select(2, map:index('i64', 'cpu')) end
      local mine = pick(x):requires_grad_()
      local y = layer(mine, { context = tide.parallel.cp.context { map = map } })
      y:backward(pick(dy))
      return map:gather(y:detach(), 2), map:gather(mine.grad, 2)
   end
   local y, dx = run()
   for d = 1, #cu - 1 do
      for _, where in ipairs { 'x', 'dy' } do
         local got, dgot = run(math.ceil((cu[d] + 1 + cu[d + 1]) / 2), where)
         for name, pair in pairs { y = { y, got }, dx = { dx, dgot } } do
            for _, span in ipairs { { 1, cu[d] }, { cu[d + 1] + 1, T } } do
               if span[2] >= span[1] and pair[1]:slice(2, span[1], span[2]):to_string_bytes()
                  ~= pair[2]:slice(2, span[1], span[2]):to_string_bytes() then
                  return ('NaN in %s of document %d shows in %s'):format(where, d, name)
               end
            end
         end
      end
   end
   on:restore()
   return true
]]

function case.check_isolated(n, method, kind, delta)
   for _, got in ipairs(ranks.run(n, isolated, { method = method, kind = kind, delta = delta })) do
      if got ~= true then error(('%s, %s, %d ranks: %s'):format(method, kind, n, got), 2) end
   end
end

-- heads, groups, and what else a layer has
function case.layer(heads, groups, more)
   local o = { dim = 12, heads = heads, groups = groups, head_dim = 4, state = 5, chunk = 4 }
   for k, v in pairs(more or {}) do o[k] = v end
   return o
end

return case
