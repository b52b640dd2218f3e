-- Finalizers of a recipe that call tide: the collector may run one between any two instructions, in
-- compiled code also within an op, and at the end of a state after tide's own. In processes of
-- their own, since what is tested here ended them.

local child = require 'spec.support.child'

-- Runs a program that must end well and print `done`. opts: as child's.
local function run(text, opts)
   local out, status = child(text, opts)
   assert.equal(0, status, out)
   assert.is_truthy(out:find('done', 1, true), out)
   assert.is_nil(out:find('WRONG', 1, true), out)
end

-- A loop over `body`, which sees i; meanwhile finalizers run `inside`.
local function loop(body, inside, n)
   run(([[
      local tide = require 'tide'
      local ffi = require 'ffi'
      local alive, ran = true, 0
      local function wrong(...) error(table.concat({ 'WRONG', ... }, ' ')) end
      local function inside() %s end
      local lists = { { tide.ones { 3 }, tide.ones { 2 } }, { tide.zeros { 3 }, tide.zeros { 2 } } }
      local function body(i) %s end
      for i = 1, %d do
         local p = newproxy(true)
         getmetatable(p).__gc = function()
            if alive then ran = ran + 1; pcall(inside) end
         end
         body(i)
      end
      alive = false
      if ran < 100 then wrong('few finalizers ran', ran) end
      print 'done'
   ]]):format(inside, body, n or 20000))
end

describe('a finalizer within a compiled loop', function()
   it('leaves results and shapes of the op under way alone', function()
      loop([[
         local t = tide.zeros({ 2, 3 }):add(i)
         if t.shape[2] ~= 3 or t:at(1, 1) ~= i then wrong(i, tostring(t)) end
      ]], 'return tide.zeros({ 5 }):add(1):reshape(5, 1)')
   end)

   it('leaves dims, lists and second results alone', function()
      loop([[
         local x = tide.full({ 2, 3 }, i)
         if x:sum(2).shape[1] ~= 2 or x:sum({ 1, 2 }):item() ~= 6 * i then wrong(i, 'sum') end
         if tide.cat({ x, x }, 2).shape[2] ~= 6 then wrong(i, 'cat') end
         local y, s = tide.add_rms_norm(x, x, nil)
         if s:at(1, 1) ~= 2 * i or y.shape[2] ~= 3 then wrong(i, 'norm') end
      ]], [[
         local z = tide.ones({ 4, 1, 7 })
         tide.cat({ z, z, z }, 1):sum { 1, 3 }
         tide.foreach_copy_(lists[1], lists[2])
         return tide.add_rms_norm(z, z, nil)
      ]], 6000)
   end)

   it('leaves attributes alone', function()
      loop([[
         local q = tide.ones { 1, 2, 1, 4 }
         local out = tide.attention(q, q, q, { causal = true, scale = 0.5 })
         if out.shape[2] ~= 2 then wrong(i, 'attention') end
         local u = tide.empty({ 2 }):uniform_(i, i, { seed = 1, stride = { 3 } })
         if u:at(1) ~= i then wrong(i, 'uniform', u:at(1)) end
      ]], [[
         tide.empty({ 1, 2 }):uniform_(5, 6, { seed = 2, stride = { 8, 1 } })
         local k = tide.zeros { 1, 3, 1, 8 }
         return tide.attention(k, k, k, { window = 1, softcap = 3 })
      ]], 6000)
   end)

   it('leaves a backward walk alone', function()
      loop([[
         local w = tide.full({ 2 }, i):requires_grad_()
         w:mul(w):sum():backward()
         if w.grad:at(2) ~= 2 * i then wrong(i, 'grad') end
      ]], [[
         local v = tide.ones({ 3 }):requires_grad_()
         v:mul(3):sum():backward()
         return v.grad
      ]], 6000)
   end)
end)

describe('a finalizer at the end of the Lua state', function()
   local program = 'assert(loadfile "spec/support/ending_program.lua")(%d)'
   -- What a Lua finalizer of ffi.gc makes at that time stays, and under a sanitizer is a leak.
   local may_stay = { env = 'ASAN_OPTIONS=detect_leaks=0' }

   it('sees released objects and open contexts, in any order of any kind of object', function()
      for _ = 1, 12 do run(program:format(math.random(1e6)), may_stay) end
   end)

   it('sees them on ranks, whose states are closed while the process goes on', function()
      run(([[
         local host = require 'tide.ffi.host'
         for i = 1, 4 do
            local rows = host.try(2, {}, %q)
            for _, row in ipairs(rows) do
               if row.status ~= 'OK' then error(tostring(row.message)) end
            end
         end
         print 'done'
      ]]):format('local rank = ... ; ' .. program:format(7):gsub('%(7%)', '(rank + 5)')), may_stay)
   end)

   it('leaves nothing in the context of a host that opens and closes states', function()
      run [[
         local ffi = require 'ffi'
         local C = require('tide.ffi.lib').C
         local H = require('tide.ffi.lib').load 'tide_host'
         ffi.cdef 'int tide_lua_open(void **, void *, const char *, char *, size_t);'
         ffi.cdef('int tide_lua_run_string(void *, const char *, size_t, const char *, int, '
            .. 'void *);')
         ffi.cdef 'const char *tide_lua_message(void *); void lua_close(void *);'
         local ctx, text = ffi.new 'tide_ctx *[1]', ffi.new 'char[512]'
         C.tide_ctx_new(ctx, nil, nil, 0)
         local code = 'arg = nil; G = newproxy(true); local tide = require "tide"\n'
            .. 'local x = tide.ones { 3 }; getmetatable(G).__gc = function()\n'
            .. 'local ok, e = pcall(x.sum, x); if ok or e.code ~= "E_ARG" then print "WRONG" end\n'
            .. 'KEEP = { tide.ones { 5 }, tide.open {}:ones { 2 } } end'
         for i = 1, 20 do
            local L = ffi.new 'void *[1]'
            assert(H.tide_lua_open(L, ctx[0], '.', text, 512) == 0, ffi.string(text))
            if H.tide_lua_run_string(L[0], code, #code, '=state', 0, nil) ~= 0 then
               error(ffi.string(H.tide_lua_message(L[0])))
            end
            H.lua_close(L[0])
            local stats = C.tide_ctx_stats(ctx[0])
            if stats.nref ~= 1 or stats.ntensor ~= 0 then error 'objects stayed' end
         end
         if ffi.string(C.tide_param_get(ctx[0], 'reuse')) ~= '1' then error 'reuse stayed off' end
         C.tide_ctx_release(ctx[0])
         print 'done'
      ]]
   end)
end)

describe('arrays for a call', function()
   it('have their size when a trace that did not need them is left', function()
      run [[
         local buffer = require 'tide.ffi.buffer'
         local ffi = require 'ffi'
         local make = buffer.of 'int64_t'
         local function f(i, n)
            local buf = make(n)
            buf[0] = i
            if i % 100 == 99 then return buf, tonumber(buf[0]) end
            return nil, i
         end
         for _, n in ipairs { 1, 8, 9, 64, 65, 512, 513, 3000 } do
            for i = 1, 2000 do
               local buf, v = f(i, n)
               if v ~= i or buf and ffi.sizeof(buf) < 8 * n then error 'WRONG' end
            end
         end
         print 'done'
      ]]
   end)
end)
