-- Contexts and creation of tensors on them.
--
-- A Context is a table around one `tide_ctx` handle with a default device; creation functions are
-- its methods. A Lua state has one default context, opened at first use, or given by the host that
-- opened the state (package.loaded['tide.host'].ctx, a light userdata).
--
-- Open contexts and the default are kept in lib.state, so a reload of the modules finds them. A
-- context given by a host is borrowed: the host ends it after it has closed the Lua state.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local buffer = require 'tide.ffi.buffer'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local op = require 'tide.ffi.op'
local create = require 'tide.ffi.create'
require 'tide.ffi.tensor'
local C = lib.C

local M = {}
local bad = status.bad_arg

-- Open contexts of this state, in order. Unreferenced ones are collected.
lib.state.open = lib.state.open or setmetatable({}, { __mode = 'v' })
local open_list = lib.state.open

lib.state.Context = lib.state.Context or {}
local Context = lib.state.Context
Context.__index = Context
Context.__name = 'Context'
Context.__tostring = function(self)
   return ('tide context (%s, %s)'):format(self.device, self.handle and 'open' or 'closed')
end
M.Context = Context

-- ---- opening and closing ---------------------------------------------------------------------

local function wrap(handle, device)
   local self = setmetatable({ handle = handle, device = device }, Context)
   open_list.n = (open_list.n or 0) + 1
   open_list[open_list.n] = self
   own.watch(handle)
   return self
end

local open_opts = arg.set { 'device', 'nthread', 'params', 'seed', 'read_env' }

local function fill_opts(opts)
   local o = ffi.new 'tide_opts'
   C.tide_opts_init(o)
   if opts.nthread ~= nil then o.nthread = arg.int('open', 'nthread', opts.nthread, 0, 1024) end
   o.read_env = arg.flag('open', 'read_env', opts.read_env) and 1 or 0
   if opts.params ~= nil then o.params = arg.string('open', 'params', opts.params) end
   return o
end

-- Returns a new context. opts: device ('cpu'), nthread (0: all cores), params ("check=1"), seed
-- (0), read_env (false). Returns nil and an error object if it cannot be opened; wrong options
-- raise.
function M.open(opts)
   opts = arg.opts('open', opts, open_opts)
   local device = opts.device or 'cpu'
   local code = arg.device('open', 'device', device)
   if opts.seed ~= nil then arg.int('open', 'seed', opts.seed, 0) end
   local out, text = ffi.new 'tide_ctx *[1]', ffi.new 'char[1024]'
   local rc = C.tide_ctx_new(out, fill_opts(opts), text, 1024)
   if rc < 0 then return nil, status.new(rc, 'open', ffi.string(text)) end
   local handle = out[0]
   if C.tide_device_available(handle, code) ~= 1 then
      local reason = ffi.string(C.tide_error(handle).message)
      local e = status.new(C.TIDE_E_DEVICE, 'open',
         ("device '%s' cannot be used: %s"):format(device, reason))
      C.tide_ctx_release(handle)
      return nil, e
   end
   local self = wrap(handle, device)
   own.hold(handle, self)
   if opts.seed then self:seed(opts.seed) end
   return self
end

-- Returns the context on which the host opened this Lua state, or nil.
local function host_ctx()
   local host = package.loaded['tide.host']
   if type(host) ~= 'table' or host.ctx == nil then return nil end
   return wrap(ffi.cast('tide_ctx *', host.ctx), host.device or 'cpu')
end

-- Returns the default context of this Lua state.
function M.default()
   local ctx = lib.state.default
   if ctx and ctx.handle then return ctx end
   local err
   ctx = host_ctx()
   if not ctx then
      ctx, err = M.open()
      if not ctx then status.throw(err) end
   end
   lib.state.default = ctx
   return ctx
end

-- Makes ctx the default of this Lua state; returns the one before, or nil.
function M.set_default(ctx)
   if getmetatable(ctx) ~= Context then bad('set_default', 'ctx', 'a context', ctx) end
   local before = lib.state.default
   lib.state.default = ctx
   return before
