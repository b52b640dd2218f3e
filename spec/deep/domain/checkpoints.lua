-- Random cases: a run in legs. Each leg goes on from the newest checkpoint or an earlier one, on a
-- mesh of its own, makes some steps, saves some of them, and ends properly or just goes away. What
-- it computes is held against the run of one rank that was never interrupted; bit by bit against
-- one of its own mesh, if no leg changes the mesh. Which checkpoints are there is kept in a list.

local models = require 'spec.deep.domain.models'
local values = require 'spec.deep.fuzz.values'
local choice = require 'spec.deep.fuzz.choice'

local checkpoints = { limit = 120 }

-- ---- cases -----------------------------------------------------------------------------------

-- How a leg lies over ranks: n, axes, and the sections of the plan.
local function place(c, o)
   local p = { n = c:pick { 1, 2, 3, 4, 6 } }
   p.axes = models.mesh(c, p.n, o.stages)
   if o.tp % p.axes.tp ~= 0 then
      p.axes.tp, p.axes.dp_shard = 1, p.axes.dp_shard * p.axes.tp
   end
   if p.axes.dp_shard > 1 or not c:chance(0.3) then
      p.fsdp = { strategy = c:pick { 'optim_grads_params', 'optim_grads', 'optim', 'no_shard' } }
   end
   p.ep = models.divisor(c, p.axes.dp_shard * p.axes.cp)
   if p.axes.cp > 1 then
      p.cp = { method = c:pick { 'allgather', 'ring', 'a2a' },
         layout = c:pick { 'contiguous', 'zigzag' } }
      if o.dropout then p.cp.method = 'allgather' end
   end
   return p
end

local function leg(c, o, at)
   local l = { steps = c:int(0, 4), keep = c:chance(0.5) and c:int(1, 3) or nil,
      async_save = c:chance(0.3), every = c:int(1, 3), ends = c:pick { 'finish', 'gone' },
      litter = c:chance(0.2), back = c:few(0, 2) }
   l.place = (not o.moves and o.legs[1] or { place = place(c, o) }).place
   l.accum = c:pick { 1, 2 }
   if not o.moves and at > 1 then l.accum = o.legs[1].accum end
   return l
end

-- A case: family, config and dtype of the model, optimiser and schedule, rows of tokens, and legs:
-- { place, steps (of its own), every (steps from save to save), keep, async_save, accum, ends,
-- litter (what a killed save leaves is in the folder), back (how many checkpoints before the newest
-- it goes on from) }. moves: legs have places of their own.
function checkpoints.make(c)
   local o = { seed = c:int(0, 999), family = c:pick(models.trained), moves = not c:chance(0.4),
      tp = c:pick { 1, 2 }, stages = c:pick { 1, 2, 3 }, T = c:int(1, 9), legs = {} }
   o.config = models.config(c, o.family, o.tp, o.stages)
   o.dtype = o.moves and 'f64' or c:pick { 'f64', 'f32', 'bf16' }
   local state = models.has_state[o.family] or o.family == 'gpt2'
   o.dropout = not o.moves and not state and c:chance(0.5)
   if o.dropout then o.config.attention_dropout = 0.3 end
   o.optim, o.clip = models.optim(c), c:pick { 0, 0.5 }
   o.schedule = { kind = c:pick { 'constant', 'linear', 'cosine', 'wsd' }, warmup = c:few(0, 2),
      steps = c:int(3, 12) }
   for i = 1, c:int(1, 4) do o.legs[i] = leg(c, o, i) end
   return o
end

-- ---- what is in the folder -------------------------------------------------------------------

