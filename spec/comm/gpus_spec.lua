-- Which GPU each rank gets: tables of machines and GPUs, without one of them.

local gpus = require 'tide.comm.gpus'
local dist = require 'tide.comm'
local refused = require 'spec.support.refused'
local tide = require 'tide'

-- Calls comm.gpus as rank `rank` of the rows { place, count, given }: which GPU the rank takes, and
-- over what its tensors travel. transport: of the communicator that is there.
local function choose(rows, rank, transport, opts)
   local here = rows[rank + 1]
   local comm = { rank = rank, size = #rows, transport = transport }
   local own
   function comm.all_gather_object(_, mine)
      own = mine.result
      local list = {}
      for r, row in ipairs(rows) do
         list[r] = { ok = true, result = { place = row[1], count = row[2], given = row[3] or -1 } }
      end
      return list
   end
   local count, nccl, before = tide.cuda.device_count, dist.nccl, tide.param 'cuda_device'
   rawset(tide.cuda, 'device_count', function() return here[2], 'none here' end)
   rawset(dist, 'nccl', function(over, o) return { 'nccl', over, o } end)
   tide.param('cuda_device', here[3] or -1)
   local ok, made = pcall(gpus, comm, opts)
   local device = tide.param 'cuda_device'
   rawset(tide.cuda, 'device_count', count)
   rawset(dist, 'nccl', nccl)
   tide.param('cuda_device', before)
   if not ok then error(made, 0) end
   return tonumber(device), made == comm and 'comm' or made[1], made, own
end

describe('the GPUs of ranks', function()
   it('are taken in order on each machine, or as they were given', function()
      for _, case in ipairs {
         { { { 'a', 2 }, { 'a', 2 } }, '0 1', 'nccl' },
         { { { 'a', 2 }, { 'b', 2 }, { 'a', 2 }, { 'b', 2 } }, '0 0 1 1', 'nccl' },
         { { { 'a', 4, 3 }, { 'a', 4, 0 } }, '3 0', 'nccl' },
         { { { 'a', 8 }, { 'a', 8 }, { 'a', 8 } }, '0 1 2', 'nccl' },
         { { { 'a', 1 }, { 'b', 1 } }, '0 0', 'nccl' },
         { { { 'a', 1 }, { 'a', 1 } }, '0 0', 'comm' },
         { { { 'a', 2, 1 }, { 'a', 2, 1 } }, '1 1', 'comm' },
      } do
         local devices, over = {}, nil
         for r = 0, #case[1] - 1 do devices[r + 1], over = choose(case[1], r, 'local') end
         assert.same({ case[2], case[3] }, { table.concat(devices, ' '), over })
      end
   end)

   it('are all there are, or one that threads share', function()
      local function bad(words, rows, transport) refused('E_DEVICE', words, choose, rows, 0,
         transport) end
      bad('none here', { { 'a', 0 }, { 'a', 0 } }, 'local')
      bad('rank 0 is one of 3 on a machine with 2 GPUs',
         { { 'a', 2 }, { 'a', 2 }, { 'a', 2 } }, 'local')
      bad('2 ranks have 1 GPUs among them', { { 'a', 1 }, { 'a', 1 } }, 'mpi')
      bad('3 ranks have 2 GPUs among them', { { 'a', 2, 0 }, { 'a', 2, 1 }, { 'a', 2, 1 } },
         'local')
   end)

   it('are asked for where there are several ranks without them', function()
      local nccl = { rank = 1, size = 2, transport = 'nccl' }
      for _, comm in ipairs { { rank = 0, size = 1 }, nccl } do
         assert.equal(comm, gpus(comm))
      end
      local _, _, made, mine = choose({ { 'a', 2 }, { 'a', 2 } }, 1, 'local', { library = 'x.so',
         check = false })
      assert.same({ library = 'x.so', check = false }, made[3])
      assert.same({ place = 'process', count = 2, given = -1 }, mine)
      local _, _, _, other = choose({ { 'a', 1 }, { 'b', 1 } }, 0, 'mpi')
      assert.is_true(#other.place > 0 and other.place ~= 'process')
   end)
end)
