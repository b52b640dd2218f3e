-- Recording, the backward loop, host functions, recomputation, step scopes.
--
-- C never calls Lua. A backward walk is a loop in Lua over tide_backward_next, which returns at
-- every function written in Lua; the gradients are taken, passed to the Lua function and its
-- results given back. An error leaves the loop, and the walk is released.
--
-- A host function has a number (tag) in C; its Lua state is kept in `records` until C reports that
-- the node was freed. Recording is off while host functions run.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local contexts = require 'tide.ffi.ctx'
local pack = require 'tide.ffi.pack'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}
local bad, new_box, take = status.bad_arg, own.new_box, own.take
local is_tensor = arg.is_tensor

lib.state.records = lib.state.records or {}
lib.state.next_tag = lib.state.next_tag or 1
local records = lib.state.records           -- tag -> the record of a host function

-- ---- recording on and off --------------------------------------------------------------------

local function restore(before)
   for ctx, on in each(before) do
      if ctx.handle then C.tide_set_recording(ctx.handle, on) end
   end
end

local function finish_recording(before, ok, ...)
   restore(before)
   if not ok then error((...), 0) end
   return ...
end

-- Switches recording in every open context; returns the old state.
local function switch(on)
   local before = {}
   for _, ctx in ipairs(contexts.all()) do
      before[ctx] = C.tide_set_recording(ctx.handle, on) == 1
   end
   return before
end

-- Runs a function that may yield up to its next yield: recording is restored while other code runs,
-- also when the function is never resumed.
local function stretch(on, co, ...)
   local before = switch(on)
   local r = pack(coroutine.resume(co, ...))
   restore(before)
   if not r[1] then error(r[2], 0) end
   if coroutine.status(co) == 'dead' then return unpack(r, 2, r.n) end
   return stretch(on, co, coroutine.yield(unpack(r, 2, r.n)))
end

-- Runs fn with recording on or off in every open context of this Lua state.
local function with_recording(name, on, fn, ...)
   arg.func(name, 'fn', fn)
   if #contexts.all() == 0 then contexts.default() end
   if coroutine.running() then return stretch(on, coroutine.create(fn), ...) end
   return finish_recording(switch(on), pcall(fn, ...))
end

-- Returns the results of fn(...), computed without recording; the old state is restored, also on an
-- error.
function M.no_grad(fn, ...) return with_recording('no_grad', false, fn, ...) end
-- Returns the results of fn(...), computed with recording on, inside no_grad, too.
function M.enable_grad(fn, ...) return with_recording('enable_grad', true, fn, ...) end

-- Returns whether ops are recorded for backward here (no_grad, enable_grad).
function M.is_grad_enabled() return C.tide_recording(contexts.default().handle) == 1 end

-- ---- step scopes -----------------------------------------------------------------------------

