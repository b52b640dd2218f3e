-- A function whose calls are replays of one captured step.
--
--    local step = tide.cuda.captured(function(ids, labels) ... optim:step() return loss end)
--    for ids, labels in batches do print(step(ids, labels):item()) end
--
-- The first calls run as usual; the next is recorded on copies of its tensors, and from then on a
-- call copies its tensors there and replays. All other arguments are constants of the recording: a
-- call that differs is refused with the place that differs, and nothing runs.

local tide = require 'tide'
local arg = require 'tide.ffi.arg'
local ctx = require 'tide.ffi.ctx'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local pack = require 'tide.ffi.pack'
local pretty = require 'tide.util.pretty'

local Captured = { class_name = 'Captured' }
Captured.__index = Captured

local op = 'cuda.captured'

local function is_plain(v) return type(v) == 'table' and getmetatable(v) == nil end

-- Appends everything in a value, through plain tables, as { path, value } in a fixed order. above:
-- the tables that contain it.
local function leaves(value, path, list, above)
   if not is_plain(value) then
      list[#list + 1] = { path = path, value = value }
      return list
   end
   err.raise_if(above[value], 'E_ARG', op, 'argument %s contains itself; expected a table without '
      .. 'cycles', path)
   above[value] = true
   for _, k in ipairs(pretty.sorted_keys(value)) do
      leaves(value[k], ('%s%s%s'):format(path, path == '' and '' or '.', tostring(k)), list, above)
   end
   above[value] = nil
   return list
end

local function text_of(v)
   if not tide.is_tensor(v) then return err.show(v) end
   return ("%s [%s] on '%s'"):format(v.dtype, table.concat(v.shape, ', '), v.device)
end

local function same(a, b)
   local tensor = tide.is_tensor(a)
   if tensor ~= tide.is_tensor(b) then return false end
   return tensor and text_of(a) == text_of(b) or not tensor and rawequal(a, b)
end

-- Raises unless the tensors of a recording are on the GPU and not leaves of the tape.
local function check_given(list)
   for _, leaf in ipairs(list) do
      local t = leaf.value
      if tide.is_tensor(t) and t.device ~= 'cuda' then
         err.raise('E_UNSUPPORTED', op, "argument %s is %s, and only what computes on 'cuda' can "
            .. 'be captured; move it there, or do without capturing', leaf.path, text_of(t))
      end
      err.arg_if(tide.is_tensor(t) and t.requires_grad, op, leaf.path, 'a tensor without gradient '
         .. '(fn reaches parameters by itself)', t)
   end
end

-- Returns a copy of a value, with copies of its tensors.
local function twin(value)
   if tide.is_tensor(value) then return value:clone() end
   if not is_plain(value) then return value end
   local t = {}
   for k, v in each(value) do t[k] = twin(v) end
   return t
end

local function check_same(want, got)
   for i = 1, math.max(#want, #got) do
      local a, b = want[i], got[i]
      if not a or not b or a.path ~= b.path then
         err.raise('E_STATE', op, 'the step was captured with %s here, and now there is %s; such a '
            .. 'step has fixed arguments', a and 'argument ' .. a.path or 'no further argument',
            b and 'argument ' .. b.path or 'none')
      end
      if not same(a.value, b.value) then
         err.raise('E_STATE', op, 'argument %s: the step was captured with %s, got %s; such a step '
            .. 'has fixed shapes and numbers', a.path, text_of(a.value), text_of(b.value))
      end
   end
end

local function record(self, given)
   self.static = tide.no_grad(twin, given)
   self.want = leaves(self.static, '', {}, {})
   self.graph = tide.cuda.graph(function()
      return pack(self.fn(unpack(self.static, 1, given.n)))
   end, { warmup = 0 })
end

-- Returns whether t, which goes to place i, lies where the recording keeps another argument: a
-- result of the last replay may be one of them.
local function lies_elsewhere(want, i, t)
   for k, leaf in ipairs(want) do
      if k ~= i and tide.is_tensor(leaf.value) and t:same_storage(leaf.value) then return true end
   end
   return false
end

-- Copies arguments into the recording; those that lie in it are copied out first.
local function refill(self, list)
   tide.no_grad(function()
      local from = {}
      for i, leaf in ipairs(list) do
         local t = leaf.value
         if tide.is_tensor(t) then from[i] = lies_elsewhere(self.want, i, t) and t:clone() or t end
      end
      for i in ipairs(list) do
         if from[i] then self.want[i].value:copy_(from[i]) end
      end
   end)
end

-- Runs fn directly, records it, or replays it. Tensors that a replay returns hold its results until
-- the next one.
function Captured:__call(...)
   local given = pack(...)
   local list = leaves(given, '', {}, {})
   check_given(list)
   if self.left > 0 then
      self.left = self.left - 1
      return self.fn(...)
   end
   if not self.graph then
      record(self, given)
   else
      check_same(self.want, list)
      refill(self, list)
   end
   local result = self.graph:replay()
   return unpack(result, 1, result.n)
end

-- Returns whether calls are replays by now.
function Captured:is_recorded() return self.graph ~= nil end

-- Frees the memory of the step now; the next call records again.
function Captured:release()
   if self.graph then self.graph:release() end
   self.graph, self.static, self.want = nil, nil, nil
end

local known = arg.set { 'warmup' }

-- Returns fn as a function of the same arguments and results: run directly opts.warmup (1) times,
-- then recorded once (tide.cuda.graph lists what that refuses), then replayed. Arguments may be
-- tensors on 'cuda', plain tables of them, and values that are the same at each call. E_DEVICE
-- without a GPU; E_UNSUPPORTED: a tensor on another device; E_STATE: a call differs from the
-- recorded one.
return function(fn, opts)
   arg.func(op, 'fn', fn)
   opts = arg.opts(op, opts, known)
   local there, why = ctx.default():device_available 'cuda'
   err.raise_if(not there, 'E_DEVICE', op, "steps are captured on device 'cuda', which cannot be "
      .. 'used: %s', tostring(why))
   return setmetatable({ fn = fn, left = arg.int(op, 'warmup', opts.warmup or 1, 0, 1000) },
      Captured)
end
