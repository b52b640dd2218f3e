-- Rotary positions of each scaling and dtype against the rotation written out in doubles.

local tide = require 'tide'
local nn = require 'tide.nn'

local scalings = {
   default = false,
   linear = { rope_type = 'linear', factor = 4 },
   llama3 = { rope_type = 'llama3', factor = 8, low_freq_factor = 1, high_freq_factor = 4,
              original_max_position_embeddings = 64 },
   dynamic = { rope_type = 'dynamic', factor = 2, original_max_position_embeddings = 64 },
   yarn = { rope_type = 'yarn', factor = 4, original_max_position_embeddings = 64 },
   longrope = { rope_type = 'longrope', original_max_position_embeddings = 64,
                short_factor = { 1, 1.1, 1.2, 1.3 }, long_factor = { 1.3, 2.1, 3.7, 9.1 } },
}
local at = { 0, 1, 7, 4097, 100003 }
local length = at[#at] + 1
local positions = tide.tensor({ at }, { dtype = 'i64' })

-- x[t][h][d] rotated by sign * position; sign -1 is the derivative.
local function rotated(x, frequencies, interleaved, sign)
   local half, out = #frequencies, {}
   for t, heads in ipairs(x) do
      out[t] = {}
      for h, row in ipairs(heads) do
         local y = {}
         for d, v in ipairs(row) do y[d] = v end
         for i, f in ipairs(frequencies) do
            local a, b = i, i + half
            if interleaved then a, b = 2 * i - 1, 2 * i end
            local co, si = math.cos(at[t] * f), sign * math.sin(at[t] * f)
            y[a], y[b] = row[a] * co - row[b] * si, row[b] * co + row[a] * si
         end
         out[t][h] = y
      end
   end
   return out
end

local function near(want, got, tolerance)
   local d = (tide.tensor({ want }, { dtype = 'f64' }) - got:to 'f64'):abs():amax():item()
   assert.is_true(d <= tolerance, 'largest difference ' .. d)
end

local function random(dtype)
   return tide.randn({ 1, #at, 2, 10 }, { dtype = 'f64' }):to(dtype)
end

describe('nn.rope', function()
   for name, scaling in pairs(scalings) do
      for _, interleaved in ipairs { false, true } do
         local function new()
            return nn.rope.new { dim = 8, theta = 500, scaling = scaling or nil,
                                 interleaved = interleaved }
         end
         local list = nn.rope.frequencies(8, 500, scaling or nil, length)
         local case = ('%s%s'):format(name, interleaved and ', interleaved' or '')

         it('rotates f64 tensors by f64 angles: ' .. case, function()
            local x = random 'f64'
            local y = new():apply(x, positions, length)
            near(rotated(x:tolist()[1], list, interleaved, 1), y, 1e-10)
         end)

         it('has gradients of f64 tensors in f64: ' .. case, function()
            local x, dy = random 'f64', random 'f64'
            x:requires_grad_(true)
            new():apply(x, positions, length):backward(dy)
            near(rotated(dy:tolist()[1], list, interleaved, -1), x.grad, 1e-10)
         end)

         it('keeps f32 frequencies for other dtypes: ' .. case, function()
            local rope, frequencies = new(), tide.tensor(list, { dtype = 'f32' })
            rope:apply(random 'f64', positions, length)
            for _, dtype in ipairs { 'f32', 'bf16', 'f16' } do
               local x = random(dtype)
               local want = tide.rope(x, positions, frequencies, { interleaved = interleaved })
               assert.same(want:tolist(), rope:apply(x, positions, length):tolist())
            end
         end)
      end
   end
end)

describe('tide.rope', function()
   it('takes frequencies of f32 and f64 alone', function()
      local ok, e = pcall(tide.rope, random 'f32', positions, tide.ones({ 2 }, { dtype = 'bf16' }))
      assert.is_false(ok)
      assert.equal('E_SHAPE', e.code)
      assert.matches('expected f32 or f64', tostring(e), 1, true)
   end)
end)
