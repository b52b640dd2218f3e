-- model/llama against the published formulas (numbers of llama_reference.py), and its bad input.

local tide = require 'tide'
local case_ = require 'spec.lua.decoder_case'
local class = require 'tide.class'

local fill, inputs, near, V = case_.fill, case_.inputs, case_.near, case_.V
local base = {
   vocab_size = V, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 4,
   num_key_value_heads = 2, head_dim = 6, intermediate_size = 20, rms_norm_eps = 1e-5,
   rope_theta = 10000, max_position_embeddings = 64,
}

local function with(changes)
   local c = {}
   for k, v in pairs(base) do c[k] = v end
   for k, v in pairs(changes or {}) do c[k] = v end
   return c
end

local scaling = {
   rope_type = 'llama3', factor = 8, low_freq_factor = 1, high_freq_factor = 4,
   original_max_position_embeddings = 32,
}

local cases = {
   { name = 'untied', config = {},
     loss = 3.138112775342343, norm = 2.5973113548359534,
     logits = { -0.1761410516339995, 0.20317987784637867, 0.2318767536813634 },
     grads = { 0.2344306924571482, 0.09872122231899082, 0.14209264529841384,
               0.036031481106432665 } },
   { name = 'tied', config = { tie_word_embeddings = true },
     loss = 3.270877146637375, norm = 4.091565721542701,
     logits = { 0.3330157097224883, 0.7113266645988948, 0.3415295730135949 },
     grads = { 1.139085235483409, 0.33690440091080465, 0.6811581092484698,
               0.06721342711199536 } },
   { name = 'with biases and scaled positions',
     config = { attention_bias = true, rope_scaling = scaling },
     loss = 3.407068772396135, norm = 2.1984819165517564,
     logits = { -0.00047408537370016707, -0.338695763333086, 0.9873214295908151 },
     grads = { 0.36027365425717467, 0.5784363852935749, 0.5506559477782001,
               0.08367731661926008 } },
   { name = 'with a sliding window', family = 'mistral',
     config = { tie_word_embeddings = true, sliding_window = 3 },
     loss = 3.3470850542268287, norm = 4.3536612914482715,
     logits = { 0.3330157097224883, 1.7649578610536503, 0.41287676907792886 },
     grads = { 1.516511426265655, 0.49914444179196643, 0.7764370332252698,
               0.18535084009895408 } },
}

local picked = { 'model.embed_tokens.weight', 'model.layers.0.self_attn.k_proj.weight',
                 'model.layers.1.mlp.down_proj.weight', 'model.layers.0.input_layernorm.weight' }

local function check(case, dtype, device, tolerance)
   local model = fill(tide.model[case.family or 'llama'](with(case.config), { dtype = dtype }))
   if device then model:to(device) end
   local ids, labels = inputs()
   ids, labels = ids:to(model:head().device), labels:to(model:head().device)
   local logits = model(ids)
   assert.same({ 2, 9, V }, logits.shape)
   near(case.logits[1], logits:at(1, 1, 1), tolerance)
   near(case.logits[2], logits:at(2, 9, 23), tolerance)
   near(case.logits[3], logits:at(1, 5, 12), tolerance)
   local loss = model:loss(ids, labels)
   near(case.loss, loss:item(), tolerance)
   loss:backward()
   local grads, square = {}, 0
   for _, e in ipairs(model:named_parameters()) do
      grads[e.name] = e.param.grad:float():norm():item()
      square = square + grads[e.name] ^ 2
   end
   near(case.norm, math.sqrt(square), tolerance)
   for i, name in ipairs(picked) do near(case.grads[i], grads[name], tolerance) end
end

