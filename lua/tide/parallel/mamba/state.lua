-- Mamba-2 over ranks that pass states: a rank works on its own tokens.
--
-- The recurrence is linear, h' = a h + s, so a run of tokens acts on the state by two values that
-- do not depend on the tokens before it: its total decay a, and the state s that it makes from
-- zero. All ranks gather those pairs (small). Each combines the pairs before its runs into their
-- true initial states, and the scan runs once with them (the state passing of Dao and Gu, arXiv
-- 2405.21060, over ranks). The convolution gets K - 1 rows from the rank that holds the tokens
-- before. Backward is the same from right to left, by the tape.
--
-- A rank has R runs of equal length c: one (contiguous) or two (zigzag). The work for s is one of
-- the matrix products of the scan, H P N multiply-adds a token.
-- Legend: B batch, L = R c tokens of this rank, S runs of all ranks, H heads, P head size,
-- G groups, N state size, K taps.

local tide = require 'tide'
local private = require 'tide.util.private'
local err = require 'tide.util.err'
local collective = require 'tide.parallel.collective_op'
local divide = require('tide.nn.mamba').divide
local Mamba2 = require('tide.nn.mamba').Mamba2

local state = {}

-- ---- runs of a plan --------------------------------------------------------------------------

-- Returns the runs of every rank: { ranks = list of lists of { first, count }, R =, c = }; nil and
-- the reason if the ranks do not all have the same number of runs of the same length.
function state.runs(map)
   if map.kind ~= 'contiguous' and map.kind ~= 'zigzag' then
      return nil, ("a '%s' layout; its runs must be equally many and long on all ranks, as those "
         .. 'of contiguous and zigzag are'):format(map.kind)
   end
   local out = { ranks = {} }
   for r = 0, map.size - 1 do
      local list, runs = {}, map:runs(r)
      for i = 1, #runs, 2 do list[#list + 1] = { first = runs[i], count = runs[i + 1] } end
      out.ranks[r + 1] = list
   end
   out.R, out.c = #out.ranks[1], out.ranks[1][1].count
   if out.c == 0 then return nil, 'no tokens' end
   return out
end

-- ---- the batch: which rank needs which rows, which runs feed which ---------------------------

local function tensor(list, dtype, device)
   return tide.tensor(list, { dtype = dtype, device = device })
end

-- Returns the positions before run `run` that the convolution reads, first to last; false: before
-- the start.
local function before(run, K)
   local list = {}
   for k = 1, K - 1 do
      local g = run.first - K + k
      list[k] = g >= 0 and g or false
   end
   return list
end

