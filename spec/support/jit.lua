-- Does a loop over this function become compiled code, and stay there?
--
-- LuaJIT reports each trace through jit.attach. A function compiles if calling it in
-- a hot loop produces at least one finished trace of that loop and, once warm, no trace that starts
-- at the loop or at an exit of its traces is given up. Attempts that start at some inner function
-- because that became hot on its own are not counted: they fail whenever that function returns.

-- A metamethod that becomes hot in interpreted code cannot start a trace (it returns through a
-- continuation frame) and LuaJIT gives it up for good after about 100000 calls; a loop that
-- compiled before stays compiled. Each measurement starts with a clean slate (jit.on).

local util = require 'jit.util'
local vmdef = require 'jit.vmdef'

jit.opt.start('hotloop=56', 'hotexit=10')     -- LuaJIT's own, which the helper raised

local M = {}

local function reason(code, detail)
   if type(code) ~= 'number' then return tostring(code) end
   local text = vmdef.traceerr[code] or ('error ' .. code)
   if type(detail) == 'function' then
      local info = util.funcinfo(detail)
      detail = info.loc or tostring(vmdef.ffnames[info.ffid] or '?')
   end
   return text:format(detail)
end

local function clean_slate()
   local state = require('tide.ffi.lib').state
   jit.on(state.metatable.__index)           -- not the operators: those stay interpreted
   jit.on(state.meta.index)
   for _, set in ipairs { state.methods, state.props } do
      for _, fn in pairs(set) do jit.on(fn) end
   end
   jit.flush()
end

-- Calls fn() 2 n times in a hot loop. Returns { stops = finished traces, aborts = { reasons of the
-- second half, when everything that can be compiled has been } }.
function M.watch(fn, n)
   n = n or 2000
   local total, aborts = 0, {}
   local warm, counted = false, false
   local function loop(count)
      for _ = 1, count do fn() end
   end
   local function on_trace(what, _, func, pc, code, detail)
      if what == 'start' then
         counted = code ~= nil or func == loop       -- code: the parent of a side trace
      elseif what == 'stop' and counted then
         total = total + 1
      elseif what == 'abort' and warm and counted then
         local info = util.funcinfo(func, pc)
         aborts[#aborts + 1] = reason(code, detail) .. ' at ' .. tostring(info.loc)
      end
   end
   clean_slate()
   jit.attach(on_trace, 'trace')
   local ok, err = pcall(function()
      loop(n)
      warm = true
      loop(n)
   end)
   jit.attach(on_trace)
   if not ok then error(err, 0) end
   return { stops = total, aborts = aborts }
end

-- Raises unless fn() in a loop compiles: some trace was finished, nothing aborts when warm. LuaJIT
-- counts loops in 64 counters by address. A short inner loop that shares one with a hotter place
-- may be tried first and then keeps the outer one from compiling. So an abort counts if it happens
-- again from a clean state, three times.
function M.assert_compiles(name, fn, n)
   local seen
   for _ = 1, 3 do
      seen = M.watch(fn, n)
      if #seen.aborts == 0 and seen.stops > 0 then return seen end
   end
   error(name .. (seen.stops == 0 and ': no trace was compiled'
      or ': still aborts when warm: ' .. seen.aborts[1]), 2)
end

return M
