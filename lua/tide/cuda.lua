-- Functions for NVIDIA GPUs: availability, waiting, timing events, ranges for profilers, captured
-- steps.
--
-- Tensors reach a GPU by { device = 'cuda' } or x:to 'cuda', without this module.

local graph = require 'tide.ffi.graph'
local arg = require 'tide.ffi.arg'
local ctx = require 'tide.ffi.ctx'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local event = require 'tide.ffi.event'
local wrap = require 'tide.nn.wrap'

local cuda = {}

-- Returns whether device 'cuda' can be used; if not, false and why.
function cuda.is_available() return ctx.default():device_available 'cuda' end

-- Returns the number of GPUs of the machine; without any, 0 and the reason. Each rank takes one:
-- see tide.comm.gpus, and parameter cuda_device.
function cuda.device_count() return ctx.default():device_count 'cuda' end

-- Waits until the GPU has completed its work, and raises errors that its kernels found.
function cuda.synchronize() graph.synchronize 'cuda' end

-- Makes a timing event of the GPU:
--
--    local from, to = tide.cuda.event():record(), tide.cuda.event()
--    model:forward(x)
--    to:record()
--    print(from:elapsed_time(to))             -- milliseconds on the device; waits for both
--
-- event:record() records it after the work enqueued so far, event:query() returns whether the GPU
-- has reached it, event:synchronize() waits for that. E_STATE: recorded in a captured step, whose
-- replays would not record it again. E_DEVICE without a GPU.
function cuda.event() return event.new 'cuda' end

-- Runs fn(...) in a range called `name`, which profilers show on their time line (NVTX; Nsight
-- Systems, ncu --nvtx), and returns what fn returns. Without a profiler a range costs a function
-- call.
function cuda.range(name, fn, ...)
   arg.string('cuda.range', 'name', name)
   return event.range('cuda', name, arg.func('cuda.range', 'fn', fn), ...)
end

-- Adds a range around each call of the modules of a model, named by path and class; returns a
-- function that removes them.
function cuda.range_modules(model)
   err.arg_if(type(model) ~= 'table' or type(model.named_modules) ~= 'function',
      'cuda.range_modules', 'model', 'a module (tide.nn)', model)
   local handles = {}
   for _, entry in ipairs(model:named_modules()) do
      local module = entry.module
      local name = (entry.name == '' and '' or entry.name .. ' ') .. tostring(module.class_name)
      handles[#handles + 1] = module:wrap('range', function(next, self, ...)
         return event.range('cuda', name, next, self, ...)
      end, { order = wrap.order.ranges, by = 'ranges' })
   end
   return function()
      for _, h in ipairs(handles) do h.remove() end
   end
end

-- Sets whether each op, and each derivative in backward, is a range (parameter ranges).
function cuda.range_ops(on)
   err.type('cuda.range_ops', 'on', on, 'boolean')
   ctx.default():param('ranges', on and 1 or 0)
end

-- Returns the name of a value that a parameter of the default context has.
local function name_of(values, param)
   local code = tonumber(ctx.default():param(param))
   for name, value in each(values) do
      if value == code then return name end
   end
end

local precisions = { highest = 0, high = 1, medium = 2 }

-- Sets how f32 products on a GPU may round their operands: 'highest' (the default: not at all),
-- 'high' (to tf32, 10 bits of fraction) or 'medium' (to bf16, 7 bits); sums are f32. It is the
-- parameter matmul_precision of the default context; products on the host never round.
function cuda.set_float32_matmul_precision(name)
   err.choice('cuda.set_float32_matmul_precision', 'name', name, { 'highest', 'high', 'medium' })
   ctx.default():param('matmul_precision', precisions[name])
end

-- Returns the name that set_float32_matmul_precision was given.
function cuda.get_float32_matmul_precision() return name_of(precisions, 'matmul_precision') end

local attention_kernels = { mma = 0, wgmma = 1 }

