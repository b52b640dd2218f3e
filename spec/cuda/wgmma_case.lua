-- Attention on Hopper's asynchronous tensor cores: what the table of cuda/attention/attention.cu
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
local wide = require 'spec.support.wide'

local device = 'cuda'

-- Barriers that blocks have made by now, which no other kernel does; nil on a GPU.
ffi.cdef 'long tide_emulate_barriers(void);'
local library
local function count()
   library = library or ffi.load((os.getenv 'TIDE_BUILD' or 'build') .. '/libtide_cuda.so')
   tide.cuda.synchronize()
   local there, n = pcall(function() return library.tide_emulate_barriers() end)
   return there and tonumber(n) or nil
end

-- fn is served by the wgmma kernel, or by another.
local function served(expected, fn)
   local before = count()
   fn()
   if before then assert.equal(expected, count() > before, 'whether wgmma served it') end
end

local function shape(b, tq, tk, h, hk, d, dv)
   return { b = b, tq = tq, tk = tk, h = h, hk = hk, d = d, dv = dv or d }
end
local function forward(...)
   local s = shape(...)
   s.forward = true
   return s
end
local masks = {
   ['of queries before all keys'] = { causal = true, q_start = -50, scale = 0.3 },
   ['narrow window'] = { causal = true, window = 20, q_start = 90 },
   ['packed window'] = { causal = true, window = 10, packed = true },
   ['a diagonal that leaves one pair of a tile'] = { causal = true, q_start = 126 },
   ['a window that leaves one pair of a tile'] = { window = { 124 }, q_start = 126 },
   ['softcap in a window'] = { softcap = 2, window = { 40, 9 } },
}
for name, mask in pairs(attention.masks) do masks[name] = mask end
local names = {}
for name, mask in pairs(masks) do
   if not mask.bias then names[#names + 1] = name end
end
table.sort(names)

describe('attention by wgmma', function()
   setup(function() tide.cuda.set_attention_kernel 'wgmma' end)
   teardown(function() tide.cuda.set_attention_kernel 'mma' end)

   local function agrees(name, dtype, shapes)
      it(('is that of the host: %s, %s'):format(name, dtype), function()
         for _, s in ipairs(shapes) do
            served(true, function() attention.agrees({ s }, masks[name], dtype, device) end)
         end
      end)
   end
   local both = { shape(1, 70, 70, 2, 1, 64), shape(1, 200, 300, 1, 1, 128) }
   for i, name in ipairs(names) do
      local large = { forward(2, 130, 300, 2, 1, 64), forward(1, 257, 520, 1, 1, 128) }
      local small = forward(2, 1, 129, 4, 2, 128)
      agrees(name, 'bf16', wide and { both[1], both[2], large[1], large[2], small }
         or { both[i % 2 + 1], large[(i + 1) % 2 + 1], small })
   end
   for _, name in ipairs { 'causal', 'full', 'packed' } do agrees(name, 'f16', both) end

   it('serves widths between, values of another width, wide heads', function()
      for _, name in ipairs { 'causal', 'packed', 'softcap' } do
         for _, s in ipairs { shape(1, 70, 90, 2, 1, 8, 40), shape(2, 40, 140, 2, 2, 96, 16),
                              shape(1, 140, 40, 1, 1, 48, 128), forward(1, 140, 200, 2, 1, 256),
                              forward(1, 130, 70, 1, 1, 136, 200) } do
            served(true, function() attention.agrees({ s }, masks[name], 'bf16', device) end)
         end
      end
   end)

   it('has a backward of its own', function()
      local function run(where, kernel)
         local s, opts, grads = shape(2, 150, 270, 4, 2, 64), { causal = true, q_start = 100 }, nil
         local q, k, v, dout = unpack(attention.operands(s, 'bf16', where))
         opts.return_lse = true
         tide.cuda.set_attention_kernel 'mma'
         local out, lse = tide.attention(q, k, v, opts)
         tide.cuda.set_attention_kernel(kernel)
         opts.return_lse = nil
         local function back()
            grads = { tide.attention_backward(dout, q, k, v, out, lse, opts) }
         end
         if where == 'cpu' then back() else served(kernel == 'wgmma', back) end
         tide.cuda.set_attention_kernel 'wgmma'
         return grads
      end
      local want = run('cpu', 'mma')
      for _, kernel in ipairs { 'wgmma', 'mma' } do
         for i, got in ipairs(run(device, kernel)) do
            compare.close(got, want[i], 2 * compare.rounding.bf16, kernel .. ', gradient ' .. i)
         end
      end
   end)

   it('gives the same bits twice', function()
      local function run()
         return attention.attend(shape(1, 140, 140, 4, 2, 128), { causal = true }, 'bf16', device)
      end
      local a, b = run(), run()
      for k = 1, 5 do assert.equal(compare.bytes(a[k]), compare.bytes(b[k])) end
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
      local s = forward(1, 3, 200, 1, 1, 64)
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
      other(shape(1, 40, 40, 2, 1, 64), {}, 'f32')
      other(shape(1, 40, 40, 2, 1, 60), {}, 'bf16')
      other(shape(1, 70, 90, 2, 1, 64), attention.masks.bias, 'bf16')
      other(shape(1, 40, 0, 2, 1, 64), {}, 'bf16')
      local odd = compare.random({ 1, 20, 1, 68 }, 5, 'bf16')
      local function off(x)               -- rows of 136 bytes
         local y = x:slice(4, 1, 64)
         return tide.attention(y, y, y)
      end
      served(false, function()
         compare.close(off(odd:to(device)), off(odd), compare.rounding.bf16, 'rows off 16 bytes')
      end)
   end)

   it('leaves the backward of wide heads to another', function()
      local q, k, v, dout = unpack(attention.operands(shape(1, 40, 40, 1, 1, 136), 'bf16', device))
      local y
      q:requires_grad_()
      served(true, function() y = tide.attention(q, k, v) end)
      served(false, function() y:backward(dout) end)
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
