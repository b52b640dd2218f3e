-- Masks in calls of models and layers under context parallelism: what they mean as documents, and
-- what is refused.

local refused = require 'spec.support.refused'
local hook = require 'tide.nn.hook'
local tide = require 'tide'

local cp = tide.parallel.cp

local config = { vocab_size = 31, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 6,
   num_key_value_heads = 3, head_dim = 4, intermediate_size = 40 }

local function same(a, b) return (a - b):abs():amax():item() == 0 end
local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
local axis2 = { size = 2, rank = 0, comm = { size = 2, rank = 0, all_reduce = function() end } }

describe('hooks for masks', function()
   local Toy = tide.class('Toy', tide.nn.Module)
   function Toy.forward(self, x, at)
      self.got = at
      return x
   end
   local function toy()
      local root = Toy()
      for i = 1, 2 do root:child('l' .. i, Toy()):child('self_attn', Toy()) end
      return root
   end

   it('stand first at each attention layer, and nowhere else', function()
      local model = toy()
      local order = {}
      model.l1.self_attn:hook_pre(function(_, _, at) order[1] = at.attention_mask == nil end)
      local handle = cp.attach_context_parallel_hooks(model)
      assert.equal(2, handle.count)
      assert.equal(2, hook.count(model.l1.self_attn, 'pre'))
      assert.equal(1, hook.count(model.l2.self_attn, 'pre'))
      assert.equal(0, hook.count(model.l1, 'pre'))
      assert.equal(0, hook.count(model, 'pre'))
      model.l1.self_attn(1, { attention_mask = ints { { 1, 1, 2 } } })
      assert.same({ true }, order)
      handle.remove()
      assert.equal(0, hook.count(model.l2.self_attn, 'pre'))
      refused('E_ARG', 'self_attn', cp.attach_context_parallel_hooks, Toy())
   end)

   it('make documents of masks, and refuse what none are', function()
      local model = toy()
      cp.attach_context_parallel_hooks(model)
      local attn = model.l1.self_attn
      attn(1, { attention_mask = ints { { 1, 1, 2, 0 } }, other = 42 })
      assert.is_nil(attn.got.attention_mask)
      assert.equal(42, attn.got.other)
      assert.is_true(attn.got.is_causal)
      assert.same({ { { 0, 0 }, { 0, 1 }, { 1, 2 }, { -1, 3 } } }, attn.got.q_index:tolist())
      assert.equal(attn.got.q_index, attn.got.k_index)
      local at = { some_other = 42 }
      attn(1, at)
      assert.equal(at, attn.got)
      refused('E_UNSUPPORTED', 'documents', attn, 1, { attention_mask = tide.zeros { 1, 1, 4, 4 } })
      local context = cp.make_cp_batch_and_ctx(axis2, { ids = ints { { 1, 2, 3, 4 } },
         labels = ints { { 1, 2, 3, 4 } }, packed_seq_ids = ints { { 1, 1, 2, 2 } } })
      attn(1, { attention_mask = ints { { 1, 2 } }, context = context })
      assert.is_nil(attn.got.q_index)
      attn(1, { attention_mask = ints { { 1, 1 } }, context = context })     -- no padding
      refused('E_ARG', 'other documents', attn, 1, { attention_mask = ints { { 2, 2 } },
         context = context })
   end)
end)

describe('a mask in a call of a model', function()
   local mask, ids = ints { { 1, 1, 2, 2, 2, 0 } }, ints { { 5, 6, 7, 8, 9, 3 } }
   local index = cp.document_index_of(mask)
   local hybrid = { vocab_size = 31, hidden_size = 24, hybrid_override_pattern = 'M*',
      num_attention_heads = 2, num_key_value_heads = 1, head_dim = 12, mamba_head_dim = 8,
      mamba_num_heads = 6, n_groups = 1, ssm_state_size = 8, intermediate_size = 40 }

   it('is its documents, with the hooks and without', function()
      for family, c in require 'tide.util.each' { llama = config, gemma3 = config,
         hybrid = hybrid } do
         local model = tide.model[family](c, { seed = 1 })
         local want = model(ids, { index = index })
         assert.is_false(same(want, model(ids)))
         assert.is_true(same(want, model(ids, { attention_mask = mask })))
         local handle = cp.attach_context_parallel_hooks(model)
         local seen = {}
         for _, e in ipairs(model:named_modules()) do
            if e.module.class_name == 'Attention' then
               e.module:hook_pre(function(_, _, at)
                  seen[#seen + 1] = at.is_causal and at.attention_mask == nil
                     and at.q_index:equal(index)
               end)
            end
         end
         assert.is_true(same(want, model(ids, { attention_mask = mask })))
         assert.is_true(#seen > 0)
         for _, ok in ipairs(seen) do assert.is_true(ok) end
         handle.remove()
         local loss = model:loss(ids, ids, { attention_mask = mask, count = 6 }):item()
         assert.equal(model:loss(ids, ids, { index = index, count = 6 }):item(), loss)
      end
   end)

   it('must fit the tokens and what else tells of documents', function()
      local model = tide.model.llama(config, { seed = 1 })
      local function call(opts) return model(ids, opts) end
      refused('E_ARG', { "'attention_mask'", '[1, 6]' }, call,
         { attention_mask = ints { { 1, 1 } } })
      refused('E_ARG', 'beside index', call, { attention_mask = mask, index = index })
      refused('E_ARG', 'beside caches', call, { attention_mask = mask, caches = { {}, {} } })
      refused('E_UNSUPPORTED', "'attention_mask'", call, { attention_mask = tide.zeros { 1, 6 } })
      local context, mine = cp.make_cp_batch_and_ctx(axis2, { ids = ids, labels = ids,
         packed_seq_ids = mask }, { kind = 'contiguous' })
      local part = tide.tensor({ { 1, 1, 2 } }, { dtype = 'i64' })
      cp.attach(model, axis2)
      local function over(m) return model(mine.ids, { context = context, attention_mask = m }) end
      refused('E_ARG', 'other documents', over, ints { { 1, 2, 2 } })
      refused('E_ARG', 'other documents', over, ints { { 1, 0, 1 } })
      -- what agrees goes on, to ranks that are not there
      for _, m in ipairs { part, part + 3, ints { { 1, 1, 1 } } } do
         local ok, e = pcall(over, m)
         assert.is_true(not ok and not tostring(e):find 'documents')
      end
   end)

   it('is taken by a layer itself, which the hooks make causal', function()
      local layer = tide.nn.Attention { dim = 8, heads = 2, causal = false, seed = 3 }
      local x = tide.empty({ 1, 6, 8 }):normal_(0, 1, { seed = 1 })
      local open = layer(x, { q_index = index, k_index = index })
      assert.is_true(same(open, layer(x, { attention_mask = mask })))
      refused('E_ARG', 'q_index', layer, x, { attention_mask = mask, q_index = index })
      layer.causal = true
      local causal = layer(x, { q_index = index, k_index = index })
      layer.causal = false
      assert.is_false(same(open, causal))
      assert.is_true(same(causal, layer(x, { attention_mask = mask, is_causal = true })))
      cp.attach_context_parallel_hooks(layer)
      assert.is_true(same(causal, layer(x, { attention_mask = mask })))
      assert.is_true(same(open, layer(x, { q_index = index, k_index = index })))
   end)
end)