-- Collects every tensor of a value: the value itself, or those in (nested) plain tables.
local function collect(value, list, seen)
   if is_tensor(value) then
      list[#list + 1] = value
   elseif type(value) == 'table' and not seen[value] then
      seen[value] = true
      for _, v in each(value) do collect(v, list, seen) end
   end
end

local function finish_scope(ctx, depth, ok, ...)
   local keep, seen = {}, {}
   if ok then
      for i = 1, select('#', ...) do collect((select(i, ...)), keep, seen) end
   end
   local buf, n = arg.tensors('scope', 'results', keep)
   local rc = C.tide_scope_pop(ctx, depth, buf, n)
   if not ok then error((...), 0) end
   own.check(ctx, rc)
   return ...
end

local function scope_on(ctx, fn, ...)
   arg.func('scope', 'fn', fn)
   local depth = own.check(ctx, C.tide_scope_push(ctx))
   return finish_scope(ctx, depth, pcall(fn, ...))
end

-- Returns the results of fn(...). Tensors in them (also inside tables) are kept; the bytes of all
-- others made inside are freed at the end, on an error those of all.
function M.scope(fn, ...) return scope_on(contexts.default().handle, fn, ...) end

-- Does what tide.scope does, on this context.
function contexts.Context:scope(fn, ...)
   if not self.handle then status.raise(C.TIDE_E_STATE, 'scope', 'the context is closed') end
   return scope_on(self.handle, fn, ...)
end

-- ---- host functions --------------------------------------------------------------------------

local new_tags, new_boxes = ffi.typeof 'double[64]', ffi.typeof 'tide_tensor *[64]'

-- Forgets the records of host functions whose nodes were freed.
local function sweep(ctx)
   local tags = new_tags()
   repeat
      local n = C.tide_host_dropped(ctx, tags, 64)
      for i = 0, n - 1 do records[tags[i]] = nil end
   until n < 64
end
own.sweep = sweep

-- Records that ys depend on xs through record.run; returns handles of ys with that history.
local function record_function(ctx, name, record, xs, ys, save)
   if #ys > 64 then bad(name, 'forward', 'at most 64 results', #ys) end
   sweep(ctx)
   local tag = lib.state.next_tag
   lib.state.next_tag = tag + 1
   local xbuf, nx = arg.tensors(name, 'input', xs)
   local ybuf, ny = arg.tensors(name, 'result', ys)
   local boxes = new_boxes()
   local rc = C.tide_host_function(boxes, ctx, tag, nx, xbuf, ny, ybuf, save)
   if rc < 0 and own.again(ctx, rc) then
      rc = own.check(ctx, C.tide_host_function(boxes, ctx, tag, nx, xbuf, ny, ybuf, save))
   end
   local outs = {}
   for i = 1, ny do outs[i] = take(boxes + i - 1) end
   if rc == C.TIDE_MORE then                -- recorded
      records[tag] = record
      record.ninput = nx
   end
   return outs
end

-- The `self` of forward and backward of a function, which may set other fields.
local Call = {}
Call.__index = Call

-- Keeps tensors for backward; inputs, results or intermediate ones. Call it once, in forward.
function Call:save(...)
   local list = pack(...)
   for i = 1, list.n do arg.tensor(self.name, 'save[' .. i .. ']', list[i]) end
   rawset(self, 'to_save', list)
end

-- Returns the saved tensors, in order; in backward.
function Call:saved()
   local list = rawget(self, 'values')
   if not list then
      status.raise(C.TIDE_E_STATE, self.name, 'call saved() in backward, after save() in forward')
   end
   return unpack(list, 1, list.n)
end

-- Returns the results of a function, with recorded tensors in place of its own.
local function with_history(results, outs)
   local k = 0
   for i = 1, results.n do
      if is_tensor(results[i]) then
         k = k + 1
         results[i] = outs[k]
      end
   end
   return unpack(results, 1, results.n)
end

local function tensors_in(list)
   local found = {}
   for i = 1, list.n do
      if is_tensor(list[i]) then found[#found + 1] = list[i] end
   end
   return found
end

-- Assigns backward's results, which follow the arguments, to the tensor inputs: one for each up to
-- the last tensor, nil for no gradient.
local function spread(name, inputs, grads)
   local list, k, last = {}, 0, 0
   for i = 1, inputs.n do last = inputs[i] and i or last end
   if grads.n < last or grads.n > inputs.n then
      status.raise(C.TIDE_E_ARG, name .. '.backward', ('expected %d results, one for each argument '
         .. '(nil: no gradient), got %d'):format(last, grads.n))
   end
   for i = 1, inputs.n do
      if inputs[i] then
         k = k + 1
         list[k] = arg.tensor_or_nil(name .. '.backward', 'result ' .. i, grads[i]) or false
      end
   end
   return list
end

-- Spends list[1 .. n] except the tensors in kept, a packed list.
local function spend_others(list, n, kept)
   for i = 1, n do
      local mine = is_tensor(list[i])
      for k = 1, mine and kept.n or 0 do mine = mine and not rawequal(list[i], kept[k]) end
      if mine then own.spend(list[i]) end
   end
end

-- Returns the results of fn(...) without recording. The second result lists the tensors that it has
-- made, if it is a function of the library that sets def.made.
local function run_quietly(def, fn, ...)
   if not def.made then return pack(M.no_grad(fn, ...)), nil end
   local outer = own.enter()
   local r = pack(pcall(M.no_grad, fn, ...))
   local made = own.leave(outer)
   if not r[1] then error(r[2], 0) end
   return { n = r.n - 1, unpack(r, 2, r.n) }, made
end

local function saved_values(walk, first, n)
   local values = { n = n }
   for i = 1, n do values[i] = walk:input(first + i - 1) end
   return values
end

-- Returns the record of one call: run(walk, dys) returns a list of gradients (false: none) for its
-- inputs. inputs: a list with true where the argument was a tensor; first: position of the first
-- saved one.
local function call_record(def, self, inputs, first, nsaved)
   return {
      run = function(walk, dys)
         local values = nsaved > 0 and saved_values(walk, first, nsaved) or nil
         rawset(self, 'values', values)
         local grads, made = run_quietly(def, def.backward, self, unpack(dys, 1, dys.n))
         rawset(self, 'values', nil)
         if def.private and values then own.spend_list(values, values.n) end
         return spread(def.name, inputs, grads), made
      end,
      private = def.private,
   }
end

local Function = {}
Function.__index = Function
Function.__tostring = function(f) return 'tide function ' .. f.def.name end
Function.__call = function(f, ...)
   local def, args = f.def, pack(...)
   local self = setmetatable({ name = def.name }, Call)
   local results, made = run_quietly(def, def.forward, self, ...)
   local xs, ys = tensors_in(args), tensors_in(results)
   if #xs == 0 or #ys == 0 then return unpack(results, 1, results.n) end
   local inputs, nx, saved = { n = args.n }, #xs, rawget(self, 'to_save') or { n = 0 }
   for i = 1, args.n do inputs[i] = is_tensor(args[i]) end
   for i = 1, saved.n do xs[nx + i] = saved[i] end
   rawset(self, 'to_save', nil)
   local record = call_record(def, self, inputs, nx, saved.n)
   local outs = record_function(C.tide_tensor_ctx(xs[1]), def.name, record, xs, ys, saved.n > 0)
   if made then own.spend_list(made)
   elseif def.private then spend_others(results, results.n, args) end
   return with_history(results, outs)
end

local func_keys = arg.set { 'name', 'forward', 'backward' }

local function make_function(def, private, made)
   if type(def) ~= 'table' then bad('grad.func', 'def', 'a table', def) end
   arg.opts('grad.func', def, func_keys)
   arg.func('grad.func', 'forward', def.forward)
   arg.func('grad.func', 'backward', def.backward)
   local name = arg.string('grad.func', 'name', def.name == nil and 'function' or def.name)
   return setmetatable({
      def = { name = name, forward = def.forward, backward = def.backward, private = private,
         made = made },
   }, Function)
end

-- Returns a differentiable function written in Lua. def: name, forward(self, ...) -> results,
-- backward(self, gradient of each tensor result or nil...) -> one gradient (or nil) for each
-- argument of forward. Both run without recording. Call the result like a function.
function M.func(def) return make_function(def, false, false) end

-- Returns a differentiable function as func does, for functions of the library that keep only the
-- tensors they save: all other tensors that they make are freed at their last use.
function M.private_func(def) return make_function(def, true, true) end

-- Returns a differentiable function as func does, for functions whose backward runs other code of
-- the library, which may keep its tensors: only arguments and results are freed at their last use.
function M.relay_func(def) return make_function(def, true, false) end

-- ---- the walk --------------------------------------------------------------------------------

local new_walk_box, new_event = ffi.typeof 'tide_backward *[1]', ffi.typeof 'tide_event'

local Walk = {}
Walk.__index = Walk

-- Returns a handle of its own for what is in a box, the tape's, which is given back; nil for null.
local function alias_of(ctx, box)
   local t, alias = own.take_or_nil(box), new_box()
   if not t then return nil end
   local rc = C.tide_detach(alias, t)
   own.finish(t, C.tide_tensor_release)
   own.check(ctx, rc)
   return take(alias)
end

-- Returns a saved input (0-based) of the walk's current host function, without its history.
function Walk:input(i)
   local box = new_box()
   own.check(self.ctx, C.tide_backward_input(box, self.handle, i))
   return alias_of(self.ctx, box)
end

-- Runs one host function: takes the gradients of its results, gives those of its inputs.
local function host_turn(walk, tag, nout)
   local record = records[tag]
   if not record then
      status.raise(C.TIDE_E_STATE, 'backward', 'a host function of another Lua state was met')
   end
   local dys = { n = nout }
   for i = 1, nout do
      local box = new_box()
      own.check(walk.ctx, C.tide_backward_take(box, walk.handle, i - 1))
      dys[i] = alias_of(walk.ctx, box)
   end
   local grads, made = record.run(walk, dys)
   for i = 1, record.ninput do
      if grads[i] then own.check(walk.ctx, C.tide_backward_give(walk.handle, i - 1, grads[i])) end
   end
   if record.private then
      own.spend_list(dys, nout)
      own.spend_list(grads, record.ninput)
      own.spend_list(made or {})
   end
end

local function drive(walk)
   local event = new_event()
   while true do
      local rc = C.tide_backward_next(walk.handle, event)
      if rc == 0 then return end
      own.check(walk.ctx, rc)
      host_turn(walk, event.tag, event.nout)
   end
end

local backward_opts = arg.set { 'retain' }

-- Walks back from root. private: root belongs to the library, and its bytes may be freed before the
-- walk.
local function walk_back(root, grad, retain, private)
   local ctx = C.tide_tensor_ctx(root)
   local box = new_walk_box()
   local rc = C.tide_backward_begin(box, root, grad, retain)
   if rc ~= 0 and own.again(ctx, rc) then
      own.check(ctx, C.tide_backward_begin(box, root, grad, retain))
   end
   local handle = own.handle(box[0], C.tide_backward_release)
   if private then own.spend(root) end
   local ok, err = pcall(drive, setmetatable({ handle = handle, ctx = ctx }, Walk))
   own.finish(handle, C.tide_backward_release)
   sweep(ctx)
   if not ok then error(err, 0) end
end

-- Adds the gradients of root to the .grad of every leaf that root depends on. grad: gradient of
-- root, nil for one element. opts.retain keeps saved tensors for a second walk.
function M.backward(root, grad, opts)
   arg.tensor('backward', 'x', root)
   arg.tensor_or_nil('backward', 'grad', grad)
   opts = arg.opts('backward', opts, backward_opts)
   walk_back(root, grad, arg.flag('backward', 'opts.retain', opts.retain), false)
end

-- ---- recomputation ---------------------------------------------------------------------------

local function rng_get(ctx, to) own.check(ctx, C.tide_rng_get(ctx, to, to + 1, to + 2)) end

-- Returns a scalar that depends on all tensors of a list and whose gradient passes dys to them: the
-- root of the inner walk when a function has several results.
local function sink(ctx, ys, dys)
   local record = { run = function() return dys end }
   local one = arg.scalar(ys[1], C.TIDE_F32, 1)
   return record_function(ctx, 'checkpoint', record, ys, { one }, false)[1]
end

-- Runs fn again on leaves with recording, and walks back through it with dys. Returns the leaves.
local function replay(ctx, record, walk, dys)
   local args, k = { n = record.args.n }, 0
   local leaves = {}
   for i = 1, args.n do
      args[i] = record.args[i]
      if record.is_input[i] then
         k = k + 1
         local t = walk:input(k - 1)
         if record.wants[k] then own.check(ctx, C.tide_set_needs_grad(t, true)) end
         args[i], leaves[k] = t, t
      end
   end
   local ys = tensors_in(pack(M.enable_grad(record.fn, unpack(args, 1, args.n))))
   if #ys ~= record.nresult then
      status.raise(C.TIDE_E_STATE, 'checkpoint', ('the function gave %d tensors in the forward '
         .. 'pass and %d when it was run again; it must do the same both times')
         :format(record.nresult, #ys))
   end
   local live, grads = {}, {}
   for i = 1, #ys do
      if dys[i] and C.tide_needs_grad(ys[i]) == 1 then
         live[#live + 1], grads[#grads + 1] = ys[i], dys[i]
      end
   end
   local root = #live > 1 and M.enable_grad(sink, ctx, live, grads) or live[1]
   local mine = record.private and root ~= nil
   leaves.n = k
   for i = 1, k do mine = mine and not rawequal(leaves[i], root) end
   if record.private then spend_others(ys, #ys, { n = k + 1, root or false, unpack(leaves) }) end
   if root then walk_back(root, #live == 1 and grads[1] or nil, false, mine) end
   return leaves
end

-- Replays with the state that the generator had in forward, and restores its state afterwards.
local function replay_seeded(ctx, record, walk, dys)
   local now = ffi.new 'uint64_t[3]'
   rng_get(ctx, now)
   own.check(ctx, C.tide_rng_set(ctx, record.rng[0], record.rng[1], record.rng[2]))
   local ok, leaves = pcall(replay, ctx, record, walk, dys)
   own.check(ctx, C.tide_rng_set(ctx, now[0], now[1], now[2]))
   if not ok then error(leaves, 0) end
   return leaves
end

local function checkpoint_record(ctx, fn, args, private)
   local record = { fn = fn, args = { n = args.n }, is_input = {}, wants = {}, nx = 0,
      rng = ffi.new 'uint64_t[3]', private = private }
   for i = 1, args.n do
      if is_tensor(args[i]) then
         record.is_input[i] = true
         record.nx = record.nx + 1
         record.wants[record.nx] = C.tide_needs_grad(args[i]) == 1
      else
         record.args[i] = args[i]
      end
   end
   function record.run(walk, dys)
      local leaves, grads = replay_seeded(ctx, record, walk, dys), {}
      for k = 1, record.ninput do
         grads[k] = false
         if leaves[k] and record.wants[k] then
            local box = new_box()
            own.check(ctx, C.tide_grad(box, leaves[k]))
            grads[k] = alias_of(ctx, box) or false
         end
      end
      if record.private then own.spend_list(leaves, record.ninput) end
      return grads
   end
   return record
end

local function checkpoint(private, fn, ...)
   local args = pack(...)
   local xs = tensors_in(args)
   local ctx = #xs > 0 and C.tide_tensor_ctx(xs[1]) or contexts.default().handle
   if C.tide_recording(ctx) == 0 then return fn(...) end
   local record = checkpoint_record(ctx, fn, args, private)
   rng_get(ctx, record.rng)
   local results = pack(M.no_grad(fn, ...))
   local ys = tensors_in(results)
   record.nresult = #ys
   if #ys == 0 then return unpack(results, 1, results.n) end
   local wants = false
   for i = 1, #xs do wants = wants or record.wants[i] end
   if not wants then
      -- parameters inside fn may need gradients though no argument does: gives the node a history
      local anchor = arg.scalar(ys[1], C.TIDE_F32, 0)
      own.check(ctx, C.tide_set_needs_grad(anchor, true))
      xs[#xs + 1] = anchor
   end
   local outs = record_function(ctx, 'checkpoint', record, xs, ys, true)
   if private then spend_others(results, results.n, args) end
   return with_history(results, outs)
end

-- Returns the results of fn(...), whose intermediate results are not kept for backward but computed
-- again there, with the same random numbers. fn must depend on its arguments and on unchanged state
-- alone.
function M.checkpoint(fn, ...) return checkpoint(false, arg.func('checkpoint', 'fn', fn), ...) end

-- Returns the results of checkpoint for calls of the library's own modules: recomputed tensors and
-- arguments are freed at their last use.
function M.private_checkpoint(fn, ...)
   return checkpoint(true, arg.func('checkpoint', 'fn', fn), ...)
end

return M
