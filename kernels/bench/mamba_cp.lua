-- What a Mamba-2 layer over two ranks costs a rank: `luajit kernels/bench/mamba_cp.lua [dtype]
-- [tokens]`, with LUA_PATH as for the other programs here.
--
-- The one idea: collectives are simulated, so that what is left is the rank's own work, in CPU
-- seconds, which other programs on the machine disturb least. The ratio is to the plain layer on
-- half of the tokens.

local tide = require 'tide'

local dtype, tokens = arg[1] or 'f32', tonumber(arg[2] or 4096)
local width = 512

-- The least CPU time of some runs of fn, in milliseconds.
local function cost(fn)
   local least = math.huge
   for _ = 1, 7 do
      local begin = os.clock()
      tide.scope(fn)
      least = math.min(least, os.clock() - begin)
   end
   return 1e3 * least
end

tide.set_nthread(1)
local layer = tide.nn.Mamba2 { dim = width, heads = 16, head_dim = 64, state = 128, dtype = dtype }
local h = tide.randn({ 1, tokens / 2, width }):to(dtype)

local function pass(context)
   return function() layer(h:clone():requires_grad_(), { context = context }):backward(h) end
end

local plain = cost(pass())
print(('%s, %d tokens: plain layer on half of them %.1f ms'):format(dtype, tokens, plain))
local comm = tide.dist.simulate(2, 0)
for _, way in ipairs { { 'hidden', 'zigzag' }, { 'state', 'contiguous' }, { 'state', 'zigzag' } } do
   local map = tide.parallel.cp_map.new { kind = way[2], size = 2, length = tokens }
   local on = tide.parallel.mamba_cp.attach(layer, { axis = comm, method = way[1] })
   local ms = cost(pass(tide.parallel.cp.context { axis = comm, map = map }))
   on:restore()
   print(('%-6s %-10s %.1f ms, ratio %.2f'):format(way[1], way[2], ms, plain / ms))
end
print(tide.parallel.mamba_cp.explain(layer,
   tide.parallel.cp_map.new { kind = 'zigzag', size = 2, length = tokens }, { dtype = dtype }))
