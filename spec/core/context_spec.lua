-- What hangs in a context: parameters, the trace, the generator, the error record.

local ffi = require 'ffi'
local tide = require 'tide'
local C = require('tide.ffi.lib').C
local json = require 'tide.ffi.json'
local files = require 'spec.support.files'
local tmp = require 'spec.support.tmp'
local refused = require 'spec.support.refused'

local function open(opts)
   local ctx = assert(tide.open(opts or {}))
   finally(function() ctx:close() end)
   return ctx
end

describe('parameters', function()
   it('are listed with a line of help each, and have values', function()
      local ctx = open()
      local seen = {}
      for _, p in ipairs(tide.params()) do
         seen[p.name] = true
         assert.is_true(#p.doc > 10, p.name)
         assert.is_truthy(tonumber(ctx:param(p.name)), p.name)
      end
      for _, name in ipairs { 'check', 'trace', 'cache', 'memory', 'debt', 'poison' } do
         assert.is_true(seen[name], name)
      end
      assert.is_true(C.tide_param_name(-1) == nil)
      assert.is_true(C.tide_param_name(C.tide_param_count()) == nil)
   end)

   it('are set at opening and later, sizes with suffixes', function()
      local ctx = open { params = 'memory=3m, trace=1  cache=0' }
      assert.equal('3145728', ctx:param 'memory')
      assert.equal('1', ctx:param 'trace')
      assert.equal('0', ctx:param 'cache')
      assert.equal('2048', ctx:param('memory', '2k'))
      assert.equal('1073741824', ctx:param('memory', '1G'))
      assert.equal('77', ctx:param('memory', 77))
   end)

   it('refuse names, numbers and ranges that are none', function()
      local ctx = open()
      refused('E_ARG', { 'param_set', "'chekc'" }, ctx.param, ctx, 'chekc', 1)
      refused('E_ARG', { 'param', 'name' }, ctx.param, ctx, 'chekc')
      for _, bad in ipairs { '2', '-1', '', 'x', '1x', '1.5', '99999999999999999999', '1k' } do
         refused('E_ARG', { 'check', '[0, 1]' }, ctx.param, ctx, 'check', bad)
      end
      refused('E_ARG', 'memory', ctx.param, ctx, 'memory', '9999999999g')
      assert.equal('0', ctx:param 'check')
      for _, text in ipairs { 'check', 'check=', '=1', 'check=1 nope=2', ('x'):rep(100) .. '=1',
                              'check=' .. ('1'):rep(100) } do
         local none, err = tide.open { params = text }
         assert.is_nil(none)
         assert.equal('E_ARG', err.code, text)
      end
   end)

   it('come from the environment only where the host allows it', function()
      ffi.cdef 'int setenv(const char *, const char *, int); int unsetenv(const char *);'
      ffi.C.setenv('TIDE_CACHE', '0', 1)
      finally(function() ffi.C.unsetenv 'TIDE_CACHE' end)
      local shut, open_ = assert(tide.open {}), assert(tide.open { read_env = true })
      assert.equal('1', shut:param 'cache')
      assert.equal('0', open_:param 'cache')
      ffi.C.setenv('TIDE_CACHE', 'no', 1)
      local none, err = tide.open { read_env = true }
      assert.is_nil(none)
      assert.is_truthy(tostring(err):find('TIDE_CACHE', 1, true))
      shut:close()
      open_:close()
   end)
end)

describe('the trace', function()
   local function dump(ctx, cat)
      return tmp.with(function(folder)
         local path, list = folder .. '/trace.json', {}
         ctx:trace_dump(path)
         for _, e in ipairs(json.decode(files.read(path)).traceEvents) do
            if not cat or e.cat == cat then list[#list + 1] = e end
         end
         return list
      end)
   end
   local function names(events)
      local list = {}
      for i, e in ipairs(events) do list[i] = e.name end
      return list
   end

   it('is a Chrome trace of the ops that ran', function()
      local ctx = open { params = 'trace=1' }
      local x = ctx:ones { 100, 100 }
      x:matmul(x):exp()
      local events = dump(ctx, 'op')
      for i, e in ipairs(events) do
         assert.equal('X', e.ph)
         assert.is_true(e.dur >= 0 and e.ts > 0)
         if i > 1 then assert.is_true(e.ts >= events[i - 1].ts) end
      end
      assert.are.same({ 'fill_', 'matmul', 'exp' }, names(events))
      ctx:param('trace', 0)
      x:exp()
      assert.equal(3, #dump(ctx, 'op'))
   end)

   it('tells derivatives, each around its ops, and memory that was taken from a device', function()
      local ctx = open { params = 'trace=1' }
      local x = ctx:ones({ 100, 100 }, { requires_grad = true })
      x:exp():square():sum():backward()
      local grads, mem = dump(ctx, 'grad'), dump(ctx, 'mem')
      assert.are.same({ 'sum', 'square', 'exp' }, names(grads))
      for _, e in ipairs(dump(ctx, 'op')) do
         local inside = 0
         for _, g in ipairs(grads) do
            local after = e.ts >= g.ts and e.ts < g.ts + g.dur
            if after then assert.is_true(e.ts + e.dur <= g.ts + g.dur + 1e-2) end
            inside = inside + (after and 1 or 0)
         end
         if e.ts > grads[1].ts then assert.equal(1, inside, e.name) end
      end
      assert.is_true(#mem >= 1)
      for _, e in ipairs(mem) do assert.is_truthy(e.name:find '^cpu %d+ bytes$', e.name) end
      local before = #mem
      ctx:ones { 100, 100 }                    -- out of what is cached
      assert.equal(before, #dump(ctx, 'mem'))
   end)

   it('holds spans of the host, with names made fit for JSON', function()
      local ctx = open()
      ctx:trace_span('step "1"\\\n\1 \195\164', 1, 1.5)
      ctx:trace_span(('long '):rep(100), 2, 2)
      ctx:trace_span('', 0.25, 0.125)
      local events = dump(ctx)
      assert.equal('user', events[1].cat)
      assert.equal(1e6, events[1].ts)
      assert.equal(5e5, events[1].dur)
      assert.is_truthy(events[1].name:find('^step _1_'))
      assert.equal(('long '):rep(21):sub(1, 103), events[2].name)
      assert.equal('', events[3].name)
      assert.equal(-125000, events[3].dur)
      refused('E_ARG', 'trace_span', ctx.trace_span, ctx, 'x', 0 / 0, 1)
      refused('E_ARG', 'trace_span', ctx.trace_span, ctx, 'x', 0, math.huge)
   end)

   it('is a ring that keeps the last events', function()
      local ctx = open { params = 'trace_events=16' }
      for i = 1, 16 * 3 + 5 do ctx:trace_span('e' .. i, i, i) end
      local events = dump(ctx)
      assert.equal(16, #events)
      for i, e in ipairs(events) do assert.equal('e' .. (37 + i), e.name) end
   end)

   it('is an empty list before anything ran, and an error where it cannot be written', function()
      local ctx = open()
      assert.are.same({}, dump(ctx))
      refused('E_IO', { 'trace_dump', '/nonexistent/t.json', 'No such file' }, ctx.trace_dump, ctx,
              '/nonexistent/t.json')
      ctx:trace_span('x', 0, 1)
      refused('E_IO', { 'trace_dump', '/dev/full', 'No space' }, ctx.trace_dump, ctx, '/dev/full')
   end)
end)

describe('the generator', function()
   it('of a new context starts with seed 0, on every device alike', function()
      local a, b = open(), open { device = 'ref' }
      assert.are.same({ seed = 0, stream = 0, offset = 0 }, a:rng_state())
      local x, y = a:rand({ 5 }, { dtype = 'f64' }), b:rand({ 5 }, { dtype = 'f64' })
      assert.are.same(x:tolist(), y:tolist())
      -- the first word of Philox4x32-10 for key 0 and counter 0
      assert.equal(0x6627e8d5 / 2 ^ 32, x:at(1))
      assert.are.same(5, a:rng_state().offset)
   end)

   it('gives other numbers for another seed, stream or offset, else the same', function()
      local ctx = open()
      local function draw(seed, stream, offset)
         ctx:set_rng_state { seed = seed, stream = stream, offset = offset }
         return table.concat(ctx:rand({ 8 }):tolist(), ' ')
      end
      local seen = {}
      for _, s in ipairs { { 0, 0, 0 }, { 1, 0, 0 }, { 0, 1, 0 }, { 0, 0, 8 }, { 2 ^ 32, 0, 0 },
                           { 0, 2 ^ 32, 0 }, { 0, 0, 2 ^ 34 }, { 0, 0, 2 ^ 40 } } do
         local text = draw(unpack(s))
         assert.is_nil(seen[text])
         seen[text] = true
         assert.equal(text, draw(unpack(s)))
      end
   end)

   it('counts in words: what starts later is the rest of what started before', function()
      local ctx = open()
      ctx:set_rng_state { seed = 4, stream = 9, offset = 2 ^ 34 - 3 } -- across blocks and 2^32
      local whole = ctx:randn { 11 }
      for k = 1, 10 do
         ctx:set_rng_state { seed = 4, stream = 9, offset = 2 ^ 34 - 3 + k }
         assert.is_true(ctx:randn({ 11 - k }):equal(whole:slice(1, k + 1, 11)))
      end
   end)

   it('drops in dropout by the same counter on every device', function()
      local out = {}
      for _, device in ipairs { 'ref', 'cpu' } do
         local ctx = open { device = device, seed = 5 }
         local x = ctx:ones { 1000 }
         local y = x:dropout(0.25)
         local kept = y:gt(0):sum():item()
         assert.is_true(kept > 690 and kept < 810)           -- 750 by five deviations
         assert.is_true((y * 0.75 - x:mul(1)):abs():lt(1e-6):sum():item() == kept)
         assert.equal(1000, ctx:rng_state().offset)
         out[#out + 1] = y:to_string_bytes()
      end
      assert.equal(out[1], out[2])
   end)

   it('gives dropout the same mask back in the gradient', function()
      local ctx = open { seed = 6 }
      local x = ctx:ones({ 1000 }, { requires_grad = true })
      local y = x:dropout(0.5)
      ctx:rand { 77 }
      y:sum():backward()
      assert.is_true(x.grad:equal(y:detach()))
      assert.is_true(x:dropout(0) == x or x:dropout(0):equal(x))
   end)

   it('refuses states that are none', function()
      local ctx = open()
      refused('E_ARG', { 'seed', 'n' }, ctx.seed, ctx, -1)
      refused('E_ARG', { 'set_rng_state', 'state.stream' }, ctx.set_rng_state, ctx, { seed = 1 })
      C.tide_rng_set(ctx.handle, 2ULL ^ 60, 0, 0)
      refused('E_UNSUPPORTED', 'rng_state', ctx.rng_state, ctx)
   end)
end)

describe('the error record', function()
   it('holds code, name, function and message until the next failure', function()
      local ctx = open()
      local x = ctx:ones { 2 }
      local version, tensors = x:version(), ctx:stats().ntensor
      refused('E_SHAPE', 'reshape', x.reshape, x, 3)
      local record = C.tide_error(ctx.handle)
      assert.equal(C.TIDE_E_SHAPE, record.code)
      assert.equal('E_SHAPE', ffi.string(record.name))
      assert.equal('reshape', ffi.string(record.op))
      local message = ffi.string(record.message)
      local _ = x + x
      assert.equal(message, ffi.string(record.message))
      assert.equal(2, _:select(1, 1):item())
      refused('E_DEVICE', 'cuda', x.to, x, 'cuda')
      assert.equal(C.TIDE_E_DEVICE, record.code)
      assert.not_equal(message, ffi.string(record.message))
      assert.equal(version, x:version())
      _ = nil
      ctx:collect()
      assert.equal(tensors, ctx:stats().ntensor)
   end)

   it('is of its context alone', function()
      local a, b = open(), open()
      local x = a:ones { 2 }
      refused('E_SHAPE', 'reshape', x.reshape, x, 3)
      assert.equal(0, C.tide_error(b.handle).code)
      assert.equal(C.TIDE_E_SHAPE, C.tide_error(a.handle).code)
   end)

   it('cuts messages, never writes past them', function()
      local ctx = open()
      local path = '/nonexistent/' .. ('d'):rep(5000)
      local err = refused('E_IO', 'trace_dump', ctx.trace_dump, ctx, path)
      assert.is_true(#err.message < 1100)
   end)

   it('has a name and a text for every status, also for none', function()
      assert.equal('OK', ffi.string(C.tide_status_name(0)))
      for _, status in ipairs { 12345, -999 } do
         assert.is_true(#ffi.string(C.tide_status_name(status)) > 0)
         assert.is_true(#ffi.string(C.tide_status_text(status)) > 0)
      end
   end)
end)
