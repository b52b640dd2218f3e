-- Meshes: sizes, coordinates, communicators of axes, flattened axes, and what is refused.

local tide = require 'tide'
local mesh = require 'tide.parallel.mesh'
local ranks = require 'spec.support.ranks'

-- Text of the error that a call raises, which must be one of tide's.
local function refused(fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok, 'nothing was raised')
   assert.is_true(type(e) == 'table' and e.code ~= nil, tostring(e))
   return tostring(e), e.code
end

local function sizes(axes, n)
   local out = {}
   for i, a in ipairs(mesh.sizes(axes, n)) do out[i] = a.name .. '=' .. a.size end
   return table.concat(out, ' ')
end

-- Axes of a mesh as one of n simulated ranks.
local function simulated(axes, n, rank, opts)
   opts = opts or {}
   opts.comm = tide.comm.simulate(n, rank or 0, opts.host_size)
   return tide.parallel.mesh(axes, opts)
end

describe('mesh sizes', function()
   local cases = {
      { { dp = 2, cp = 2 }, 4, 'dp=2 cp=2' },
      { { tp = 2, pp = 2, cp = 1, dp = -1 }, 16, 'pp=2 dp=4 cp=1 tp=2' },
      { { { 'cp', 2 }, { 'dp', -1 } }, 6, 'cp=2 dp=3' },
      { { { 'x', 1 }, { 'y_2', 1 } }, 1, 'x=1 y_2=1' },
      { { dp = -1 }, 1, 'dp=1' },
      { { dp_replicate = 2, dp_shard = -1, tp = 2 }, 16, 'dp_replicate=2 dp_shard=4 tp=2' },
      -- dp beside its factors is their product
      { { dp = 8, dp_replicate = 2 }, 8, 'dp_replicate=2 dp_shard=4' },
      { { dp = -1, dp_replicate = 2, cp = 2 }, 16, 'dp_replicate=2 dp_shard=4 cp=2' },
      { { dp = 8, dp_shard = 2, pp = 2 }, 16, 'pp=2 dp_replicate=4 dp_shard=2' },
      { { dp = 8, dp_replicate = 1 }, 8, 'dp_replicate=1 dp_shard=8' },
      { { dp = 8, dp_replicate = 2, dp_shard = -1 }, 8, 'dp_replicate=2 dp_shard=4' },
      { { dp = 8, dp_replicate = -1, dp_shard = 4 }, 8, 'dp_replicate=2 dp_shard=4' },
      { { dp = 8, dp_shard = -1 }, 8, 'dp_replicate=1 dp_shard=8' },
      { { dp = 1, dp_replicate = 1 }, 1, 'dp_replicate=1 dp_shard=1' },
   }
   for _, case in ipairs(cases) do
      it('gives ' .. case[3], function() assert.equal(case[3], sizes(case[1], case[2])) end)
   end

   local bad = {
      { { dp = 2, cp = 3 }, 4, 'the product of the axes, dp 2 x cp 3 = 6, must equal the number of '
         .. 'ranks (4)' },
      { { dp = 2 }, 4, 'dp 2, must equal' },
      { { dp = -1, cp = -1 }, 4, "only one size can be -1, but 'dp' and 'cp' are" },
      { { dp = -1, cp = 3 }, 4, "cannot infer 'dp': the number of ranks (4) must be divisible by "
         .. 'cp 3 (' },
      { { dp = 2^31 + 1 }, 4, 'expected a positive integer' },
      { { dp = 2^31 }, 4, 'the product of the axes' },
      { { dp = -1, cp = 3, tp = 2 }, 4, 'must be divisible by cp 3 x tp 2 = 6' },
      { { { 'dp', 2 }, { 'dp', 2 } }, 4, "the name 'dp' is given twice" },
      { { dp = 0 }, 4, "argument 'dp': expected a positive integer, or -1" },
      { { dp = -2 }, 4, 'expected a positive integer' },
      { { dp = 1.5 }, 4, 'expected a positive integer' },
      { { dp = '2' }, 4, 'expected a positive integer' },
      { { dp = 0 / 0 }, 4, 'expected a positive integer' },
      { { dp = 2, ring = 2 }, 4, "no place is known for 'ring'" },
      { { dp_shard = 2, ep = 2 }, 4, 'give fully_shard the option ep_size' },
      { { dp_shared = 2 }, 2, "did you mean 'dp_shard'?" },
      { {}, 1, 'at least one axis' },
      { 'dp', 1, 'table' },
      { { { 'dp', 2 }, cp = 2 }, 4, "got a list with the key 'cp'" },
      { { { 'dp' } }, 1, 'a name and a size' },
      { { { 'd p', 1 } }, 1, 'names made of' },
      { { { 3, 1 } }, 1, 'names made of' },
      { { 2, 2 }, 4, 'a name and a size' },
      { { dp = 8, dp_replicate = 3 }, 8, 'dp (8) must be divisible by dp_replicate (3)' },
      { { dp = 8, dp_shard = 3 }, 8, 'dp (8) must be divisible by dp_shard (3)' },
      { { dp = 8, dp_replicate = 8 }, 8, 'dp_replicate (8) must be 1 or smaller than dp (8)' },
      { { dp = 8, dp_replicate = 2, dp_shard = 2 }, 8, 'must equal dp (8)' },
      { { dp = -1, dp_replicate = 2, cp = -1 }, 8, 'only one size can be -1, but 2 are' },
      { { dp = 8, dp_replicate = -1, dp_shard = -1 }, 8, 'only one size can be -1, but 2 are' },
      { { dp = 8, dp_replicate = 2 }, 12, 'must equal the number of ranks (12)' },
   }
   for i, case in ipairs(bad) do
      it('refuses case ' .. i .. ': ' .. case[3], function()
         local text, code = refused(mesh.sizes, case[1], case[2])
         assert.equal('E_ARG', code)
         assert.is_truthy(text:find(case[3], 1, true), text)
         assert.is_truthy(text:find('tide.parallel.mesh', 1, true), text)
      end)
   end
end)

