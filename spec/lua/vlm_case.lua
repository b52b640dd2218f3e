-- Cases of spec/golden/qwen2_5_vl.py, and those of qwen3_vl.py, qwen3_5_vl.py and gemma3_vl.py as
-- `case.qwen3_vl`, `case.qwen3_5_vl` and `case.gemma3_vl`: the models, with the weights and pixels
-- that the script gives them, what transformers computes, and checks of it.

local assert = require 'luassert'
local tide = require 'tide'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local rows = require 'tide.train.rows'
local tmp = require 'spec.support.tmp'

local function far(got, want)
   return (got:to 'f64' - want:to 'f64'):abs():amax():item() / want:to('f64'):abs():amax():item()
end

-- Largest error of logits and of gradients by dtype.
local tolerances = { f64 = { 2e-7, 1e-6 }, f32 = { 2e-5, 3e-4 } }

-- Returns the cases of a script. file: of its numbers, without an end; family_of(name): the family
-- of a case.
local function cases_of(file, family_of)
   local case = { golden = dofile(file .. '.lua'), family_of = family_of }
   local numbers

   -- Names of the cases, sorted.
   function case.names()
      local list = {}
      for name in each(case.golden) do list[#list + 1] = name end
      table.sort(list)
      return list
   end

   -- Returns the stored numbers of a case: field -> tensor.
   function case.numbers(name)
      numbers = numbers or tide.train.checkpoint.tensors(file .. '.safetensors')
      local out = {}
      for key, t in each(numbers) do
         local field = key:match('^' .. name .. '%.([%w_]+)$')
         if field then out[field] = t end
      end
      return out
   end

   local function sines(k, shape)
      return ((tide.arange(dims.numel(shape), { dtype = 'f64' }) * 0.7 + 1.3 * k):sin() * 0.3)
         :reshape(shape)
   end

   -- Returns the parameters of a model, { name, param }, in the order of their names.
   function case.parameters(model)
      local list = model:named_parameters()
      table.sort(list, function(a, b) return a.name < b.name end)
      return list
   end

   -- Fills the parameters of a model by their places in that order.
   function case.fill(model)
      tide.no_grad(function()
         for k, e in ipairs(case.parameters(model)) do
            local t = sines(k - 1, e.param.shape)
            if e.name:find('norm', 1, true) or e.name:find('.ln_', 1, true) then t = t / 3 + 1 end
            e.param:copy_(t)
         end
      end)
      return model
   end

   -- Returns the configuration of a case.
   function case.config(name) return tide.json.decode(case.golden[name], { nonfinite = true }) end

   -- Returns the model of a case, in eval mode. opts: of modules; layers: nil, or another number of
   -- layers of the text.
   function case.model(name, opts, layers)
      local c = case.config(name)
      if layers then
         c.text_config.num_hidden_layers = layers
         c.text_config.layer_types, c.text_config.max_window_layers = nil, nil
      end
      return case.fill(tide.model[family_of(name)](c, opts)):eval()
   end

   -- Returns what a case gives a model beside ids. dtype: of the pixels.
   function case.images(name, dtype)
      local n, v, out = case.numbers(name), case.config(name).vision_config, {}
      local numel = (v.in_channels or v.num_channels) * (v.temporal_patch_size or 1)
         * v.patch_size ^ 2
      for grid, pixels in each { image_grid_thw = 'pixel_values',
         video_grid_thw = 'pixel_values_videos' } do
         if n[grid] then
            local patches = 0
            for _, g in ipairs(n[grid]:tolist()) do patches = patches + g[1] * g[2] * g[3] end
            out[grid], out[pixels] = n[grid], (sines(5, { patches, numel }) * 3):to(dtype or 'f32')
         end
      end
      out.second_per_grid_ts = n.second_per_grid_ts
      return out
   end

   -- Returns samples of a gradient: the largest, and those at the places that the script takes.
   function case.samples(row, grad, n)
      local state, list, numel = row, {}, grad:numel()
      for i = 1, n do
         state = state * 16807 % 2147483647
         list[i] = state % numel
      end
      local flat = grad:reshape(numel)
      return tide.cat({ flat:abs():amax():reshape(1),
         flat:index_select(1, tide.tensor(list, { dtype = 'i64' })) }, 1)
   end

   -- Returns what a call of a case gets beside ids. Without images transformers counts padding as
   -- tokens.
   function case.call_of(name, n, dtype)
      local o = case.images(name, dtype)
      o.attention_mask = n.mask
      if not n.positions then
         o.positions = tide.arange(n.ids:size(2), { dtype = 'i64' }):reshape(1, -1)
      end
      return o
   end

   local function check_positions(model, n, o)
      if not n.positions then return end
      local positions, deltas = model:rope_index(n.ids, { image_grid_thw = o.image_grid_thw,
         video_grid_thw = o.video_grid_thw, second_per_grid_ts = o.second_per_grid_ts,
         attention_mask = o.attention_mask })
      assert.same(n.positions:tolist(), positions:tolist())
      assert.same(n.deltas:tolist(), deltas:tolist())
   end

   -- Compares positions, logits, loss and gradients of a case with those of transformers.
   function case.check_numbers(name)
      local n = case.numbers(name)
      for dtype, row in each(tolerances) do
         local model, o = case.model(name, { dtype = dtype }), case.call_of(name, n, dtype)
         check_positions(model, n, o)
         local keep = n.mask:to 'f32':unsqueeze(3)
         assert.is_true(far(model(n.ids, o):to 'f32' * keep, n.logits * keep) <= row[1])
         local loss = model:loss(n.ids, n.labels, o)
         assert.near(n.loss:item(), loss:item(), 2e-5 * n.loss:item())
         loss:backward()
         local most = n.grads:select(2, 1):amax():item() * 1e-3
         for k, e in ipairs(case.parameters(model)) do
            local want = n.grads:select(1, k)
            local grad = e.param.grad or tide.zeros { 1 }
            local got = case.samples(k, grad, want:size(1) - 1)
            local off = (got:to 'f64' - want:to 'f64'):abs():amax():item()
            assert.is_true(off <= row[2] * math.max(want:at(1), most), e.name)
         end
      end
   end

   -- Returns the model of a case that has gone through a folder.
   local function through_folder(name)
      local model, again = case.model(name), nil
      tmp.with(function(dir)
         local run
         tide.model.save(model, dir .. '/out')
         again, run = tide.model.load(dir .. '/out')
         assert.equal(family_of(name), run.family)
         assert.same(model.config, again.config)
         for i, e in ipairs(model:named_parameters()) do
            assert.is_true(e.param:equal(again:named_parameters()[i].param))
         end
      end)
      return again
   end

   -- Compares greedy answers of a case, by a model that has gone through a folder, and the logits
   -- of their steps with those of transformers.
   function case.check_answers(name)
      local n, model = case.numbers(name), through_folder(name)
      if not n.generated then return end
      local prompts, mask, images = {}, n.mask:tolist(), case.images(name)
      for b, row in ipairs(n.ids:tolist()) do
         prompts[b] = {}
         for t, id in ipairs(row) do
            if mask[b][t] == 1 then table.insert(prompts[b], id) end
         end
      end
      local opts = { tokens = 4, temperature = 0, inputs = next(images) and images or nil }
      local got = {}
      for b, r in ipairs(tide.train.sample.batch(model, prompts, opts)) do got[b] = r.ids end
      assert.same(n.generated:tolist(), got)
      -- the logits show positions that greedy ids hide
      local columns, steps = rows.new(model), n.steps:to 'f32'
      columns.inputs = opts.inputs
      for k = 1, #got[1] do
         local lists = {}
         for b, ids in ipairs(got) do lists[b] = { ids[k - 1] } end
         local y = tide.no_grad(function()
            return k == 1 and columns:begin(prompts) or columns:advance(lists)
         end)
         assert.is_true(far(y, steps:select(1, k)) <= 2e-5, ('step %d'):format(k))
      end
   end

   -- Compares packed documents of a case with the same alone. count: of its rows.
   function case.check_packed(name, count)
      local model = case.model(name, { dtype = 'f64' })
      local n, o = case.numbers(name), case.images(name, 'f64')
      local ids, mask = n.ids:tolist(), n.mask:tolist()
      local packed, docs, parts = {}, {}, {}
      for b = 1, count do
         parts[b] = { from = #packed + 1 }
         for t, id in ipairs(ids[b]) do
            if mask[b][t] == 1 then packed[#packed + 1], docs[#docs + 1] = id, b end
         end
         parts[b].to = #packed
      end
      local function i64(list) return tide.tensor({ list }, { dtype = 'i64' }) end
      local y = model(i64(packed), copy(o, { attention_mask = i64(docs) }))
      local context, batch = tide.parallel.cp.make_cp_batch_and_ctx(nil, { ids = i64(packed),
         labels = i64(packed), packed_seq_ids = i64(docs) })
      assert.equal(0, far(y, model(batch.ids, copy(o, { context = context }))))
      local apart = model(n.ids, copy(o, { attention_mask = n.mask }))
      local T = n.ids:size(2)
      for b, part in ipairs(parts) do
         local length = part.to - part.from + 1
         assert.is_true(far(y:select(1, 1):narrow(1, part.from, length),
            apart:select(1, b):narrow(1, T - length + 1, length)) <= 1e-12)
      end
   end

   return case
end

local all = cases_of('spec/golden/qwen2_5_vl', function() return 'qwen2_5_vl' end)
all.qwen3_vl = cases_of('spec/golden/qwen3_vl', function(name)
   return name:find '^moe' and 'qwen3_vl_moe' or 'qwen3_vl'
end)
all.qwen3_5_vl = cases_of('spec/golden/qwen3_5_vl', function(name)
   return name:find '^moe' and 'qwen3_5_moe_vl' or 'qwen3_5_vl'
end)
all.far = far

all.gemma3_vl = cases_of('spec/golden/gemma3_vl', function() return 'gemma3_vl' end)

-- Returns the cases of a name: nil, 'qwen3_vl', 'qwen3_5_vl' or 'gemma3_vl'.
function all.of(name) return name and all[name] or all end

return all
