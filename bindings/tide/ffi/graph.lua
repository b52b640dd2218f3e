-- Captured steps and waiting for a device (layer 7): see tide_graph_begin.
--
-- A function that is captured runs once more on the host, but what it gives the device is recorded
-- instead of run. If it fails, the recording is thrown away and the error goes on. Numbers of the
-- host that change from replay to replay lie on the device; who owns them writes them there in what
-- he gives to on_replay.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local ctx_of = require 'tide.ffi.ctx'
local C = lib.C

local M = {}
local graph_box = ffi.new 'tide_graph *[1]'

local Graph = {}
Graph.__index = Graph
Graph.__name = 'Graph'
M.Graph = Graph

-- Whether a step is being recorded on the default context.
function M.is_capturing() return ctx_of.default().capturing ~= nil end

-- While a step is recorded: before() is called ahead of each of its replays, after() when it has
-- been enqueued.
function M.on_replay(before, after)
   local list = ctx_of.default().capturing
   if not list then status.raise(C.TIDE_E_STATE, 'on_replay', 'no step is being captured') end
   list[#list + 1] = { before = before, after = after }
end

-- fn() recorded on a device; a Graph whose `result` is what fn returned (its tensors hold values
-- after the first replay).
function M.capture(device, fn)
   local code = arg.device('graph', 'device', device)
   local context, turns = ctx_of.default(), {}
   local ctx = context.handle
   own.check(ctx, C.tide_graph_begin(graph_box, ctx, code))
   local handle = own.handle(graph_box[0], C.tide_graph_release)
   graph_box[0] = nil
   context.capturing = turns
   local good, result = pcall(fn)
   context.capturing = nil
   local rc = good and C.tide_graph_end(handle) or 0
   if good and rc == 0 then
      return setmetatable({ handle = handle, ctx = ctx, result = result, turns = turns }, Graph)
   end
   local failure = not good and result or nil
   if good then failure = select(2, pcall(own.fail, ctx, rc)) end
   own.finish(handle, C.tide_graph_release)
   error(failure, 0)
end

-- Enqueues the recorded step again; returns its result. The host does not wait.
function Graph:replay()
   if not self.handle then
      status.raise(C.TIDE_E_STATE, 'replay', 'the graph was released')
   end
   if M.is_capturing() then own.check(self.ctx, C.tide_graph_replay(self.handle)) end -- refused
   for _, turn in ipairs(self.turns) do turn.before() end
   own.check(self.ctx, C.tide_graph_replay(self.handle))
   for _, turn in ipairs(self.turns) do turn.after() end
   return self.result
end

-- Gives the memory of the step back now instead of when the graph is collected. Twice is once.
function Graph:release()
   if self.handle then own.finish(self.handle, C.tide_graph_release) end
   self.handle, self.result, self.turns = nil, nil, nil
end

-- Waits until a device has done what it was given.
function M.synchronize(device)
   local ctx = ctx_of.default().handle
   own.check(ctx, C.tide_sync(ctx, arg.device('synchronize', 'device', device)))
end

return M
