-- Distillation: a model learns the next-token distributions of a teacher (Hinton et al., arXiv
-- 1503.02531), beside the labels or in their place.
--
--    local teacher = { x = teacher_x, w = teacher_w }
--    local loss = nn.distil.loss(x, w, labels, teacher, { temperature = 2 })
--    local objective = nn.distil.objective { teacher = model }        -- the loss of a step
--
-- x are final hidden states and w the rows of the output head. As in tide.linear_cross_entropy,
-- gradients are made in forward, while the logits of a chunk of tokens are there; the logits of all
-- tokens never exist, neither those of the student nor those of the teacher, and backward only
-- scales. Where the vocabulary is cut over ranks, these exchange a few numbers a token, and each
-- takes its rows of the teacher's head. The loss is a sum divided by a count, as with nn.loss.
--
-- Legend: N tokens, n tokens of a chunk, C width, W vocabulary rows of this rank, K most likely
-- ids.

local tide = require 'tide'
local chunked = require 'tide.nn.chunked'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local nn_loss = require 'tide.nn.loss'
local private = require 'tide.util.private'
local rows_ = require 'tide.nn.rows'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'
local tally = require 'tide.nn.tally'
require 'tide.nn.module'                -- the kind 'module'

local distil = {}

local column, logits = chunked.column, chunked.logits
local replace, spend = private.replace, private.spend

local function summed(t, at)
   if at.comm then at.comm:all_reduce(t) end
   return t
end

-- Returns log-probabilities of logits over the vocabulary of all ranks.
local function log_softmax(z_nW, at)
   local max = z_nW:amax(2, true)
   if at.comm then at.comm:all_reduce(max, 'max') end
   local below = z_nW - max
   local e = below:exp()
   local total = summed(e:sum(2, true), at)
   spend(e)
   return replace(below, below - total:log())
end

-- Returns the places of ids [n, k] among the rows of this rank, and whether they lie there.
local function places(ids, at, W)
   local here = tide.logical_and(ids:ge(at.first), ids:lt(at.first + W))
   return (ids - at.first):clamp(0, W - 1), here:to(at.acc)
end

-- Returns the cross entropy [n, 1] with the labels, and its derivative by the logits. ls:
-- log-probabilities.
local function entropy(ls, ids_n, at)
   local place, here = places(column(ids_n), at, ls:size(2))
   local value = -summed(ls:gather(2, place) * here, at)
   local slope = ls:exp()
   return value, replace(slope, slope:scatter_add(2, place, -here))
end

-- Ways from log-probabilities of student and teacher to a divergence [n, 1] and its derivative by
-- the student's logits / temperature.
local ways = {}

-- Returns the forward divergence, KL(teacher || student): the student covers the teacher's
-- distribution.
function ways.forward(ls, lt, at)
   local pt, diff, ps = lt:exp(), lt - ls, ls:exp()
   diff = replace(diff, diff * pt)
   ps = replace(ps, ps - pt)
   spend(pt)
   local value = summed(diff:sum(2, true), at)
   spend(diff)
   return value, ps
end

-- Returns the reverse divergence, KL(student || teacher): the student keeps to the teacher's modes.
function ways.reverse(ls, lt, at)
   local ps, diff = ls:exp(), ls - lt
   local both = ps * diff
   local value = summed(both:sum(2, true), at)
   spend(both)
   diff = replace(diff, diff - value)
   return value, replace(ps, ps * diff)
end

-- Returns the forward divergence over the K most likely ids of the teacher, whose probabilities are
-- made to add up to 1.
local function of_top(ls, ids_nK, logp_nK, at)
   local place, here = places(ids_nK, at, ls:size(2))
   local lq = (logp_nK:to(at.acc) * (1 / at.temperature)):log_softmax(2)
   local q = lq:exp()
   local cross = summed((q * here * ls:gather(2, place)):sum(2, true), at)
   local slope = ls:exp()
   return (q * lq):sum(2, true) - cross, replace(slope, slope:scatter_add(2, place, -(q * here)))
end

