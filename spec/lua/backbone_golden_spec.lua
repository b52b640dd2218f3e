-- Checkpoints of Mamba-2 and Nemotron-H as the transformers package writes them, loaded by folder:
-- logits, loss and the gradient of every parameter (numbers of spec/golden/backbones.py).

local tide = require 'tide'
local each = require 'tide.util.each'

local root = 'spec/golden/backbone/'

-- Folder names, the model that reads them, and fields that differ from the file's.
local cases = {
   mamba2 = { 'mamba2' }, mamba2_tied = { 'mamba2' },
   nemotron = { 'hybrid' }, nemotron_bias = { 'hybrid' },
   -- transformers limits steps by time_step_min; here time_step_limit does
   nemotron_limit = { 'hybrid', { time_step_limit = { 0.3, math.huge } } },
}

local function config_of(name, changes)
   local c = tide.json.decode(tide.util.fs.read('spec', root .. name .. '/config.json'),
      { nonfinite = true })
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

local function tensors(name, file)
   return tide.train.checkpoint.tensors(root .. name .. '/' .. file .. '.safetensors')
end

local function load(name, dtype, changes)
   local model = tide.model[cases[name][1]](config_of(name, changes or cases[name][2]),
      { dtype = dtype })
   model:load_state_dict(tensors(name, 'model'))
   return model
end

local function off(got, want)
   return (got:to 'f64' - want:to 'f64'):abs():amax():item() / want:to('f64'):abs():amax():item()
end

-- The reference runs in f32: its own rounding is in the tolerances.
local function check(name, dtype)
   local model, want = load(name, dtype), tensors(name, 'expected')
   assert.is_true(off(model(want.ids):detach(), want.logits) <= 2e-5, 'logits')
   local loss = model:loss(want.ids, want.labels)
   assert.is_true(math.abs(loss:item() - want.loss:item()) <= 2e-5 * want.loss:item(), 'loss')
   loss:backward()
   local seen = 0
   for _, e in ipairs(model:named_parameters()) do
      local error_ = off(e.param.grad, want['grad ' .. e.name])
      assert.is_true(error_ <= 1e-4, ('gradient of %s off by %g'):format(e.name, error_))
      seen = seen + 1
   end
   for key in each(want) do
      if key:find '^grad ' then seen = seen - 1 end
   end
   assert.equal(0, seen, 'parameters of one side alone')
end

describe('a folder of transformers', function()
   for name in each(cases) do
      for _, dtype in ipairs { 'f32', 'f64' } do
         it(('gives its logits, loss and gradients: %s in %s'):format(name, dtype), function()
            check(name, dtype)
         end)
      end
   end

   it('of Nemotron-H is limited by time_step_limit, not by time_step_min', function()
      local want = tensors('nemotron_limit', 'expected')
      local plain = load('nemotron_limit', 'f32', {})
      assert.is_true(off(plain(want.ids):detach(), want.logits) > 1e-3)
   end)
end)