end

-- Returns every open context of this Lua state.
function M.all()
   local list = {}
   for i = 1, open_list.n or 0 do
      if open_list[i] then list[#list + 1] = open_list[i] end
   end
   for i = 1, open_list.n or 0 do open_list[i] = list[i] end
   open_list.n = #list
   return list
end

local function handle_of(self, name)
   if type(self) ~= 'table' or getmetatable(self) ~= Context then
      bad(name, 'ctx', 'a context', self)
   end
   if not self.handle then
      status.raise(C.TIDE_E_STATE, name, 'the context is closed; open another with tide.open')
   end
   return self.handle
end

-- Closes the context. Tensors made on it stay valid and keep it alive. Idempotent.
function Context:close()
   local handle = self.handle
   if not handle then return end
   for i = 1, open_list.n or 0 do
      if open_list[i] == self then open_list[i] = nil end
   end
   if lib.state.default == self then lib.state.default = nil end
   own.unwatch(handle)
   self.handle = nil
   local host = package.loaded['tide.host']
   if type(host) == 'table' and host.ctx ~= nil
      and ffi.cast('tide_ctx *', host.ctx) == handle then
      return                                -- borrowed from the host
   end
   own.let_go(handle, self)
end

-- ---- state of a context ----------------------------------------------------------------------

local counters = { 'live', 'peak', 'cached', 'debt', 'ntensor', 'nnode', 'nop', 'nhost', 'nref',
   'since', 'since_peak', 'planned' }

-- Returns counters as a table of numbers: live, peak, cached, debt, since, since_peak, planned
-- (bytes), ntensor, nnode, nop, nhost, nref; forced (collections of the Lua heap that the parameter
-- debt has caused). Tensors of the null device count in planned, since and since_peak.
function Context:stats()
   local s, list = C.tide_ctx_stats(handle_of(self, 'stats')), { forced = own.forced(self.handle) }
   for _, name in ipairs(counters) do list[name] = tonumber(s[name]) end
   return list
end

-- Restarts the peak of stats at the live bytes.
function Context:reset_peak() C.tide_stats_reset_peak(handle_of(self, 'reset_peak')) end
-- Restarts since and since_peak at 0: live bytes of tensors made from now on.
function Context:mark() C.tide_stats_mark(handle_of(self, 'mark')) end
-- Returns the bytes cached by the allocator to the system.
function Context:trim() C.tide_cache_trim(handle_of(self, 'trim')) end

-- Collects the Lua heap, so that dropped tensors are released now.
function Context:collect()
   local handle = handle_of(self, 'collect')
   collectgarbage()
   if own.sweep then own.sweep(handle) end   -- host functions hold their upvalues
   collectgarbage()
   own.settled(handle)
end

-- Starts each replay of a captured step at the generator's state at that time.
local function generator_of(self, name)
   local handle = handle_of(self, name)
   if self.capturing then
      status.raise(C.TIDE_E_STATE, name, 'a step is being captured, and each replay sets the '
         .. 'offset of its random numbers; read and set the generator between replays')
   end
   return handle
end

-- Restarts the generator with a seed.
function Context:seed(n)
   local handle = generator_of(self, 'seed')
   arg.int('seed', 'n', n, 0)
   own.check(handle, C.tide_rng_set(handle, n, 0, 0))
end

-- Returns {seed =, stream =, offset =}, numbers that can be stored and given to set_rng_state.
function Context:rng_state()
   local handle = generator_of(self, 'rng_state')
   local now = ffi.new 'uint64_t[3]'
   own.check(handle, C.tide_rng_get(handle, now, now + 1, now + 2))
   local values = {}
   for i = 1, 3 do
      values[i] = tonumber(now[i - 1])
      if values[i] > arg.exact then
         status.raise(C.TIDE_E_UNSUPPORTED, 'rng_state',
            'the generator was set in C to a value beyond 2^53, which Lua numbers cannot hold')
      end
   end
   return { seed = values[1], stream = values[2], offset = values[3] }
end

-- Sets the generator to a state of rng_state.
function Context:set_rng_state(state)
   local handle = generator_of(self, 'set_rng_state')
   if type(state) ~= 'table' then bad('set_rng_state', 'state', 'a table from rng_state', state) end
   local seed = arg.int('set_rng_state', 'state.seed', state.seed, 0)
   local stream = arg.int('set_rng_state', 'state.stream', state.stream, 0)
   local offset = arg.int('set_rng_state', 'state.offset', state.offset, 0)
   own.check(handle, C.tide_rng_set(handle, seed, stream, offset))
end

-- Sets the number of threads of the following ops, 1 to 1024.
function Context:set_nthread(n)
   local handle = handle_of(self, 'set_nthread')
   own.check(handle, C.tide_set_nthread(handle, arg.int('set_nthread', 'n', n, 1, 1024)))
end
-- Returns the number of threads of the ops.
function Context:nthread() return C.tide_nthread(handle_of(self, 'nthread')) end

-- Returns the value of a parameter as text; with a value (string or number), sets it.
function Context:param(name, value)
   local handle = handle_of(self, 'param')
   arg.string('param', 'name', name)
   if value ~= nil then
      if type(value) == 'number' then value = ('%.0f'):format(value) end
      arg.string('param', 'value', value)
      own.check(handle, C.tide_param_set(handle, name, value))
      if name == 'debt' then own.watch(handle) end
   end
   local text = C.tide_param_get(handle, name)
   if text == nil then bad('param', 'name', 'a parameter (see `tide params`)', name) end
   return ffi.string(text)
end

-- Returns true, or false and the reason.
function Context:device_available(device)
   local handle = handle_of(self, 'device_available')
   local code = arg.device('device_available', 'device', device)
   if C.tide_device_available(handle, code) == 1 then return true end
   return false, ffi.string(C.tide_error(handle).message)
end

-- Returns the number of devices of a kind, 1 on the host; 0 and the reason if it is not available.
function Context:device_count(device)
   local handle = handle_of(self, 'device_count')
   local n = C.tide_device_count(handle, arg.device('device_count', 'device', device))
   if n > 0 then return n end
   return 0, ffi.string(C.tide_error(handle).message)
end

-- Returns true once after tide_interrupt (a signal, another thread); reading clears it.
function Context:interrupted() return C.tide_interrupted(handle_of(self, 'interrupted')) == 1 end
-- Requests an end: the first call sets interrupted(), a second before that is read makes the next
-- op raise E_INTERRUPT.
function Context:interrupt() C.tide_interrupt(handle_of(self, 'interrupt')) end

-- Writes the trace ring as a file for Perfetto.
function Context:trace_dump(path)
   local handle = handle_of(self, 'trace_dump')
   own.check(handle, C.tide_trace_dump(handle, arg.string('trace_dump', 'path', path)))
end

-- Adds a span of the host to the trace. t0 and t1 are tide.clock() values.
function Context:trace_span(name, t0, t1)
   local handle = handle_of(self, 'trace_span')
   arg.string('trace_span', 'name', name)
   own.check(handle, C.tide_trace_span(handle, 'user', name, arg.number('trace_span', 't0', t0),
      arg.number('trace_span', 't1', t1)))
end

-- ---- creation --------------------------------------------------------------------------------

local make_opts = arg.set { 'dtype', 'device', 'requires_grad' }

local takes_shape = arg.set { 'empty', 'zeros', 'ones', 'rand', 'randn' }

-- Returns handle, device code, dtype code and whether a gradient is needed.
local function place(self, name, opts, dtype)
   local handle = handle_of(self, name)
   if type(opts) == 'number' and takes_shape[name] then
      bad(name, 'opts', 'a table of options or nil (sizes are one table: { 2, 3 })', opts)
   end
   opts = arg.opts(name, opts, make_opts)
   return handle, arg.device(name, 'opts.device', opts.device or self.device),
      arg.dtype(name, 'opts.dtype', opts.dtype or dtype or 'f32'),
      arg.flag(name, 'opts.requires_grad', opts.requires_grad)
end

local function marked(x, wants)
   if wants then own.check(x, C.tide_set_needs_grad(x, true)) end
   return x
end

local function shape_of(name, shape)
   if type(shape) == 'number' then
      local buf = arg.new_shape()
      buf[0] = arg.int(name, 'shape', shape, 0)
      return 1, buf
   end
   return arg.ints(name, 'shape', shape, 0)
end

-- Returns a tensor with undefined contents.
function Context:empty(shape, opts)
   local handle, device, dtype, wants = place(self, 'empty', opts)
   local n, sizes = shape_of('empty', shape)
   return marked(create.empty(handle, device, dtype, n, sizes), wants)
end

local function filled(self, name, shape, value, opts)
   local handle, device, dtype, wants = place(self, name, opts)
   local n, sizes = shape_of(name, shape)
   value = arg.element(name, 'value', value, dtype)
   return marked(create.full(handle, device, dtype, n, sizes, value), wants)
end

-- Returns zeros; shape is a list. opts: dtype, device, requires_grad.
function Context:zeros(shape, opts) return filled(self, 'zeros', shape, 0, opts) end
-- Returns ones; shape is a list. opts: dtype, device, requires_grad.
function Context:ones(shape, opts) return filled(self, 'ones', shape, 1, opts) end
-- Returns a tensor with every element set to value; shape is a list. opts: dtype, device,
-- requires_grad.
function Context:full(shape, value, opts) return filled(self, 'full', shape, value, opts) end

-- Returns a tensor that draw fills from 0 and 1.
local function random(self, name, shape, opts, draw)
   local handle, device, dtype, wants = place(self, name, opts)
   if not arg.is_float(dtype) then bad(name, 'opts.dtype', 'a floating dtype', opts.dtype) end
   local n, sizes = shape_of(name, shape)
   return marked(draw(create.empty(handle, device, dtype, n, sizes), 0, 1), wants)
end

-- Returns uniform numbers in [0, 1), from the context's generator.
function Context:rand(shape, opts) return random(self, 'rand', shape, opts, op.uniform_) end

-- Returns normal numbers of mean 0 and standard deviation 1, from the context's generator.
function Context:randn(shape, opts) return random(self, 'randn', shape, opts, op.normal_) end

-- Returns 0 to n - 1 for arange(n), or start, start + step, ... before stop for arange(start, stop,
-- step). Options are the last argument in both forms.
function Context:arange(start, stop, step, opts)
   local name = 'arange'
   if stop == nil or type(stop) == 'table' then
      start, stop, step, opts = 0, start, 1, stop
   elseif type(step) == 'table' then
      step, opts = 1, step
   end
   arg.finite(name, 'start', start)
   arg.finite(name, 'stop', stop)
   step = arg.finite(name, 'step', step == nil and 1 or step)
   if step == 0 then bad(name, 'step', 'a number other than 0', step) end
   local n = arg.int(name, 'stop', math.max(0, math.ceil((stop - start) / step)), 0)
   local handle, device, dtype, wants = place(self, name, opts)
   if n > 0 then
      arg.element(name, 'start', start, dtype)
      arg.element(name, 'stop', start + (n - 1) * step, dtype)
      if not arg.is_float(dtype) then arg.int(name, 'step', step) end
   end
   return marked(create.arange(handle, device, dtype, n, start, step), wants)
end

-- Returns the n x n identity.
function Context:eye(n, opts)
   local _, _, _, wants = place(self, 'eye', opts)
   arg.int('eye', 'n', n, 0, 2^31)
   opts = opts or {}
   local row = self:arange(n, { dtype = 'i64', device = opts.device })
   local same = op.eq(op.unsqueeze(row, 2), op.unsqueeze(row, 1))
   return marked(op.cast(same, opts.dtype or 'f32'), wants)
end

-- Makes a tensor from row-major raw bytes, exactly as many as shape and dtype need.
function Context:from_string(bytes, shape, opts)
   arg.string('from_string', 'bytes', bytes)
   local handle, device, dtype, wants = place(self, 'from_string', opts)
   local n, sizes = shape_of('from_string', shape)
   return marked(create.from_bytes(handle, device, dtype, n, sizes, bytes, #bytes), wants)
end

-- ---- tensors from Lua lists ------------------------------------------------------------------

-- Returns the shape of nested lists, read along the first elements.
local function shape_of_list(list)
   local shape, level = {}, list
   while type(level) == 'table' do
      shape[#shape + 1] = #level
      if #shape > C.TIDE_MAX_DIM then
         bad('tensor', 'list', ('lists nested at most %d deep'):format(C.TIDE_MAX_DIM), list)
      end
      level = level[1]
   end
   return shape
end

-- Returns how a message writes the first n of the places `at`: '[2][1]'.
local function path_of(at, n)
   return n == 0 and '' or '[' .. table.concat(at, '][', 1, n) .. ']'
end

-- Appends a number or boolean to out. at, n: its place, for the message.
local function append(out, value, at, n)
   if type(value) ~= 'number' and type(value) ~= 'boolean' then
      bad('tensor', 'list' .. path_of(at, n), 'a number or boolean', value)
   end
   out.n = out.n + 1
   out[out.n] = value
end

-- Appends the elements of nested lists to out. at: the place of `list`, depth - 1 numbers.
local function flatten(list, shape, depth, out, at)
   if depth > #shape then return append(out, list, at, depth - 1) end
   if type(list) ~= 'table' or #list ~= shape[depth] then
      bad('tensor', 'list' .. path_of(at, depth - 1),
         ('a list of %d, as its neighbours'):format(shape[depth]),
         type(list) == 'table' and #list or list)
   end
   for i = 1, shape[depth] do
      at[depth] = i
      flatten(list[i], shape, depth + 1, out, at)
   end
end

local new_elements = {
   [C.TIDE_F32] = buffer.of 'float', [C.TIDE_F64] = buffer.of 'double',
   [C.TIDE_I64] = buffer.of 'int64_t', [C.TIDE_I32] = buffer.of 'int32_t',
   [C.TIDE_U8] = buffer.of 'uint8_t', [C.TIDE_BOOL] = buffer.of 'uint8_t',
}

local function is_all_boolean(values)
   for i = 1, values.n do
      if type(values[i]) ~= 'boolean' then return false end
   end
   return values.n > 0
end

-- Returns a tensor from a number, boolean or nested list. dtype f32, or bool if all are booleans.
function Context:tensor(list, opts)
   local values, shape = { n = 0 }, shape_of_list(list)
   flatten(list, shape, 1, values, {})
   local handle, device, dtype, wants = place(self, 'tensor', opts,
      is_all_boolean(values) and 'bool' or 'f32')
   -- f16 and bf16 are rounded once, by the cast from f64
   local stored = new_elements[dtype] and dtype or C.TIDE_F64
   local data = new_elements[stored](values.n)
   for i = 1, values.n do data[i - 1] = arg.element('tensor', 'list', values[i], dtype) end
   local n, sizes = arg.ints('tensor', 'shape', shape, 0)
   local x = create.from_bytes(handle, device, stored, n, sizes, data,
      values.n * C.tide_dtype_size(stored))
   if stored ~= dtype then x = op.cast(x, arg.dtype_name[dtype]) end
   return marked(x, wants)
end

-- The names of all creation functions, for the default-context forms of `tide`.
M.creation = { 'empty', 'zeros', 'ones', 'full', 'rand', 'randn', 'arange', 'eye', 'from_string',
   'tensor' }

return M