describe('a mesh', function()
   it('of one rank needs nobody', function()
      local m = tide.parallel.mesh { dp = 1, cp = 1, tp = -1 }
      assert.equal(1, m:size())
      assert.same({ dp = 0, cp = 0, tp = 0 }, m:coord())
      local dp = m:axis 'dp'
      assert.same({ 'dp', 1, 0, 1 }, { dp.name, dp.size, dp.rank, dp.comm.size })
      assert.equal(1, m:flatten({ 'dp', 'cp' }).size)
      assert.equal('mesh dp=1 x cp=1 x tp=1 (1 ranks; this is rank 0: dp 0, cp 0, tp 0)',
         tostring(m))
      assert.equal(3, dp.comm:all_reduce(tide.tensor { 3 }):item())
   end)

   it('lies row-major, the last axis fastest', function()
      for rank = 0, 15 do
         local m = simulated({ dp = 4, cp = 2, tp = 2 }, 16, rank)
         local at = m:coord()
         assert.equal(rank, (at.dp * 2 + at.cp) * 2 + at.tp)
         assert.equal(rank, m:rank_of(at))
         assert.same(at, simulated({ dp = 4, cp = 2, tp = 2 }, 16, 0):coord(rank))
      end
      local m = simulated({ dp = 4, cp = 2, tp = 2 }, 16, 0)
      assert.same({ 0, 1 }, m:axis('tp'):ranks())
      assert.same({ 0, 2 }, m:axis('cp'):ranks())
      assert.same({ 0, 2, 4, 6, 8, 10, 12, 14 }, m:flatten({ 'dp', 'cp' }):ranks())
      assert.same({ 0, 1, 4, 5, 8, 9, 12, 13 }, m:flatten({ 'dp', 'tp' }):ranks())
      assert.equal(13, m:rank_of { dp = 3, cp = 0, tp = 1 })
      assert.equal(2, m:rank_of { cp = 1 })
      assert.equal('mesh dp=4 x cp=2 x tp=2 (16 ranks; this is rank 0: dp 0, cp 0, tp 0)',
         tostring(m))
      assert.equal("axis 'cp' (rank 0 of 2)", tostring(m:axis 'cp'))
   end)

   it('looks up physical axes, then flattened ones', function()
      local m = simulated({ dp = 2, cp = 2, tp = 2 }, 8, 5)
      assert.is_nil(m:find 'dp_cp')
      local text = refused(m.axis, m, 'dp_cp')
      assert.is_truthy(text:find("no axis 'dp_cp' in this mesh (dp, cp, tp); mesh:flatten 'dp_cp' "
         .. 'makes it of dp and cp', 1, true), text)
      local flat = m:flatten { 'dp', 'cp' }
      assert.equal(flat, m:axis 'dp_cp')
      assert.equal(flat, m:flatten 'dp_cp')
      assert.equal(flat, m:flatten { 'dp', 'cp' })
      assert.equal(2, flat.rank)
      assert.equal(4, m:size 'dp_cp')
      assert.equal(flat.comm, m:comm_of 'dp_cp')
      assert.equal(flat.comm, m:flatten({ 'dp', 'cp' }, 'batch').comm)
      assert.equal(m.comm, m:flatten({ 'dp_cp', 'tp' }).comm)
      assert.equal(m:axis 'tp', m:flatten { 'tp' })
      text = refused(m.axis, m, 'dq')
      assert.is_truthy(text:find("no axis 'dq' in this mesh (dp, cp, tp, batch, dp_cp, dp_cp_tp)"
         .. "; did you mean 'dp'?", 1, true), text)
   end)

   it('knows dp of a hybrid mesh, and the axes to shard over', function()
      local function names(axes, n)
         local out = {}
         for i, a in ipairs(simulated(axes, n):fsdp_mesh().axes) do
            out[i] = a.name .. '=' .. a.size
         end
         return table.concat(out, ' ')
      end
      assert.equal('dp_shard=4', names({ dp_replicate = 1, dp_shard = 4, cp = 1 }, 4))
      assert.equal('dp_replicate=2 dp_shard=4', names({ dp_replicate = 2, dp_shard = 4 }, 8))
      assert.equal('dp_shard_cp=8', names({ dp_replicate = 1, dp_shard = 4, cp = 2 }, 8))
      assert.equal('dp_replicate=2 dp_shard_cp=8',
         names({ dp_replicate = 2, dp_shard = 4, cp = 2, tp = 2 }, 32))
      assert.equal('dp=4', names({ dp = 4, tp = 2 }, 8))
      assert.equal('dp_cp=8', names({ dp = 4, cp = 2 }, 8))
      assert.is_truthy(refused(names, { cp = 4 }, 4):find "no axis 'dp_shard' or 'dp'")
      local m = simulated({ dp_replicate = 2, dp_shard = 4, cp = 2 }, 16, 11)
      assert.equal(8, m:flatten('dp').size)
      assert.equal(m:axis('dp').comm, m:flatten({ 'dp_replicate', 'dp_shard' }).comm)
      assert.same({ 16, 11 }, { m:flatten({ 'dp', 'cp' }).size, m:axis('dp_cp').rank })
      assert.equal(8, m:flatten('dp_shard_cp').size)
      assert.equal(m.comm, m:axis('dp_cp').comm)
      assert.equal(3, m:axis('dp_shard_cp').rank)
   end)

   it('gives sub-meshes of physical and flattened axes', function()
      local m = simulated({ dp_replicate = 2, dp_shard = 2, cp = 2, tp = 2 }, 16, 13)
      m:flatten 'dp_shard_cp'
      local s = m:sub { 'dp_replicate', 'dp_shard_cp' }
      assert.equal(8, s:size())
      assert.equal(6, s.rank)
      assert.same({ dp_replicate = 1, dp_shard_cp = 2 }, s:coord())
      assert.equal(6, s:rank_of(s:coord()))
      assert.is_nil(s.comm)
      m:flatten { 'dp_replicate', 'dp_shard_cp' }
      assert.equal(8, m:sub({ 'dp_replicate', 'dp_shard_cp' }).comm.size)
      assert.equal(m.comm, m:sub({ 'dp_replicate', 'dp_shard_cp', 'tp' }).comm)
      assert.is_truthy(refused(s.rank_of, s, { tp = 0 }):find "no axis 'tp'")
      assert.is_truthy(refused(m.sub, m, {}):find 'at least one name')
      assert.is_truthy(refused(m.sub, m, { 'tp', 'cp' }):find 'in the order of the mesh')
   end)

   it('divides one axis into several', function()
      local m = simulated({ cp = 4, tp = 2 }, 8, 5)
      local v = m:unflatten('cp', { { 'ring', 2 }, { 'ulysses', -1 } })
      assert.same({ ring = 1, ulysses = 0 }, v:coord())
      assert.same({ 5, 7 }, v:axis('ulysses'):ranks())
      assert.same({ 1, 5 }, v:axis('ring'):ranks())
      local text = refused(m.unflatten, m, 'cp', { { 'ring', 2 }, { 'ulysses', 3 } })
      assert.is_truthy(text:find("ring 2 x ulysses 3 = 6, must equal the size of 'cp' (4)", 1,
         true), text)
      -- ranks 0 4 8 ... 28, row-major
      local wide = simulated({ { 'a', 8 }, { 'b', 4 } }, 32, 0)
      local w = wide:unflatten('a', { { 'x', 2 }, { 'y', 4 } })
      assert.same({ 0, 4, 8, 12 }, w:axis('y'):ranks())
      assert.same({ 0, 16 }, w:axis('x'):ranks())
   end)

   it('has an expert view', function()
      local e = simulated({ dp = 8 }, 8, 5):expert(2)
      assert.equal(4, e:size 'ep_shard')
      assert.same({ ep_shard = 2, ep = 1 }, e:coord())
      e = simulated({ pp = 2, dp = 2, cp = 2, tp = 2 }, 16, 9):expert(4)
      assert.same({ 2, 2, 4 }, { e:size 'pp', e:size 'ep_shard', e:size 'ep' })
      local text = refused(e.expert, simulated({ dp = 8 }, 8), 3)
      assert.is_truthy(text:find 'must be divisible by ep 3', text)
   end)

   it('refuses what it cannot mean', function()
      local m = simulated({ dp = 2, cp = 2, tp = 2 }, 8)
      local bad = {
         { "no axis 'pp'", m.axis, m, 'pp' },
         { "no axis 'nil'", m.axis, m, nil },
         { 'in the order of the mesh (dp, cp, tp)', m.flatten, m, { 'cp', 'dp' } },
         { 'given once each', m.flatten, m, { 'dp', 'dp' } },
         { "no axis 'ep'", m.flatten, m, { 'dp', 'ep' } },
         { 'at least one name', m.flatten, m, {} },
         { 'names made of', m.flatten, m, { 'dp', 'cp' }, 'a b' },
         { "the name 'tp' is taken", m.flatten, m, { 'dp', 'cp' }, 'tp' },
         { "argument 'rank'", m.coord, m, 8 },
         { "argument 'dp'", m.rank_of, m, { dp = 2 } },
         { "no axis 'pp'", m.rank_of, m, { pp = 0 } },
         { "argument 'comm'", mesh.new, { dp = 1 }, { comm = 3 } },
         { "unknown option 'com'", mesh.new, { dp = 1 }, { com = 3 } },
         { "argument 'ep'", m.expert, m, 0 },
      }
      for _, case in ipairs(bad) do
         local text = refused(unpack(case, 2, 5))
         assert.is_truthy(text:find(case[1], 1, true), text)
      end
   end)

   it('prices axes by the hosts that their ranks are on', function()
      -- 16 ranks, 4 a host; tp within hosts, dp across, cp half and half
      local m = simulated({ { 'dp', 4 }, { 'cp', 2 }, { 'tp', 2 } }, 16, 0, { host_size = 4 })
      local function bytes(comm)
         comm:all_gather(tide.zeros({ 8 }, { device = 'null' }))
         return comm:traffic().nbyte
      end
      assert.same({ 32, 0 }, bytes(m:axis('tp').comm))
      assert.same({ 0, 96 }, bytes(m:axis('dp').comm))
      assert.same({ 32, 0 }, bytes(m:axis('cp').comm))
   end)
end)

