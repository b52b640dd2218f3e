-- Tensors of a context, made by C: rows behind wrappers that check the arguments.

local M = {}
local call = require('tide.ffi.row').adders(M, 'raw')
call 'empty(ctx, device, dtype, ndim, shape)'
call 'full(ctx, device, dtype, ndim, shape, value)'
call 'arange(ctx, device, dtype, n, start, step)'
call 'from_bytes(ctx, device, dtype, ndim, shape, data, nbyte)'

return M
