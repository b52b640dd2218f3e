-- nn.distil: losses and gradients against torch's numbers and against logits, memory by the chunk,
-- the most likely ids of a teacher, and what is refused.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local err = require 'tide.util.err'
local golden = dofile 'spec/golden/distil.lua'

local distil = tide.nn.distil
local near, norms = case.near, case.norms
local V = case.V

-- The inputs of golden/distil.py.
local function inputs()
   local ids, labels = {}, {}
   for b = 0, 1 do
      local row, next_ = {}, {}
      for i = 0, 8 do row[i + 1] = (7 * i + 3 * b + i * i) % V end
      for i = 1, 9 do next_[i] = row[i + 1] or -100 end
      ids[b + 1], labels[b + 1] = row, next_
   end
   labels[1][3] = -100
   local o = { dtype = 'i64' }
   return tide.tensor(ids, o), tide.tensor(labels, o)
end

-- The k most likely ids of a model after each token.
local function top(model, ids, k)
   local found
   tide.no_grad(function()
      model:with_head(ids, nil, function(x, w, cap)
         found = distil.top(x, w, k, { cap = cap, chunk = 4 })
      end)
   end)
   return found
end

-- Gives a batch the fields that a sampler gives it.
local function with(batch, found)
   batch.teacher_ids, batch.teacher_logp = found.ids, found.logp
   return batch
end

describe('nn.distil', function()
   for _, name in ipairs { 'forward', 'reverse', 'capped', 'top' } do
      it('gives the losses and gradients of torch: ' .. name, function()
         local row = golden[name]
         for dtype, tolerance in pairs { f64 = 1e-6, f32 = 5e-5 } do
            local ids, labels = inputs()
            local model = case.model(row, { dtype = dtype })
            local teacher = case.model(row.teacher, { dtype = dtype })
            local o = { kind = row.kind, temperature = row.temperature, alpha = row.alpha }
            local batch = { ids = ids, labels = labels }
            if row.top then
               with(batch, top(teacher, ids, row.top))
            else
               o.teacher = teacher
            end
            for _, chunk in ipairs { 1, 5, 1000 } do
               o.chunk = chunk
               model:zero_grad()
               local objective = distil.objective(o)
               local loss = objective(model, batch)
               loss:backward()
               near(row.loss, loss:item(), tolerance, 'loss')
               local got = norms(model)
               assert.equal(#row.grads, #got)
               for i, g in ipairs(got) do near(row.grads[i], g.norm, 10 * tolerance, g.name) end
               local parts = objective:take(tide.comm.solo(), 'val')
               near(loss:item(), row.alpha * parts.kl + (1 - row.alpha) * (parts.ce or 0), 1e-5,
                  'parts')
               assert.is_nil(objective:take(tide.comm.solo(), 'val'))
            end
            for _, e in ipairs(teacher:named_parameters()) do assert.is_nil(e.param.grad) end
         end
      end)
   end

   it('of all ids as the most likely ones is the whole divergence', function()
      local row, ids, labels = golden.forward, inputs()
      local model = case.model(row, { dtype = 'f64' })
      local teacher = case.model(row.teacher, { dtype = 'f64' })
      local o = { temperature = 2 }
      local part = distil.objective(o)(model, with({ ids = ids, labels = labels },
         top(teacher, ids, V)))
      o.teacher = teacher
      near(distil.objective(o)(model, { ids = ids, labels = labels }):item(), part:item(), 1e-6,
         'loss')
   end)

   it('needs less memory for smaller chunks, in forward and backward', function()
      local n, c, v = 256, 8, 4096
      local x = tide.randn({ n, c }):requires_grad_(true)
      local w = tide.randn({ v, c }):requires_grad_(true)
      local t = { x = tide.randn { n, 2 * c }, w = tide.randn { v, 2 * c } }
      local ids = tide.zeros({ n }, { dtype = 'i64' })
      local ctx = tide.default()
      local function peak(chunk)
         collectgarbage()
         collectgarbage()
         ctx:reset_peak()
         local before = ctx:stats().peak
         tide.scope(function()
            distil.loss(x, w, ids, t, { chunk = chunk, alpha = 0.5, temperature = 2 }):backward()
         end)
         local most = ctx:stats().peak - before
         x:set_grad(nil)
         w:set_grad(nil)
         return most
      end
      peak(16)
      local logits = 4 * n * v                          -- bytes of one model's
      assert.is_true(peak(256) > 2 * logits)
      local some, few = peak(64), peak(16)
      assert.is_true(few < 0.5 * some and some < 0.5 * peak(256), ('%d %d'):format(few, some))
      assert.is_true(few < logits)                      -- 16 of 256 tokens
   end)

   it('refuses teachers of other tokens, and the reverse way of a part of them', function()
      local x, w = tide.randn { 3, 4 }, tide.randn { 7, 4 }
      local ids = tide.zeros({ 3 }, { dtype = 'i64' })
      local function refused(text, fn, ...)
         local ok, e = pcall(fn, ...)
         assert.is_false(ok)
         assert(err.text(e):find(text, 1, true), err.text(e))
      end
      refused('vocabulary of 8 and the student of 7', distil.loss, x, w, ids,
         { x = x, w = tide.randn { 8, 4 } })
      refused('teacher.x has 2 tokens, x has 3', distil.loss, x, w, ids,
         { x = tide.randn { 2, 4 }, w = w })
      refused('reverse divergence needs all', distil.loss, x, w, ids,
         { ids = ids:reshape(3, 1), logp = tide.zeros { 3, 1 } }, { kind = 'reverse' })
      refused('at most the 7 ids', distil.top, x, w, 8)
      refused('x: expected hidden states [.., C] and a head [V, C] of one dtype', distil.top, x,
         w:to 'f64', 2)
      refused('x: expected hidden states [.., C] and a head [V, C] of one dtype', distil.loss,
         tide.randn { 3, 5 }, w, ids, { x = x, w = w })
      refused('a model of tide.model', distil.objective, { teacher = tide.nn.Linear(2, 2) })
   end)
end)
