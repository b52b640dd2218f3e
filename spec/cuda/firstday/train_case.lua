-- Training steps on a GPU against the host, and captured ones against eager ones.
--
-- Not found by its name: script `a` runs it on a GPU, firstday_spec.lua on emulated threads.

local tide = require 'tide'

local emulated = require('spec.cuda.emulated').driver() ~= nil
local nstep = 4
local config = {
   vocab_size = emulated and 61 or 2048, hidden_size = emulated and 32 or 512,
   intermediate_size = emulated and 48 or 1408, num_hidden_layers = emulated and 1 or 2,
   num_attention_heads = 4, num_key_value_heads = 2,
}
local rows, tokens = 2, emulated and 10 or 512

local function batch(device)
   local ids = {}
   for i = 1, rows * tokens do ids[i] = (7 * i * i + 3 * i) % config.vocab_size end
   local t = tide.tensor(ids, { dtype = 'i64' }):reshape { rows, tokens }
   return { ids = t:to(device), labels = t:roll(-1, 2):to(device), count = rows * tokens }
end

-- Loss and norm of each step, as text that keeps every bit of f32.
local function steps(device, dtype, captured)
   local model = tide.model.llama(config, { seed = 3, dtype = dtype, device = device })
   local step = tide.train.step.new { model = model, clip = 1, captured = captured,
      optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
   local list, b = {}, batch(device)
   for i = 1, nstep do
      local r = step:run { b }
      assert.is_true(r.applied)
      list[i] = { r.loss, r.grad_norm }
   end
   return list
end

local function close(want, got, tolerance)
   for i = 1, nstep do
      for k = 1, 2 do
         local w, g = want[i][k], got[i][k]
         assert.is_true(math.abs(w - g) <= tolerance * math.abs(w),
            ('step %d: %.7g and %.7g'):format(i, w, g))
      end
   end
   assert.is_true(got[nstep][1] < got[1][1])
end

describe('a training step on a GPU', function()
   it('has loss and norm of the host in f32', function()
      close(steps('cpu', 'f32'), steps('cuda', 'f32'), 2e-3)
   end)

   -- rounding to 8 bits of fraction, over four steps
   it('has loss and norm of the host in bf16, roughly', function()
      close(steps('cpu', 'bf16'), steps('cuda', 'bf16'), 5e-2)
   end)

   for _, dtype in ipairs { 'f32', 'bf16' } do
      it('has the bits of the eager one where it is captured: ' .. dtype, function()
         assert.same(steps('cuda', dtype), steps('cuda', dtype, true))
      end)
   end

   it('repeats its bits', function()
      assert.same(steps('cuda', 'bf16'), steps('cuda', 'bf16'))
   end)

   it('has nearly the same numbers with wgmma as with mma on a Hopper chip', function()
      local want = steps('cuda', 'bf16')
      tide.cuda.set_attention_kernel 'wgmma'
      local ok, got = pcall(steps, 'cuda', 'bf16')
      tide.cuda.set_attention_kernel 'mma'
      if not ok and got.code == 'E_UNSUPPORTED' then return end     -- another chip
      assert.is_true(ok, tostring(got))
      close(want, got, 2e-2)
   end)
end)
