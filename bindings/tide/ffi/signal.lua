-- SIGINT and SIGTERM of a program run by plain luajit.
--
-- Lua cannot run in a signal handler, so the handler is a C function without effect, set to be
-- removed by its first call (SA_RESETHAND). A signal has arrived if the handler is gone; the next
-- one ends the process, as without this module.
--
-- For programs that own their process: the library itself does not call it.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local each = pairs -- by another name: see "faults" in bindings/README.md

local M = {}

lib.once('sigaction', function()
   ffi.cdef [[
      typedef struct tide_sigaction {       /* Linux, 64 bits: glibc and musl */
         void (*handler)(int);
         unsigned long mask[16];
         int flags;
         void (*restorer)(void);
      } tide_sigaction;
      int sigaction(int number, const tide_sigaction *to, tide_sigaction *from);
      int abs(int n);
   ]]
end)

local SA_RESTART, SA_RESETHAND = 0x10000000, -0x80000000
local signals = { INT = 2, TERM = 15 }
local default, ignored = ffi.cast('void (*)(int)', 0), ffi.cast('void (*)(int)', 1)

local before, came = {}, nil

local function action_of(number)
   local now = ffi.new 'tide_sigaction'
   return ffi.C.sigaction(number, nil, now) == 0 and now or nil
end

-- Notes the first SIGINT or SIGTERM from now on, instead of ending the process. Ignored signals
-- stay ignored.
function M.watch()
   for _, number in each(signals) do
      local old = action_of(number)
      if old and old.handler ~= ignored and not before[number] then
         local new = ffi.new('tide_sigaction', { flags = SA_RESTART + SA_RESETHAND })
         new.handler = ffi.cast('void (*)(int)', ffi.C.abs)
         if ffi.C.sigaction(number, new, nil) == 0 then before[number] = old end
      end
   end
end

-- Returns the number of the signal that arrived since watch, or nil.
function M.seen()
   for number in each(before) do
      local now = action_of(number)
      if now and now.handler == default then came = number end
   end
   return came
end

-- Ends watching; restores the old actions of the signals.
function M.unwatch()
   M.seen()
   for number, old in each(before) do ffi.C.sigaction(number, old, nil) end
   before = {}
   return came
end

local SIGINT = signals.INT

local Interrupts = {}
Interrupts.__index = Interrupts

-- Notes the next SIGINT, which also interrupts a read of the terminal. A second one before came()
-- is called ends the process.
local function arm()
   local new = ffi.new('tide_sigaction', { flags = SA_RESETHAND })
   new.handler = ffi.cast('void (*)(int)', ffi.C.abs)
   ffi.C.sigaction(SIGINT, new, nil)
end

-- Returns true once after a SIGINT.
function Interrupts.came()
   local now = action_of(SIGINT)
   if not now or now.handler ~= default then return false end
   arm()
   return true
end

-- Restores the action that was there before.
function Interrupts:close() ffi.C.sigaction(SIGINT, self.before, nil) end

-- Notes SIGINT in place of the program's own handler until close: for prompts, which continue after
-- it.
function M.interrupts()
   local self = setmetatable({ before = action_of(SIGINT) }, Interrupts)
   arm()
   return self
end

return M