-- What each leg does by the rules: { from, first, last, kept }: the checkpoint that it goes on from
-- (a step or 'newest'; nil: a new run), its first and last step, and the checkpoints after it.
-- A save adds the step and keeps the newest `keep`; to go on from an earlier one moves the later
-- ones away. A leg that is gone has not saved its last step, unless that was one to save.
local function history(o)
   local kept, rows = {}, {}
   local function save(l, step)
      if kept[#kept] ~= step then kept[#kept + 1] = step end
      while l.keep and #kept > l.keep do table.remove(kept, 1) end
   end
   for i, l in ipairs(o.legs) do
      local row = { first = 0 }
      if #kept > 0 then
         local at = math.max(1, #kept - l.back)
         row.from, row.first = at < #kept and kept[at] or 'newest', kept[at]
         for k = #kept, at + 1, -1 do kept[k] = nil end
      end
      row.last = row.first + l.steps
      for step = row.first + 1, row.last do
         if step % l.every == 0 then save(l, step) end
      end
      -- where it went on from is saved already; a new run saves even step 0
      if l.ends == 'finish' and not (row.from and l.steps == 0) then save(l, row.last) end
      row.kept = { unpack(kept) }
      rows[i] = row
   end
   return rows
end

-- ---- on a rank -------------------------------------------------------------------------------

local batch = 24                          -- rows: two micro-batches on any number of ranks

local function optimiser(t, o, params)
   local opts = {}
   for k, v in pairs(o.optim) do opts[k] = v end
   opts.kind = nil
   opts.lr = t.optim.schedule.make(o.schedule.kind, { lr = o.optim.lr, warmup = o.schedule.warmup,
      steps = o.schedule.steps, min_lr = o.optim.lr / 10 })
   return t.optim[o.optim.kind](params, opts)
end

local function tokens_of(t, o)
   local next_, list = choice.stream('text ' .. o.seed), {}
   for i = 1, 80 * o.T do list[i] = string.char(math.floor(next_() * o.config.vocab_size)) end
   return t.data.tokens.memory(table.concat(list), 1)
end

-- Opens the run of a leg. where: { out, resume }.
local function open(t, o, l, where)
   local p = l.place
   local plan = t.parallel.plan({ family = o.family, config = o.config, dtype = o.dtype }, p.axes,
      { fsdp = p.fsdp, cp = p.cp })
   local spread, train = plan:materialise { seed = o.seed }, tokens_of(t, o)
   local quiet = { update = function() end, note = function() end, finish = function() end }
   t.seed(o.seed + 1)
   return t.train.run { progress = quiet,
      model = spread.model, parallel = spread.sharded, comm = spread.comm,
      optim = optimiser(t, o, spread.params), train = train, clip = o.clip, accum = l.accum,
      out = where.out, resume = where.resume, keep = l.keep or nil, async_save = l.async_save,
      sampler = t.data.sampler.new { count = train.count, seq = o.T, batch = batch, seed = o.seed,
         rank = spread.data.rank, size = spread.data.size } }
end

-- What a killed save leaves: a folder that is no checkpoint, and a file that is half written.
local function litter(t, out, step)
   local fs = t.util.fs
   local staged = ('%s/.staging-step-%08d'):format(out, step)
   fs.mkdirs('fuzz', staged)
   fs.write('fuzz', staged .. '/model.safetensors', 'half')
   fs.mkdirs('fuzz', ('%s/.gone-step-%08d'):format(out, step))
end

-- Makes the steps of a leg. job: { last (step), out, row (of history) }, or { last, whole (a folder
-- for the state at the end) } of a run that goes through.
function checkpoints.on_rank(o, rank)
   local t = require 'tide'
   local l, job = o.leg, o.job
   if job.out and l.litter and rank == 0 then litter(t, job.out, job.row.last + 1) end
   t.comm.world():barrier()
   local from = job.row and job.row.from
   local run = open(t, o, l, { out = job.out, resume = from and (from == 'newest' and job.out
      or job.out .. '/' .. t.train.checkpoint.name(from)) })
   local got = { first = run.step, rows = {} }
   for s in run:steps(job.last) do
      got.rows[#got.rows + 1] = { s.step, s.loss, s.grad_norm, s.lr }
      if job.out and s.step % l.every == 0 then run:save() end
   end
   if l.ends == 'finish' then
      run:finish()
   elseif run.pending then
      run.pending:wait()               -- a save in the background is not there before
   end
   if not job.out then
      local saved = t.train.state.collect { model = run.opts.model, optim = run.opts.optim,
         sampler = run.opts.sampler, parallel = run.opts.parallel, step = run.step }
      t.train.checkpoint.save(job.whole, saved, { comm = run.opts.comm })
   end
   return got
end

-- ---- the check -------------------------------------------------------------------------------

-- Sums in another order: f64 all the way, and AdamW divides by no less than eps.
local allowed = 1e-6

local function with(o, changes)
   local out = {}
   for k, v in pairs(o) do out[k] = v end
   for k, v in pairs(changes) do out[k] = v end
   return out
end

-- The rows of a leg against those of the whole run. exact: to the last bit.
local function compare_rows(got, want, what, exact)
   for _, row in ipairs(got.rows) do
      local other = want.rows[row[1]]
      for k, name in ipairs { 'step', 'loss', 'norm', 'lr' } do
         local off = math.abs(row[k] - other[k])
         local most = (exact or name == 'step' or name == 'lr') and 0
            or allowed * math.max(1e-3, math.abs(other[k]))
         if off > most or off ~= off then
            return ('%s: %s of step %d is %.17g, expected %.17g'):format(what, name, row[1],
               row[k], other[k])
         end
      end
   end
end

local function flat(t) return t:to 'f64':reshape(-1):tolist() end

-- Tensors by name of a checkpoint against those of another.
local function compare_tensors(got, want, what, exact)
   for name, t in pairs(want) do
      if not got[name] then return ('%s: %s is not there'):format(what, name) end
      local far = values.far(flat(got[name]), flat(t), exact and 1e-300 or 1e-2)
      if far > (exact and 0 or allowed) or got[name].dtype ~= t.dtype then
         return ('%s: %s is off by %.3g'):format(what, name, far)
      end
   end
   for name in pairs(got) do
      if not want[name] then return ('%s: %s is too much'):format(what, name) end
   end
end

-- A checkpoint of `step` in a folder against that of the whole run.
local function compare_state(t, folder, whole, step, exact)
   local got, want = t.train.checkpoint.load(folder), t.train.checkpoint.load(whole)
   local plain = got.plain
   if plain.step ~= step or plain.optim.steps ~= step
      or plain.sampler.position ~= step * batch then
      return ('the state has step %s, %s updates and position %s at step %d'):format(plain.step,
         plain.optim.steps, plain.sampler.position, step)
   end
   if exact and values.literal(plain.rng) ~= values.literal(want.plain.rng) then
      return 'the generator is elsewhere'
   end
   for name, n in pairs(want.plain.optim.counts) do
      if plain.optim.counts[name] ~= n then return 'updates of ' .. name .. ' are miscounted' end
   end
   return compare_tensors(got.model, want.model, 'weights', exact)
      or compare_tensors(got.optim, want.optim, 'moments', exact)
end

-- The published files of a checkpoint: whole weights in a dtype, and a model that reads them.
local function compare_published(t, o, folder, to)
   local cp = t.train.checkpoint
   cp.consolidate(folder, to)
   local file, saved = cp.tensors(to .. '/model.safetensors'), cp.load(folder)
   local own = t.model[o.family](o.config, { dtype = 'f64' })
   own:load_state_dict(saved.model)
   local want = saved.model
   if own.stored then want = require('tide.model.stored').published(own:stored(), want) end
   local problem = compare_tensors(file, want, 'published weights', true)
   if problem then return problem end
   local model = t.model.load(to, { dtype = 'f64' })
   local ids = t.tensor({ { 0, 1, 2, 3, 1 } }, { dtype = 'i64' })
   local function logits(m) return t.no_grad(function() return flat(m:eval()(ids)) end) end
   if values.far(logits(model), logits(own)) ~= 0 then return 'the published model differs' end
   cp.consolidate(folder, to .. '-half', { dtype = 'bf16' })
   local half = {}
   for name, x in pairs(want) do half[name] = x:to 'bf16' end
   return compare_tensors(cp.tensors(to .. '-half/model.safetensors'), half, 'halved weights', true)
end

local function check_list(t, out, row)
   local want = {}
   for i, step in ipairs(row.kept) do want[i] = t.train.checkpoint.name(step) end
   local got = t.train.checkpoint.list(out)
   if values.literal(got) ~= values.literal(want) then
      return ('the folder has %s, expected %s'):format(table.concat(got, ' '),
         table.concat(want, ' '))
   end
   for _, name in ipairs(t.util.fs.list('fuzz', out)) do
      if name:find '^%.gone' or name:find '^%.old' then return name .. ' is left' end
   end
end

-- A run that goes through `last` steps at the place of a leg, kept in `whole`.
local function through(o, l, last, whole)
   local all, text = values.ranks(l.place.n, 'spec.deep.domain.checkpoints', 'on_rank',
      with(o, { leg = with(l, { keep = false, async_save = false, ends = 'finish' }),
         job = { last = last, whole = whole } }))
   return all and all[1], text
end

local alone = { n = 1, axes = { pp = 1, dp_shard = 1, dp_replicate = 1, cp = 1, tp = 1 } }

local function check_in(dir, o)
   local t = require 'tide'
   local rows, last, out = history(o), 0, dir .. '/run'
   for _, row in ipairs(rows) do last = math.max(last, row.last) end
   local l = with(o.legs[1], o.moves and { place = alone, accum = 1 } or {})
   local want, text = through(o, l, last, dir .. '/whole')
   if not want then return 'uninterrupted: ' .. text end
   local newest
   for i, row in ipairs(rows) do
      local what = 'leg ' .. i
      local all, why = values.ranks(o.legs[i].place.n, 'spec.deep.domain.checkpoints', 'on_rank',
         with(o, { leg = o.legs[i], job = { out = out, row = row, last = row.last } }))
      if not all then return what .. ': ' .. why end
      for _, got in ipairs(all) do
         if got.first ~= row.first or #got.rows ~= row.last - row.first then
            return ('%s: %d steps from %d, expected %d from %d'):format(what, #got.rows, got.first,
               row.last - row.first, row.first)
         end
         text = compare_rows(got, want, what, not o.moves)
         if text then return text end
      end
      text = check_list(t, out, row)
      if text then return what .. ': ' .. text end
      newest = row.kept[#row.kept]
   end
   if not newest then return nil, 'nothing kept' end
   local folder = out .. '/' .. t.train.checkpoint.name(newest)
   if newest ~= last then
      want, text = through(o, l, newest, dir .. '/part')
      if not want then return 'uninterrupted: ' .. text end
   end
   text = compare_state(t, folder, dir .. (newest == last and '/whole' or '/part'), newest,
      not o.moves) or compare_published(t, o, folder, dir .. '/published')
   return text, o.moves and 'moved' or 'in place'
end

-- What a failing case has.
function checkpoints.trait(o)
   local ep = ''
   for _, l in ipairs(o.legs) do
      if ((l.place.fsdp or {}).ep_size or 1) > 1 then ep = ' ep' end
   end
   return ('%s %s %s%s%s'):format(o.family, o.dtype, o.moves and 'moves' or 'stays',
      o.dropout and ' dropout' or '', ep)
end

-- Deals experts out over ranks in the legs that can: every layer has one for each rank.
local function deal_experts(o)
   local most = models.fewest_experts(require 'tide', o)
   for _, l in ipairs(o.legs) do
      local p = l.place
      if p.fsdp and p.ep <= most then p.fsdp.ep_size = p.ep end
   end
end

-- What is wrong with a case, or nil and a word on it.
function checkpoints.check(o)
   local problem, note
   deal_experts(o)
   require 'spec.support.tmp'.with(function(dir) problem, note = check_in(dir, o) end)
   return problem, note
end

checkpoints.idle = { ['nothing kept'] = true }

return checkpoints
