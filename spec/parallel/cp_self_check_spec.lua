-- The self-check of context parallelism: a model over ranks equals that of one rank, and the check
-- names what differs.

local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'

local cp = tide.parallel.cp

local config = { vocab_size = 31, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 6,
   num_key_value_heads = 3, head_dim = 4, intermediate_size = 40 }

local function all_true(list)
   for _, ok in ipairs(list) do assert.equal(true, ok) end
end

local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
local axis2 = { size = 2, rank = 0, comm = { size = 2, rank = 0, all_reduce = function() end } }

-- On a rank: the self-check of a model with opts on a probe of rows of documents.
local function check(_, n, family, config_, opts, probe, tp)
   local t = require 'tide'
   local mesh = t.parallel.mesh { cp = n / (tp or 1), tp = tp or 1 }
   local model = t.model[family](config_, { seed = 3, dtype = probe.dtype })
   if tp then
      t.parallel.tensor_parallel(model, mesh:axis 'tp', { sequence_parallel = probe.sequence })
   end
   opts.axis = mesh:axis 'cp'
   local handle = t.parallel.cp.attach(model, opts)
   t.parallel.recompute(model, probe.recompute)
   local ids = ((t.arange(probe.rows * probe.T, { dtype = 'f64' }) * 1.7):sin():abs() * 30):long()
      :reshape(probe.rows, probe.T)
   local r = t.parallel.cp.self_check(model, { ids = ids, labels = t.nn.loss.shift(ids),
      cu_real = probe.cu, positions = probe.cu and t.slot_index(t.tensor(probe.cu,
         { dtype = 'i32' }), t.tensor(probe.cu, { dtype = 'i32' }), probe.T):select(3, 2)
         :clamp(0, 1000):to 'i64' or nil })
   handle:restore()
   if #r.layers ~= 2 * config_.num_hidden_layers then return 'layers were not seen' end
   if #r.gradients ~= #model:parameters() then return 'gradients were not seen' end
   return true
end

describe('a model over ranks', function()
   it('is that of one rank, as its self-check says', function()
      for _, c in ipairs {
         { 2, { method = 'ring' }, { rows = 2, T = 13 } },
         { 3, { method = 'allgather', layout = 'contiguous' }, { rows = 1, T = 20 } },
         { 3, { method = 'a2a', layout = 'document' }, { rows = 1, T = 30, cu = { 0, 1, 1, 19, 27 },
            recompute = 'full' } },
         { 4, { method = 'a2a+p2p', a2a = 2, layout = 'balanced' }, { rows = 1, T = 40,
            cu = { 0, 30, 31, 40 }, recompute = 'every:2' } },
         { 4, { layers = { [1] = 'a2a', [2] = { method = 'allgather', window = 3 } } },
            { rows = 1, T = 16, recompute = 'none' } },
         { 4, { layers = { [2] = 'a2a+p2p' }, a2a = 2 }, { rows = 1, T = 21 } },
         { 2, { layout = 'zigzag', sliding_window = 3 }, { rows = 2, T = 9, dtype = 'f64' } },
         { 4, { layout = 'contiguous' }, { rows = 1, T = 3 } },
         { 2, { method = 'ring' }, { rows = 1, T = 40, dtype = 'bf16' } },
      } do
         all_true(ranks.run(c[1], check, 'llama', config, c[2], c[3]))
      end
   end)

   it('may be cut by heads as well', function()
      local c = { vocab_size = 31, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
         num_key_value_heads = 2, head_dim = 4, intermediate_size = 40 }
      for _, sequence in ipairs { false, true } do
         all_true(ranks.run(4, check, 'qwen3', c, { method = 'ring' },
            { rows = 1, T = 18, sequence = sequence, recompute = 'full' }, 2))
      end
   end)
end)

