-- optim: updates against PyTorch (numbers of llama_reference.py), groups, state, clipping.

local tide = require 'tide'
local optim = require 'tide.optim'
local raised = require 'spec.support.raised'

local x = tide.tensor({ { 1, 2 }, { 0.5, -1 } }, { dtype = 'f64' })

local function params(dtype)
   local w = tide.arange(6, { dtype = 'f64' }):sin():reshape(2, 3):to(dtype or 'f64')
   local b = tide.arange(3, { dtype = 'f64' }):cos():to(dtype or 'f64')
   return {
      { name = 'w', param = w:detach():requires_grad_(true) },
      { name = 'b', param = b:detach():requires_grad_(true) },
   }
end

local function backward(p)
   local y = x:to(p[1].param.dtype):matmul(p[1].param) + p[2].param
   local loss = (y - 1):square():sum()
   loss:backward()
end

local function run(opt, p, n)
   for _ = 1, n do
      opt:zero_grad()
      backward(p)
      opt:step()
   end
end

local function flat(p)
   local list = {}
   for _, e in ipairs(p) do
      for _, v in ipairs(e.param:to('f64'):reshape(-1):tolist()) do list[#list + 1] = v end
   end
   return list
end

local function close(want, got, tolerance)
   assert.equal(#want, #got)
   for i = 1, #want do
      assert.is_true(math.abs(want[i] - got[i]) <= tolerance,
         ('%d: %.12g ~= %.12g'):format(i, want[i], got[i]))
   end
end

local adamw = { -0.054194428597429345, 1.045803969103753, 1.1320809153249327,
   -0.03255119959934691, -0.4948598828218315, -0.6895924228400441, 1.0256234021566148,
   0.6788715123401886, -0.16854273109079893 }
local sgd = { -0.034184278991343936, 0.9363741974540355, 1.51776546341051, -0.041124653325084325,
   0.035839327999172194, 0.11811080033456796, 0.9941276953457463, 0.48945852879866997,
   0.23360919629870877 }

describe('state_bytes of a class', function()
   it('is what an update makes, of every shape and dtype', function()
      for _, class in ipairs { 'AdamW8bit', 'Lion', 'Adafactor', 'Muon' } do
         for _, dtype in ipairs { 'f32', 'f64', 'bf16' } do
            for _, shape in ipairs { { 5 }, { 4, 6 }, { 2, 3, 4 } } do
               local w = tide.ones(shape, { dtype = dtype }):requires_grad_(true)
               local o = optim[class] { { name = 'w', param = w } }
               w:square():sum():backward()
               o:step()
               local bytes = 0
               for _, t in pairs(o.state.w) do
                  bytes = bytes + (tide.is_tensor(t) and t:numel() * tide.dtype_size(t.dtype) or 0)
               end
               local said = optim[class].state_bytes(dtype, { name = 'w', shape = shape })
               assert.is_true(math.abs(said * w:numel() - bytes) < 1e-9, ('%s %s %d: %g ~= %g')
                  :format(class, dtype, #shape, said * w:numel(), bytes))
            end
         end
      end
      assert.equal(8, optim.Muon.state_bytes('f32', { name = 'embed_tokens.weight',
         shape = { 4, 6 } }))
   end)
end)

describe('AdamW and SGD', function()
   it('are those of PyTorch, vectors without decay', function()
      local p = params()
      run(optim.AdamW(p, { lr = 0.05, weight_decay = 0.1, beta2 = 0.95 }), p, 5)
      close(adamw, flat(p), 1e-12)
      p = params()
      run(optim.SGD(p, { lr = 0.02, momentum = 0.9, nesterov = true, weight_decay = 0.01 }), p, 5)
      close(sgd, flat(p), 1e-12)
      p = params 'f32'
      run(optim.AdamW(p, { lr = 0.05, weight_decay = 0.1, beta2 = 0.95 }), p, 5)
      close(adamw, flat(p), 2e-6)
   end)

   it('keep an exact copy of 16-bit parameters', function()
      local p = params 'bf16'
      local opt = optim.AdamW(p, { lr = 1e-4, weight_decay = 0 })
      local before = flat(p)
      run(opt, p, 3)
      local master = opt.state.w.master
      assert.equal('f32', master.dtype)
      -- each update is below half a step of bf16, and is still counted
      assert.is_true(math.abs(math.abs(master:at(1, 3) - before[3]) - 3e-4) < 1e-5)
      assert.is_true(p[1].param:equal(master:bf16()))
   end)

   it('leave parameters without a gradient alone', function()
      local p = params()
      local lone = tide.ones({ 2, 2 }, { requires_grad = true })
      p[3] = { name = 'lone', param = lone }
      run(optim.AdamW(p, { lr = 0.05, weight_decay = 0.1, beta2 = 0.95 }), p, 5)
      assert.equal(4, lone:sum():item())
      close(adamw, { unpack(flat(p), 1, 9) }, 1e-12)
   end)

   it('take the learning rate from a function of the step', function()
      local p, steps = params(), {}
      local opt = optim.SGD(p, { lr = function(s)
         steps[#steps + 1] = s
         return 0
      end })
      local before = flat(p)
      run(opt, p, 3)
      assert.same({ 1, 2, 3 }, steps)
      assert.same(before, flat(p))
   end)

   it('scale gradients by a number and by a tensor', function()
      local a, b = params(), params()
      local oa, ob = optim.SGD(a, { lr = 0.1 }), optim.SGD(b, { lr = 0.025 })
      backward(a)
      backward(b)
      oa:step { scale = 0.5, factor = tide.tensor(0.5) }
      ob:step()
      close(flat(b), flat(a), 1e-7)
   end)
end)

describe('groups', function()
   it('have their own settings', function()
      local p = params()
      local opt = optim.SGD({
         { params = { p[1] }, weight_decay = 0.5 }, { params = { p[2] }, lr_scale = 0 },
      }, { lr = 0.1 })
      local before = flat(p)
      run(opt, p, 2)
      local after = flat(p)
      close({ unpack(before, 7) }, { unpack(after, 7) }, 0)
      assert.is_true(math.abs(after[2] - before[2]) > 1e-3)
   end)

   it('are refused when they overlap or have unknown settings', function()
      local p = params()
      assert.matches("'w' is given twice", raised(optim.SGD, { { params = { p[1] } },
         { params = { p[1] } } }, { lr = 1 }).message, 1, true)
      assert.equal('E_ARG', raised(optim.SGD, { { params = p, betas = 1 } }, { lr = 1 }).code)
      assert.equal('E_ARG', raised(optim.SGD, {}, { lr = 1 }).code)
      assert.equal('E_ARG', raised(optim.SGD, { { name = 'x' } }, { lr = 1 }).code)
   end)

   it('check every number', function()
      local p = params()
      for _, o in ipairs { { lr = -1 }, { lr = 0 / 0 }, { beta1 = 1 }, { beta2 = -0.1 },
                           { eps = -1 }, { weight_decay = 1 / 0 }, { betta1 = 0.9 } } do
         assert.equal('E_ARG', raised(optim.AdamW, p, o).code)
      end
      assert.equal('E_ARG', raised(optim.SGD, p, { nesterov = true }).code)
      local opt = optim.SGD(p, { lr = 0.1 })
      assert.equal('E_ARG', raised(opt.step, opt, { lr = 0 / 0 }).code)
      assert.equal('E_ARG', raised(opt.step, opt, { sclae = 1 }).code)
   end)
end)

describe('optimiser state', function()
   it('continues exactly', function()
      local a = params()
      local oa = optim.AdamW(a, { lr = 0.05, beta2 = 0.95 })
      run(oa, a, 3)
      local tensors, meta = oa:state_dict()
      local b = params()
      tide.no_grad(function()
         for i, e in ipairs(b) do e.param:copy_(a[i].param) end
      end)
      local ob = optim.AdamW(b, { lr = 0.05, beta2 = 0.95 })
      ob:load_state_dict(tensors, meta)
      run(oa, a, 2)
      run(ob, b, 2)
      assert.same(flat(a), flat(b))
      assert.equal(5, ob.steps)
   end)

   it('has no last step to take back', function()
      local p = params()
      local opt = optim.AdamW(p, { lr = 0.05 })
      run(opt, p, 2)
      opt:load_state_dict(opt:state_dict())
      assert.equal('E_STATE', raised(opt.take_back, opt).code)
      run(opt, p, 1)
      opt:take_back()
      assert.equal(2, opt.steps)
      assert.equal(2, opt.state.w.step)
   end)

   it('is refused when it is of something else', function()
      local p = params()
      local opt = optim.AdamW(p, { lr = 0.05 })
      run(opt, p, 1)
      local tensors, meta = opt:state_dict()
      assert.equal('E_ARG', raised(optim.SGD(p, { lr = 1 }).load_state_dict,
         optim.SGD(p, { lr = 1 }), tensors, meta).code)
      local fewer = optim.AdamW({ p[1] }, { lr = 0.05 })
      assert.matches("'b' that is not optimised", raised(fewer.load_state_dict, fewer, tensors,
         meta).message, 1, true)
      tensors['w.master'] = p[1].param
      assert.matches("'w.master', which is not kept", raised(opt.load_state_dict, opt, tensors,
         meta).message, 1, true)
      tensors['w.master'] = nil
      tensors['w.m'] = nil
      assert.equal('E_FORMAT', raised(opt.load_state_dict, opt, tensors, meta).code)
      for _, shape in ipairs { { 5 }, { 3 }, { 1 }, {} } do        -- all but the first broadcast
         tensors['w.m'] = tide.zeros(shape)
         local e = raised(opt.load_state_dict, opt, tensors, meta)
         assert.equal('E_SHAPE', e.code)
         assert.matches("'w.m'", e.message, 1, true)
      end
      tensors['w.m'] = 3
      assert.equal('E_ARG', raised(opt.load_state_dict, opt, tensors, meta).code)
      meta.counts = nil
      assert.equal('E_ARG', raised(opt.load_state_dict, opt, tensors, meta).code)
      assert.equal('E_ARG', raised(opt.load_state_dict, opt, nil, meta).code)
   end)
end)

describe('clipping', function()
   it('gives norm and factor on the device', function()
      local grads = { tide.tensor { 3 }, tide.tensor { { 4, 0 }, { 0, 12 } } }
      local norm, factor = optim.clip.by_norm(grads, 2)
      assert.is_true(math.abs(norm:item() - 13) < 1e-5)
      assert.is_true(math.abs(factor:item() - 2 / 13) < 1e-6)
      local _, one = optim.clip.by_norm(grads, 100)
      assert.equal(1, one:item())
      local _, none = optim.clip.by_norm(grads, 0)
      assert.is_nil(none)
      assert.equal('E_ARG', raised(optim.clip.by_norm, grads, -1).code)
   end)
end)

describe('what an optimiser is given', function()
   local nn = require 'tide.nn'
   local function model() return nn.Linear(3, 2, { seed = 1 }) end
   local input = tide.tensor { { 1, -2, 0.5 } }

   -- The weights after three steps of an optimiser of what of(model) returns; its names.
   local function trained(of, class)
      local m = model()
      local o = optim[class](of(m), { lr = 0.1 })
      for _ = 1, 3 do
         m(input):square():sum():backward()
         o:step()
         o:zero_grad()
      end
      local names = {}
      for i, entry in ipairs(o:entries()) do names[i] = entry.name end
      return m.weight:tolist(), names, o
   end

   it('may be a module, its parameters, tensors, entries, or groups of these', function()
      for _, class in ipairs { 'AdamW', 'SGD' } do
         local want, names = trained(function(m) return m end, class)
         assert.same({ 'weight', 'bias' }, names)
         local got
         got, names = trained(function(m) return m:parameters() end, class)
         assert.same({ want, { 'weight', 'bias' } }, { got, names })
         got, names = trained(function(m) return { m.weight, m.bias } end, class)
         assert.same({ want, { '1', '2' } }, { got, names })
         got, names = trained(function(m)
            return { { name = 'w', param = m.weight }, m.bias }
         end, class)
         assert.same({ want, { 'w', '1' } }, { got, names })
         got, names = trained(function(m)
            return { { params = { m.weight } }, { params = { m.bias }, weight_decay = 0 } }
         end, class)
         assert.same({ want, { '1', '2' } }, { got, names })
         got, names = trained(function(m)
            return { { params = m:parameters(), weight_decay = 0 } }
         end, class)
         assert.same({ 'weight', 'bias' }, names)
         assert.equal(class == 'SGD', tide.tensor(got):equal(tide.tensor(want)))
      end
   end)

   it('is left as it was', function()
      local p = model():parameters()
      local groups = { { params = p, weight_decay = 0 } }
      local o = optim.AdamW(groups, { lr = 1 })
      assert.is_true(rawequal(p, groups[1].params))
      assert.is_nil(groups[1].eps)
      assert.equal(1, #o.groups)
   end)

   it('goes on from a saved state, by names or numbers', function()
      for _, of in ipairs { function(m) return m:parameters() end,
         function(m) return { m.weight, m.bias } end } do
         local _, _, o = trained(of, 'AdamW')
         local tensors, meta = o:state_dict()
         local fresh = optim.AdamW(of(model()), { lr = 0.1 })
         fresh:load_state_dict(tensors, meta)
         assert.equal(3, fresh.steps)
      end
   end)

   it('is refused where it is something else, with what it may be', function()
      local m = model()
      local function bad(words, given)
         local e = raised(optim.AdamW, given, { lr = 1 })
         assert.equal('E_ARG', e.code)
         assert.matches(words, e.message, 1, true)
      end
      bad('a list of tensors', m.weight)
      bad('a list of tensors', 3)
      bad('a list of tensors', {})
      bad("'params[2]': expected a tensor", { m.weight, 3 })
      bad("'params[1]'", { { param = m.weight } })
      bad('is given twice', { m.weight, m.weight })
      bad('is given twice', { { params = { m.weight } }, { params = { m.weight } } })
      tide.parallel.fully_shard(m, tide.comm.solo())
      bad('is sharded', m:parameters())
   end)
end)
