-- Whether device 'cuda' computes at all: one product, held against the host's. Ends with 1 and the
-- reason if not.

local tide = require 'tide'

local there, why = tide.cuda.is_available()
if not there then
   print('smoke: no GPU can be used: ' .. tostring(why))
   os.exit(1)
end
local x = tide.randn { 300, 200 }
local near = tide.cuda.event():record()
local far = tide.matmul(x:to 'cuda', x:to 'cuda':transpose(1, 2))
local ms = near:elapsed_time(tide.cuda.event():record())
local apart = (far:to 'cpu' - tide.matmul(x, x:transpose(1, 2))):abs():amax():item()
print(('smoke: %d GPU(s); a product differs from the host by %.1e; the first one took %.1f ms')
   :format(tide.cuda.device_count(), apart, ms))
os.exit(apart < 1e-3 and 0 or 1)