-- On a rank: the self-check of a right model whose rounding or padding differs; the loss.
local function sound(_, n)
   local t = require 'tide'
   local ids = t.tensor({ { 1, 2, 3, 4, 5, 6, 7, 8, 0, 2, 4, 6, 1 } }, { dtype = 'i64' })
   local probe = { ids = ids, labels = ids, cu_real = { 0, 3, 4, 11 }, cu_slot = { 0, 4, 5, 13 } }
   for _, dtype in ipairs { 'f32', 'f64' } do
      local biased = t.model.gpt2({ vocab_size = 9, n_embd = 12, n_layer = 2, n_head = 3,
         n_positions = 16, attn_pdrop = 0, initializer_range = 0.3 }, { seed = 1, dtype = dtype })
      local hybrid = t.model.hybrid({ vocab_size = 9, hidden_size = 12,
         hybrid_override_pattern = 'M*', num_attention_heads = 3, intermediate_size = 9,
         ssm_state_size = 3, mamba_head_dim = 2, mamba_num_heads = 5, initializer_range = 0.3 },
         { seed = 1, dtype = dtype })
      for _, model in ipairs { biased, hybrid } do
         local handle = t.parallel.cp.attach(model, t.parallel.mesh({ cp = n }):axis 'cp')
         t.parallel.cp.self_check(model, probe)
         handle:restore()
      end
   end
   -- tokens 3 to 6 see each other, as those of an image do
   local seen = {}
   for i = 1, 13 do seen[i] = { 0, i - 1, i >= 3 and i <= 6 and 5 or i - 1 } end
   local gemma = t.model.gemma3({ vocab_size = 9, hidden_size = 12, num_hidden_layers = 2,
      num_attention_heads = 2, num_key_value_heads = 1, head_dim = 6, intermediate_size = 9,
      sliding_window = 2, sliding_window_pattern = 2, initializer_range = 0.3 }, { seed = 1 })
   t.parallel.cp.attach(gemma, t.parallel.mesh({ cp = n }):axis 'cp')
   t.parallel.cp.self_check(gemma, { ids = ids, labels = ids,
      index = t.tensor({ seen }, { dtype = 'i32' }) })
   return true
end

describe('a self-check', function()
   it('passes over rounding of gradients that are zero, and over outputs of padding', function()
      all_true(ranks.run(3, sound))
   end)
end)

-- On a rank: a model with one thing wrong; what the self-check says.
local function spoilt(_, n, config_, what)
   local t = require 'tide'
   local model = t.model.llama(config_, { seed = 3 })
   t.parallel.cp.attach(model, t.parallel.mesh({ cp = n }):axis 'cp')
   local ids = t.arange(24, { dtype = 'i64' }):reshape(1, 24)
   local probe = { ids = ids, labels = ids }
   local second = model.model.layers:at(2)
   if what == 'inner' then                                 -- each rank sees its own part only
      second.self_attn:wrap('own', function(next, m, q, k, v, o)
         if o.context.null then return next(m, q, k, v, o) end
         return t.attention(q, k, v, { causal = true })
      end, { of = 'attend' })
   elseif what == 'positions' then
      t.parallel.cp_map.new { kind = 'zigzag', size = 1, length = 1 }
      local C = require('tide.parallel.cp.context').Context
      function C.positions(self)
         return t.arange(self.map.count, { dtype = 'i64' }):reshape(1, self.map.count)
      end
      local handle = require('tide.nn.spread').of(model).cp
      local cut = handle.cut
      function handle.cut(...)
         local mine = cut(...)
         mine.positions = nil
         return mine
      end
   elseif what == 'gradient' then
      second.mlp:hook_backward_pre(function(m, dy)
         if m.part then return dy * 2 end
      end)
      second.mlp:hook_pre(function(m, x) m.part = x:size(2) < 24 end)
   end
   local ok, e = pcall(t.parallel.cp.self_check, model, probe)
   return ok and 'nothing' or tostring(e)
end

