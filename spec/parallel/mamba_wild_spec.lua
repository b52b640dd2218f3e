-- Mamba-2 over ranks where a few steps are so large that the state forgets everything: as accurate
-- in f32 as one rank.

local ranks = require 'spec.support.ranks'

-- Runs on a rank. A layer whose steps are softplus(first channel of x - 3), that channel being 0
-- but for two tokens. Returns the largest errors against one rank in f64, relative to the largest
-- value: { out =, dx =, dA = }.
local source = [[
   local _, _, c = ...
   local tide = require 'tide'
   local comm, T = tide.comm.world(), 64
   local opts = { dim = 8, heads = 2, head_dim = 8, groups = 1, state = 8, seed = 5 }
   local function layer_in(dtype)
      opts.dtype = dtype
      local layer = tide.nn.Mamba2(opts)
      tide.no_grad(function()
         local w = layer.in_proj.weight
         w:mul_(5)
         w:select(2, 1):fill_(0)
         for h = 0, 1 do
            local row = w:select(1, w:size(1) - h)
            row:fill_(0)
            row:narrow(1, 1, 1):fill_(1)
         end
         layer.dt_bias:fill_(-3)
         layer.A_log:fill_(math.log(16))
      end)
      return layer
   end
   local function draw(seed)
      return tide.empty({ 1, T, 8 }, { dtype = 'f32' }):normal_(0, 1, { seed = seed })
   end
   local x, dy = draw(2), draw(3)
   x:select(3, 1):fill_(0)
   for _, t in ipairs { 30, 60 } do x:select(3, 1):narrow(2, t, 1):fill_(c.spike) end
   local wide = x:to 'f64':requires_grad_()
   local one = layer_in 'f64'
   local want = one(wide)
   want:backward(dy:to 'f64')

   local layer = layer_in 'f32'
   local map = tide.parallel.cp_map.new { kind = c.kind, axis = comm, length = T }
   local function mine(t) return t:index_select(2, map:index('i64', 'cpu')) end
   tide.parallel.mamba_cp.attach(layer, comm, { method = c.method })
   local part = mine(x):requires_grad_()
   local y = layer(part, { context = tide.parallel.cp.context { map = map } })
   y:backward(mine(dy))
   local function off(a, b, all)
      return (a:to 'f64' - b):abs():amax():item() / all:abs():amax():item()
   end
   local dA = one.A_log.grad
   return { out = off(y:detach(), mine(want:detach()), want:detach()),
      dx = off(part.grad, mine(wide.grad), wide.grad),
      dA = off(comm:all_reduce(layer.A_log.grad:to 'f64'), dA, dA) }
]]

describe('Mamba-2 over ranks', function()
   for _, method in ipairs { 'hidden', 'state' } do
      for _, kind in ipairs { 'contiguous', 'zigzag' } do
         it(('hands over states past steps that forget all (%s, %s)'):format(method, kind),
            function()
               for _, spike in ipairs { 10, 100, 1000 } do
                  for _, got in ipairs(ranks.run(2, source,
                     { method = method, kind = kind, spike = spike })) do
                     for name, off in pairs(got) do
                        -- one rank in f32 is off by up to 4e-7
                        assert.is_true(off < 2.5e-6, ('%s off by %g, step %g'):format(name, off,
                           spike))
                     end
                  end
               end
            end)
      end
   end
end)
