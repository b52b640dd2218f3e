-- Preference: a model learns which of two answers is the better one (DPO, Rafailov et al., arXiv
-- 2305.18290; IPO, Azar et al., arXiv 2310.12036).
--
--    local of_token = model:label_logprobs(ids, labels, at)
--    local sums = nn.preference.by_answer(of_token, answers, 2 * pairs)
--    local loss, margin = nn.preference.dpo(chosen, rejected, ref_chosen, ref_rejected)
--
-- Losses are sums over pairs divided by a count, so that micro-batches and ranks add up as with
-- nn.loss. `objective` is all of it as the loss of a step, for batches of data.preference.

local tide = require 'tide'
local balance = require 'tide.nn.balance'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'
local tally = require 'tide.nn.tally'
require 'tide.nn.module'                -- the kind 'module'

local preference = {}

-- Returns sums [n] in f64 of the values of tokens by answer. answers: i64 of the shape of values,
-- the answer (from 0) of each token; tokens of no answer have the value 0.
function preference.by_answer(values, answers, n)
   err.raise_if(values:numel() ~= answers:numel(), 'E_SHAPE', 'nn.preference.by_answer',
      'expected an answer for each of %d values, got %d', values:numel(), answers:numel())
   return tide.zeros({ n }, { dtype = 'f64', device = values.device }):index_add(1,
      answers:reshape(answers:numel()), values:reshape(values:numel()):to 'f64')
end

local kinds = {}

-- Returns -log sigmoid(beta d), or with label_smoothing e -(1 - e) log sigmoid(beta d) - e log
-- sigmoid(-beta d).
function kinds.sigmoid(d, o)
   local right = (d * -o.beta):softplus()
   if o.label_smoothing == 0 then return right end
   return right * (1 - o.label_smoothing) + (d * o.beta):softplus() * o.label_smoothing
end

-- Returns (d - 1 / (2 beta)) ^ 2.
function kinds.ipo(d, o) return (d - 1 / (2 * o.beta)):square() end

-- Returns the sum over pairs of the loss of d, divided by opts.count (default: the pairs). d =
-- (chosen - rejected) - (ref_chosen - ref_rejected) says how much more than the reference the model
-- prefers the chosen answers. All are log-probabilities [pairs] of whole answers; of IPO, their
-- means over the tokens of an answer. The references get no gradient. Returns the loss, and d.
function preference.dpo(chosen, rejected, ref_chosen, ref_rejected, opts)
   local op, n = 'nn.preference.dpo', chosen:numel()
   for _, entry in ipairs { { 'rejected', rejected }, { 'ref_chosen', ref_chosen },
      { 'ref_rejected', ref_rejected } } do
      err.raise_if(entry[2]:numel() ~= n, 'E_SHAPE', op, '%s: expected a log-probability for each '
         .. 'of %d pairs, got %d', entry[1], n, entry[2]:numel())
   end
   err.raise_if(opts.kind == 'ipo' and opts.label_smoothing > 0, 'E_ARG', op, 'label_smoothing '
      .. "works only with kind = 'sigmoid'; leave it out")
   local d = (chosen - rejected) - (ref_chosen - ref_rejected):detach()
   return kinds[opts.kind](d, opts):sum() * (1 / (opts.count or n)), d:detach()
end

-- ---- the loss of a step ------------------------------------------------------------------------

-- Returns the sums over the ranks that hold parts of the sequence, whose gradients stay this rank's
-- part.
local function over_context(model, sums)
   local handle = spread.of(model).cp
   if not handle or handle.size == 1 then return sums, 1 end
   local here = sums:detach()
   local all = here:clone()
   handle.comm:all_reduce(all)
   return sums + (all - here), handle.size
end