-- On a rank: the self-check on rows whose documents stand in one field, or in all.
local function documents_checked(_, n, _, what)
   local t = require 'tide'
   local function int(list) return t.tensor(list, { dtype = 'i64' }) end
   local docs = int { { 1, 1, 1, 2, 2, 2, 2, 3, 3, 0, 0 } }
   local fields = { cu_real = { 0, 3, 7, 9 }, packed_seq_ids = docs,
      index = t.parallel.cp.document_index_of(docs),
      attention_mask = what == 'all' and docs:ne(0):to 'i64' or docs, padding_mask = docs:eq(0) }
   local probe = what == 'all' and fields or { [what] = fields[what] }
   probe.ids = t.arange(11, { dtype = 'i64' }):reshape(1, 11)
   probe.labels = probe.ids
   for _, c in ipairs { { method = 'ring' }, { method = 'a2a', layout = 'document',
      window = { 2, -1 } } } do
      local model = t.model.gemma3({ vocab_size = 31, hidden_size = 24, num_hidden_layers = 2,
         num_attention_heads = 6, num_key_value_heads = 3, head_dim = 4, intermediate_size = 40,
         sliding_window = 3 }, { seed = 3 })
      c.axis = t.parallel.mesh({ cp = n }):axis 'cp'
      t.parallel.cp.attach(model, c)
      t.parallel.cp.self_check(model, probe)
   end
   return true
end

-- On a rank: what the self-check says where the rule of documents.lua loses a field.
local function broken_rule(_, n, config_, name)
   local t = require 'tide'
   local documents = require 'tide.parallel.cp.documents'
   if name == 'labels' then
      documents.fill = function() end
   else
      local of = documents.of
      documents.of = function(op, batch, ...)
         local less = {}
         for k, v in require 'tide.util.each'(batch) do less[k] = k ~= name and v or nil end
         return of(op, less, ...)
      end
   end
   local model = t.model.llama(config_, { seed = 3 })
   t.parallel.cp.attach(model, t.parallel.mesh({ cp = n }):axis 'cp')
   local ids = t.arange(8, { dtype = 'i64' }):reshape(1, 8)
   local ok, e = pcall(t.parallel.cp.self_check, model, { ids = ids, labels = ids,
      cu_real = { 0, 3, 7 }, padding_mask = ids:eq(5) })
   return ok and 'nothing' or tostring(e)
end

describe('the self-check', function()
   it('names what differs first, on every rank', function()
      for what, words in require 'tide.util.each' {
         inner = "layer 'model.layers.1.self_attn'", positions = "layer 'model.layers.0.self_attn'",
         gradient = "gradient of 'model.embed_tokens.weight'", none = 'nothing',
      } do
         for _, said in ipairs(ranks.run(2, spoilt, config, what)) do
            assert.matches(words, said, 1, true)
         end
      end
   end)

   it('holds documents and masks against their definition', function()
      for _, what in ipairs { 'cu_real', 'index', 'packed_seq_ids', 'attention_mask',
         'padding_mask', 'all' } do
         all_true(ranks.run(2, documents_checked, config, what))
      end
   end)

   it('finds a rule that drops a field', function()
      for _, name in ipairs { 'cu_real', 'padding_mask', 'labels' } do
         for _, said in ipairs(ranks.run(2, broken_rule, config, name)) do
            assert.matches(name == 'labels' and "'loss'" or "'model.layers.0.self_attn'", said, 1,
               true)
         end
      end
   end)

   it('wants an attached model, a whole probe and no gradients', function()
      local model = tide.model.llama(config, { seed = 1 })
      refused('E_ARG', 'attached', cp.self_check, model, {})
      cp.attach(model, axis2)
      refused('E_ARG', 'probe.labels', cp.self_check, model, { ids = ints { { 1, 2 } } })
      model:loss(ints { { 1, 2 } }, ints { { 1, 2 } }, { context = cp.null }):backward()
      refused('E_STATE', 'has a gradient', cp.self_check, model,
         { ids = ints { { 1, 2 } }, labels = ints { { 1, 2 } } })
   end)
end)
