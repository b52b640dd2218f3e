-- Captured steps and waiting for a device: see tide_graph_begin.
--
-- A captured function runs once more on the host, but its device work is recorded instead of run.
-- If it fails, the recording is discarded and the error is raised. Host numbers that change from
-- replay to replay lie on the device; their owners write them there in callbacks of on_replay. This
-- file owns one of them: the state of the generator.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local ctx_of = require 'tide.ffi.ctx'
local C = lib.C

local M = {}

-- State of a step while it is recorded: `turns` of each replay, and the communicators that were
-- used in it (`comms`, in order, each with the names of its calls in `calls`).
local Recording = {}
Recording.__index = Recording

-- Notes a call of a communicator, by the name of its op.
function Recording:call(comm, op)
   local list = self.calls[comm]
   if not list then
      list = {}
      self.calls[comm], self.comms[#self.comms + 1] = list, comm
   end
   list[#list + 1] = op
end

local function new_recording()
   return setmetatable({ turns = {}, comms = {}, calls = {} }, Recording)
end

local Graph = {}
Graph.__index = Graph
Graph.__name = 'Graph'
M.Graph = Graph

-- Returns whether a step is being recorded on the default context.
function M.is_capturing() return ctx_of.default().capturing ~= nil end

-- Registers two functions while a step is captured: before() runs ahead of each of its replays,
-- after() when a replay has been enqueued.
function M.on_replay(before, after)
   local recording = ctx_of.default().capturing
   if not recording then status.raise(C.TIDE_E_STATE, 'on_replay', 'no step is being captured') end
   local list = recording.turns
   list[#list + 1] = { before = before, after = after }
end

-- ---- random numbers --------------------------------------------------------------------------

local parts = { 'seed', 'stream', 'offset' }

-- Writes the generator's state to the device; most replays change the offset alone.
local function write_place(context, place, held)
   local now = context:rng_state()
   for i, part in ipairs(parts) do
      if held[part] ~= now[part] then place:select(1, i):fill_(now[part]) end
      held[part] = now[part]
   end
end

-- Runs fn() with a generator that counts from 0. Ops on the device add a start that lies there;
-- each replay sets it from the context's generator, which then advances by as much as fn has drawn.
local function drawing(context, device, turns, fn)
   local ctx, before, now = context.handle, ffi.new 'uint64_t[3]', ffi.new 'uint64_t[3]'
   local place = context:empty({ 3 }, { dtype = 'i64', device = device })
   own.check(ctx, C.tide_rng_get(ctx, before, before + 1, before + 2))
   own.check(ctx, C.tide_rng_place(ctx, place))
   C.tide_rng_set(ctx, 0, 0, 0)
   local good, result = pcall(fn)
   C.tide_rng_get(ctx, nil, nil, now)
   C.tide_rng_place(ctx, nil)
   C.tide_rng_set(ctx, before[0], before[1], before[2])
   if not good then error(result, 0) end
   local drawn, held = now[0], {}
   if drawn > 0 then
      turns[#turns + 1] = {
         before = function() write_place(context, place, held) end,
         after = function()
            C.tide_rng_get(ctx, now, now + 1, now + 2)
            C.tide_rng_set(ctx, now[0], now[1], now[2] + drawn)
         end,
      }
   end
   return result
end

-- ---- capturing -------------------------------------------------------------------------------

-- Records fn() on a device; returns a Graph whose `result` is what fn returned (its tensors hold
-- values after the first replay). settle(good, recording), if given, is called when the recording
-- has ended, also after a failure: it may raise.
function M.capture(device, fn, settle)
   local code = arg.device('graph', 'device', device)
   local context, recording = ctx_of.default(), new_recording()
   local ctx, turns = context.handle, recording.turns
   local box = ffi.new 'tide_graph *[1]'
   own.check(ctx, C.tide_graph_begin(box, ctx, code))
   local handle = own.handle(box[0], C.tide_graph_release)
   context.capturing = recording
   local good, result = pcall(drawing, context, device, turns, fn)
   context.capturing = nil
   if good then
      good, result = pcall(function()
         own.check(ctx, C.tide_graph_end(handle))
         return result
      end)
   end
   if not good then own.finish(handle, C.tide_graph_release) end
   if settle then
      local agreed, why = pcall(settle, good, recording)
      if good and not agreed then
         own.finish(handle, C.tide_graph_release)
         good, result = false, why
      end
   end
   if not good then error(result, 0) end
   return own.adopt(setmetatable({ handle = handle, ctx = ctx, result = result, turns = turns },
      Graph))
end

-- Enqueues the recorded step again; returns its result. The host does not wait.
function Graph:replay()
   if not self.handle then status.raise(C.TIDE_E_STATE, 'replay', 'the graph was released') end
   if M.is_capturing() then own.check(self.ctx, C.tide_graph_replay(self.handle)) end -- refused
   for _, turn in ipairs(self.turns) do turn.before() end
   own.check(self.ctx, C.tide_graph_replay(self.handle))
   for _, turn in ipairs(self.turns) do turn.after() end
   return self.result
end

-- Frees the memory of the step now instead of when the graph is collected. Idempotent.
function Graph:release()
   own.close(self, C.tide_graph_release)
   self.result, self.turns = nil, nil
end

-- Waits until a device has completed its work.
function M.synchronize(device)
   local ctx = ctx_of.default().handle
   own.check(ctx, C.tide_sync(ctx, arg.device('synchronize', 'device', device)))
end

return M
