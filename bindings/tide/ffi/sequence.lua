-- Index maps of sequences that are sharded over ranks: see tide.parallel.cp_map. Positions, ranks
-- and lengths count from 0 here: index tensors are data.

local M = {}
local make = require('tide.ffi.row').adders(M)

-- Returns the whole positions of a rank's tokens, or of all ranks in order without a rank, if every
-- document has the head-tail layout over `size` ranks. dtype: 'i64' (default) or 'i32'.
make 'zigzag_index(cu, size: int 1 2^31-1, rank: int -1 size-1 = -1, dtype: dtype = "i64")'
-- Returns the inverse of zigzag_index: the index of each whole position among all ranks' tokens in
-- rank order.
make 'zigzag_places(cu, size: int 1 2^31-1, dtype: dtype = "i64")'
-- Returns start, start + 1, ... for each row (start, length) of runs [n, 2], joined.
make 'run_index(runs, dtype: dtype = "i64")'
-- Returns the inverse of a permutation of 0 .. n - 1.
make 'inverse_index(index)'
-- Returns (document, position) pairs [1, ntoken, 2] of documents in padded slots; padding is
-- document -1.
make 'slot_index(cu_slot, cu_real, ntoken: int 0)'

return M
