-- What differentiable collectives refuse, and the identity over one rank.

local tide = require 'tide'

describe('collectives refuse', function()
   local op = tide.parallel.op
   local comm = tide.comm.simulate(2, 1)
   local x = tide.zeros { 3, 4 }
   local cases = {
      { "argument 'x': expected a tensor", op.all_gather, 3, comm },
      { "argument 'comm'", op.all_gather, x, nil },
      { "argument 'comm'", op.shift, x, { size = 2 } },
      { "argument 'dim': expected an integer in [-2, 2] without 0", op.all_gather, x, comm, 3 },
      { "argument 'dim'", op.all_gather, x, comm, 0 },
      { "argument 'dim'", op.all_gather, x, comm, 1.5 },
      { 'no dim at all', op.all_gather, tide.zeros {}, comm },
      { 'a list of 2 counts', op.all_gather_v, x, comm, 1, { 3 } },
      { '3 for this rank (1), the size of dim 1', op.all_gather_v, x, comm, 1, { 3, 2 } },
      { "argument 'counts[2]'", op.gather_from, x, comm, 1, { 3, -1 } },
      { 'divides among 2 ranks', op.reduce_scatter, x, comm, 1 },
      { 'add up to the size 3', op.reduce_scatter_v, x, comm, 1, { 1, 1 } },
      { 'a list of 2 counts', op.reduce_scatter_v, x, comm, 1, nil },
      { 'one of sum, mean, min, max, prod', op.all_reduce, x, comm, 'avg' },
      { 'divides among 2 ranks', op.all_to_all, x, comm, 1, 2 },
      { 'add up to the size 4', op.all_to_all, x, comm, 2, 1, { 1, 2 } },
      { '3 for this rank (1), the size of dim 1', op.all_to_all, x, comm, 2, 1, nil, { 3, 2 } },
      { 'another dim than cut', op.all_to_all, x, comm, 2, 2, { 2, 2 } },
      { "argument 'join'", op.all_to_all, x, comm, 2, 3 },
      { 'add up to the size 3', op.all_to_all_v, x, comm, { 1, 1 }, { 1, 1 } },
      { "argument 'out_counts'", op.all_to_all_v, x, comm, { 1, 2 }, { 1 } },
      { "argument 'out_counts'", op.all_to_all_v, x, tide.comm.solo(), { 3 }, { 2 } },
      { "argument 'root'", op.broadcast, x, comm, 2 },
      { "argument 'root'", op.reduce, x, comm, -1 },
      { "argument 'by'", op.shift, x, comm, 0.5 },
      { 'divides among 2 ranks', op.scatter_to, x, comm, 1 },
      { 'add up to the size 3', op.scatter_to, x, comm, 1, { 3, 3 } },
      { "argument 'n'", op.counts, -1, comm },
   }
   for i, case in ipairs(cases) do
      it('case ' .. i .. ': ' .. case[1], function()
         local ok, e = pcall(unpack(case, 2, 8))
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
         assert.is_truthy(tostring(e):find(case[1], 1, true), tostring(e))
         assert.is_truthy(tostring(e):find('tide.parallel.', 1, true), tostring(e))
      end)
   end

   it('to ask simulated ranks', function()
      for _, call in ipairs { { op.counts, 2, comm }, { op.all_gather_v, x, comm, 1 },
         { tide.parallel.from_local, x, tide.parallel.mesh({ dp = 2 }, { comm = comm }),
            { tide.parallel.Shard(1) } } } do
         local ok, e = pcall(unpack(call, 1, 4))
         assert.is_false(ok)
         assert.equal('E_UNSUPPORTED', e.code)
      end
   end)

   it('a derivative that is not defined', function()
      local v = tide.ones({ 2 }, { requires_grad = true })
      for _, fn in ipairs { op.all_reduce, op.reduce_from } do
         local y = fn(v, comm, 'max')
         local ok, e = pcall(function() y:sum():backward() end)
         assert.is_false(ok)
         assert.equal('E_UNSUPPORTED', e.code)
      end
   end)

   it('nothing from one rank: the identity', function()
      local one = tide.comm.solo()
      for _, name in ipairs { 'all_gather', 'all_gather_v', 'reduce_scatter', 'all_to_all',
         'all_reduce', 'broadcast', 'reduce', 'shift', 'copy_to', 'reduce_from', 'gather_from',
         'scatter_to' } do
         assert.is_true(op[name](x, one):equal(x), name)
      end
   end)
end)
