-- LuaJIT's compiler, switched off where its machine code is wrong.
--
-- For AArch64, LuaJIT before September 2023 compiles a check of a number's type that has no other
-- use into a write to register d0. Whatever number lived there is lost: sums, losses and loop
-- variables go wrong without an error (spec/ffi/compiler_spec.lua has eight lines that do). Such a
-- LuaJIT calls itself 2.1.0-beta3, as in Debian 12. A later one carries the time of its source in
-- its version.

local M = {}

-- Seconds since 1970: 18 September 2023, after the last of these corrections in LuaJIT's source.
local corrected = 1695000000

-- Returns whether compiled code of this LuaJIT is right. arch, version: jit.arch, jit.version.
function M.sound(arch, version)
   if arch ~= 'arm64' then return true end
   local time = tonumber(version:match '^LuaJIT 2%.1%.(%d+)')
   return time ~= nil and time >= corrected
end

-- Switches a compiler off that is not sound. Machine code that is there goes, too: it would run on.
function M.settle(engine)
   if M.sound(engine.arch, engine.version) then return end
   engine.off()
   engine.flush()
end

return M
