-- Ranks as threads in specs: ranks.run(n, fn, ...) gives a list of what fn(rank, nrank, ...)
-- returned on each rank (0-based), and raises if one failed; ranks.try(n, fn, ...) returns the rows
-- { status =, message =, values = } and .first. fn must not use upvalues: require inside it.

local host = require 'tide.ffi.host'

local M = { run = host.run }

function M.try(n, fn, ...) return host.try(n, nil, fn, ...) end

return M
