-- Products that overlap with the collective that feeds or follows them.
--
-- With the sequence cut over ranks, a gather followed by a product is done block by
-- block around a ring: while one rank's block is multiplied the next one is on its way. A product
-- followed by a reduce-scatter is the same backwards: while a sum travels, the next block is
-- multiplied (Wang et al., ASPLOS 2023, "Overlap communication with dependent computation via
-- decomposition"). Each is the other's adjoint, so both directions of a step overlap.
--
-- Sums are added in another order than by a reduce-scatter: results are equal but for rounding.
-- Sequences shorter than the ranks take the ordinary way, and so do modules whose children have
-- hooks of their own.
-- Legend: B batch, t tokens of a rank's block, T of all, C and N widths of input and output.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local private = require 'tide.util.private'
local layer = require 'tide.parallel.tp.layer'
local layout = require 'tide.parallel.layout'
local wrap = require 'tide.nn.wrap'

local tp_async = {}

-- ---- rings -----------------------------------------------------------------------------------

-- Sends `out` to the rank below while fn runs; returns what the rank above has sent, [B, rows, .].
local function pass(comm, out, rows, fn)
   local n, shape = comm.size, out.shape
   shape[2] = rows
   local coming = tide.empty(shape, { dtype = out.dtype, device = out.device })
   local work = comm:send_recv(coming, (comm.rank + 1) % n, out, (comm.rank - 1) % n,
      { async = true })
   fn()
   work:wait()
   return coming
end

-- Calls fn(block, r) for the block of each rank r (from 0), this one's first. What is on its way
-- may be read, so a block is sent on while it is multiplied.
local function ring_gather(comm, x_BtC, counts, fn)
   local n, block = comm.size, x_BtC:contiguous()
   for s = 0, n - 1 do
      local r, now = (comm.rank + s) % n, block
      if s == n - 1 then return fn(now, r) end
      block = pass(comm, now, counts[(r + 1) % n + 1], function() fn(now, r) end)
   end
end

-- Returns this rank's block of the sum over ranks of partial(r).
local function ring_reduce(comm, counts, partial)
   local n = comm.size
   local sum = partial((comm.rank + 1) % n):contiguous()
   for s = 1, n - 1 do
      local r, mine = (comm.rank + 1 + s) % n, nil
      sum = pass(comm, sum, counts[r + 1], function() mine = partial(r) end)
      sum:add_(mine)
   end
   return sum
end

-- ---- blocks ----------------------------------------------------------------------------------

-- Returns block r of a whole sequence.
local function block_of(y_BTN, counts, r)
   return y_BTN:narrow(2, dims.sum(counts, r) + 1, counts[r + 1])
end

local function rows(t) return t:reshape { -1, t:size(-1) } end

-- Adds a' b over all rows to sum, which may be nil.
local function add_outer(sum, a, b)
   local part = tide.matmul(rows(a):t(), rows(b))
   return sum and sum:add_(part) or part
end

-- ---- host functions --------------------------------------------------------------------------

-- x [B, t, C] and pairs of a weight [N, C] and a bias or nil -> x gathered times each weight.
local gather_linear = private.func {
   name = 'parallel.gather_linear',
   forward = function(self, x, at, ...)
      local weights, blocks, out = { n = select('#', ...), ... }, {}, {}
      self.at, self.nweight = at, weights.n
      for i = 1, weights.n, 2 do out[i] = {} end
      ring_gather(at.comm, x, at.counts, function(block, r)
         blocks[r + 1] = block
         for i = 1, weights.n, 2 do
            out[i][r + 1] = tide.linear(block, weights[i], weights[i + 1])
         end
      end)
      local saved, results = {}, {}
      for i = 1, weights.n, 2 do
         results[#results + 1] = tide.cat(out[i], 2)
         saved[#saved + 1] = weights[i]
         self['bias' .. i] = weights[i + 1] ~= nil
      end
      for _, block in ipairs(blocks) do saved[#saved + 1] = block end
      self:save(unpack(saved))
      return unpack(results)
   end,
   backward = function(self, ...)
      local dys, saved = { ... }, { self:saved() }
      local nw, at, grads = self.nweight / 2, self.at, { n = self.nweight + 2 }
      local function partial(r)
         local dx
         for k = 1, nw do
            if dys[k] then
               local part = tide.matmul(block_of(dys[k], at.counts, r), saved[k])
               dx = dx and dx:add_(part) or part
               grads[2 * k + 1] = add_outer(grads[2 * k + 1], block_of(dys[k], at.counts, r),
                  saved[nw + r + 1])
            end
         end
         return dx
      end
      grads[1] = ring_reduce(at.comm, at.counts, partial)
      for k = 1, nw do
         if dys[k] and self['bias' .. (2 * k - 1)] then grads[2 * k + 2] = dys[k]:sum { 1, 2 } end
      end
      return unpack(grads, 1, grads.n)
   end,
}

-- Returns this rank's block of the sum over ranks of h w', for h [B, T, N] and a weight [C, N].
local linear_scatter = private.func {
   name = 'parallel.linear_scatter',
   forward = function(self, h, at, w)
      self.at = at
      self:save(h, w)
      return ring_reduce(at.comm, at.counts, function(r)
         return tide.linear(block_of(h, at.counts, r), w)
      end)
   end,
   backward = function(self, dy)
      local h, w = self:saved()
      local at, dw, dh = self.at, nil, {}
      ring_gather(at.comm, dy, at.counts, function(block, r)
         dh[r + 1] = tide.matmul(block, w)
         dw = add_outer(dw, block, block_of(h, at.counts, r))
      end)
      return tide.cat(dh, 2), nil, dw
   end,
}

-- ---- modules ---------------------------------------------------------------------------------

local function ring_for(env, T)
   if T < env.axis.size then return nil end
   return { comm = env.comm, counts = layout.balanced(T, env.axis.size) }
end

-- Wraps `project` of a module, which then gathers and multiplies block by block, in place of a
-- gather before its projections.
function tp_async.share_input(module, env)
   local children = {}
   for _, name in ipairs(module.shared_input) do
      if module[name] then children[#children + 1] = name end
   end
   layer.around(module, function(next, self, x)
      local at, args = ring_for(env, env.length), { n = 2 * #children }
      for i, name in ipairs(children) do
         if wrap.is_around(self[name]) or wrap.is_around(self[name], 'forward', 'tp') then
            at = nil
         end
         args[2 * i - 1], args[2 * i] = self[name].weight, self[name].bias
      end
      if not at then return layer.through(next, self, x, layer.into_parts(env, x, 'S(1)')) end
      local first, second, third = gather_linear(x, at, unpack(args, 1, args.n))
      if self.act and #children == 1 then return nil, first end
      return first, second, third
   end, { of = 'project' })
end

-- Returns a row-cut Linear whose product and reduce-scatter overlap; after answered() of layer.lua.
function tp_async.row(module, env, style)
   layer.around(module, function(next, self, h)
      local at = ring_for(env, h:size(2))
      if not at or wrap.find(self, 'lora', 'forward') then return next(self, h) end
      return layer.add_late(env, style, self, linear_scatter(h, at, self.weight), 'bias')
   end, { name = 'tp.ring' })
end

return tp_async
