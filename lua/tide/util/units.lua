-- Short text forms of counts, bytes and durations.

local err = require 'tide.util.err'

local units = {}

local function check(op, v)
   if type(v) ~= 'number' then err.arg('util.units.' .. op, 'v', 'a number', v) end
   return v
end

local function scaled(v, base, names)
   local i = 1
   while v >= base and i < #names do v, i = v / base, i + 1 end
   if i == 1 then return ('%d%s'):format(v, names[1]) end
   local digits = v < 10 and '%.2f' or v < 100 and '%.1f' or '%.0f'
   return digits:format(v) .. names[i]
end

-- Returns a number as "950", "1.20k" or "3.4M".
function units.count(v) return scaled(check('count', v), 1000, { '', 'k', 'M', 'G', 'T' }) end

-- Returns bytes as "12 B" or "1.50 MiB".
function units.bytes(v)
   return scaled(check('bytes', v), 1024, { ' B', ' KiB', ' MiB', ' GiB', ' TiB' })
end

-- Returns seconds as "1:02:03" or "2:03".
function units.duration(seconds)
   check('duration', seconds)
   if seconds ~= seconds or seconds == math.huge then return '?' end
   local s = math.max(0, math.floor(seconds + 0.5))
   local h, m = math.floor(s / 3600), math.floor(s / 60) % 60
   if h > 0 then return ('%d:%02d:%02d'):format(h, m, s % 60) end
   return ('%d:%02d'):format(m, s % 60)
end

return units
