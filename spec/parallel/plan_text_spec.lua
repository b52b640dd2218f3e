-- What a plan and its price print, and the command line of a plan: no ranks, no kernels.

local tide = require 'tide'

local config = { vocab_size = 37, hidden_size = 24, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 27 }

local function make(mesh, opts, n)
   opts.ranks = n
   return tide.parallel.plan({ family = 'llama', config = config }, mesh, opts)
end

describe('the text of a plan', function()
   it('says of each section what happens', function()
      assert.equal([[
plan of Llama, 9.24k parameters (9240), over 1 rank: dp=1
   tensor parallel      none
   context parallel     none
   recompute            none
   sharding             none]], tostring(make({ dp = 1 }, {}, 1)))
      assert.equal([[
plan of Llama, 9.24k parameters (9240), over 2 ranks: dp=2
   tensor parallel      none
   context parallel     none
   recompute            none
   sharding             plain data parallelism over 2 ranks]], tostring(make({ dp = 2 }, {}, 2)))
      assert.equal([[
plan of Llama, 9.24k parameters (9240), over 4 ranks: dp_shard=2 x tp=2
   tensor parallel      axis 'tp' of 2; sequence_parallel true
      model.embed_tokens.weight                        Shard(1)
      model.layers.*.self_attn.q_proj.weight           Shard(1)  x 2
      model.layers.*.self_attn.k_proj.weight           Shard(1)  x 2
      model.layers.*.self_attn.v_proj.weight           Shard(1)  x 2
      model.layers.*.self_attn.o_proj.weight           Shard(2)  x 2
      model.layers.*.mlp.gate_proj.weight              Shard(1)  x 2
      model.layers.*.mlp.up_proj.weight                Shard(1)  x 2
      model.layers.*.mlp.down_proj.weight              Shard(2)  x 2
      lm_head.weight                                   Shard(1)
   context parallel     none
   recompute            full; scope language
      model.layers.* (2)
   sharding             optim_grads_params over 2 ranks
      model.layers.* (2)]], tostring(make({ dp_shard = 2, tp = 2 }, { recompute = 'full',
         scope = 'language', tp = { async_tp = false, sequence_parallel = true } }, 4)))
      assert.equal([[
plan of Llama, 9.24k parameters (9240), over 2 ranks: dp=1 x cp=2
   tensor parallel      none
   context parallel     axis 'cp' of 2; method p2p
   recompute            {modules {mlp, self_attn}}
      model.layers.*.mlp (2)
      model.layers.*.self_attn (2)
   sharding             no_shard over 1 rank, 2 replicas
      model.layers.* (2)]], tostring(make({ cp = 2, dp = 1 }, {
         recompute = { modules = { 'mlp', 'self_attn' } },
         cp = { method = 'p2p' } }, 2)))
      assert.equal([[
   sharding             optim_grads over 2 ranks, 2 replicas; mp_policy {reduce_dtype f32}
      model.layers.* (2)]], tostring(make({ dp_replicate = 2, dp_shard = 2 }, { fsdp = {
         strategy = 'optim_grads', forward_prefetch = 1,
         mp_policy = { reduce_dtype = 'f32' } } }, 4)):match '\n(   sharding.*)$')
   end)

   it('of a price has its rows, and what crosses hosts', function()
      local function of(mesh, n, opts)
         local text = tostring(make(mesh, {}, n):price(opts))
         return (text:gsub('(\n   activations) [^\n]*', '%1'):gsub('(\n   peak) [^\n]*', '%1'))
      end
      local four, eight = 4 * 9240 / 1024, 8 * 9240 / 1024
      local head = ([[
   parameters               %.1f KiB
   gradients                %.1f KiB
   optimizer                %.1f KiB
   state                     %.0f KiB   the three
   activations
   peak
]]):format(four, four, eight, 4 * four)
      assert.equal('rank 0 of 1, 2 x 8 tokens a micro-batch, 3 a step\n' .. head .. [[
   wire                          0 B   sent a step
   collectives a step   none]], of({ dp = 1 }, 1, { batch = 2, seq = 8, accum = 3 }))
      assert.equal('rank 1 of 2, 2 x 8 tokens a micro-batch, 1 a step\n' .. head .. ([[
   wire                     %.1f KiB   sent a step
   collectives a step   all_reduce 1]]):format(four), of({ dp = 2 }, 2,
         { batch = 2, seq = 8, rank = 1 }))
      assert.matches('sent a step, between hosts [%d.]+ KiB\n', of({ dp = 2 }, 2,
         { batch = 2, seq = 8, host_size = 1 }))
   end)

   it('has styles given by a function, or by its path, written out in its table', function()
      local style = tide.parallel.translate_to_parallel_style
      local written = { lm_head = style 'colwise_rep' }
      local function styles() return written end
      package.preload['spec.styles'] = function() return { of = styles } end
      local want = make({ tp = 2 }, { tp = { plan = written } }, 2):to_table()
      assert.equal('table', type(want.tp.plan.lm_head))
      for _, plan in ipairs { styles, 'spec.styles.of' } do
         assert.same(want, make({ tp = 2 }, { tp = { plan = plan } }, 2):to_table())
      end
      package.preload['spec.styles'] = nil
   end)

   it('is read again from its table, with every section', function()
      for _, row in ipairs { { { dp = 1 }, {}, 1 },
         { { dp_shard = 2, tp = 2 }, { tp = { sequence_parallel = true }, recompute = 'full' }, 4 },
         { { cp = 2, dp = 1 },
            { cp = { method = 'p2p' }, recompute = { modules = { 'mlp' } } }, 2 },
         { { dp_shard = 2 }, { fsdp = { units = { tide.nn.MLP } } }, 2 },
      } do
         local plan = make(unpack(row))
         tide.json.encode(plan:to_table())                -- plain data, classes by their names
         local again = tide.parallel.plan.from_table(plan:to_table())
         assert.equal(tostring(plan), tostring(again))
         assert.same(plan:to_table(), again:to_table())
         assert.is_nil(plan:to_table().own)
      end
   end)

   it('has styles as data, which are read again', function()
      local t = make({ tp = 2 }, { tp = { plan = { lm_head = 'colwise' } } }, 2):to_table()
      t.tp.plan.lm_head = { style = 'colwise_rep' }
      local again = tide.parallel.plan.from_table(t)
      assert.equal('Shard(1)', tostring(again):match 'lm_head%.weight +(%S+)')
      t.tp.plan = 'some.path'
      local ok, e = pcall(tide.parallel.plan.from_table, t)
      assert.is_false(ok)
      assert.matches('which data must not run', e.message, 1, true)
   end)
end)

