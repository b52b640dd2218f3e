-- Ownership: a handle from an out-parameter gets exactly one finalizer.
--
-- The Lua collector sees a 24-byte pointer, not the gigabyte behind it. C counts the bytes it
-- allocates (debt); take() reads that counter after each allocating call, and when it has grown
-- past the limit Lua decides whether a collection can free memory. C never calls the collector.
--
-- A collection runs only if live bytes have grown by the limit beyond what the last one left:
-- memory stays below the most that was ever reachable and two limits, and a loop whose steps all
-- need the same pays for collections in its first step alone.
--
-- The library gives up its temporaries at their last use (spend): the bytes are then freed with the
-- last other reference, without the collector.
--
-- This is the only file that calls ffi.gc. Out-boxes and argument buffers are made for each call:
-- the collector may run a finalizer of the user between filling one and reading it, and calls of
-- that finalizer must not use the same memory.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local status = require 'tide.ffi.status'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}

local tensor_type = ffi.typeof 'tide_tensor *'

-- An empty out-parameter for a tensor.
M.new_box = ffi.typeof 'tide_tensor *[1]'

-- Growth of live bytes that is worth a collection: the smallest `debt` parameter of the open
-- contexts. The counter is read twice as often, so that the growth is seen in time.
local limit, look = 2^27, 2^26
-- Live bytes of each context after its last collection, and how often settle has collected for it,
-- by its address; the limit of each, by its handle, which is not kept.
local base, forced, limits = {}, {}, setmetatable({}, { __mode = 'k' })
local tracking = false                      -- creation sites are kept (see track)
local sites = setmetatable({}, { __mode = 'k' })

local function address(ctx) return tonumber(ffi.cast('intptr_t', ctx)) end

local function set_limit()
   limit = 2^62
   for _, bytes in each(limits) do limit = math.min(limit, bytes) end
   if limit == 2^62 then limit = 2^27 end
   look = limit / 2
end

-- Registers a context, or a change of its `debt` parameter.
function M.watch(ctx)
   base[address(ctx)], forced[address(ctx)] = base[address(ctx)] or 0, forced[address(ctx)] or 0
   limits[ctx] = tonumber(ffi.string(C.tide_param_get(ctx, 'debt')))
   set_limit()
end

-- Removes a closed context: its limit no longer counts.
function M.unwatch(ctx)
   base[address(ctx)], forced[address(ctx)], limits[ctx] = nil, nil, nil
   set_limit()
end

-- Settles the debt of a context: collects if enough has accumulated that a collection may help.
local function settle(ctx)
   local stats, key = C.tide_ctx_stats(ctx), address(ctx)
   if tonumber(stats.live) - (base[key] or 0) >= limit then
      collectgarbage()
      base[key], forced[key] = tonumber(stats.live), (forced[key] or 0) + 1
   end
   C.tide_debt_settle(ctx)
end

-- Records that the heap has just been collected: growth counts from here.
function M.settled(ctx)
   base[address(ctx)] = tonumber(C.tide_ctx_stats(ctx).live)
   C.tide_debt_settle(ctx)
end

-- Returns how often the debt of a context has forced a collection.
function M.forced(ctx) return forced[address(ctx)] or 0 end

-- ---- the end of the Lua state ----------------------------------------------------------------

-- lua_close finalizes every cdata and then, in up to ten rounds, userdata, newest first: finalizers
-- of the user run when tide's handles are released. C refuses a released handle as long as its
-- context lives, so contexts live to the last round, and their parameter reuse is 0. LuaJIT gives
-- objects that are made meanwhile no finalizer; `late` holds them.
--
-- wrappers: tables whose field `handle` becomes nil at the end. held: { ctx =, gone = } of a
-- context, by address. borrowed: the host's contexts, with the value of reuse that they get back.
-- late: nil while the state is open, then a list of { handle =, release = }.
lib.state.ending = lib.state.ending or {
   wrappers = setmetatable({}, { __mode = 'k' }), held = {}, borrowed = {}, round = 0,
}
local ending = lib.state.ending
local last_round = 9
local noting = false                        -- tracking, or ending.late

-- Returns an object that the collector knows; fn runs when it is dropped.
local function proxy(fn)
   local p = newproxy(true)
   getmetatable(p).__gc = fn
   return p
end

-- Runs as the first finalizer of tide when the Lua state closes.
function ending.begin()
   ending.late, noting = {}, true
   for w in each(ending.wrappers) do w.handle = nil end
   for _, row in each(ending.held) do C.tide_param_set(row.ctx, 'reuse', '0') end
   for ctx in each(limits) do
      if not ending.held[address(ctx)] then
         ending.borrowed[ctx] = ffi.string(C.tide_param_get(ctx, 'reuse'))
         C.tide_param_set(ctx, 'reuse', '0')
      end
   end
end

