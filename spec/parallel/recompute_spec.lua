-- Recomputation policies: what is wrapped, equal gradients, less memory kept, and bad input.

local leak = require 'spec.support.leak'
local tide = require 'tide'
local parallel = tide.parallel

local config = {
   vocab_size = 32, hidden_size = 32, num_hidden_layers = 4, num_attention_heads = 4,
   intermediate_size = 96,
}

local function make(policy, opts)
   return parallel.recompute(tide.model.llama(config, { seed = 1 }), policy, opts)
end

local function report(policy, opts) return parallel.recompute.report(make(policy, opts)) end

local function layers(fmt, ...)
   local list = {}
   for i, n in ipairs { ... } do list[i] = ('model.layers.' .. fmt):format(n) end
   return list
end

local function ids()
   return tide.arange(2 * 48, { dtype = 'i64' }):reshape(2, 48):clamp(0, 31)
end

local policies = {
   'none', 'selective', 'mlp', 'full', 1, 2, 'every:3', 'self_attn', 'mlp,self_attn', 'down_proj',
   'model.layers.*.mlp', { ops = { 'attention' } }, { ops = { 'norm', 'linear', 'attention' } },
   { ops = { 'attention' }, modules = { 'mlp' } }, { every = 2 },
}

describe('recompute', function()
   it('wraps what the policy names', function()
      assert.same({}, report 'none')
      assert.same({}, report())
      assert.same(layers('%d.mlp', 0, 1, 2, 3), report 'mlp')
      assert.same(layers('%d (norms, gated products)', 0, 1, 2, 3), report 'selective')
      assert.same(layers('%d', 0, 1, 2, 3), report 'full')
      assert.same(layers('%d', 1, 3), report(2))
      assert.same(layers('%d', 2), report 'every:3')
      assert.same(layers('%d.self_attn', 0, 1, 2, 3), report 'self_attn')
      assert.same(layers('%d.mlp.up_proj', 0, 1, 2, 3), report 'model.layers.*.mlp.up_proj')
      assert.same(layers('%d.self_attn.attend', 0, 1, 2, 3), report { ops = { 'attention' } })
      assert.same(9, #report { ops = { 'norm' } })
      -- inside one that is wrapped already: once
      assert.same(layers('%d.mlp', 0, 1, 2, 3), report 'mlp,up_proj')
   end)

   it('replaces the policy before', function()
      local model = make 'full'
      parallel.recompute(model, 'mlp')
      assert.same(layers('%d.mlp', 0, 1, 2, 3), parallel.recompute.report(model))
      parallel.recompute(model, { ops = { 'attention' } })
      assert.same(layers('%d.self_attn.attend', 0, 1, 2, 3), parallel.recompute.report(model))
      parallel.recompute(model, 'none')
      assert.same({}, parallel.recompute.report(model))
   end)

   it('changes no loss and no gradient', function()
      local function grads(policy)
         local model, list = make(policy), {}
         local loss = model:loss(ids(), ids(), { shift = true })
         loss:backward()
         for i, e in ipairs(model:named_parameters()) do list[i] = e.param.grad end
         return loss:item(), list
      end
      local want, whole = grads 'none'
      for _, policy in ipairs(policies) do
         local got, list = grads(policy)
         assert.equal(want, got)
         for i, g in ipairs(list) do assert.is_true(g:equal(whole[i])) end
      end
   end)

   it('keeps less, the more is recomputed', function()
      local function kept(policy)
         local model, batch = make(policy), ids()
         leak.mark()
         local loss = model:loss(batch, batch, { shift = true })
         local bytes = leak.since()
         loss:backward()
         return bytes
      end
      local none, mlp, full = kept 'none', kept 'mlp', kept 'full'
      -- of 4 blocks two norms and the product of gate and up, f32 of 2 x 48 tokens
      assert.equal(4 * 2 * 48 * 4 * (32 + 32 + 96), none - kept 'selective')
      assert.equal(-1, tonumber(tide.default():param 'remake'))
      assert.is_true(mlp < 0.7 * none, ('%d of %d'):format(mlp, none))
      assert.is_true(full < 0.7 * mlp, ('%d of %d'):format(full, mlp))
      -- Where the tape makes norms again by itself, recomputing them saves nothing.
      local ctx = tide.default()
      ctx:param('remake', 0)
      finally(function() ctx:param('remake', -1) end)
      assert.is_true(kept { ops = { 'norm' } } < kept 'none')
   end)

   it('knows scopes', function()
      local all = { language = true, vision = true, audio = true }
      assert.same(all, parallel.recompute.scope(nil))
      assert.same(all, parallel.recompute.scope 'auto')
      assert.same(all, parallel.recompute.scope 'all')
      assert.same({ language = true, vision = true }, parallel.recompute.scope 'language+vision')
      assert.same({ vision = true, audio = true }, parallel.recompute.scope 'vision,audio')
      for _, bad in ipairs { 'all+vision', 'encoder', 'trainable', { 1 }, '' } do
         local ok, e = pcall(parallel.recompute.scope, bad)
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
      end
      assert.same({}, report('full', { scope = 'vision' }))
      assert.equal(4, #report('full', { scope = 'language' }))
   end)

   it('refuses what it does not know and leaves the model as it was', function()
      local model = make 'mlp'
      for _, bad in ipairs { 'mpl', 0, -1, 1.5, 'every:x', { op = {} }, { ops = { 'softmax' } }, {},
            { modules = {} }, { modules = { 3 } }, true } do
         local ok, e = pcall(parallel.recompute, model, bad)
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
      end
      for _, bad in ipairs { 'every:1.5', 'every:-2' } do
         local _, e = pcall(parallel.recompute, model, bad)
         assert.matches(('got "%s"'):format(bad), e.message, 1, true)
      end
      assert.is_false((pcall(parallel.recompute, model, 'full', { scop = 'vision' })))
      assert.is_false((pcall(parallel.recompute, {}, 'full')))
      assert.same(layers('%d.mlp', 0, 1, 2, 3), parallel.recompute.report(model))
   end)
end)

describe('every k-th block', function()
   it('is what runs twice, and what the report says', function()
      local t = require 'tide'
      for k = 1, 4 do
         local model = t.model.llama({ vocab_size = 11, hidden_size = 8, num_hidden_layers = 5,
            num_attention_heads = 2 }, { seed = 1 })
         t.parallel.recompute(model, k)
         local runs, twice = {}, {}
         for i = 1, 5 do
            model.model.layers:at(i):hook_pre(function() runs[i] = (runs[i] or 0) + 1 end)
         end
         local tokens = t.tensor({ { 1, 2, 3 } }, { dtype = 'i64' })
         model:loss(tokens, tokens):backward()
         for i = 1, 5 do
            if runs[i] == 2 then twice[#twice + 1] = 'model.layers.' .. (i - 1) end
         end
         assert.same(t.parallel.recompute.report(model), twice)
         assert.equal(math.floor(5 / k), #twice)
      end
   end)
end)
