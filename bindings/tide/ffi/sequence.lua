-- Index maps of sequences that lie on several ranks: see tide.parallel.cp_map.
--
-- Positions, ranks and lengths count from 0 here: index tensors are data.

local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local C = lib.C

local M = {}
local new_box, take, again, check = own.new_box, own.take, own.again_t, own.check_t
local tensor, int = arg.tensor, arg.int

-- Head-tail layout of every document over `size` ranks: the whole positions of a rank's tokens; of
-- all ranks in order without a rank. dtype: 'i64' (default) or 'i32'.
function M.zigzag_index(cu, size, rank, dtype)
   tensor('zigzag_index', 'cu', cu)
   int('zigzag_index', 'size', size, 1, 2^31 - 1)
   rank = int('zigzag_index', 'rank', rank == nil and -1 or rank, -1, size - 1)
   dtype = arg.dtype('zigzag_index', 'dtype', dtype or 'i64')
   local box = new_box()
   local rc = C.tide_zigzag_index(box, cu, size, rank, dtype)
   if rc ~= 0 and again(cu, rc) then check(cu, C.tide_zigzag_index(box, cu, size, rank, dtype)) end
   return take(box)
end

-- The inverse: the place of each whole position among all ranks' tokens in rank order.
function M.zigzag_places(cu, size, dtype)
   tensor('zigzag_places', 'cu', cu)
   int('zigzag_places', 'size', size, 1, 2^31 - 1)
   dtype = arg.dtype('zigzag_places', 'dtype', dtype or 'i64')
   local box = new_box()
   local rc = C.tide_zigzag_places(box, cu, size, dtype)
   if rc ~= 0 and again(cu, rc) then check(cu, C.tide_zigzag_places(box, cu, size, dtype)) end
   return take(box)
end

-- start, start + 1, ... for each row (start, length) of runs [n, 2], joined.
function M.run_index(runs, dtype)
   tensor('run_index', 'runs', runs)
   dtype = arg.dtype('run_index', 'dtype', dtype or 'i64')
   local box = new_box()
   local rc = C.tide_run_index(box, runs, dtype)
   if rc ~= 0 and again(runs, rc) then check(runs, C.tide_run_index(box, runs, dtype)) end
   return take(box)
end

-- The inverse of a permutation of 0 .. n - 1.
function M.inverse_index(index)
   tensor('inverse_index', 'index', index)
   local box = new_box()
   local rc = C.tide_inverse_index(box, index)
   if rc ~= 0 and again(index, rc) then check(index, C.tide_inverse_index(box, index)) end
   return take(box)
end

-- (document, position) pairs [1, ntoken, 2] of documents in padded slots; padding is document -1.
function M.slot_index(cu_slot, cu_real, ntoken)
   tensor('slot_index', 'cu_slot', cu_slot)
   tensor('slot_index', 'cu_real', cu_real)
   int('slot_index', 'ntoken', ntoken, 0)
   local box = new_box()
   local rc = C.tide_slot_index(box, cu_slot, cu_real, ntoken)
   if rc ~= 0 and again(cu_slot, rc) then
      check(cu_slot, C.tide_slot_index(box, cu_slot, cu_real, ntoken))
   end
   return take(box)
end

return M
