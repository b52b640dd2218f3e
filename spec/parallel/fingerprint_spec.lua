-- Texts of what ranks must have in common: alike for what means the same, else not.

local tide = require 'tide'
local cp = require 'tide.parallel.cp'
local fingerprint = require 'tide.parallel.fingerprint'
local layout = require 'tide.parallel.layout'
local placement = require 'tide.parallel.placement'

local function ints(list, dtype) return tide.tensor(list, { dtype = dtype or 'i64' }) end

describe('the text of a model', function()
   it('has a line for each module and for each number, word and list in it', function()
      local m = tide.nn.Module()
      m:child('a', tide.nn.Linear(2, 3))
      m.size, m._hidden, m.training = 5, 6, false
      m.opts = { deep = { er = { est = { here = 1, there = 'x' } } }, list = { 1, 2 },
         both = { 7, name = 8 } }
      local text = fingerprint.structure(m)
      local lines = {}
      for line in text:gmatch '[^\n]+' do lines[line:match '^(.-) = '] = line:match ' = (.*)$' end
      assert.equal('Module', lines['the model'])
      assert.equal('Linear', lines.a)
      assert.equal('5', lines.size)
      assert.is_nil(lines._hidden)
      assert.is_nil(lines.training)
      assert.is_not_nil(lines['opts.list'])
      assert.is_not_nil(lines['opts.both'])
      assert.is_nil(lines['opts.both.name'])
      assert.is_not_nil(lines['opts.deep.er.est'])          -- tables deeper than that: one line
      assert.is_nil(lines['opts.deep.er.est.here'])
      assert.equal('3', lines['a.nout'])
      assert.matches('\nx.size = 5', '\n' .. fingerprint.structure(m, 'x'), 1, true)
      assert.matches('^x = Module\n', fingerprint.structure(m, 'x'))
      assert.matches('\nx.a = Linear\n', fingerprint.structure(m, 'x') .. '\n', 1, true)
      assert.matches('\nx.a.nout = 3', fingerprint.structure(m, 'x'), 1, true)
   end)

   it('has shapes, dtypes and parts of parameters, and their values where asked', function()
      local m = tide.nn.Linear(2, 4, { bias = true })
      m.bias:requires_grad_(false)
      assert.equal('weight = [4, 2] f32 trained\nbias = [4] f32 frozen', fingerprint.parameters(m))
      layout.set(m, 'weight', { axis = { size = 2, rank = 1, name = 'tp' },
         placement = placement.shard(1), shape = { 8, 2 }, blocks = 2 })
      assert.matches('weight = [4, 2] f32 trained at 2,0 at 6,0\n', fingerprint.parameters(m), 1,
         true)
      local before = fingerprint.values(m:parameters())
      assert.equal(before, fingerprint.values(m:parameters()))
      tide.no_grad(function() m.bias:add_(1) end)
      assert.not_equal(before, fingerprint.values(m:parameters()))
      assert.equal(' ', fingerprint.values { tide.zeros({ 2 }, { device = 'null' }),
         tide.zeros({ 2 }, { device = 'null' }) })
   end)
end)

