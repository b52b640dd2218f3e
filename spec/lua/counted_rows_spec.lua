-- nn.rows: losses of the tokens that count have the numbers of all rows, and the last MLP and the
-- head work on these tokens alone, unless something expects every token.

local tide = require 'tide'
local batches = require 'tide.train.batches'
local refused = require 'spec.support.refused'
local rows = require 'tide.nn.rows'
local stamp = require 'tide.util.stamp'

local V, T = 61, 11

local function ids_of(B) return tide.rand({ B, T }):mul_(V):floor():to 'i64' end

-- Labels of which about two fifths count.
local function labels_of(B)
   local none = tide.full({ B, T }, -100, { dtype = 'i64' })
   return tide.where(tide.rand({ B, T }):lt(0.6), none, ids_of(B))
end

local sizes = { vocab_size = V, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
   num_key_value_heads = 2, intermediate_size = 40 }

local families = {
   llama = sizes, qwen3 = sizes, gemma2 = sizes, gemma3 = sizes, olmo2 = sizes,
   gpt2 = { vocab_size = V, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
      max_position_embeddings = 16, resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 },
   mamba2 = { vocab_size = V, hidden_size = 32, num_hidden_layers = 2, state_size = 8, head_dim = 8,
      n_groups = 1 },
   qwen3_next = { vocab_size = V, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 2,
      layer_types = { 'linear_attention', 'full_attention' }, head_dim = 8, num_experts = 0,
      linear_num_key_heads = 1, linear_num_value_heads = 2, linear_key_head_dim = 3,
      linear_value_head_dim = 4, intermediate_size = 40 },
}

local function model_of(name)
   return tide.model[name](families[name], { dtype = 'f64', seed = 3 })
end

-- fn's value, and the gradients of the model that it leaves.
local function graded(model, fn)
   model:zero_grad()
   local value, grads = fn(), {}
   value:sum():backward()
   for _, e in ipairs(model:named_parameters()) do grads[e.name] = e.param.grad:clone() end
   return value:detach(), grads
end

local function near(want, got, what)
   local most = (want - got):abs():reshape(-1):amax(1):item()
   assert(most <= 1e-13 * (1 + want:abs():reshape(-1):amax(1):item()), what .. ': ' .. most)
end

-- Compares what fn gives with what it gives where every token is seen by a hook.
local function compare(model, fn)
   local value, grads = graded(model, fn)
   local hook = model[model.form.body]:hook_post(function() end)
   local all, whole = graded(model, fn)
   hook.remove()
   near(all, value, 'value')
   for name, grad in pairs(whole) do near(grad, grads[name], name) end
end

-- Tokens that the last MLP of a model saw while fn ran.
local function seen_by_last(model, fn)
   local n
   local handle = model.model.layers[2].mlp:wrap('count', function(next, self, x)
      n = x:size(1) * x:size(2)
      return next(self, x)
   end, { by = 'spec' })
   fn()
   handle.remove()
   return n
end

local function count(labels) return tide.nn.loss.count(labels) end

