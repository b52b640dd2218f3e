-- nn.GatedDeltaNet: parameters as published, both forms of its projections, one pass beside pieces
-- and documents; attention with a gate. The numbers of transformers are in golden_spec and others.

local tide = require 'tide'
local refused = require 'spec.support.refused'

local sizes = { dim = 12, heads = 4, key_heads = 2, key_dim = 3, head_dim = 5, dtype = 'f64',
   seed = 4 }

local function made(changes)
   local o = {}
   for k, v in pairs(sizes) do o[k] = v end
   for k, v in pairs(changes or {}) do o[k] = v end
   local layer = tide.nn.GatedDeltaNet(o)
   if o.device ~= 'null' then
      tide.no_grad(function() layer.dt_bias:uniform_(-1, 1, { seed = 5 }) end)
   end
   return layer
end

local function draw(...)
   return tide.empty({ ... }, { dtype = 'f64' }):normal_(0, 1, { seed = 7 })
end

local function far(a, b) return (a - b):abs():amax():item() end

local function shapes(layer)
   local list = {}
   for name, t in pairs(layer:state_dict()) do list[name] = table.concat(t.shape, ' ') end
   return list
end

-- Copies the rows of the grouped projections of a layer into those of a layer with four.
local function part(from, to)
   local K, N, V = 2, 3, 10
   local rows = from.in_proj_qkvz.weight:reshape(K, 2 * N + 2 * V, 12)
   local q, k, v, z = unpack(rows:split({ N, N, V, V }, 2))
   local b, a = unpack(from.in_proj_ba.weight:reshape(K, 4, 12):split({ 2, 2 }, 2))
   local function flat(t) return t:reshape(-1, 12) end
   tide.no_grad(function()
      to.in_proj_qkv.weight:copy_(tide.cat({ flat(q), flat(k), flat(v) }, 1))
      to.in_proj_z.weight:copy_(flat(z))
      to.in_proj_b.weight:copy_(flat(b))
      to.in_proj_a.weight:copy_(flat(a))
      for _, name in ipairs { 'dt_bias', 'A_log' } do to[name]:copy_(from[name]) end
      for _, name in ipairs { 'conv1d', 'norm', 'out_proj' } do
         to[name].weight:copy_(from[name].weight)
      end
   end)
end