-- Returns the rows that rank `from` gives to rank `to`, as places among from's tokens.
local function given(map, runs, from, to, K)
   local list = {}
   for _, run in ipairs(runs.ranks[to + 1]) do
      for _, g in ipairs(before(run, K)) do
         if g then
            local rank, i = map:place(g)
            if rank == from then list[#list + 1] = i end
         end
      end
   end
   return list
end

-- Returns what this rank sends (index of its rows, counts) and takes (counts), and where each row
-- of each halo lies in what is received; the place after the last is a row of zeros.
local function halo_plan(map, runs, K)
   local send, out, back, at, n = {}, {}, {}, {}, 0
   for r = 0, map.size - 1 do
      local list = given(map, runs, map.rank, r, K)
      for _, i in ipairs(list) do send[#send + 1] = i end
      out[r + 1] = #list
      back[r + 1] = #given(map, runs, r, map.rank, K)
      at[r], n = n, n + back[r + 1]
   end
   local take = {}
   for _, run in ipairs(runs.ranks[map.rank + 1]) do
      for _, g in ipairs(before(run, K)) do
         local rank = g and map:place(g)
         take[#take + 1] = rank and at[rank] or n
         if rank then at[rank] = at[rank] + 1 end
      end
   end
   return { send = send, out = out, back = back, take = take, rows = n }
end

-- Runs of all ranks in (rank, run) order, each with its place in the sequence.
local function all_runs(runs)
   local list, order = {}, {}
   for r, own in ipairs(runs.ranks) do
      for i, run in ipairs(own) do
         list[#list + 1] = { first = run.first, count = run.count, rank = r - 1, i = i }
         order[#list] = list[#list]
      end
   end
   table.sort(order, function(a, b) return a.first < b.first end)
   for k, run in ipairs(order) do run.place = k end
   return list
end

-- Returns all runs; between[S][R S], 1 where a run lies between a source run and an own one; and
-- feeds[R][S], 1 where a source run lies before an own one.
local function feeding(runs, rank)
   local all, between, feeds = all_runs(runs), {}, {}
   for k = 1, #all do between[k] = {} end
   for _, own in ipairs(all) do
      if own.rank == rank then
         local row = {}
         for j, source in ipairs(all) do
            row[j] = source.place < own.place and 1 or 0
            for k, run in ipairs(all) do
               local b = between[k]
               b[#b + 1] = source.place < run.place and run.place < own.place and 1 or 0
            end
         end
         feeds[#feeds + 1] = row
      end
   end
   return all, between, feeds
end

-- Sets the parts of a batch that documents need. sequence [B', T]: numbers of the sequences.
-- batch.sequence [B' R, c] is that of the runs of this rank. The masks are halo_mask [B', R, K -
-- 1], feeds [B', 1, R, S] and last [B' R, c, 1] (tokens of the last document). Values outside a
-- mask may be NaN, so zeros replace them; they are not multiplied by 0.
local function documents(batch, sequence, map, all, take_positions)
   local rows, R, c = sequence:size(1), batch.R, batch.c
   local own = sequence:index_select(2, map:index('i64', sequence.device))
      :reshape { rows, R, c }
   local first = own:narrow(3, 1, 1)
   local last_of, pos = {}, {}
   for j, run in ipairs(all) do last_of[j] = run.first + run.count - 1 end
   for i, g in ipairs(take_positions) do pos[i] = g or 0 end
   local function at(list) return sequence:index_select(2, tensor(list, 'i64', sequence.device)) end
   batch.sequence = own:reshape { rows * R, c }
   batch.last = own:eq(own:narrow(3, c, 1)):reshape { rows * R, c, 1 }
   batch.feeds = tide.logical_and(batch.feeds,
      at(last_of):reshape { rows, 1, 1, #all }:eq(first:reshape { rows, 1, R, 1 }))
   batch.halo_mask = at(pos):reshape { rows, R, batch.K - 1 }:eq(first)
end

-- Returns all that a batch of this layout needs, made once. sequence: [B or 1, T] numbers of the
-- sequences of the whole stream, or nil; K: taps.
function state.prepare(map, K, sequence, device)
   local op = 'parallel.mamba_cp'
   local runs, why = state.runs(map)
   err.raise_if(not runs, 'E_UNSUPPORTED', op, "method 'state' does not support %s; use 'hidden' "
      .. '(any layout)', why)
   local all, between, feeds = feeding(runs, map.rank)
   local h = halo_plan(map, runs, K)
   local batch = {
      R = runs.R, c = runs.c, S = #all, K = K, out = h.out, back = h.back, rows = h.rows,
      send = tensor(h.send, 'i64', device), take = tensor(h.take, 'i64', device),
      between = tensor(between, 'f32', device),
      feeds = tensor(feeds, 'f32', device):reshape { 1, 1, runs.R, #all }:gt(0),
   }
   local reversed, positions = {}, {}
   for i = 1, batch.c do reversed[i] = batch.c - i end
   batch.reversed = tensor(reversed, 'i64', device)
   for _, run in ipairs(runs.ranks[map.rank + 1]) do
      for _, g in ipairs(before(run, K)) do positions[#positions + 1] = g end
   end
   if sequence then documents(batch, sequence, map, all, positions) end
   return batch
end

-- Returns x where the mask says so, zeros elsewhere; the mask is broadcast.
local function kept(x, mask) return tide.where(mask, x, 0) end

-- ---- the halo --------------------------------------------------------------------------------

-- Returns the K - 1 rows before each run, [B R, K - 1, C], of xBC [B, L, C].
local function halo(xBC, comm, batch)
   local B, C, n = xBC:size(1), xBC:size(3), batch.K - 1
   local got = collective.all_to_all_v(xBC:index_select(2, batch.send), comm, batch.out, batch.back,
      2)
   local none = tide.zeros({ B, 1, C }, { dtype = xBC.dtype, device = xBC.device })
   local rows = tide.cat({ got, none }, 2):index_select(2, batch.take)
   if batch.halo_mask then
      local m = batch.halo_mask
      rows = kept(rows, m:reshape { m:size(1), batch.R * n, 1 })
   end
   return rows:reshape { B * batch.R, n, C }
end

-- ---- states ----------------------------------------------------------------------------------

local function wide(t) return t.dtype == 'f64' and t or t:float() end

local function over_batch(t, rows, B)
   if t:size(1) == rows then return t end
   local shape = t.shape
   return t:unsqueeze(1):expand { B, rows / B, unpack(shape, 2) }
      :reshape { rows, unpack(shape, 2) }
end

-- Returns x and B out of xBC [n, c, C] as [n, G, c, ..], in f32 (f64): one matrix a group.
local function by_group(xBC, G, I, S)
   local n, c = xBC:size(1), xBC:size(2)
   local function group(t, width)
      return wide(t:reshape { n, c, G, width / G }):permute(1, 3, 2, 4)
   end
   return group(xBC:narrow(3, 1, I), I), group(xBC:narrow(3, I + 1, S), S)
end

-- Returns weight [n, c, H] for each channel of x as by_group returns it.
local function spread(weight, G, I)
   local n, c, H = weight:size(1), weight:size(2), weight:size(3)
   return weight:reshape { n, c, H, 1 }:expand { n, c, H, I / H }:reshape { n, c, G, I / G }
      :permute(1, 3, 2, 4)
end

-- The states [n, G, I / G, N] that the tokens make: the sum of weight x B' over the tokens of each
-- run. xBC [n, c, C], weight [n, c, H]; I channels of x and S of B. Its own derivative, since the
-- products need no copies of the transposed.
local made_by = private.func {
   name = 'mamba_cp.states',
   forward = function(self, xBC, weight, G, I, S)
      self:save(xBC, weight)
      self.G, self.I, self.S = G, I, S
      local x, B = by_group(xBC, G, I, S)
      return tide.matmul((x * spread(weight, G, I)):transpose(-1, -2), B)
   end,
   backward = function(self, dy)
      local xBC, weight = self:saved()
      local G, I, S = self.G, self.I, self.S
      local n, c, H = xBC:size(1), xBC:size(2), weight:size(3)
      local x, B = by_group(xBC, G, I, S)
      local w, dx = spread(weight, G, I), tide.matmul(B, dy:transpose(-1, -2))
      local d = tide.empty(xBC.shape, { dtype = xBC.dtype, device = xBC.device })
      local function grouped(first, count)      -- channels of d as by_group has them
         return d:narrow(3, first, count):reshape { n, c, G, count / G }:permute(1, 3, 2, 4)
      end
      tide.foreach_copy_({ grouped(1, I), grouped(I + 1, S) }, { dx * w, tide.matmul(x * w, dy) })
      d:narrow(3, I + S + 1, xBC:size(3) - I - S):zero_()
      local dw = (dx * x):permute(1, 3, 2, 4):reshape { n, c, H, I / H }:sum(4)
      return d, dw:to(weight.dtype)
   end,
}

-- Returns the sums along dim 2 of x [n, c, H] over the tokens before each one. A shifted sum, not
-- cumsum - x: that would lose what is small beside x.
local function sums_before(x)
   return x:narrow(2, 1, x:size(2) - 1):pad({ 0, 1, 0 }, { 0, 0, 0 }):cumsum(2)
end

-- Returns for each token of x [n, c, H] the sum over the tokens after it, and the sum over all
-- [n, 1, H]. reversed: the numbers c - 1 .. 0. It has its own derivative, since that of cumsum
-- subtracts, which loses accuracy and carries NaN from one document to another.
local sums_after = private.func {
   name = 'mamba_cp.sums_after',
   forward = function(self, x, reversed)
      self.shape, self.like = x.shape, { dtype = x.dtype, device = x.device }
      local after = sums_before(x:index_select(2, reversed)):index_select(2, reversed)
      return after, after:narrow(2, 1, 1) + x:narrow(2, 1, 1)
   end,
   backward = function(self, dafter, dall)
      local dx = dafter and sums_before(dafter) or tide.zeros(self.shape, self.like)
      return dall and dx + dall or dx, nil
   end,
}

-- Returns, for each run, the state [B R, H, P N] that it makes from zero, and the logarithm of its
-- total decay [B R, H, 1]. xBC is the output of the convolution.
local function contributions(layer, xBC, dt, batch, B)
   local n, H, P = xBC:size(1), layer.heads, layer.head_dim
   local G, N, I = layer.groups, layer.state, layer.inner_dim
   local step = (wide(dt) + wide(layer.dt_bias)):softplus()
   if layer.dt_limit then step = step:clamp(layer.dt_limit[1], layer.dt_limit[2]) end
   local after, sum = sums_after(step * Mamba2.rates(layer):to(step.dtype), batch.reversed)
   local last = batch.last and over_batch(batch.last, n, B)
   if last then xBC, after = kept(xBC, last), kept(after, last) end
   local weight = step * after:exp()
   if last then weight = kept(weight, last) end
   local made = made_by(xBC, weight, G, I, G * N)
   return made:reshape { n, H, P * N }, sum:reshape { n, H, 1 }
end

-- Returns the sums for documents [B, H, R, width]: of states [B, H, S, width] that feed a run only,
-- decayed by logs [B, H, S] of the runs between; one source after another.
local function fed(batch, states, logs)
   local B, H, S, width = states:size(1), states:size(2), states:size(3), states:size(4)
   local R, sum = batch.R, nil
   local spans = batch.between:gt(0):reshape { 1, 1, S, R, S }    -- k, r, source
   local passed = kept(logs:reshape { B, H, S, 1, 1 }, tide.logical_and(spans,
      batch.feeds:reshape { batch.feeds:size(1), 1, 1, R, S })):sum(3):exp()
   for k = 1, S do
      local term = passed:narrow(4, k, 1) * states:narrow(3, k, 1):expand { B, H, R, width }
      term = kept(term, batch.feeds:narrow(4, k, 1))
      sum = sum and sum + term or term
   end
   return sum
end

-- Returns the true initial states of this rank's runs [B R, H, P, N], from what every run of every
-- rank contributes.
local function initial(layer, made, decay, comm, batch, B)
   local H, P, N, R, S = layer.heads, layer.head_dim, layer.state, batch.R, batch.S
   local width, W = P * N, comm.size
   local all = collective.all_gather(tide.cat({ made, decay }, 3), comm, 1)
      :reshape { W, B, R, H, width + 1 }:permute(2, 4, 1, 3, 5):reshape { B, H, S, width + 1 }
   local states, logs = all:narrow(4, 1, width), all:narrow(4, width + 1, 1)
   if batch.last then
      return fed(batch, states, logs:reshape { B, H, S }):permute(1, 3, 2, 4)
         :reshape { B * R, H, P, N }
   end
   local weight = tide.matmul(logs:reshape { B * H, S }, batch.between:to(all.dtype)):exp()
      :reshape { B, H, R, S } * batch.feeds:to(all.dtype)
   return tide.matmul(weight, states):permute(1, 3, 2, 4):reshape { B * R, H, P, N }
end

-- ---- the call --------------------------------------------------------------------------------

-- Computes layer:mix: y and z [B, L, I] of projected [B, L, P]. batch: of prepare.
function state.inner(layer, projected, comm, batch)
   local B, L = projected:size(1), projected:size(2)
   local R, c = batch.R, batch.c
   local z, xBC, dt = divide(projected, { layer.inner_dim, layer.conv_dim, layer.heads })
   local sequence = batch.sequence and over_batch(batch.sequence, B * R, B)
   local rows = halo(xBC, comm, batch)
   xBC = private.call(layer.convolve, layer, xBC:reshape { B * R, c, layer.conv_dim },
      { sequence = sequence, initial = rows })
   dt = dt:reshape { B * R, c, layer.heads }
   local made, decay = contributions(layer, xBC, dt, batch, B)
   local y = private.call(layer.recur, layer, xBC, dt, {
      sequence = sequence, initial = initial(layer, made, decay, comm, batch, B) })
   return y:reshape { B, L, layer.inner_dim }, z
end

-- Returns the bytes that this rank sends for a layer: forward and backward, of `batch` rows.
function state.bytes(layer, map, rows, size)
   local runs = state.runs(map)
   local pair = layer.heads * (layer.head_dim * layer.state + 1) * (size == 8 and 8 or 4)
   local gather = (map.size - 1) * rows * runs.R * pair
   local go, back = 0, 0
   for r = 0, map.size - 1 do
      if r ~= map.rank then
         go = go + #given(map, runs, map.rank, r, layer.taps)
         back = back + #given(map, runs, r, map.rank, layer.taps)
      end
   end
   local row = rows * layer.conv_dim * size
   return gather + go * row, gather + back * row
end

return state