-- Returns the divergence of a chunk and its derivative by the student's logits, both times
-- temperature ^ 2.
local function divergence(z, ls1, t, first, n, at)
   local T, value, dz = at.temperature
   local function softened(y)
      y = y * (1 / T)
      return replace(y, log_softmax(y, at))
   end
   local ls = T == 1 and ls1 or softened(z)
   if t.ids then
      value, dz = of_top(ls, t.ids:narrow(1, first, n), t.logp:narrow(1, first, n), at)
   else
      local zt = logits(t.x:narrow(1, first, n), t.w, t.cap, at.acc)
      local lt = replace(zt, softened(zt))
      value, dz = ways[at.kind](ls, lt, at)
      spend(lt)
   end
   if ls ~= ls1 then spend(ls) end
   return value * (T * T), replace(dz, dz * T)
end

-- Computes the tokens first .. first + n - 1. Returns the sums of loss, divergence and cross
-- entropy [3], and the gradients of x and w that are wanted (else nil).
local function run_chunk(x_nC, w_WC, ids_n, t, first, n, at)
   local z, a = logits(x_nC, w_WC, at.cap, at.acc), at.alpha
   local counted = column(ids_n:ne(at.ignore)):to(at.acc)
   local ls1 = (a < 1 or at.temperature == 1) and log_softmax(z, at) or nil
   local kl, dz, ce, dce
   if a > 0 then kl, dz = divergence(z, ls1, t, first, n, at) end
   if a < 1 then ce, dce = entropy(ls1, ids_n, at) end
   if ls1 then spend(ls1) end
   local zero = tide.zeros({ n, 1 }, { dtype = at.acc, device = z.device })
   local sums = (tide.cat({ kl or zero, ce or zero }, 2) * counted):sum(1)
   if not (at.want_x or at.want_w) then return sums end
   if dz and dce then
      dz, dce = replace(dz, dz * a), replace(dce, dce * (1 - a))
      dz = replace(dz, dz + dce)
      spend(dce)
   end
   dz = dz or dce
   dz = replace(dz, dz * counted)
   if at.cap then dz = replace(dz, dz * (1 - (z * (1 / at.cap)):square())) end
   dz = replace(dz, dz:to(x_nC.dtype))
   return sums, at.want_x and tide.matmul(dz, w_WC) or nil,
      at.want_w and tide.matmul(dz:t(), x_nC):to(at.acc) or nil
end

-- The loss of all tokens, and the gradients that are wanted. Temporaries of a chunk end with it.
local loss_fn = chunked.loss('nn.distil', function(x_NC, w_WC, ids_N, t, at)
   local sums = tide.zeros({ 2 }, { dtype = at.acc, device = x_NC.device })
   local dx, dw = chunked.gradients(x_NC:size(1), at.rows, function(first, n)
      local here, dx_nC, part = private.frame(run_chunk, x_NC:narrow(1, first, n), w_WC,
         ids_N:narrow(1, first, n), t, first, n, at)
      sums:add_(here)
      return dx_nC, part
   end)
   local a, parts = at.alpha, sums:tolist()
   at.kl, at.ce = parts[1], parts[2]
   return sums:narrow(1, 1, 1):sum() * a + sums:narrow(1, 2, 1):sum() * (1 - a), dx,
      dw and dw:to(w_WC.dtype) or nil
end)

-- ---- checks ------------------------------------------------------------------------------------

local function check_width(op, name, x, w)
   if x:size(-1) == w:size(2) and x.dtype == w.dtype then return end
   err.raise('E_SHAPE', op, '%s: expected hidden states [.., C] and a head [V, C] of one dtype, '
      .. 'got %s and %s', name, tostring(x), tostring(w))
end

