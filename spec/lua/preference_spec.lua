-- nn.preference, nn.logprob and data.preference: log-probabilities and losses against torch's
-- numbers, gradients against differences, records in and what is wrong with them.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local err = require 'tide.util.err'
local golden = dofile 'spec/golden/preference.lua'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local preference, data = tide.nn.preference, tide.data.preference
local near, norms = case.near, case.norms

-- The answers of the stored numbers as a source, its boundaries, and a sampler with the reference.
local function answers(opts)
   local ids, mask, cu, known = {}, {}, { 0 }, {}
   for i, a in ipairs(golden.answers) do
      known[cu[i]] = golden.reference[i]
      for t, id in ipairs(a.ids) do
         ids[#ids + 1], mask[#mask + 1] = string.char(id, 0), t > a.first and '\1' or '\0'
      end
      cu[i + 1] = #ids
   end
   local source = tide.data.tokens.memory(table.concat(ids), 2, table.concat(mask))
   local o = { cu = cu, source = source, seq = 16, batch = 1, fit = 'next', long = 'cut' }
   for k, v in pairs(opts or {}) do o[k] = v end
   local sampler = data.sampler(o)
   sampler:set_reference('train', known)
   return source, sampler
end

describe('nn.preference', function()
   for _, name in ipairs { 'sigmoid', 'smoothed', 'ipo', 'capped' } do
      it('gives the losses and gradients of torch: ' .. name, function()
         local row = golden.cases[name]
         for dtype, tolerance in pairs { f64 = 1e-6, f32 = 5e-5 } do
            local model = case.model(row, { dtype = dtype })
            local source, sampler = answers()
            local objective = preference.objective { kind = row.kind, beta = row.beta,
               label_smoothing = row.label_smoothing }
            local total, at, reward = 0, 0, { 0, 0 }
            local rows = sampler:all()
            assert.is_true(#rows > 1 and #rows[1] % 2 == 0)
            for _, r in ipairs(rows) do
               local batch = sampler:make(source, { r })
               local place = { positions = batch.positions, index = batch.index }
               local sums = preference.answers(model, batch, place):tolist()
               for i, sum in ipairs(sums) do
                  near(row.sums[at + i], sum, tolerance, 'answer ' .. i)
                  local k = 2 - i % 2
                  reward[k] = reward[k] + row.beta * (row.sums[at + i] - batch.reference[i])
               end
               at, place.count = at + #sums, 3
               local loss = objective(model, batch, place)
               loss:backward()
               total = total + loss:item()
            end
            near(row.loss, total, tolerance, 'loss')
            local means = objective:take(tide.comm.solo(), model.training and 'train' or 'val')
            if row.kind == 'sigmoid' then
               near(reward[1] / (at / 2), means.reward_chosen, tolerance, 'reward of the chosen')
               near(reward[2] / (at / 2), means.reward_rejected, tolerance, 'of the rejected')
            end
            local got = norms(model)
            assert.equal(#row.grads, #got)
            for i, g in ipairs(got) do near(row.grads[i], g.norm, 10 * tolerance, g.name) end
         end
      end)
   end

   it('takes log-probabilities of its own, and refuses other numbers of pairs', function()
      local t = function(list) return tide.tensor(list, { dtype = 'f64' }) end
      local chosen = t { -3, -2 }:requires_grad_(true)
      local ref = t { -3, -3 }
      local loss, d = preference.dpo(chosen, t { -4, -1 }, ref, ref, { beta = 0.5 })
      assert.same({ 1, -1 }, d:tolist())
      local function one(x) return math.log(1 + math.exp(-x)) end
      near((one(0.5) + one(-0.5)) / 2, loss:item(), 1e-12, 'loss')
      loss:backward()
      near(-0.25 / (1 + math.exp(0.5)), chosen.grad:tolist()[1], 1e-12, 'gradient')
      local ok, e = pcall(preference.dpo, chosen, t { 1 }, chosen, chosen)
      assert.is_true(not ok and err.of(e).message:find('rejected: expected', 1, true) ~= nil)
      ok, e = pcall(preference.objective, { kind = 'ipo', label_smoothing = 0.1 })
      assert.is_true(not ok and err.of(e).message:find('leave it out', 1, true) ~= nil)
   end)
end)

describe('nn.logprob', function()
   local N, C, V = 7, 5, 11
   local function made(dtype)
      local x = (tide.arange(N * C, { dtype = 'f64' }) * 0.7):sin():reshape(N, C):to(dtype)
      local w = (tide.arange(V * C, { dtype = 'f64' }) * 1.3):cos():reshape(V, C):to(dtype)
      return x:clone():requires_grad_(true), w:clone():requires_grad_(true)
   end
   local labels = tide.tensor({ 3, -100, 10, 0, 5, -100, 7 }, { dtype = 'i64' })
   local weights = tide.tensor({ 0.3, 5, -1.2, 0.7, 2.1, 3, -0.4 }, { dtype = 'f64' })

   it('is log_softmax of logits, with other weights for each token, at any chunk', function()
      for _, cap in ipairs { false, 2.5 } do
         local x, w = made 'f64'
         local z = tide.linear(x, w)
         if cap then z = (z * (1 / cap)):tanh() * cap end
         local counted = labels:ne(-100):to 'f64'
         local want = z:log_softmax(-1):gather(2, labels:clamp(0, V - 1):unsqueeze(2)):squeeze(2)
            * counted
         ;(want * weights):sum():backward()
         for _, chunk in ipairs { 1, 3, 7, 100 } do
            local a, b = made 'f64'
            local got = tide.nn.logprob.of_labels(a, b, labels, { chunk = chunk, cap = cap or nil })
            assert.is_true((got - want):abs():amax():item() < 1e-13)
            ;(got * weights):sum():backward()
            assert.is_true((a.grad - x.grad):abs():amax():item() < 1e-13)
            assert.is_true((b.grad - w.grad):abs():amax():item() < 1e-13)
         end
      end
   end)

   it('gives the gradients that differences give', function()
      local x, w = made 'f64'
      tide.debug.gradcheck(function(a, b)
         return (tide.nn.logprob.of_labels(a, b, labels, { chunk = 3 }) * weights):sum()
      end, { x, w })
   end)

   it('needs less memory for smaller chunks, in forward and backward', function()
      local n, c, v = 256, 8, 4096
      local x = tide.randn({ n, c }):requires_grad_(true)
      local w = tide.randn({ v, c }):requires_grad_(true)
      local ids = tide.zeros({ n }, { dtype = 'i64' })
      local ctx = tide.default()
      local function peak(chunk)
         collectgarbage()
         collectgarbage()
         ctx:reset_peak()
         local before = ctx:stats().peak
         tide.scope(function()
            tide.nn.logprob.of_labels(x, w, ids, { chunk = chunk }):sum():backward()
         end)
         local most = ctx:stats().peak - before
         x:set_grad(nil)
         w:set_grad(nil)
         return most
      end
      peak(16)
      local logits = 4 * n * v
      assert.is_true(peak(256) > logits)
      assert.is_true(peak(16) < 0.4 * logits)
   end)

   it('refuses labels that are no class, and other numbers of them', function()
      local x, w = made 'f32'
      for _, bad in ipairs { { 3, 1, 2, 0, 0, 0, 11 }, { 1, 2 } } do
         assert.is_false(pcall(tide.nn.logprob.of_labels, x, w,
            tide.tensor(bad, { dtype = 'i64' })))
      end
   end)
end)

-- ---- data --------------------------------------------------------------------------------------

local template = tide.chat.template('{% for m in messages %}<{{ m.role }}>{{ m.content }};'
   .. '{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}')

-- The documents of lines as { text, text of the mask }, with a template.
local function load(text, opts)
   return tmp.with(function(dir)
      write(dir .. '/p.jsonl', text)
      local o = { tokenizer = tide.data.bytes, template = template, val = 0 }
      for k, v in pairs(opts or {}) do o[k] = v or nil end
      if opts and opts.template == false then o.template = nil end
      local c = data.load(dir .. '/p.jsonl', o)
      local list = {}
      for i = 1, #c.cu - 1 do
         local raw = c.train:raw(c.cu[i], c.cu[i + 1] - c.cu[i])
         local mask, all, said = c.train:mask(c.cu[i], #raw / 2), {}, {}
         for t = 1, #raw / 2 do
            local id = raw:byte(2 * t - 1) + 256 * raw:byte(2 * t)
            local char = id < 256 and string.char(id) or '$'
            all[t] = char
            if mask:byte(t) == 1 then said[#said + 1] = char end
         end
         list[i] = { table.concat(all), table.concat(said) }
      end
      return list, c
   end)
end

local function refused(text, why, opts)
   local ok, e = pcall(load, text, opts)
   assert.is_false(ok)
   assert(err.text(e):find(why, 1, true), ('%s is not in: %s'):format(why, err.text(e)))
end

local user, yes, no = '{"role":"user","content":"a"}', '{"role":"assistant","content":"yes"}',
   '{"role":"assistant","content":"no"}'

describe('data.preference', function()
   it('reads the forms that trl has as two documents each', function()
      local want = { { '<user>a;<assistant>yes;', 'yes;' }, { '<user>a;<assistant>no;', 'no;' } }
      for _, line in ipairs {
         ('{"prompt":[%s],"chosen":[%s],"rejected":[%s]}'):format(user, yes, no),
         ('{"chosen":[%s,%s],"rejected":[%s,%s]}'):format(user, yes, user, no),
         ('{"prompt":"a","chosen":[%s,%s],"rejected":[%s,%s]}'):format(user, yes, user, no),
         ('{"prompt":"a","chosen":[%s],"rejected":[%s]}'):format(yes, no),
         ('{"prompt":[%s],"chosen":"yes","rejected":"no"}'):format(user),
         '{"prompt":"a","chosen":"yes","rejected":"no"}' } do
         assert.same(want, (load(line)))
      end
      local plain = { template = false }
      assert.same({ { 'a: yes$', ' yes$' }, { 'a: no$', ' no$' } },
         (load('{"chosen":"a: yes","rejected":"a: no"}', plain)))
      assert.same({ { 'a: \195\169$', ' \195\169$' }, { 'a: \195\168$', ' \195\168$' } },
         (load('{"chosen":"a: \195\169","rejected":"a: \195\168"}', plain)))
      assert.same({ { '<user>a;<assistant>\195\169;', '\195\169;' },
         { '<user>a;<assistant>\195\168;', '\195\168;' } },
         (load '{"chosen":"a\195\169","rejected":"a\195\168"}'))
      assert.same({ { 'a: yes$', 'yes$' }, { 'a: no$', 'no$' } },
         (load('{"prompt":"a: ","chosen":"yes","rejected":"no"}', plain)))
      local _, c = load(('{"prompt":"a","chosen":"yes","rejected":"no"}\n'):rep(10), { val = 0.2 })
      assert.equal(17, #c.cu)
      assert.equal(5, #c.val_cu)
   end)

   it('says which answer is missing, empty or of another kind', function()
      refused('{"prompt":"a","chosen":"yes"}', 'line 1: rejected: expected an answer')
      refused('{"prompt":"a","rejected":null,"chosen":"x"}', 'rejected: expected an answer')
      refused('{"prompt":"a","chosen":"","rejected":"no"}', 'chosen: expected an answer, got an')
      refused(('{"prompt":[%s],"chosen":[],"rejected":[%s]}'):format(user, no), 'chosen: expected')
      refused('{"chosen":"same","rejected":"same"}', 'chosen: expected an answer, got an empty one '
         .. 'behind the prompt', { template = false })
      refused('{"prompt":"a","chosen":3,"rejected":"no"}', 'chosen: expected a text, got 3')
      refused(('{"prompt":[%s],"chosen":[{"role":"asistant","content":"b"}],"rejected":[%s]}')
         :format(user, no), "expected a role such as 'assistant'")
      refused(('{"prompt":[%s],"chosen":[%s],"rejected":[%s]}'):format(user, yes, no),
         'there is no template', { template = false })
      refused('', 'has no record that can be used')
      local list = load('{"prompt":"a"}\n{"prompt":"a","chosen":"yes","rejected":"no"}',
         { skip_bad = true })
      assert.equal(2, #list)
   end)

   it('keeps the answers of a pair in one row, cut alike or refused where they are too long',
      function()
         for _, fit in ipairs { 'next', 'best', 'alone' } do
            local source, sampler = answers { fit = fit, seed = 3, batch = 2 }
            local seen = {}
            for _ = 1, 2 * sampler:rows_per_epoch() do
               local batch = sampler:make(source, sampler:next())
               assert.equal(2 * batch.pairs, #batch.reference)
               for i = 1, batch.pairs do
                  for k, want in ipairs(golden.reference) do
                     if want == batch.reference[2 * i - 1] then
                        assert.equal(golden.reference[k + 1], batch.reference[2 * i])
                        seen[k] = true
                     end
                  end
               end
            end
            assert.is_true(seen[1] and seen[3] and seen[5])
         end
         local source, sampler = answers { seq = 10 }
         local batch = sampler:make(source, sampler:all())
         assert.equal(3, batch.pairs)                 -- of 5 and 8 tokens, 5 and 5 are left
         local lengths = {}
         for _, row in ipairs(sampler:all()) do
            for _, piece in ipairs(row) do lengths[#lengths + 1] = piece[2] end
         end
         assert.same({ 6, 4, 5, 5, 2, 3 }, lengths)
         local ok, e = pcall(answers, { seq = 10, long = 'refuse' })
         assert.is_true(not ok and err.text(e):find('1 of 3 groups of 2 documents', 1, true) ~= nil)
         ok, e = pcall(answers, { long = 'split' })
         assert.is_true(not ok and err.text(e):find('are not split', 1, true) ~= nil)
      end)

   it('keeps the reference in its state', function()
      local _, a = answers()
      local _, b = answers()
      b:set_reference('train', {})
      a:next()
      b:restore(a:state())
      assert.same(a:state(), b:state())
      assert.same(golden.reference, b:state().reference.train)
   end)
end)