-- Runs once in each round.
local function tick()
   ending.round = ending.round + 1
   if ending.round < last_round then
      ending.clock = proxy(tick)
      return
   end
   for i = #ending.late, 1, -1 do ending.late[i].release(ending.late[i].handle) end
   for ctx, reuse in each(ending.borrowed) do C.tide_param_set(ctx, 'reuse', reuse) end
   for _, row in each(ending.held) do C.tide_ctx_release(row.ctx) end
   ending.late, ending.held = {}, {}
end

lib.once('ending', function()
   ending.mark = ffi.gc(ffi.new 'char[1]', function() ending.begin() end)
   ending.clock = proxy(tick)
end)

-- Releases the handle of a context if nothing else keeps the context. row: of ending.held.
-- Returns whether it needs no further look.
local function let_go(row)
   if row.gone or ending.late then return true end
   if C.tide_ctx_stats(row.ctx).nref > 1 then return false end
   row.gone, ending.held[address(row.ctx)] = true, nil
   M.unwatch(row.ctx)
   C.tide_ctx_release(row.ctx)
   return true
end

-- Looks at the context in each collection after `wrapper`, or its field handle, has gone.
local function guard(row, wrapper)
   local weak = setmetatable({ wrapper }, { __mode = 'v' })
   local function look_at()
      local w = weak[1]
      if w and w.handle then
         w.guard = proxy(look_at)           -- a finalizer of the user has brought it back
      elseif not let_go(row) then
         proxy(look_at)
      end
   end
   wrapper.guard = proxy(look_at)
end

-- Takes over the handle of a context. It is released some time after wrapper, when no object of the
-- context is left, and not before the finalizers of a closing state have run.
function M.hold(ctx, wrapper)
   local row = { ctx = ctx }
   ending.held[address(ctx)] = row
   if ending.late then C.tide_param_set(ctx, 'reuse', '0') end
   guard(row, wrapper)
end

-- Gives up the context of a closed wrapper: now, or when a collection finds no object of it. While
-- LuaJIT does not compile, the state may be closing (lua_close switches the compiler off first),
-- and a finalizer of the user may run before ending.begin: then the context is given up later.
function M.let_go(ctx, wrapper)
   wrapper.guard = nil
   if jit.status() then let_go(ending.held[address(ctx)]) end
end

-- Makes wrapper.handle nil from the end of the Lua state on. Returns the wrapper.
function M.adopt(wrapper)
   ending.wrappers[wrapper] = true
   return wrapper
end

local function no_longer_late(handle)
   for i, row in ipairs(ending.late) do
      if row.handle == handle then return table.remove(ending.late, i) end
   end
end

-- ---- tensors and other handles ---------------------------------------------------------------

local function remember(t)
   for level = 3, 60 do
      local info = debug.getinfo(level, 'Sl')
      if not info then break end
      if info.currentline > 0 and not info.source:find('/tide/ffi/', 1, true) then
         sites[t] = info.short_src .. ':' .. info.currentline
         return
      end
   end
end