-- Returns the teacher as rows of N tokens, with this rank's rows of its head. V: the student's
-- vocabulary.
local function settled(op, t, n, w, V, part, opts)
   if t.ids then
      err.raise_if(opts.kind == 'reverse', 'E_UNSUPPORTED', op, 'the reverse divergence needs all '
         .. "of the teacher's probabilities, and its most likely ids are given; take kind = "
         .. "'forward'")
      local K = t.ids:size(-1)
      err.raise_if(t.ids:numel() ~= n * K or t.logp:numel() ~= n * K, 'E_SHAPE', op, 'teacher.ids '
         .. 'and teacher.logp: expected [%d, K], got %s and %s', n, tostring(t.ids),
         tostring(t.logp))
      return { ids = t.ids:detach():reshape(n, K), logp = t.logp:detach():reshape(n, K) }
   end
   check_width(op, 'teacher', t.x, t.w)
   err.raise_if(t.w:size(1) ~= V, 'E_SHAPE', op, 'the teacher has a vocabulary of %d and the '
      .. 'student of %d; both need the same tokens', t.w:size(1), V)
   err.raise_if(t.x:numel() / t.x:size(-1) ~= n, 'E_SHAPE', op, 'teacher.x has %d tokens, x has %d',
      t.x:numel() / t.x:size(-1), n)
   local head = t.w:detach()
   if part then head = head:narrow(1, part.first + 1, w:size(1)) end
   return { x = t.x:detach():reshape(n, t.x:size(-1)), w = head, cap = t.cap }
end

-- Returns the rows of a settled teacher that an index names.
local function picked(t, rows)
   if t.ids then
      return { ids = t.ids:index_select(1, rows), logp = t.logp:index_select(1, rows) }
   end
   return { x = t.x:index_select(1, rows), w = t.w, cap = t.cap }
end

-- Returns the loss, as distil.loss does, of a head whose rows are cut over ranks, and sums over
-- tokens { kl, ce }. part: { comm, first (rows before those of this rank), size (rows of all ranks)
-- }, or nil.
function distil._of_part(op, x, w, labels, teacher, opts, part)
   local C = x:size(-1)
   local n = x:numel() / C
   check_width(op, 'x', x, w)
   chunked.check_labels(op, labels, n)
   local t = settled(op, teacher, n, w, part and part.size or w:size(1), part, opts)
   local at = chunked.way(x, w, opts, part)
   at.alpha, at.temperature, at.kind = opts.alpha, opts.temperature, opts.kind
   local count = opts.count or math.max(1, nn_loss.count(labels, opts.ignore))
   local x_KC, ids_K, rows = rows_.only(x:reshape(n, C), labels:reshape(n), opts.ignore,
      opts.counted)
   local sum = loss_fn(x_KC, w, ids_K, rows and picked(t, rows) or t, at)
   return sum * (1 / count), { kl = at.kl, ce = at.ce }
end

-- Returns the loss of the tokens whose labels count, summed and divided by opts.count (default:
-- their number). It is alpha temperature ^ 2 times the divergence of student and teacher, whose
-- logits are divided by temperature, plus 1 - alpha times the cross entropy with the labels. x [..,
-- C], w [V, C], labels i64 of the leading shape of x. teacher: { x, w, cap (soft cap of its logits)
-- } of any width, or its most likely ids { ids = i64 [.., K], logp = their log-probabilities },
-- which are made to add up to 1. x and w get gradients. Returns the loss, and sums over tokens {
-- kl, ce }.
function distil.loss(x, w, labels, teacher, opts)
   return distil._of_part('nn.distil.loss', x, w, labels, teacher, opts)
end

-- Returns the k largest of each row of log-probabilities [n, V], as ids and values [n, k].
local function top_of_chunk(x_nC, w_VC, k, cap, acc)
   local values, ids = logits(x_nC, w_VC, cap, acc):log_softmax(-1):topk(k)
   return ids, values
end

-- Returns the k most likely ids of a teacher after each token, { ids = i64 [N, k], logp = f32 [N,
-- k] }, the likeliest first, as a teacher of loss. x [.., C] final hidden states, w [V, C], cap as
-- of loss.
function distil.top(x, w, k, opts)
   local op, V = 'nn.distil.top', w:size(1)
   check_width(op, 'x', x, w)
   err.raise_if(k > V, 'E_ARG', op, 'k: expected at most the %d ids of the vocabulary, got %d',
      V, k)
   local acc, ids, logp = x.dtype == 'f64' and 'f64' or 'f32', {}, {}
   local n = x:numel() / x:size(-1)
   local flat = x:reshape(n, x:size(-1))
   tide.no_grad(chunked.each, n, opts.chunk or chunked.rows(V), function(first, size)
      ids[#ids + 1], logp[#logp + 1] = private.frame(top_of_chunk, flat:narrow(1, first, size), w,
         k, opts.cap, acc)
   end)
   return { ids = tide.cat(ids, 1), logp = tide.cat(logp, 1):to 'f32' }
