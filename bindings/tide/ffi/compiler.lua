-- Configures LuaJIT's compiler: works around its faults, by version and machine, and makes it wait.
--
-- Two faults of LuaJIT 2.1.0-beta3, the version of Debian 12, lose values without an error:
--
-- * x64, its loop optimisation. A table that a constructor with names made, `{ rank = r }`, gets
--   one more field in a hot loop. The second copy of the loop's body writes the field without
--   comparing the present key. The field is lost, and later insertions follow a broken chain of
--   keys: a wrong result, a crash or an endless loop.
-- * AArch64. A check of a number's type that has no other use becomes a write to register d0.
--   Whatever number lived there is lost: sums, losses and loop variables.
--
-- spec/ffi/compiler_spec.lua has a program for each. A later LuaJIT carries the time of its source
-- in its version.

local M = {}

-- Seconds since 1970 of the first source known to be right. AArch64: 18 September 2023, after the
-- last of these corrections. Loops: the version of Debian 13, the earliest that was tried.
local right = { machine = 1695000000, loop = 1737090214 }

-- Returns the part of a compiler that must be off: 'all', 'loop' or nil. arch, version: jit.arch,
-- jit.version.
function M.fault(arch, version)
   local time = tonumber(version:match '^LuaJIT 2%.1%.(%d+)') or 0
   if arch == 'arm64' and time < right.machine then return 'all' end
   return time < right.loop and 'loop' or nil
end

-- Raises the rounds of a loop, and the uses of an exit from machine code, before they are compiled.
-- A rank runs most of its Lua a few hundred times. With LuaJIT's 56 and 10, compiling takes a third
-- of the processor time of a short run.
function M.wait(engine) engine.opt.start('hotloop=500', 'hotexit=100') end

-- Switches the faulty part off. Drops machine code, which would still run. engine: jit. In a state
-- that tide made (is_own), the compiler waits for hotter loops; others keep theirs.
function M.settle(engine, is_own)
   if is_own then M.wait(engine) end
   local fault = M.fault(engine.arch, engine.version)
   if fault == 'all' then engine.off() elseif fault then engine.opt.start '-loop' end
   if fault then engine.flush() end
end

return M