describe('nn.GatedDeltaNet', function()
   it('has the parameters of the published layers', function()
      local rest = { dt_bias = '4', A_log = '4', ['conv1d.weight'] = '32 1 4',
         ['norm.weight'] = '5', ['out_proj.weight'] = '12 20' }
      local grouped, apart = shapes(made { device = 'null' }),
         shapes(made { device = 'null', apart = true })
      for name, shape in pairs(rest) do
         assert.equal(shape, grouped[name])
         assert.equal(shape, apart[name])
         grouped[name], apart[name] = nil, nil
      end
      assert.same({ ['in_proj_qkvz.weight'] = '52 12', ['in_proj_ba.weight'] = '8 12' }, grouped)
      assert.same({ ['in_proj_qkv.weight'] = '32 12', ['in_proj_z.weight'] = '20 12',
         ['in_proj_b.weight'] = '4 12', ['in_proj_a.weight'] = '4 12' }, apart)
      assert.equal('4 heads of 5, 2 of 3 for keys', made { device = 'null' }:detail())
   end)

   it('computes the same by four projections as by two, gradients too', function()
      local two, four = made(), made { apart = true }
      part(two, four)
      local xs, dy = { draw(2, 7, 12):requires_grad_(), draw(2, 7, 12):requires_grad_() },
         draw(2, 7, 12)
      local ys = { two(xs[1]), four(xs[2]) }
      for _, y in ipairs(ys) do y:backward(dy) end
      assert.is_true(far(ys[1], ys[2]) < 1e-13)
      assert.is_true(far(xs[1].grad, xs[2].grad) < 1e-13)
      local grouped = made()
      tide.no_grad(function()
         grouped.in_proj_qkvz.weight:copy_(two.in_proj_qkvz.weight.grad)
         grouped.in_proj_ba.weight:copy_(two.in_proj_ba.weight.grad)
      end)
      local want = made { apart = true }
      part(grouped, want)
      for _, name in ipairs { 'in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a' } do
         assert.is_true(far(want[name].weight, four[name].weight.grad) < 1e-13, name)
      end
      for _, name in ipairs { 'dt_bias', 'A_log' } do
         assert.is_true(far(two[name].grad, four[name].grad) < 1e-13, name)
         assert.is_true(two[name].grad:abs():amin():item() > 0, name)
      end
   end)

   it('is the same in pieces as in one pass, from a cache of fixed size', function()
      local layer, x, cache, ys, at = made(), draw(2, 9, 12), {}, {}, 1
      local whole = tide.no_grad(layer, x)
      for i, n in ipairs { 4, 1, 1, 3 } do
         ys[i] = tide.no_grad(layer, x:narrow(2, at, n), { cache = cache })
         at = at + n
      end
      assert.is_true(far(whole, tide.cat(ys, 2)) < 1e-13)
      assert.same({ 2, 3, 32 }, cache.conv.shape)
      assert.same({ 2, 4, 3, 5 }, cache.state.shape)
   end)

   it('keeps packed documents apart', function()
      local layer, x = made(), draw(1, 9, 12)
      local sequence = tide.tensor({ { 0, 0, 0, 0, 1, 2, 2, 2, 2 } }, { dtype = 'i32' })
      local y = tide.no_grad(layer, x, { sequence = sequence })
      for _, span in ipairs { { 1, 4 }, { 5, 1 }, { 6, 4 } } do
         local alone = tide.no_grad(layer, x:narrow(2, span[1], span[2]))
         assert.is_true(far(alone, y:narrow(2, span[1], span[2])) < 1e-13)
      end
   end)

   it('keeps A_log and dt_bias in f32 beside other parameters in bf16', function()
      local layer = made { dtype = 'bf16', recurrence_dtype = 'f32' }
      assert.same({ 'f32', 'f32', 'bf16' }, { layer.A_log.dtype, layer.dt_bias.dtype,
         layer.norm.weight.dtype })
      local x = draw(1, 5, 12)
      local y, want = layer(x:to 'bf16'), made { dtype = 'f32' }(x:float())
      assert.equal('bf16', y.dtype)
      assert.is_true(far(y:float(), want) < 0.05 * want:abs():amax():item())
   end)

   it('says what is wrong with a call', function()
      local layer = made()
      refused('E_SHAPE', 'nn.GatedDeltaNet: x: expected [batch, tokens, 12], got [1, 2, 3]', layer,
         draw(1, 2, 3))
      refused('E_ARG', 'conv and state together', layer, draw(1, 2, 12),
         { cache = { conv = draw(1, 3, 32) } })
      refused('E_ARG', 'heads (4) must be a multiple of key_heads (3)', made, { key_heads = 3 })
      refused('E_ARG', 'A_range[1]', made, { A_range = { 0, 1 } })
   end)
end)

describe('attention with a gate', function()
   it('multiplies the result of each head by a sigmoid of its channels', function()
      local o = { dim = 12, heads = 3, kv_heads = 1, head_dim = 4, dtype = 'f64', seed = 2 }
      local plain = tide.nn.Attention(o)
      o.gate = true
      local gated = tide.nn.Attention(o)
      assert.same({ 24, 12 }, gated.q_proj.weight.shape)
      local gates = draw(12, 12) * 0.3
      tide.no_grad(function()
         local both = gated.q_proj.weight:reshape(3, 8, 12)
         both:narrow(2, 1, 4):copy_(plain.q_proj.weight:reshape(3, 4, 12))
         both:narrow(2, 5, 4):copy_(gates:reshape(3, 4, 12))
         for _, name in ipairs { 'k_proj', 'v_proj', 'o_proj' } do
            gated[name].weight:copy_(plain[name].weight)
         end
      end)
      local x = draw(2, 6, 12)
      local out
      plain:wrap('seen', function(next, ...)
         out = next(...)
         return out
      end, { of = 'attend' })
      plain(x)
      local want = tide.linear(out:reshape(2, 6, 12) * tide.linear(x, gates):sigmoid(),
         plain.o_proj.weight)
      assert.is_true(far(want, gated(x)) < 1e-13)
   end)

   it('is refused where q_proj does not make it', function()
      refused('E_ARG', 'gate is of q_proj', tide.nn.Attention,
         { dim = 8, heads = 2, gate = true, fused = true })
      refused('E_ARG', 'qk_norm_whole', tide.nn.Attention,
         { dim = 8, heads = 2, gate = true, qk_norm = {}, qk_norm_whole = true })
   end)
end)