end

-- ---- the loss of a step ------------------------------------------------------------------------

local Objective = { class_name = 'Objective' }
Objective.__index = Objective

-- Calls fn({ x, w, cap }) while the head of the teacher is there.
local function with_teacher(self, batch, at, fn)
   if batch.teacher_ids then
      return fn { ids = batch.teacher_ids, logp = batch.teacher_logp }
   end
   local teacher, record = self.opts.teacher, tide.is_grad_enabled()
   tide.no_grad(function()
      teacher:with_head(batch.ids, at, function(x, w, cap)
         local function inside() fn { x = x, w = w, cap = cap } end
         if record then tide.enable_grad(inside) else inside() end
      end)
   end)
   if self.opts.sharded then self.opts.sharded:release() end
end

-- Returns the loss of a batch, for the option `loss` of train.run and train.step. A batch with the
-- fields teacher_ids and teacher_logp needs no teacher (see train.teacher).
function Objective:__call(model, batch, opts)
   local at, o = {}, self.opts
   for k, v in each(opts or {}) do if k ~= 'count' then at[k] = v end end
   local rest = { alpha = o.alpha, temperature = o.temperature, kind = o.kind, chunk = o.chunk,
      count = opts and opts.count, ignore = nn_loss.ignore, counted = batch.counted }
   local loss, sums = model:distil_loss(batch.ids, batch.labels, function(fn)
      with_teacher(self, batch, at, fn)
   end, at, rest)
   if batch.spare or not sums then return loss end
   self.figures:add(model, { nn_loss.count(batch.labels), sums.kl, sums.ce })
   return loss
end

-- Returns { kl, ce } of the tokens since the last call, over the ranks of comm: means of the
-- divergence (times temperature ^ 2) and of the cross entropy, of the parts that the loss has. Nil
-- without tokens. which: 'train', or 'val' of evaluations. Collective.
function Objective:take(comm, which)
   local means = self.figures:take(comm, which)
   if not means then return nil end
   local alpha = self.opts.alpha
   return { kl = alpha > 0 and means.kl or nil, ce = alpha < 1 and means.ce or nil }
end

-- Makes the loss of a step, which is called as objective(model, batch, { count = labels }).
function distil.objective(opts)
   local op, t = 'nn.distil.objective', opts.teacher
   err.raise_if(t and type(t.with_head) ~= 'function', 'E_ARG', op, 'teacher: expected a model of '
      .. 'tide.model')
   err.raise_if(t and spread.of(t).tp, 'E_UNSUPPORTED', op, 'the teacher is cut over ranks (tp); '
      .. 'shard it with fully_shard over all of them')
   return setmetatable({ opts = opts, figures = tally { 'labels', 'kl', 'ce' } }, Objective)
end

local common = {
   'alpha: number in [0, 1] = 1 -- weight of the divergence; 1 - alpha is that of the labels',
   'temperature: number > 0 = 1 -- logits of both are divided by it',
   "kind: 'forward' | 'reverse' = 'forward' -- of the student from the teacher, or the other way",
   'chunk: integer? >= 1 -- tokens whose logits exist at a time; by default those of 16 MiB',
}
signature.doors('nn.distil', Objective, {
   take = "comm: comm; which: 'train' | 'val' = 'train'",
})
return signature.doors('nn.distil', distil, {
   loss = { 'x: tensor; w: tensor; labels: tensor; teacher: table', opts = {
      'count: number? > 0 -- divisor of the sum',
      'ignore: integer = -100 -- label of tokens that do not count',
      'cap: number? > 0 -- soft cap of the logits of the student',
      'counted: tensor? -- places of the labels that count, [K] of i64, where they are known',
      unpack(common) } },
   top = { 'x: tensor; w: tensor; k: integer >= 1', opts = {
      'cap: number? > 0 -- soft cap of the logits',
      'chunk: integer? >= 1 -- tokens whose logits exist at a time; by default those of 16 MiB' } },
   objective = { opts = {
      'teacher: module? -- of tide.model; nil where batches have its ids',
      'sharded: sharded? -- of the teacher', unpack(common) } },
})