describe('model.llama', function()
   for _, case in ipairs(cases) do
      it(case.name .. ': logits, loss and gradients are those of the formulas', function()
         check(case, 'f32', nil, 2e-5)
         check(case, 'f32', 'ref', 2e-5)
         check(case, 'f64', nil, 2e-6)
      end)
   end

   it('has the parameter names of published checkpoints', function()
      local names = {}
      local model = tide.model.llama(with { num_hidden_layers = 1 }, { device = 'null' })
      for i, e in ipairs(model:named_parameters()) do names[i] = e.name end
      local l = 'model.layers.0.'
      assert.same({
         'model.embed_tokens.weight', l .. 'input_layernorm.weight',
         l .. 'self_attn.q_proj.weight', l .. 'self_attn.k_proj.weight',
         l .. 'self_attn.v_proj.weight', l .. 'self_attn.o_proj.weight',
         l .. 'post_attention_layernorm.weight', l .. 'mlp.gate_proj.weight',
         l .. 'mlp.up_proj.weight', l .. 'mlp.down_proj.weight', 'model.norm.weight',
         'lm_head.weight',
      }, names)
   end)

   it('multiplies in FP8 in every Linear but the head, and stays near itself', function()
      local plain, fp8 = tide.model.llama(with(), { seed = 3 }),
         tide.model.llama(with(), { seed = 3, fp8 = true })
      local n = 0
      fp8:walk(function(m, path)
         if class.is(m, tide.nn.Linear) then
            assert.equal(path ~= 'lm_head', m.fp8, path)
            n = n + 1
         end
      end)
      assert.equal(2 * 7 + 1, n)
      local ids, labels = inputs()
      local losses, grads = {}, {}
      for i, model in ipairs { plain, fp8 } do
         local loss = model:loss(ids, labels)
         loss:backward()
         losses[i] = loss:item()
         grads[i] = model:parameters()[3].grad                   -- of q_proj
      end
      assert.are_not.equal(losses[1], losses[2])
      assert.is_true(math.abs(losses[1] - losses[2]) < 0.01 * losses[1])
      local off = (grads[1] - grads[2]):norm():item() / grads[1]:norm():item()
      assert.is_true(off > 0 and off < 0.15, 'the gradient differs by ' .. off)
   end)

   it('is the same model when materialised later', function()
      local a = tide.model.llama(base, { seed = 5 })
      local b = tide.model.llama(base, { device = 'null' })
      assert.equal(a:num_parameters(), b:num_parameters())
      b:materialise('cpu', 5)
      local ids = inputs()
      assert.is_true(a(ids):equal(b(ids)))
   end)

   it('counts shifted labels, and divides by a given count', function()
      local model = fill(tide.model.llama(base))
      local ids = inputs()
      local shifted = model:loss(ids, ids, { shift = true }):item()
      local labels = tide.nn.loss.shift(ids)
      assert.equal(16, tide.nn.loss.count(labels))
      near(shifted, model:loss(ids, labels):item(), 1e-6)
      near(shifted * 16 / 100, model:loss(ids, labels, { count = 100 }):item(), 1e-6)
      local logits = model(ids):reshape(18, V)
      near(shifted, tide.cross_entropy(logits, labels:reshape(18), { reduction = 'sum' }):item()
         / 16, 1e-5)
   end)

   it('treats a packed stream as separate documents', function()
      local model = fill(tide.model.llama(base))
      local a = tide.tensor({ { 3, 1, 4, 1 } }, { dtype = 'i64' })
      local b = tide.tensor({ { 5, 9, 2 } }, { dtype = 'i64' })
      local index = tide.document_index(tide.tensor({ 0, 4, 7 }, { dtype = 'i32' }), 7)
      local positions = tide.tensor({ { 0, 1, 2, 3, 0, 1, 2 } }, { dtype = 'i64' })
      local y = model(tide.cat({ a, b }, 2), { positions = positions, index = index })
      local ya, yb = model(a), model(b)
      near(0, (y:slice(2, 1, 4) - ya):abs():amax():item(), 1e-5)
      near(0, (y:slice(2, 5, 7) - yb):abs():amax():item(), 1e-5)
   end)

   it('recomputes layers without changing gradients', function()
      local ids, labels = inputs()
      local norms = {}
      for _, every in ipairs { 0, 1 } do
         local model = fill(tide.model.llama(base))
         tide.parallel.recompute(model, every > 0 and every or 'none')
         model:loss(ids, labels):backward()
         local list = {}
         for i, e in ipairs(model:named_parameters()) do list[i] = e.param.grad:norm():item() end
         norms[#norms + 1] = list
      end
      assert.same(norms[1], norms[2])
   end)

   it('counts the operations of training, of an embedding only where it is the head', function()
      local open = tide.model.llama(base, { device = 'null' })
      local tied = tide.model.llama(with { tie_word_embeddings = true }, { device = 'null' })
      local mixing = 6 * base.num_hidden_layers * base.num_attention_heads * base.head_dim
      local n = tied:num_parameters()
      assert.equal(n + V * base.hidden_size, open:num_parameters())
      assert.equal(6 * n + 32 * mixing, tied:flops_per_token(32))
      assert.equal(6 * n + 32 * mixing, open:flops_per_token(32))
   end)

   it('loads a state with or without a head when tied', function()
      local tied = tide.model.llama(with { tie_word_embeddings = true }, { seed = 1 })
      local open = tide.model.llama(base, { seed = 2 })
      tied:load_state_dict(open:state_dict())
      assert.is_true(tied.model.embed_tokens.weight:equal(open.model.embed_tokens.weight))
      assert.has_error(function() open:load_state_dict(tied:state_dict()) end)
   end)

   it('refuses configurations that make no sense, naming the field', function()
      local null = require('tide.ffi.json').null
      local function bad(pattern, changes)
         local ok, e = pcall(tide.model.llama, with(changes), { device = 'null' })
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
         assert.matches(pattern, tostring(e), 1, true)
      end
      bad('num_attention_heads (4) must be a multiple of num_key_value_heads (3)',
         { num_key_value_heads = 3 })
      bad('head_dim (5) must be even', { head_dim = 5 })
      bad("'hidden_size'", { hidden_size = 16.5 })
      bad("'vocab_size'", { vocab_size = 0 / 0 })
      bad("'vocab_size'", { vocab_size = null })
      bad("'num_hidden_layers'", { num_hidden_layers = 0 })
      bad("did you mean 'rope_theta'", { rope_teta = 1 })
      bad("'rope_scaling.factor'", { rope_scaling = { rope_type = 'linear' } })
      bad('rope_type', { rope_scaling = { rope_type = 'ntk' } })
      bad("'sliding_window'", { sliding_window = -1 })
      bad("'tie_word_embeddings'", { tie_word_embeddings = 1 })
      bad("'hidden_act'", { hidden_act = 'gelu' })
      local ok, e = pcall(tide.model.llama, {
         vocab_size = 8, hidden_size = 18, num_hidden_layers = 1, num_attention_heads = 4,
      }, { device = 'null' })
      assert.is_false(ok)
      assert.matches('hidden_size (18) must be a multiple of num_attention_heads (4)',
         tostring(e), 1, true)
      assert.has_no_error(function()
         tide.model.llama(with { sliding_window = null, model_type = 'llama' }, { device = 'null' })
      end)
   end)

   it('refuses bad calls', function()
      local model = tide.model.llama(base)
      local ids, labels = inputs()
      local function bad(fn, ...)
         local ok, e = pcall(fn, ...)
         assert.is_false(ok)
         assert.equal('table', type(e), tostring(e))
         return e
      end
      bad(model, 3)
      bad(model, tide.tensor({ 1, 2 }, { dtype = 'i64' }))
      bad(model, tide.tensor({ { V } }, { dtype = 'i64' }))
      bad(model, ids, { position = 1 })
      assert.equal('E_SHAPE', bad(model.loss, model, ids, labels:slice(2, 1, 8)).code)
      assert.equal('E_SHAPE', bad(model.loss, model, ids, labels:transpose(1, 2):contiguous()).code)
      assert.equal('E_ARG', bad(model.loss, model, ids).code)
      bad(model.loss, model, ids, labels, { count = 0 })
      bad(model.loss, model, ids, labels, { cuont = 1 })
      local e = bad(model.loss, model, ids, labels, { positons = ids })   -- of all that loss takes
      assert.matches("did you mean 'positions'?", tostring(e), 1, true)
      local caches = {}
      for i = 1, model.config.num_hidden_layers do caches[i] = {} end
      model(ids, { caches = caches })
      assert.matches("argument 'positions': expected those of the tokens in the whole sequence",
         tostring(bad(model, ids:slice(2, 1, 1), { caches = caches })), 1, true)
   end)
end)
