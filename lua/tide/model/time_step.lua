-- Fields of configurations about the time steps of Mamba-2 layers.

local err = require 'tide.util.err'

local time_step = {}

-- Returns the limits { least, most } of a time step, false where they limit nothing (steps are
-- positive).
local function limit(op, name, v)
   if v == false or v == nil then return false end
   err.type(op, name, v, 'table')
   local least, most = v[1] or 0, v[2] or math.huge
   if type(least) ~= 'number' or type(most) ~= 'number' or #v > 2
      or not (0 <= least and least <= most) then
      err.raise('E_ARG', op, "argument '%s': expected two numbers { least, most }, 0 <= least <= "
         .. 'most, got { %s%s }', name, err.show(least), #v > 1 and ', ' .. err.show(most)
         .. (#v > 2 and ', ...' or '') or '')
   end
   return (least > 0 or most < math.huge) and { least, most }
end

-- The row of the limits (see published.read).
time_step.limit = { 'time_step_limit', false, limit, float = true }

-- The rows of all such fields.
time_step.fields = {
   { 'time_step_min', 0.001, 'number >= 0', float = true, neutral = true },
   { 'time_step_max', 0.1, 'number >= 0', float = true, neutral = true },
   { 'time_step_floor', 1e-4, 'number >= 0', float = true, neutral = true },
   time_step.limit,
}

-- Returns the range that steps are initialised in. A published file may have no least step (0).
function time_step.range(c)
   local least = c.time_step_min > 0 and c.time_step_min or c.time_step_floor
   return { least > 0 and least or 1e-4, c.time_step_max }
end

return time_step