describe('the command line of a plan', function()
   local entries = require 'tide.util.each'
   local options = require 'tide.parallel.plan.options'

   -- What args.parse makes of no options, with others in place of some.
   local function given(mesh, changes)
      local opt = { mesh = { dp = 0, dp_replicate = 0, dp_shard = 0, tp = 1, cp = 1 },
         cp = { layout = 'zigzag', method = 'ring', a2a = 0 }, recompute = 'none', offload = false,
         fsdp = { strategy = 'auto', reduce = 'auto', reshard = 'auto', forward_prefetch = 1,
            backward_prefetch = 2 }, sequence_parallel = false, async_tp = false }
      for name, size in entries(mesh) do opt.mesh[name] = size end
      for name, v in entries(changes or {}) do
         if type(v) == 'table' then
            for k, item in entries(v) do opt[name][k] = item end
         else
            opt[name] = v
         end
      end
      return opt
   end

   it('gives axes, with what is not given inferred', function()
      for _, c in ipairs {
         { {}, 4, { dp = 4, tp = 1 } }, { { tp = 2 }, 4, { dp = 2, tp = 2 } },
         { { cp = 2 }, 4, { dp = 2, cp = 2, tp = 1 } },
         { { dp = 2 }, 2, { dp = 2, tp = 1 } }, { { dp_shard = 2 }, 2, { dp_shard = 2, tp = 1 } },
         { { dp_replicate = 2 }, 4, { dp_replicate = 2, dp_shard = 2, tp = 1 } },
         { { dp = 4, dp_shard = 2 }, 4, { dp = 4, dp_shard = 2, tp = 1 } },
         { { dp = 2, tp = 2 }, 1, { dp = 2, tp = 2 }, 4 },           -- priced on one rank
         { { dp = 4, dp_shard = 2, cp = 2 }, 1, { dp = 4, dp_shard = 2, cp = 2, tp = 1 }, 8 },
      } do
         local axes, n = options.axes({ mesh = c[1] }, c[2], c[4] ~= nil)
         assert.same({ c[3], c[4] or c[2] }, { axes, n })
      end
   end)

   it('gives axes of random sizes as the rule does, written out, or says what would fit', function()
      local rnd, fitted = 9, 0
      local function draw(lo, hi)
         rnd = rnd * 48271 % 2147483647
         return lo + rnd % (hi - lo + 1)
      end
      for _ = 1, 500 do
         local m = { dp = draw(0, 1) * draw(1, 4), dp_replicate = draw(0, 2),
            dp_shard = draw(0, 2), tp = draw(1, 2), cp = draw(1, 2) }
         local n, simulate = ({ 1, draw(1, 16), m.dp * m.tp * m.cp + 1 })[draw(1, 3)], draw(0, 1)
         local factors = m.dp_replicate > 0 or m.dp_shard > 0
         local open = m.dp == 0 and m.dp_shard == 0
         local need = m.tp * m.cp
         if m.dp > 0 then
            need = need * m.dp
         else
            need = need * math.max(1, m.dp_replicate) * math.max(1, m.dp_shard)
         end
         local product = m.tp * m.cp * math.max(1, m.dp_replicate) * math.max(1, m.dp_shard)
         if simulate == 1 and n == 1 then n = need end
         local fits = n == need or open and n % need == 0
         local want = { tp = m.tp, cp = m.cp > 1 and m.cp or nil }
         for _, name in ipairs { 'dp', 'dp_replicate', 'dp_shard' } do
            want[name] = m[name] > 0 and m[name] or nil
         end
         if open then want[factors and 'dp_shard' or 'dp'] = n / product end
         local ok, axes, ranks = pcall(options.axes, { mesh = m }, simulate == 1 and n == need
            and draw(0, 1) == 0 and 1 or n, simulate == 1)
         if fits then
            fitted = fitted + 1
            assert.same({ true, want, n }, { ok, axes, ranks })
         else
            assert.is_false(ok)
            assert.matches(('the run has %d rank'):format(n), axes.message, 1, true)
            assert.matches(('(tide run -n %d, or'):format(need), axes.message, 1, true)
         end
      end
      assert.is_true(fitted > 100)
   end)

   it('names the sizes that do not fit the run', function()
      for _, c in ipairs {
         { { dp = 3 }, 2, '--mesh.dp 3, but the run has 2 ranks (tide run -n 3,' },
         { { dp = 1 }, 2, '--mesh.dp 1, but the run has 2 ranks (tide run -n 1,' },
         { { tp = 2 }, 3, '--mesh.tp 2, but the run has 3 ranks (tide run -n 2,' },
         { { dp_shard = 4 }, 1, '--mesh.dp_shard 4, but the run has 1 rank (tide run -n 4,' },
         { { dp = 4, dp_shard = 2, cp = 2 }, 4, '--mesh.dp 4 x --mesh.dp_shard 2 x --mesh.cp 2, '
            .. 'but the run has 4 ranks (tide run -n 8,' },
      } do
         local ok, e = pcall(options.axes, { mesh = c[1] }, c[2])
         assert.is_false(ok)
         assert.matches(c[3], e.message, 1, true)
      end
   end)

   it('gives the sections of the plan', function()
      local _, o = options.read(given {}, 2)
      assert.same({ ranks = 2, recompute = 'none' }, o)
      _, o = options.read(given({ tp = 2, cp = 2 }, { sequence_parallel = true, recompute = '2',
         cp = { method = 'a2a+p2p', a2a = 2 } }), 4)
      assert.same({ ranks = 4, recompute = 'every:2',
         tp = { sequence_parallel = true, async_tp = false },
         cp = { layout = 'zigzag', method = 'a2a+p2p', a2a = 2 } }, o)
      _, o = options.read(given { cp = 2 }, 2)
      assert.same({ layout = 'zigzag', method = 'ring' }, o.cp)
      local bare = given {}
      for _, mesh in ipairs { {}, false, { cp = 2 } } do            -- the rest are defaults
         bare.mesh = mesh or nil
         _, o = options.read(bare, 2)
         assert.equal(mesh and mesh.cp and 'ring' or nil, o.cp and o.cp.method)
      end
      for _, c in ipairs {
         { { dp_shard = 2 }, {} }, { { dp_replicate = 2 }, {} }, { {}, { offload = true } },
         { {}, { fsdp = { reduce = 'f32' } } }, { {}, { fsdp = { reshard = 'no' } } } } do
         _, o = options.read(given(c[1], c[2]), 2)
         assert.equal('optim_grads_params', o.fsdp.strategy)
         assert.same(c[2].fsdp and c[2].fsdp.reduce and { reduce_dtype = 'f32' } or nil,
            o.fsdp.mp_policy)
      end
      for text, v in entries { auto = 'nil', yes = 'true', no = 'false', ['4'] = '4',
         ['1'] = '1' } do
         _, o = options.read(given({}, { fsdp = { strategy = 'optim', reshard = text } }), 2)
         assert.equal(v, tostring(o.fsdp.reshard_after_forward))
      end
   end)

   it('refuses options that belong to others', function()
      for words, changes in entries {
         ['--async-tp requires --sequence-parallel'] = { async_tp = true },
         ['--sequence-parallel requires --mesh.tp'] = { sequence_parallel = true },
         ['--cp.a2a belongs to'] = { cp = { a2a = 2 } },
         ['got "0"'] = { fsdp = { reshard = '0' } },
         ['got "1.5"'] = { fsdp = { reshard = '1.5' } } } do
         local ok, e = pcall(options.read, given({}, changes), 2)
         assert.is_false(ok, words)
         assert.matches(words, e.message, 1, true)
      end
   end)
end)
