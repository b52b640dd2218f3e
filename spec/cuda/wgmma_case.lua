-- Attention on Hopper's asynchronous tensor cores: what the table of kernels/cuda/attention.cu
-- gives to it, over several tiles and stages, against the host.
--
-- Not found by its name: spec/cuda/emulated_wgmma_spec.lua runs it on emulated threads, which also
-- count the barriers, so that each case knows which kernel served it. On a Hopper GPU:
-- TIDE_SPEC_DEVICE=cuda luajit /usr/bin/busted spec/cuda/wgmma_case.lua

local ffi = require 'ffi'
local tide = require 'tide'
local attention = require 'spec.cuda.attention'
local compare = require 'spec.cuda.compare'
local refused = require 'spec.support.refused'

local device = 'cuda'

-- Barriers that blocks have made so far, which no other kernel does; nil on a GPU.
ffi.cdef 'long tide_emulate_barriers(void);'
local library
local function count()
   library = library or ffi.load((os.getenv 'TIDE_BUILD' or 'build') .. '/libtide_cuda.so')
   local there, n = pcall(function() return library.tide_emulate_barriers() end)
   return there and tonumber(n) or nil
end

-- fn is served by the wgmma kernel, or by another.
local function served(expected, fn)
   local before = count()
   fn()
   if before then assert.equal(expected, count() > before, 'whether wgmma served it') end
end

local function shape(b, tq, tk, h, hk, d, backward)
   return { b = b, tq = tq, tk = tk, h = h, hk = hk, d = d, dv = d, forward = not backward }
end
local masks = {
   full = {}, causal = { causal = true }, shifted = { causal = true, q_start = 20 },
   ['of queries before all keys'] = { causal = true, q_start = -50, scale = 0.3 },
}

describe('attention by wgmma', function()
   setup(function() tide.cuda.set_attention_kernel 'wgmma' end)
   teardown(function() tide.cuda.set_attention_kernel 'mma' end)

   for _, name in ipairs { 'full', 'causal', 'shifted', 'of queries before all keys' } do
      for _, dtype in ipairs { 'bf16', 'f16' } do
         it(('is that of the host: %s, %s'):format(name, dtype), function()
            for _, s in ipairs { shape(1, 70, 70, 2, 1, 64, true), shape(2, 130, 300, 2, 1, 64),
                                 shape(1, 257, 520, 1, 1, 128), shape(2, 1, 129, 4, 2, 128) } do
               served(true, function() attention.agrees({ s }, masks[name], dtype, device) end)
            end
         end)
      end
   end

   it('gives the same bits twice', function()
      local function run()
         return attention.attend(shape(1, 140, 140, 2, 1, 128), { causal = true }, 'bf16', device)
      end
      local a, b = run(), run()
      for k = 1, 2 do assert.equal(compare.bytes(a[k]), compare.bytes(b[k])) end
   end)

   it('reads heads that are views, and heads before tokens', function()
      local qkv = compare.random({ 2, 40, 6, 64 }, 3, 'bf16')
      local function views(x)
         return tide.attention(x:slice(3, 1, 2), x:slice(3, 3, 4), x:slice(3, 5, 6),
            { causal = true })
      end
      local function turned(x)
         local y = x:transpose(2, 3):contiguous():transpose(2, 3)
         return views(y)
      end
      for _, run in ipairs { views, turned } do
         served(true, function()
            compare.close(run(qkv:to(device)), run(qkv), compare.rounding.bf16, 'views')
         end)
      end
   end)

   it('leaves queries that see no key at zero, with a sum of -inf', function()
      local s = shape(1, 3, 200, 1, 1, 64)
      local got = attention.attend(s, { causal = true, q_start = -2 }, 'bf16', device)
      local out, lse = got[1]:to('f32'):tolist()[1], got[2]:tolist()[1][1]
      for i = 1, 2 do
         assert.equal(-math.huge, lse[i])
         for c = 1, 64 do assert.equal(0, out[i][1][c]) end
      end
      assert.is_true(lse[3] > -math.huge)
   end)

   it('is not what serves other operands', function()
      local function other(s, opts, dtype)
         served(false, function() attention.agrees({ s }, opts, dtype, device) end)
      end
      local s = shape(1, 40, 40, 2, 1, 64)
      for _, name in ipairs { 'window', 'window to both sides', 'softcap', 'packed' } do
         other(s, attention.masks[name], 'bf16')
      end
      other(s, { scale = -0.1 }, 'bf16')
      other(s, {}, 'f32')
      other(shape(1, 40, 40, 2, 1, 32), {}, 'bf16')
      local wide = shape(1, 40, 40, 1, 1, 64)
      wide.dv = 128
      other(wide, {}, 'bf16')
      local odd = compare.random({ 1, 20, 1, 68 }, 5, 'bf16')
      local function off(x)               -- rows of 136 bytes
         local y = x:slice(4, 1, 64)
         return tide.attention(y, y, y)
      end
      served(false, function()
         compare.close(off(odd:to(device)), off(odd), compare.rounding.bf16, 'rows off 16 bytes')
      end)
   end)
end)

describe('the parameter', function()
   it('is mma unless told otherwise, and refuses other names', function()
      assert.equal('mma', tide.cuda.get_attention_kernel())
      served(false, function()
         attention.agrees({ shape(1, 20, 20, 1, 1, 64) }, {}, 'bf16', device)
      end)
      refused('E_ARG', { 'set_attention_kernel', 'mma', 'wgmma' }, function()
         tide.cuda.set_attention_kernel 'flash'
      end)
      refused('E_ARG', 'set_attention_kernel', function() tide.cuda.set_attention_kernel() end)
   end)
end)