-- Returns sums [2 pairs] of the log-probabilities of the answers of a batch of data.preference, and
-- their numbers of labels, over all ranks of a context axis; and the number of these.
function preference.answers(model, batch, opts)
   local at = {}
   for k, v in require 'tide.util.each'(opts or {}) do if k ~= 'count' then at[k] = v end end
   at.counted = batch.counted
   local n = 2 * err.integer('nn.preference.answers', 'batch.pairs', batch.pairs, 1)
   local sums, parts = over_context(model, preference.by_answer(
      model:label_logprobs(batch.ids, batch.labels, at), batch.answers, n))
   local labels = over_context(model, preference.by_answer(batch.labels:ne(-100), batch.answers, n))
   return sums, labels, parts
end

local Objective = { class_name = 'Objective' }
Objective.__index = Objective

-- Adds to the metrics: by how much the chosen answers are preferred, and how often.
local function note(self, model, margin, chosen, rejected)
   local function reward(t) return self.opts.beta * t:sum():item() end
   self.figures:add(model, { margin:numel(), margin:gt(0):sum():item(), reward(margin),
      reward(chosen), reward(rejected) })
end

-- Returns the loss of a batch of data.preference, for the option `loss` of train.run and
-- train.step.
function Objective:__call(model, batch, opts)
   local o = self.opts
   opts = copy(opts or {})
   local record = balance._begin(model, opts)
   local sums, labels, parts = preference.answers(model, batch, opts)
   err.raise_if(not batch.reference, 'E_STATE', 'nn.preference.objective', 'the batch has no '
      .. 'reference; call train.reference.compute with its sampler before the first step')
   local reference = tide.tensor(batch.reference, { dtype = 'f64', device = sums.device })
   if o.kind == 'ipo' then sums, reference = sums / labels, reference / labels end
   local both, ref = sums:reshape { batch.pairs, 2 }, reference:reshape { batch.pairs, 2 }
   local chosen, rejected = both:select(2, 1), both:select(2, 2)
   local ref_chosen, ref_rejected = ref:select(2, 1), ref:select(2, 2)
   local loss, margin = preference.dpo(chosen, rejected, ref_chosen, ref_rejected, { beta = o.beta,
      kind = o.kind, label_smoothing = o.label_smoothing, count = opts.count })
   if not batch.spare then
      tide.no_grad(note, self, model, margin, chosen:detach() - ref_chosen,
         rejected:detach() - ref_rejected)
   end
   -- every rank of the axis has all of it
   if parts > 1 then loss = loss - loss:detach() * (1 - 1 / parts) end
   if not record then return loss end
   local pairs_ = tide.full({ 1 }, batch.pairs / parts, { device = loss.device })
   return record:add(loss, pairs_, opts.count)
end

-- Returns { accuracy, margin, reward_chosen, reward_rejected } of the pairs since the last call,
-- over the ranks of comm: the share of pairs whose chosen answer is preferred more than by the
-- reference, and means of beta times the log-ratios. Nil without pairs. which: 'train', or 'val' of
-- evaluations. Collective.
function Objective:take(comm, which) return self.figures:take(comm, which) end

-- Makes the loss of a step, which is called as objective(model, batch, { count = pairs }).
function preference.objective(opts)
   err.raise_if(opts.kind == 'ipo' and opts.label_smoothing > 0, 'E_ARG',
      'nn.preference.objective', "label_smoothing works only with kind = 'sigmoid'; leave it out")
   return setmetatable({ opts = opts, figures = tally { 'pairs', 'accuracy', 'margin',
      'reward_chosen', 'reward_rejected' } }, Objective)
end

local common = {
   'beta: number > 0 = 0.1 -- how far the model may leave the reference: less for a larger one',
   'label_smoothing: number in [0, 0.5) = 0 -- share of pairs that are the wrong way round',
   "kind: 'sigmoid' | 'ipo' = 'sigmoid'",
}
signature.doors('nn.preference', Objective, {
   take = "comm: comm; which: 'train' | 'val' = 'train'",
})
return signature.doors('nn.preference', preference, {
   by_answer = 'values: tensor; answers: tensor; n: integer >= 1',
   answers = 'model: module; batch: table; opts: table?',
   dpo = { 'chosen: tensor; rejected: tensor; ref_chosen: tensor; ref_rejected: tensor', opts = {
      'count: number? > 0 -- divisor of the sum', unpack(common) } },
   objective = { opts = common },
})