describe('rows that count', function()
   before_each(function() tide.seed(11) end)

   it('are the places of labels that are not ignored, where they are worth picking', function()
      local labels = tide.tensor({ { 5, -100, 7 }, { -100, -100, 0 } }, { dtype = 'i64' })
      assert.same({ 0, 2, 5 }, rows.counted(labels, -100):tolist())
      assert.same({ 0, 1, 2, 3, 4 }, rows.counted(labels, 0):tolist())
      assert.is_nil(rows.counted(labels, 3))
      assert.is_nil(rows.counted(tide.full({ 2, 3 }, -100, { dtype = 'i64' }), -100))
      assert.is_nil(rows.counted(tide.empty({ 0, 3 }, { dtype = 'i64' }), -100))
      assert.is_nil(rows.counted(tide.empty({ 2, 3 }, { dtype = 'i64', device = 'null' }), -100))
   end)

   for name in pairs(families) do
      it('give the loss and the gradients of all rows: ' .. name, function()
         local model, ids, labels = model_of(name), ids_of(3), labels_of(3)
         compare(model, function() return model:loss(ids, labels, { z_loss = 0.1 }) end)
         compare(model, function() return model:label_logprobs(ids, labels) end)
      end)
   end

   -- Labels, the places of those that count, and a stamp that says so.
   local function known_of(B)
      local b = { ids = ids_of(B), labels = labels_of(B) }
      b.counted = rows.counted(b.labels, -100)
      b.stamp = stamp.of(b, { 'labels', 'counted' })
      return b
   end

   it('may be known before: counted', function()
      local model, b = model_of 'llama', known_of(2)
      -- a place less is a row less: the places are taken as they are
      local fewer = b.counted:narrow(1, 1, b.counted:numel() - 1)
      assert.equal(fewer:numel(), seen_by_last(model, function()
         model:loss(b.ids, b.labels, { counted = fewer })
      end))
      for _, name in ipairs { 'loss', 'label_logprobs' } do
         local want, grads = graded(model, function()
            return model[name](model, b.ids, b.labels)
         end)
         local got, whole = graded(model, function()
            return model[name](model, b.ids, b.labels, { counted = b.counted })
         end)
         near(want, got, name)
         for e, grad in pairs(grads) do near(grad, whole[e], e) end
         refused('E_ARG', "argument 'counted': expected an index [K] of i64", model[name], model,
            b.ids, b.labels, { counted = b.counted:to 'i32' })
      end
   end)

   it('are those of a batch while its labels are', function()
      local model = model_of 'llama'
      local step = tide.train.step.new { model = model, optim = tide.optim.SGD(model, { lr = 0 }) }
      local b = known_of(2)
      b.counted = b.counted:narrow(1, 1, b.counted:numel() - 1)
      b.stamp = stamp.of(b, { 'labels', 'counted' })
      local function seen() return seen_by_last(model, function() step:run { b } end) end
      assert.equal(b.counted:numel(), seen())
      b.labels = b.labels:clone()
      assert.equal(count(b.labels), seen())
   end)

   it('of a batch without a stamp are used, and must be all places of labels that count', function()
      local model = model_of 'llama'
      local step = tide.train.step.new { model = model, optim = tide.optim.SGD(model, { lr = 0 }) }
      local b, nothing = known_of(2), tide.tensor({}, { dtype = 'i64' })
      local K, known = b.counted:numel(), b.counted
      b.stamp = nil
      local function given(counted)
         return batches.settled('spec', 'batch', { ids = b.ids, labels = b.labels,
            counted = counted }).counted
      end
      assert.equal(known, given(known))
      assert.equal(K, seen_by_last(model, function() step:run { b } end))
      for _, other in ipairs { known:narrow(1, 1, K - 1), nothing,
         tide.cat({ known:narrow(1, 1, K - 1), known:narrow(1, 1, 1) }, 1) } do
         refused('E_ARG', { "'batch.counted': expected the places of all labels that count",
            'differ from labels' }, given, other)
      end
      refused('E_ARG', { "'batch.counted'", ('[0, %d)'):format(2 * T) }, given, known + 1000)
      refused('E_ARG', { "'batch.counted'", 'i64' }, given, known:to 'i32')
      local mask = tide.ones({ 2, T }, { dtype = 'i64' })
      mask:narrow(2, 1, 8):zero_()
      assert.is_nil(batches.settled('spec', 'batch', { ids = b.ids, labels = b.labels,
         counted = known, attention_mask = mask }).counted)
   end)

   for _, policy in ipairs { 'selective', 'mlp', 'full' } do
      it('give the same numbers under recomputation: ' .. policy, function()
         local model, ids, labels = model_of 'llama', ids_of(2), labels_of(2)
         local function loss() return model:loss(ids, labels) end
         local value, grads = graded(model, loss)
         tide.parallel.recompute(model, policy)
         local again, whole = graded(model, loss)
         near(value, again, 'loss')
         for e, grad in pairs(grads) do near(grad, whole[e], e) end
      end)
   end

   it('are all that the last MLP sees, unless a hook expects every token', function()
      local model, ids, labels = model_of 'llama', ids_of(2), labels_of(2)
      local function loss() model:loss(ids, labels) end
      assert.equal(count(labels), seen_by_last(model, loss))
      local last = model.model.layers[2]
      for _, m in ipairs { last, last.self_attn, last.mlp, model.model, model.model.layers,
         model.model.norm, model.lm_head } do
         local hook = m:hook_post(function() end)
         assert.equal(2 * T, seen_by_last(model, loss), m.class_name)
         hook.remove()
      end
      local first = model.model.layers[1]:hook_post(function() end)
      assert.equal(count(labels), seen_by_last(model, loss))
      first.remove()
   end)

   it('are not picked for parts that mix tokens or draw random numbers', function()
      local ids, labels = ids_of(2), labels_of(2)
      local function seen(change)
         local model = model_of 'llama'
         change(model)
         return seen_by_last(model, function() model:loss(ids, labels) end)
      end
      local Mixing = require 'tide.class'('Mixing', tide.nn.RMSNorm)
      Mixing.mixes = true
      assert.equal(count(labels), seen(function() end))
      assert.equal(2 * T, seen(function(model)
         model.model.layers[2].post_attention_layernorm = Mixing(24, { dtype = 'f64' })
      end))
      assert.equal(2 * T, seen(function(model)
         model.model.norm = Mixing(24, { dtype = 'f64' })
      end))
      assert.equal(2 * T, seen(function(model)
         tide.nn.lora.attach(model, { rank = 2, dropout = 0.5 })
      end))
      assert.equal(count(labels), seen(function(model)
         tide.nn.lora.attach(model, { rank = 2, dropout = 0.5 })
         model:eval()
      end))
      assert.equal(2 * T, seen(function(model)
         local body, forward = model.model, model.model.forward
         rawset(body, 'forward', function(...) return forward(...) end)
      end))
   end)

   it('leave the loss of labels that none or nearly all count as it is', function()
      local model, ids = model_of 'llama', ids_of(2)
      local none = tide.full({ 2, T }, -100, { dtype = 'i64' })
      assert.equal(0, model:loss(ids, none):item())
      assert.equal(2 * T, seen_by_last(model, function()
         model:loss(ids, ids)
      end))
   end)

   it('keep the numbers of distillation, with whole teachers and their most likely ids', function()
      local x, w = tide.randn { 13, 8 }, tide.randn { V, 8 }
      local labels = tide.where(tide.rand { 13 }:lt(0.5), tide.full({ 13 }, -100,
         { dtype = 'i64' }), tide.rand({ 13 }):mul_(V):floor():to 'i64')
      local top = tide.nn.distil.top(tide.randn { 13, 6 }, tide.randn { V, 6 }, 3, {})
      local tx, tw = tide.randn { 13, 6 }, tide.randn { V, 6 }
      local function loss(o)
         local from, to = o.first, o.last
         local t = o.top and { ids = top.ids:narrow(1, from, to - from + 1),
            logp = top.logp:narrow(1, from, to - from + 1) }
            or { x = tx:narrow(1, from, to - from + 1), w = tw }
         return tide.nn.distil.loss(x:narrow(1, from, to - from + 1), w,
            labels:narrow(1, from, to - from + 1), t, { alpha = 0.3, temperature = 2, count = 1,
               counted = o.counted })
      end
      for _, top_only in ipairs { false, true } do
         local sum = 0
         for i = 1, 13 do sum = sum + loss({ first = i, last = i, top = top_only }):item() end
         local all = loss({ first = 1, last = 13, top = top_only }):item()
         assert(math.abs(sum - all) <= 1e-4 * math.abs(sum), sum .. ' ' .. all)
         assert.equal(all, loss({ first = 1, last = 13, top = top_only,
            counted = rows.counted(labels, -100) }):item())
      end
   end)
end)
