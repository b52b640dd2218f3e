-- Ranks that are threads of one process and share one GPU: every collective on CUDA tensors, and
-- what trains over it.
--
-- Not found by its name: emulated_device_spec.lua runs it on emulated threads.

local ranks = require 'spec.dist.ranks'

local collectives = require 'spec.dist.kinds'

describe('collectives of ranks on one GPU', function()
   for _, n in ipairs { 1, 3 } do
      for _, name in ipairs(collectives) do
         it(('%s on %d ranks'):format(name, n), function()
            local out = ranks.run(n, function(comm, which)
               require('tide').default().device = 'cuda'
               return require('spec.dist.cases')(comm, which)
            end, name)
            for _, ncase in ipairs(out) do assert.equal(64, ncase) end
         end)
      end
   end

   it('give the bits that ranks on the host get', function()
      for _, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64' } do
         local out = ranks.run(3, function(comm, kind)
            local tide = require 'tide'
            tide.seed(comm.rank)
            local x = tide.randn({ 5003 }):to(kind)
            local bits = {}
            for i, where in ipairs { 'cpu', 'cuda' } do
               bits[i] = comm:all_reduce(x:to(where):clone()):to('cpu'):to_string_bytes()
                  .. comm:all_reduce(x:to(where):clone(), 'mean'):to('cpu'):to_string_bytes()
            end
            return bits[1] == bits[2]
         end, dtype)
         assert.same({ true, true, true }, out)
      end
   end)

   it('refuse what is half on the host', function()
      local rows = ranks.run(2, function(comm)
         local tide = require 'tide'
         local mixed = { tide.ones { 2 }, tide.ones({ 2 }, { device = 'cuda' }) }
         local _, e = pcall(comm.all_reduce, comm, mixed)
         local where = comm.rank == 0 and 'cpu' or 'cuda'
         local _, f = pcall(comm.all_reduce, comm, tide.ones({ 2 }, { device = where }))
         return { e.code, f.code, tostring(f) }
      end)
      for r = 1, 2 do
         assert.same({ 'E_DEVICE', 'E_COMM' }, { rows[r][1], rows[r][2] })
         assert.is_truthy(rows[r][3]:find('on a device', 1, true), rows[r][3])
      end
   end)
end)

-- fn(rank, n, where) on two ranks, for the host and for the GPU that they share.
local function both(fn)
   local host = require 'spec.support.ranks'
   return host.run(2, fn, 'cpu'), host.run(2, fn, 'cuda')
end

local function equal(want, got, room)
   assert.equal(#want, #got)
   for i = 1, #want do
      local good = math.abs(want[i] - got[i]) <= room * math.max(1, math.abs(want[i]))
      assert.is_true(good, ('number %d: %.9g, expected %.9g'):format(i, got[i], want[i]))
   end
end

describe('training of ranks on one GPU', function()
   it('shards a model as on the host', function()
      local want, got = both(function(_, _, where)
         require('tide').default().device = where
         local r = require('spec.parallel.fsdp_case').train { fsdp = { device = where }, steps = 2 }
         return { losses = r.losses, weights = r.weights }
      end)
      for r = 1, 2 do
         equal(want[r].losses, got[r].losses, 1e-4)
         equal(want[r].weights, got[r].weights, 2e-3)
      end
   end)

   it('cuts a sequence as on the host', function()
      local want, got = both(function(rank, n, where)
         require('tide').default().device = where
         return (require('spec.parallel.cp_case').losses(rank, n, { sizes = { cp = 2 }, steps = 1,
            rows = 2, seq = 12 }))
      end)
      for r = 1, 2 do equal(want[r], got[r], 1e-4) end
   end)
end)