-- Sets the kernels of attention in f16 and bf16 on a GPU: 'mma' (the default) or 'wgmma', Hopper's
-- asynchronous tensor cores. No chip has verified 'wgmma' yet. It takes every mask without a bias,
-- forward to heads of 256 and backward to 128, where rows lie at multiples of 16 bytes; other calls
-- stay on 'mma' (the table is in attention.cu). Such a call raises E_UNSUPPORTED if the GPU is not
-- of compute capability 9.0 or the library was built without it. It is the parameter
-- attention_kernel of the default context.
function cuda.set_attention_kernel(name)
   err.choice('cuda.set_attention_kernel', 'name', name, { 'mma', 'wgmma' })
   ctx.default():param('attention_kernel', attention_kernels[name])
end

-- Returns the name that set_attention_kernel was given.
function cuda.get_attention_kernel() return name_of(attention_kernels, 'attention_kernel') end

local graph_opts = arg.set { 'warmup' }

-- The number of recordings that a communicator was part of. Ranks compare it: they have recorded
-- the same step, or none of them keeps the recording, because a replay of one is a replay of all.
local nrecording = setmetatable({}, { __mode = 'k' })

local function agree_on(good, recording)
   for _, comm in ipairs(recording.comms) do
      nrecording[comm] = (nrecording[comm] or 0) + 1
      require 'tide.comm.agree'.check(comm, 'cuda.graph', 'E_STATE', {
         { 'ends of the captured step', good and 'recorded' or 'failed', 'shown',
            hint = 'the message of a rank that failed says why' },
         { 'numbers of captured steps', tostring(nrecording[comm]), 'shown',
            hint = 'ranks capture and replay together' },
         { 'collectives in the captured step', table.concat(recording.calls[comm], ' ') },
      })
   end
end

-- Returns a step whose shapes stay the same, recorded once and replayed as one launch:
--
--    local g = tide.cuda.graph(function()
--       model:zero_grad()
--       local loss = model:forward(x):sum()
--       loss:backward()
--       return loss
--    end)
--    x:copy_(batch)                           -- new input in the tensor that the step reads
--    g:replay()                               -- returns the step's result
--    optimizer:step()
--
-- fn runs opts.warmup (1) times as usual, so that libraries open and choose, and then once to be
-- recorded; that run computes nothing until the first replay. Numbers of the host are those of the
-- recording. But a replay draws random numbers from the generator's current state, which it
-- advances as fn would, and optimizer:step() in fn, which needs a warm-up, reads its rate and step
-- number at each replay. Collectives of tensors on the device over NCCL are part of the step: all
-- ranks record and replay together. Ops that a replay could not repeat raise E_STATE by name:
-- reading a tensor (item, tolist), copies from the host, other collectives and a barrier, a look at
-- the generator, ops on other devices; the error reaches the caller and nothing is recorded.
-- See also tide.cuda.captured.
function cuda.graph(fn, opts)
   local op = 'cuda.graph'
   arg.func(op, 'fn', fn)
   opts = arg.opts(op, opts, graph_opts)
   for _ = 1, arg.int(op, 'warmup', opts.warmup or 1, 0, 1000) do fn() end
   return graph.capture('cuda', fn, agree_on)
end

-- Returns fn as a function whose calls are replays of one recorded step:
--
--    local step = tide.cuda.captured(function(ids, labels) ... optim:step() return loss end)
--    for ids, labels in batches do print(step(ids, labels):item()) end
--
-- The first calls, opts.warmup (1) of them, run as usual; the next is recorded. From then on a call
-- copies its tensors, which lie on 'cuda', to those of the recording and replays; its results hold
-- until the next call. All other arguments, and shapes, must stay as recorded: a call that differs
-- is refused. tide.cuda.graph lists what fn may not do.
function cuda.captured(fn, opts) return require 'tide.cuda_captured'(fn, opts) end

return cuda
