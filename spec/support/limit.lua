-- Seconds that a program of a spec may take: TIDE_SPEC_SLOW times as many on an emulated processor
-- (spec/support/arm64.sh sets it).

local slow = tonumber(os.getenv 'TIDE_SPEC_SLOW' or 1)

return function(seconds) return seconds * slow end
