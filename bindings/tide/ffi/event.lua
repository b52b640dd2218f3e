-- Events of a device with the time at which it reached them, and named ranges for profilers: see
-- tide_device_event_record and tide_range.

local ffi = require 'ffi'
local arg = require 'tide.ffi.arg'
local ctx_of = require 'tide.ffi.ctx'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local pack = require 'tide.ffi.pack'
local status = require 'tide.ffi.status'
local C = lib.C

local M = {}

local Event = { class_name = 'Event' }
Event.__index = Event

-- Returns an event of a device, not yet recorded.
function M.new(device)
   local code = arg.device('cuda.event', 'device', device)
   local ctx = ctx_of.default()
   local there, why = ctx:device_available(device)
   if not there then
      status.raise(C.TIDE_E_DEVICE, 'cuda.event', ("device '%s' cannot be used: %s"):format(device,
         why))
   end
   return own.adopt(setmetatable({ ctx = ctx.handle, code = code }, Event))
end

local function handle_of(self, op)
   if not self.handle then
      status.raise(C.TIDE_E_STATE, op, 'the event is not recorded, or it was released; call '
         .. 'event:record() first')
   end
   return self.handle
end

-- Records the event after the work enqueued so far; it may be recorded again. Returns the event.
function Event:record()
   local box = ffi.new('tide_device_event *[1]', self.handle)
   own.check(self.ctx, C.tide_device_event_record(box, self.ctx, self.code))
   if not self.handle then self.handle = own.handle(box[0], C.tide_device_event_release) end
   return self
end

-- Returns whether the device has reached the event.
function Event:query()
   return own.check(self.ctx, C.tide_device_event_done(handle_of(self, 'event.query'))) == 1
end

-- Blocks until the device has reached the event.
function Event:synchronize()
   own.check(self.ctx, C.tide_device_event_wait(handle_of(self, 'event.synchronize')))
end

-- Returns the milliseconds from this event to another one; blocks until the device has reached
-- both.
function Event:elapsed_time(to)
   local op, ms = 'event.elapsed_time', ffi.new 'double[1]'
   if getmetatable(to) ~= Event then status.bad_arg(op, 'to', 'an event (tide.cuda.event)', to) end
   own.check(self.ctx, C.tide_device_event_elapsed(ms, handle_of(self, op), handle_of(to, op)))
   return ms[0]
end

-- Frees the event now. Idempotent; it may be recorded again.
function Event:release() own.close(self, C.tide_device_event_release) end

-- Runs fn(...) in a named range of a device's profilers; returns what it returns, and ends the
-- range also where fn raises.
function M.range(device, name, fn, ...)
   local ctx, code = ctx_of.default().handle, arg.device('range', 'device', device)
   own.check(ctx, C.tide_range(ctx, code, name))
   local result = pack(pcall(fn, ...))
   own.check(ctx, C.tide_range(ctx, code, nil))
   if not result[1] then error(result[2], 0) end
   return unpack(result, 2, result.n)
end

return M
