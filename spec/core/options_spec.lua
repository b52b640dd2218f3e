-- Structs of options from hosts that were compiled with an older or a newer header.

local ffi = require 'ffi'
local tide = require 'tide'
local own = require 'tide.ffi.own'
local C = require('tide.ffi.lib').C

-- A struct of this type in a buffer that is longer, of bytes 0 behind it.
local function struct(name, more)
   local size = ffi.sizeof('tide_' .. name)
   local bytes = ffi.new('char[?]', size + more)
   local s = ffi.cast('tide_' .. name .. ' *', bytes)
   C['tide_' .. name .. '_init'](s)
   return s, bytes, size
end

local function loss(attrs)
   local logits = tide.ones { 2, 3 }
   local targets = tide.ones({ 2 }):to 'i64'
   local box = ffi.new 'tide_tensor *[1]'
   local rc = C.tide_cross_entropy(box, logits, targets, attrs)
   return rc, rc == 0 and own.take(box):tolist()
end

describe('a struct of options', function()
   it('of an older header is taken, with defaults for what it lacks', function()
      local a = struct('cross_entropy_attrs', 0)
      a.z_loss = 5                          -- behind the end of the older struct
      a.size = ffi.offsetof('tide_cross_entropy_attrs', 'z_loss')
      local rc, values = loss(a)
      assert.equal(0, rc)
      assert.are.same(select(2, loss(nil)), values)
      a.size = ffi.sizeof 'tide_cross_entropy_attrs'
      assert.are_not.same(values, (select(2, loss(a))))
   end)

   it('of a newer header is taken if what is unknown is zero, and else refused', function()
      local a, bytes, size = struct('cross_entropy_attrs', 16)
      a.size = size + 16
      assert.equal(0, (loss(a)))
      bytes[size + 9] = 1
      assert.equal(C.TIDE_E_ARG, (loss(a)))
      local record = C.tide_error(tide.default().handle)
      assert.equal('cross_entropy', ffi.string(record.op))
      assert.matches('newer header', ffi.string(record.message))
   end)

   it('that was not initialised is refused, in every function that takes one', function()
      local x, box = tide.ones { 1, 2, 1, 4 }, ffi.new 'tide_tensor *[4]'
      local handle, text = tide.default().handle, ffi.new 'char[256]'
      local function refused(rc) assert.equal(C.TIDE_E_ARG, rc) end
      refused(loss(ffi.new 'tide_cross_entropy_attrs'))
      refused(C.tide_attention(box, nil, x, x, x, ffi.new 'tide_attention_attrs'))
      refused(C.tide_uniform_(x, 0, 1, ffi.new 'tide_random_attrs'))
      refused(C.tide_conv1d(box, nil, tide.ones { 1, 3, 2 }, tide.ones { 2, 2 }, nil,
         ffi.new 'tide_conv1d_attrs'))
      refused(C.tide_adamw_(handle, 0, box, box, box, box, nil, nil, nil, nil,
         ffi.new 'tide_adamw_attrs'))
      refused(C.tide_sgd_(handle, 0, box, box, nil, nil, nil, nil, nil, ffi.new 'tide_sgd_attrs'))
      refused(C.tide_group_new(ffi.new 'tide_group *[1]', 1, ffi.new 'tide_group_opts', text, 256))
      refused(C.tide_ctx_new(ffi.new 'tide_ctx *[1]', ffi.new 'tide_opts', text, 256))
      assert.matches('tide_opts_init', ffi.string(text))
   end)

   it('with another ABI is refused when a context is made', function()
      local box, text, o = ffi.new 'tide_ctx *[1]', ffi.new 'char[256]', ffi.new 'tide_opts'
      C.tide_opts_init(o)
      o.abi = C.TIDE_ABI
      assert.equal(0, C.tide_ctx_new(box, o, text, 256))
      C.tide_ctx_release(box[0])
      o.abi = C.TIDE_ABI + 1
      assert.equal(C.TIDE_E_ARG, C.tide_ctx_new(box, o, text, 256))
      assert.matches('ABI', ffi.string(text))
   end)
end)
