-- Rotary positions of each scaling and dtype against the rotation written out in doubles.

local tide = require 'tide'
local nn = require 'tide.nn'
local raised = require 'spec.support.raised'

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

-- Angles of one token written out: frequency i turns by the row of its section.
local function of_rows(x, list, sections, rows, sign)
   local half, out = #list, {}
   local row_of = {}
   for row, n in ipairs(sections) do
      for _ = 1, n do row_of[#row_of + 1] = row end
   end
   for b = 1, #x do
      out[b] = {}
      for t, heads in ipairs(x[b]) do
         out[b][t] = {}
         for h, v in ipairs(heads) do
            local y = {}
            for d, number in ipairs(v) do y[d] = number end
            for i, f in ipairs(list) do
               local angle = (rows[row_of[i]][b] or rows[row_of[i]][1])[t] * f
               local co, si = math.cos(angle), sign * math.sin(angle)
               y[i], y[i + half] = v[i] * co - v[i + half] * si, v[i + half] * co + v[i] * si
            end
            out[b][t][h] = y
         end
      end
   end
   return out
end

describe('positions of several rows', function()
   local sections = { 1, 2, 1 }
   local rows = { { { 0, 5, 5, 9 }, { 3, 3, 3, 4 } }, { { 0, 5, 6, 9 }, { 3, 4, 5, 4 } },
      { { 0, 6, 5, 9 }, { 3, 5, 4, 90 } } }
   local at_rows = tide.tensor(rows, { dtype = 'i64' })

   local function values(heads, seed)
      return tide.empty({ 2, 4, heads, 10 }, { dtype = 'f64' })
         :normal_(0, 1, { seed = seed, stream = 1, offset = 0 })
   end

   local function far(a, b) return (a:to 'f64' - b:to 'f64'):abs():amax():item() end

   local cases = {
      mrope = { dim = 8, theta = 500, scaling = { type = 'mrope', mrope_section = sections } },
      default = { dim = 8, theta = 500, scaling = { rope_type = 'default',
         mrope_section = sections } },
      yarn = { dim = 8, theta = 500, scaling = { rope_type = 'yarn', factor = 4,
         original_max_position_embeddings = 64, mrope_section = sections } },
   }
   for name, opts in pairs(cases) do
      it('turn each section of the frequencies by its row, with gradients: ' .. name, function()
         local rope, list = nn.rope.new(opts), nn.rope.frequencies(8, 500, opts.scaling)
         local x, dy = values(2, 1):requires_grad_(true), values(2, 2)
         local y = rope:apply(x, at_rows)
         y:backward(dy)
         assert.is_true(far(tide.tensor(of_rows(x:tolist(), list, sections, rows, 1),
            { dtype = 'f64' }), y) <= 1e-12)
         assert.is_true(far(tide.tensor(of_rows(dy:tolist(), list, sections, rows, -1),
            { dtype = 'f64' }), x.grad) <= 1e-12)
      end)
   end

   it('turn queries and keys alike, in their own memory or not, and get gradients', function()
      local rope = nn.rope.new(cases.mrope)
      for _, reuse in ipairs { false, true } do
         local leaf, key = values(2, 1):requires_grad_(true), values(1, 2):requires_grad_(true)
         local q, k = rope:apply_both(leaf * 1, key * 1, at_rows, nil, reuse)
         assert.equal(0, far(rope:apply(leaf, at_rows), q))
         assert.equal(0, far(rope:apply(key, at_rows), k));
         ((q * q):sum() + (k * 3):sum()):backward()
         assert.is_true(far(leaf.grad, leaf * 2) <= 1e-12)
         local other = key:detach():requires_grad_(true);
         (rope:apply(other, at_rows) * 3):sum():backward()
         assert.equal(0, far(key.grad, other.grad))
      end
   end)

   it('that are equal are those of one row, bit by bit in every dtype', function()
      local rope = nn.rope.new(cases.mrope)
      local one = tide.tensor({ { 0, 5, 6, 4000 } }, { dtype = 'i64' })
      local three = one:reshape(1, 1, 4):expand(3, 1, 4):contiguous()
      for _, dtype in ipairs { 'f64', 'f32', 'bf16', 'f16' } do
         local x = values(2, 3):to(dtype)
         assert.same(rope:apply(x, one):tolist(), rope:apply(x, three):tolist())
      end
   end)

   it('take turns over the frequencies with mrope_interleaved, as far as sections reach', function()
      local three = { { 0, 5, 6, 9 }, { 0, 5, 7, 9 }, { 0, 8, 6, 9 } }
      local all = tide.tensor({ { three[1] }, { three[2] }, { three[3] } }, { dtype = 'i64' })
      local x = tide.randn({ 1, 4, 1, 14 }, { dtype = 'f64' })
      local plain, scaling = nn.rope.new { dim = 14, theta = 500 }, { rope_type = 'default',
         mrope_interleaved = true, mrope_section = { 4, 1, 2 } }
      local y = nn.rope.new({ dim = 14, theta = 500, scaling = scaling }):apply(x, all)
      for i, row in ipairs { 1, 2, 3, 1, 1, 3, 1 } do
         local z = plain:apply(x, tide.tensor({ three[row] }, { dtype = 'i64' }))
         for _, c in ipairs { i, i + 7 } do
            assert.is_true(far(z:narrow(4, c, 1), y:narrow(4, c, 1)) <= 1e-12)
         end
      end
   end)

   it('turn shares of the channels from the same frequencies with axes', function()
      local rope = nn.rope.new { dim = 8, theta = 500, axes = 2 }
      local share, two = nn.rope.frequencies(4, 500), { rows[1], rows[3] }
      local list = { share[1], share[2], share[1], share[2] }
      local x = values(2, 4)
      assert.is_true(far(tide.tensor(of_rows(x:tolist(), list, { 2, 2 }, two, 1),
         { dtype = 'f64' }), rope:apply(x, tide.tensor(two, { dtype = 'i64' }))) <= 1e-12)
   end)

   it('must be as many as there are sections, which add up to half of the channels', function()
      local x = values(2, 1)
      local function message(fn, ...) return raised(fn, ...).message end
      assert.equal('positions: expected [B or 1, T] or [3, B or 1, T], got [2, 2, 4]',
         message(function()
            nn.rope.new(cases.mrope):apply(x, at_rows:narrow(1, 1, 2))
         end))
      assert.equal('positions: expected [B or 1, T] (mrope_section of rope_scaling gives three '
         .. 'rows), got [3, 2, 4]', message(function()
            nn.rope.new({ dim = 8 }):apply_both(x, x, at_rows)
         end))
      for _, wrong in ipairs { { 1, 2, 2 }, { 2, 2 }, { 1, 1, 1, 1 } } do
         assert.equal("argument 'rope_scaling.mrope_section': expected three counts (time, height, "
            .. 'width) that add up to 4, half of the channels that rotate, got { '
            .. table.concat(wrong, ', ') .. ' }', message(nn.rope.new,
               { dim = 8, scaling = { type = 'mrope', mrope_section = wrong } }))
      end
      assert.matches('dim %(6%) must be a multiple of 4',
         message(nn.rope.new, { dim = 6, axes = 2 }))
   end)
end)

describe('tide.rope', function()
   it('takes frequencies of f32 and f64 alone', function()
      local ok, e = pcall(tide.rope, random 'f32', positions, tide.ones({ 2 }, { dtype = 'bf16' }))
      assert.is_false(ok)
      assert.equal('E_SHAPE', e.code)
      assert.matches('expected f32 or f64', tostring(e), 1, true)
   end)
end)
