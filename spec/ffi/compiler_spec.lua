-- What LuaJIT's compiler loses is off, in every state that holds tide.

local child = require 'spec.support.child'
local compiler = require 'tide.ffi.compiler'
local ranks = require 'spec.support.ranks'

-- Eight sums, one in each register that a call may change, and a number that is only checked:
-- LuaJIT 2.1.0-beta3 for AArch64 keeps the 1 that is added where the check writes. y: any number.
local function sums()
   jit.opt.start 'hotloop=56'                -- LuaJIT's own: the loops below are compiled
   local function run(n, y)
      local a, b, c, d, e, f, g, h = 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5
      for _ = 1, n do
         a, b, c, d = a + 1, b + 1, c + 1, d + 1
         e, f, g, h = e + 1, f + 1, g + 1, h + 1
         if type(y) ~= 'number' then a = 0 end
      end
      return table.concat({ a, b, c, d, e, f, g, h }, ' ')
   end
   return run(200, 1234.5) .. ' ' .. run(200, 1234.5)
end

local right = ('200.5 '):rep(15) .. '200.5'

-- Rows that get a field in an inner loop; how many lost it. LuaJIT 2.1.0-beta3 for x64 loses the
-- field of a row, or breaks the row's chain of keys, after some hundred lists of 0 to 3 numbers.
local function fields()
   jit.opt.start('hotloop=56', 'hotexit=10')
   local function rows_of(docs)
      local by_id, order = {}, {}
      for _, doc in ipairs(docs) do
         for _, part in ipairs(doc.parts) do
            local c = by_id[part.id]
            if not c then
               c = { name = part.name, rows = {} }
               by_id[part.id], order[#order + 1] = c, c
            end
            local row = { rank = doc.rank, doc = doc, calls = {} }
            for _, call in ipairs(part.calls) do
               row.last = math.max(row.last or 0, call.seq)
               row.calls[call.seq] = call
            end
            c.rows[#c.rows + 1] = row
         end
      end
      return order
   end
   local lost, state = 0, 1
   for _ = 1, 20 do
      jit.flush()
      for _ = 1, 200 do
         local docs = {}
         for r = 1, 2 do
            local calls = {}
            state = state * 16807 % 2147483647
            for s = 1, math.floor(state / 2^20) % 4 do calls[s] = { seq = s } end
            docs[r] = { rank = r, parts = { { id = 'world', name = 'world', calls = calls } } }
         end
         for r, row in ipairs(rows_of(docs)[1].rows) do
            local n = #docs[r].parts[1].calls
            if row.last ~= (n > 0 and n or nil) then lost = lost + 1 end
            row.more, row.and_more = 1, 2     -- a broken chain of keys ends here
         end
      end
   end
   return lost
end

describe('a compiler', function()
   it('for AArch64 is off before September 2023', function()
      for _, version in ipairs { '2.1.1737090214', '2.1.1761786044' } do
         assert.is_nil(compiler.fault('arm64', 'LuaJIT ' .. version))
      end
      assert.equal('loop', compiler.fault('arm64', 'LuaJIT 2.1.1695000000'))
      for _, version in ipairs { '2.1.0-beta3', '2.0.5', '2.1.ROLLING', '2.1.1694999999' } do
         assert.equal('all', compiler.fault('arm64', 'LuaJIT ' .. version))
      end
   end)

   it('for x64 has no loop optimisation before the version of Debian 13', function()
      for _, version in ipairs { '2.1.0-beta3', '2.0.5', '2.1.ROLLING', '2.1.1737090213' } do
         assert.equal('loop', compiler.fault('x64', 'LuaJIT ' .. version))
      end
      assert.is_nil(compiler.fault('x64', 'LuaJIT 2.1.1737090214'))
   end)

   it('with a fault is without what is wrong, and what it made is gone', function()
      local done
      local function engine(arch, version)
         done = ''
         return { arch = arch, version = version, off = function() done = done .. 'off ' end,
            opt = { start = function(what) done = done .. what .. ' ' end },
            flush = function() done = done .. 'flush' end }
      end
      compiler.settle(engine('arm64', 'LuaJIT 2.1.0-beta3'))
      assert.equal('off flush', done)
      compiler.settle(engine('x64', 'LuaJIT 2.1.0-beta3'))
      assert.equal('-loop flush', done)
      compiler.settle(engine('x64', 'LuaJIT 2.1.1737090214'))
      assert.equal('', done)
   end)

   it('waits for hotter loops in states that tide made, and in no other', function()
      -- Eight loops: counters of loops are shared, so one may be hot sooner by what ran before.
      local function patient()
         local loops = {}
         for i = 1, 8 do
            loops[i] = loadstring 'local n, sum = ..., 0 for i = 1, n do sum = sum + i end'
         end
         local function traces(n)
            for _, loop in ipairs(loops) do loop(n) end
            local found = 0
            while require 'jit.util'.traceinfo(found + 1) do found = found + 1 end
            return found
         end
         jit.flush()
         local some, more = traces(300), traces(3000)
         return (some < 4 and 'few' or 'most') .. ' ' .. (more < 8 and 'few' or 'all')
      end
      if compiler.fault(jit.arch, jit.version) == 'all' then return end
      assert.same({ 'few all', 'few all' }, ranks.run(2, patient))
      local text, status = child(([[
         require 'tide'
         io.write(loadstring(%q)())
      ]]):format(string.dump(patient)))
      assert.equal(0, status, text)
      assert.matches('^most ', text)
   end)
end)

describe('fields that a loop adds are there', function()
   it('here', function() assert.equal(0, fields()) end)

   it('on ranks', function()
      for _, lost in ipairs(ranks.run(2, fields)) do assert.equal(0, lost) end
   end)
end)

describe('sums in loops are right', function()
   it('here, and the compiler is on where it is sound', function()
      assert.equal(right, sums())
      assert.equal(compiler.fault(jit.arch, jit.version) ~= 'all', (jit.status()))
   end)

   it('on ranks', function()
      for _, got in ipairs(ranks.run(2, sums)) do assert.equal(right, got) end
   end)

   it('in a program that ran them before it loaded tide', function()
      local text, status = child(([[
         local sums = loadstring(%q)
         sums()
         require 'tide'
         io.write(sums())
      ]]):format(string.dump(sums)))
      assert.equal(0, status, text)
      assert.equal(right, text)
   end)
end)