local function note(t)
   if tracking then remember(t) end
   if ending.late then
      ending.late[#ending.late + 1] = { handle = t, release = C.tide_tensor_release }
   end
end

local frame                                 -- what take has returned since enter, or nil

-- Returns the tensor in a box, owned: attaches the finalizer, settles the debt when due.
local function take(box)
   local t = ffi.gc(box[0], C.tide_tensor_release)
   if noting then note(t) end
   if frame then frame[#frame + 1] = t end
   if C.tide_tensor_debt_reaches(t, look) == 1 then settle(C.tide_tensor_ctx(t)) end
   return t
end
M.take = take

-- Returns the tensor in a box as take does, or nil for a null.
function M.take_or_nil(box)
   if box[0] == nil then return nil end
   return take(box)
end

local function gib(bytes) return ('%.2f GiB'):format(tonumber(bytes) / 2^30) end

local function memory_text(ctx)
   local s = C.tide_ctx_stats(ctx)
   local text = ('; live %s in %d tensors, peak %s, cached %s'):format(gib(s.live),
      tonumber(s.ntensor), gib(s.peak), gib(s.cached))
   if s.planned > 0 then text = text .. ", planned on device 'null' " .. gib(s.planned) end
   for i, row in ipairs(tracking and M.sites() or {}) do
      if i > 10 then break end
      text = text
         .. ('\n   %s in %d tensors made at %s'):format(gib(row.bytes), row.count, row.site)
   end
   return text
end

-- Raises the failure rc of a call on `at`, a context or a tensor of it; out of memory with the live
-- statistics.
local function fail(at, rc)
   local ctx = ffi.istype(tensor_type, at) and C.tide_tensor_ctx(at) or at
   status.fail(ctx, rc, rc == C.TIDE_E_NOMEM and memory_text(ctx) or nil)
end
M.fail = fail

-- Returns true if a failed call on a context, or a tensor of it, makes sense a second time (memory
-- ran out and the heap has been collected since), else raises. Use: if rc ~= 0 and again(ctx, rc)
-- then check(ctx, f()) end
function M.again(at, rc)
   if rc ~= C.TIDE_E_NOMEM then fail(at, rc) end
   collectgarbage()
   collectgarbage()
   C.tide_debt_settle(ffi.istype(tensor_type, at) and C.tide_tensor_ctx(at) or at)
   return true
end

-- Raises a negative status of a call on a context, or a tensor of it, else returns it. For calls
-- without a second try.
function M.check(at, rc)
   if rc < 0 then fail(at, rc) end
   return rc
end

-- Registers the finalizer of a handle of another type. finish(h, release) releases now instead of
-- later.
function M.handle(h, release)
   if ending.late then ending.late[#ending.late + 1] = { handle = h, release = release } end
   return ffi.gc(h, release)
end
-- Releases a handle now; nothing is left for the collector.
function M.finish(h, release)
   if ending.late then no_longer_late(h) end
   release(ffi.gc(h, nil))
end
-- Finishes wrapper.handle, which is nil from then on. Idempotent.
function M.close(wrapper, release)
   if wrapper.handle then M.finish(wrapper.handle, release) end
   wrapper.handle = nil
end

-- Returns the bytes of the blob in a box, which is released.
function M.take_blob(box)
   local blob = M.handle(box[0], C.tide_blob_release)
   local text = ffi.string(C.tide_blob_data(blob), C.tide_blob_size(blob))
   M.finish(blob, C.tide_blob_release)
   return text
end

-- ---- temporaries of the library ----------------------------------------------------------------

-- Spends one tensor. While a state closes it does nothing: `late` holds what is made then.
local function spend_one(t)
   if t == nil or ending.late or not ffi.istype(tensor_type, t) then return end
   if C.tide_tensor_spend(t) == 0 then ffi.gc(t, C.tide_tensor_release_spent) end
end

-- Spends tensors that the caller has made and that only the tape still needs: the bytes are freed
-- with the last other reference, and a later use is E_GONE. Tensors that user code has seen (keep)
-- stay; values that are not tensors are ignored. Idempotent.
function M.spend(a, b, c, d)
   spend_one(a)
   if b ~= nil then spend_one(b) end
   if c ~= nil then spend_one(c) end
   if d ~= nil then spend_one(d) end
end

-- Spends every tensor in a list that may have holes; n: its length.
function M.spend_list(list, n)
   for i = 1, n or #list do spend_one(list[i]) end
end

-- Begins a list of all tensors that are made until leave; returns the list before, for leave. Only
-- around code of the library that keeps no tensor elsewhere.
function M.enter()
   local outer = frame
   frame = {}
   return outer
end

-- Ends the list of enter and returns it.
function M.leave(outer)
   local made = frame
   frame = outer
   return made
end

-- Stops the list while code runs that keeps what it makes; the result is for resume.
function M.pause()
   local outer = frame
   frame = nil
   return outer
end

-- Continues the list that pause has returned.
function M.resume(outer) frame = outer end

local function finish_frame(outer, ok, ...)
   local made = M.leave(outer)
   if not ok then error((...), 0) end
   for _, t in ipairs(made) do
      local result = false
      for i = 1, select('#', ...) do result = result or rawequal(t, (select(i, ...))) end
      if not result then spend_one(t) end
      if result and outer then outer[#outer + 1] = t end
   end
   return ...
end

-- Returns the results of fn(...); all other tensors that it has made are given up. fn: see enter.
function M.frame(fn, ...)
   local outer = M.enter()
   return finish_frame(outer, pcall(fn, ...))
end

-- Returns `new`, which was made of `old`; old is given up unless it is the same.
function M.replace(old, new)
   if not rawequal(old, new) then spend_one(old) end
   return new
end

-- Returns the values; tensors among them are user code's from here on, so that spend leaves them.
function M.keep(...)
   for i = 1, select('#', ...) do
      local v = (select(i, ...))
      if ffi.istype(tensor_type, v) and v ~= nil then C.tide_tensor_keep(v) end
   end
   return ...
end

-- Switches the recording of creation sites on or off; it costs a stack walk for each tensor.
function M.track(on)
   tracking = on and true or false
   noting = tracking or ending.late ~= nil
   sites = setmetatable({}, { __mode = 'k' })
end

-- Returns the creation sites, since track(true), of tensors that are reachable or not yet
-- collected, largest first: a list of { site =, count =, bytes = }.
function M.sites()
   local by_site, list = {}, {}
   for t, site in each(sites) do
      local row = by_site[site]
      if not row then
         row = { site = site, count = 0, bytes = 0 }
         by_site[site] = row
         list[#list + 1] = row
      end
      row.count = row.count + 1
      if C.tide_tensor_is_gone(t) == 0 and C.tide_tensor_device(t) ~= C.TIDE_DEV_NULL then
         row.bytes = row.bytes
            + tonumber(C.tide_tensor_numel(t)) * C.tide_dtype_size(C.tide_tensor_dtype(t))
      end
   end
   table.sort(list, function(a, b)
      if a.bytes ~= b.bytes then return a.bytes > b.bytes end
      return a.site < b.site
   end)
   return list
end

return M