describe('the text of a batch', function()
   it('has contents of whole numbers and masks, shapes of the rest, lists of lengths', function()
      local function of(more)
         local b = { ids = ints { { 1, 2, 3 } } }
         for k, v in pairs(more or {}) do b[k] = v end
         return fingerprint.batch(b)
      end
      assert.equal(of(), of { ids = ints({ { 1, 2, 3 } }, 'i32') })
      assert.not_equal(of(), of { ids = ints { { 1, 2, 4 } } })
      assert.not_equal(of(), of { ids = ints { 1, 2, 3 } })
      assert.equal(of(), of { name = 'x', list = { 1 }, cut = function() end })
      assert.matches('^ids 1x3 %x+, x 2x2 f32$', of { x = tide.ones { 2, 2 } })
      assert.equal(of { x = tide.ones { 2, 2 } }, of { x = tide.zeros { 2, 2 } })
      assert.not_equal(of { on = tide.ones({ 2 }, { dtype = 'bool' }) },
         of { on = tide.zeros({ 2 }, { dtype = 'bool' }) })
      assert.not_equal(of { cu_real = { 0, 1 } }, of { cu_real = { 0, 2 } })
      assert.matches('^cu_real .*, ids 1x3', of { cu_real = { 0, 2 } })
      assert.equal(of() .. ', count 3\n' .. of() .. ', count nil',
         fingerprint.batches { { ids = ints { { 1, 2, 3 } }, count = 3 },
            { ids = ints { { 1, 2, 3 } } } })
   end)

   it('adds up to nothing over ranks exactly where all have the same', function()
      local function sum(...)
         local n, size = 0, select('#', ...)
         for r = 0, size - 1 do
            n = n + fingerprint.share((select(r + 1, ...)), r, size)
         end
         return n
      end
      assert.equal(0, sum('a'))
      assert.equal(0, sum('a', 'a', 'a', 'a'))
      assert.not_equal(0, sum('a', 'b'))
      assert.not_equal(0, sum('b', 'a', 'a'))
      assert.not_equal(0, sum('a', 'a', 'b'))
      assert.is_true(math.abs(fingerprint.share('a', 1, 2)) < 2^32)
   end)
end)

describe('the text of a plan', function()
   local function plan(opts)
      opts.size = opts.size or 2
      return tide.parallel.cp_map.new(opts)
   end
   it('is that of all its ranks, and of no other plan', function()
      local seen = {}
      for i, opts in ipairs { { length = 8 }, { length = 7 }, { length = 8, kind = 'contiguous' },
         { cu = { 0, 4, 8 }, kind = 'document' }, { cu = { 0, 2, 8 }, kind = 'document' },
         { cu_real = { 0, 1, 8 }, cu_slot = { 0, 4, 12 }, kind = 'document' },
         { cu = { 0, 3, 8 } }, { length = 4, kind = 'custom', index = { 3, 0, 1, 2 } },
         { length = 4, kind = 'custom', index = { 0, 3, 1, 2 } },
         { length = 256, kind = 'balanced', blocks = 2 },
         { length = 256, kind = 'balanced', blocks = 4 } } do
         local p = plan(opts)
         local text = fingerprint.plan(p)
         assert.equal(text, fingerprint.plan(p:at(1)))
         assert.is_nil(seen[text], i)
         seen[text] = true
      end
      assert.matches('^zigzag, 7 tokens padded to 8, 1 documents %(%x+%)$',
         fingerprint.plan(plan { length = 7 }))
   end)

   it('lists few documents, and counts many', function()
      assert.equal('documents at 0 1 2 3 4 5 6 7', fingerprint.documents { 0, 1, 2, 3, 4, 5, 6, 7 })
      assert.matches('^8 documents %(%x+%)$', fingerprint.documents { 0, 1, 2, 3, 4, 5, 6, 7, 8 })
   end)

   it('is in that of a context, with its index or its pairs', function()
      local p = plan { length = 4 }
      local axis = { size = 2, rank = 0 }
      local index = ints({ { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } } }, 'i32')
      assert.equal(fingerprint.plan(p),
         fingerprint.context(cp.context { map = p, axis = axis }))
      local with = fingerprint.context(cp.context { map = p, axis = axis, index = index })
      assert.matches(fingerprint.plan(p) .. ', index 1x4x2 ', with, 1, true)
      assert.not_equal(with, fingerprint.context(cp.context { map = p, axis = axis,
         index = index + 1 }))
      local function of(list)
         return fingerprint.context(cp.context { pairs = list, axis = axis })
      end
      assert.matches('^pairs %x+$', of { index, index })
      assert.equal(of { index, index }, of { index, index:clone() })
      assert.not_equal(of { index, index }, of { index, index + 1 })
   end)
end)