-- One rank of a mesh over threads: every axis must hold the ranks it says, in order.
local function walk(rank, nrank, axes, flats)
   local tide_ = require 'tide'
   local m = tide_.parallel.mesh(axes)
   if m:size() ~= nrank or m.rank ~= rank then return 'size' end
   local function check(axis)
      local comm = axis.comm
      if comm.size ~= axis.size or comm.rank ~= axis.rank then return axis.name .. ': numbers' end
      local got = comm:all_gather(tide_.tensor({ rank }, { dtype = 'i64' })):tolist()
      local want = axis:ranks()
      if #want ~= #got then return axis.name .. ': length' end
      for i = 1, #want do
         if want[i] ~= got[i] then return axis.name .. ': order' end
      end
   end
   local splits = 0
   for _, call in ipairs(m.comm:history()) do
      if call.op == 'split' then splits = splits + 1 end
   end
   for _, axis in ipairs(m.axes) do
      local wrong = check(axis)
      if wrong then return wrong end
   end
   for _, names in ipairs(flats) do
      local wrong = check(m:flatten(names))
      if wrong then return wrong end
      if m:flatten(names).comm ~= m:axis(table.concat(names, '_')).comm then return 'twice' end
   end
   m:close()
   return splits
end

describe('axes over threads', function()
   local shapes = {
      { 1, { { 'a', 1 }, { 'b', 1 } }, { { 'a', 'b' } } },
      { 2, { { 'a', 2 } }, {} },
      { 2, { { 'a', 1 }, { 'b', 2 } }, { { 'a', 'b' } } },
      { 3, { { 'a', 3 }, { 'b', 1 } }, { { 'a', 'b' } } },
      { 4, { { 'a', 2 }, { 'b', 2 } }, { { 'a', 'b' } } },
      { 4, { { 'a', 4 }, { 'b', 1 }, { 'c', 1 } }, { { 'b', 'c' }, { 'a', 'c' } } },
      { 6, { { 'a', 2 }, { 'b', 3 } }, { { 'a', 'b' } } },
      { 6, { { 'a', 3 }, { 'b', 2 } }, { { 'a', 'b' } } },
      { 6, { { 'a', 3 }, { 'b', 1 }, { 'c', 2 } }, { { 'a', 'b' }, { 'a', 'b', 'c' } } },
      { 8, { { 'a', 2 }, { 'b', 2 }, { 'c', 2 } }, { { 'a', 'b' }, { 'a', 'c' }, { 'b', 'c' },
         { 'a', 'b', 'c' } } },
      { 8, { { 'a', 4 }, { 'b', 2 } }, { { 'a', 'b' } } },
      { 8, { { 'a', 2 }, { 'b', -1 } }, { { 'a', 'b' } } },
   }
   for _, shape in ipairs(shapes) do
      local name = {}
      for i, a in ipairs(shape[2]) do name[i] = a[2] end
      it(('%s on %d ranks'):format(table.concat(name, ' x '), shape[1]), function()
         local out = ranks.run(shape[1], walk, shape[2], shape[3])
         -- one for each axis that needs its own communicator, one for all axes of one rank
         local splits, single = 0, 0
         for _, a in ipairs(mesh.sizes(shape[2], shape[1])) do
            if a.size == 1 then
               single = shape[1] > 1 and 1 or 0
            elseif a.size < shape[1] then
               splits = splits + 1
            end
         end
         for r = 1, shape[1] do assert.equal(splits + single, out[r]) end
      end)
   end

   it('are not made when the ranks disagree', function()
      local rows = ranks.try(4, function(rank)
         local tide_ = require 'tide'
         tide_.parallel.mesh { dp = rank == 2 and 4 or 2, cp = rank == 2 and 1 or 2 }
      end)
      for r = 1, 4 do
         assert.equal('E_COMM', rows[r].message and rows[r].message:match 'E_COMM')
         assert.is_truthy(rows[r].message:find('the ranks ask for different meshes', 1, true))
      end
   end)

   it('divide and inherit the timeout', function()
      local out = ranks.run(4, function(rank)
         local tide_ = require 'tide'
         tide_.dist.init { timeout = 60 }
         local m = tide_.parallel.mesh { cp = 4 }
         local v = m:unflatten('cp', { { 'ring', 2 }, { 'ulysses', 2 } })
         local e = m:expert(2)
         local t = tide_.tensor({ rank }, { dtype = 'i64' })
         local a = v:axis('ring').comm:all_gather(t):tolist()
         local b = v:axis('ulysses').comm:all_gather(t):tolist()
         local c = e:axis('ep').comm:all_gather(t):tolist()
         return table.concat(a, ' ') .. ' / ' .. table.concat(b, ' ') .. ' / '
            .. table.concat(c, ' ')
      end)
      assert.same({ '0 2 / 0 1 / 0 1', '1 3 / 0 1 / 0 1', '0 2 / 2 3 / 2 3', '1 3 / 2 3 / 2 3' },
         out)
   end)
end)
