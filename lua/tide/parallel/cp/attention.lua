-- Attention over a sequence that lies on several ranks.
--
--    local inner = cp_attention.new { axis = mesh:axis 'cp', method = 'ring' }
--    inner(q, k, v, { causal = true, context = context })     -- the context of the batch
--    layer:wrap('cp', function(_, _, ...) return inner(...) end, { of = 'attend' })
--
-- Layout, padding, documents and window are data: the index of every token of every rank (see
-- nn.mask), which the context holds (context.lua). So each method is one rule for any
-- of them, and what it computes is the attention of the whole sequence:
--    ring        keys and values arrive block by block, overlapped with work; memory of 1 / W
--    allgather   keys and values are gathered; one call, memory of the whole K and V
--    a2a         heads against sequence, one exchange each way
--    a2a+p2p     a2a among `a2a` neighbouring ranks, the ring across their groups
--
-- The object has the method, the context the data. A context is an option of the call, or holds
-- during one function (`with`); a call without one is an error. Losses are sums over ranks.

local agree = require 'tide.comm.agree'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local signature = require 'tide.util.signature'
local private = require 'tide.util.private'
local axis_of = require 'tide.parallel.axis_of'
local context_ = require 'tide.parallel.cp.context'
local heads = require 'tide.parallel.cp.heads'
local collective = require 'tide.parallel.collective_op'
local nn_attend = require 'tide.nn.attend'
local ring = require 'tide.parallel.cp.ring'
local subgroup = require 'tide.parallel.subgroup'
local window = require 'tide.nn.window'

local cp_attention = {}

local Inner = private.note { class_name = 'CpAttention' }
Inner.__index = Inner

-- Returns the communicators of a2a+p2p: neighbours, and the ranks with the same place among theirs.
-- Collective.
function cp_attention.split(name, comm, n)
   err.integer(name, 'a2a', n, 1)
   err.raise_if(comm.size % n ~= 0, 'E_ARG', name, 'a2a (%d) x p2p must equal the %d ranks of the '
      .. 'axis', n, comm.size)
   return subgroup.near(comm, n, 'cp_a2a'), subgroup.far(comm, n, 'cp_p2p')
end

-- Makes an attention over ranks. Collective for a2a+p2p with a2a.
function cp_attention.new(opts)
   local name = 'parallel.cp.attention'
   local method = opts.method and context_.method(name, opts.method)
   err.arg_if((method == 'a2a+p2p') ~= (opts.a2a ~= nil or opts.near ~= nil), name, 'a2a',
      'the ranks of the inner exchange, for a2a+p2p alone', opts.a2a)
   local self = setmetatable({ comm = axis_of(name, 'axis', opts.axis), method = method,
      near = opts.near, far = opts.far }, Inner)
   if opts.a2a then
      agree.check(self.comm, name, 'E_COMM', { { 'a2a', tostring(opts.a2a), 'shown' } })
      self.near, self.far = cp_attention.split(name, self.comm, opts.a2a)
   elseif opts.near then
      context_.check_split(name, opts.near, opts.far, self.comm.size, self.comm.rank,
         { 'near', 'far' })
   end
   return self
end

-- ---- the context -----------------------------------------------------------------------------

-- Runs fn() with a context for calls that bring none: of a batch, cp.null, or a list of the pairs
-- of every rank's tokens, i32 [B or 1, T_r, 2] in rank order, the same on every rank. Nests; ends
-- also when fn raises. What is computed again in backward needs it too. Returns what fn returns.
function Inner:with(context, fn)
   local name = 'parallel.cp.attention.with'
   if type(context) ~= 'table' or getmetatable(context) == nil then
      context = context_.new { axis = self.comm, pairs = context, causal = false }
   end
   context_.check(name, 'context', context)
   err.type(name, 'fn', fn, 'function')
   local before = self.context
   self.context = context
   return finally(function() self.context = before end, fn)
end

-- Refuses dropout in a ring, whose parts are merged without the probabilities that it would act on.
function cp_attention.check_dropout(name, method)
   err.raise_if(method == 'ring' or method == 'a2a+p2p', 'E_UNSUPPORTED', name, 'attention dropout '
      .. "and the method '%s': probabilities are never in one place; give method 'allgather' or "
      .. "'a2a', or attention_dropout = 0", method)
end

-- ---- the methods -----------------------------------------------------------------------------

-- Returns attention of q over k and v. own: the queries are this rank's tokens, else those of all
-- ranks; all: the keys are those of all ranks. sinks: of the heads of q, or nil.
local function attend(q, k, v, sinks, mask, context, own, all)
   local device = q.device
   return nn_attend(q, k, v, {
      causal = mask.causal, window = mask.window, softcap = mask.softcap, scale = mask.scale,
      q_index = own and context:q_index(device) or context:joined(device),
      k_index = all and context:joined(device) or context:q_index(device),
      q_tiles = own and context:q_tiles(device) or context:joined_tiles(device),
      k_tiles = all and context:joined_tiles(device) or context:q_tiles(device),
      sinks = sinks, dropout = mask.dropout,
   })
end

local run = {}

function run.ring(_, context, q, k, v, mask)
   return ring.attention(q, k, v, { comm = context.comm, mask = mask,
      index = context:groups(q.device, 1), tiles = context:q_tiles(q.device),
      hops = context:hops(1, context.rank, mask) }, mask.sinks)
end

function run.allgather(_, context, q, k, v, mask)
   local tokens = context:tokens()
   local all_k = collective.all_gather_v(k, context.comm, 2, tokens)
   local all_v = collective.all_gather_v(v, context.comm, 2, tokens)
   local y = attend(q, all_k, all_v, mask.sinks, mask, context, true, true)
   private.spend(all_k, all_v)
   return y
end

function run.a2a(_, context, q, k, v, mask)
   local qh, kh, vh, way = heads.enter(q, k, v, context.comm, context:tokens())
   local o = attend(qh, kh, vh, heads.own(mask.sinks, way), mask, context, false, true)
   private.spend(qh, kh, vh)
   return private.replace(o, heads.leave(o, context.comm, way))
end

run['a2a+p2p'] = function(self, context, q, k, v, mask)
   local near, far = self.near, self.far
   if not near then
      near = axis_of('parallel.cp.attention', 'inner', context.inner)
      far = axis_of('parallel.cp.attention', 'outer', context.outer)
   end
   local n, first = near.size, far.rank * near.size
   local tokens = { unpack(context:tokens(), first + 1, first + n) }
   local qh, kh, vh, way = heads.enter(q, k, v, near, tokens)
   local o = ring.attention(qh, kh, vh, { comm = far, mask = mask,
      index = context:groups(q.device, n), tiles = context:joined_tiles(q.device, first, n),
      hops = context:hops(n, far.rank, mask) }, heads.own(mask.sinks, way))
   private.spend(qh, kh, vh)
   return private.replace(o, heads.leave(o, near, way))
end

-- ---- the call --------------------------------------------------------------------------------

local known = require('tide.nn.mask')._options 'return_lse'

local function check_call(name, context, q, k, opts)
   local mine = context:q_index(q.device)
   for _, what in ipairs { 'q_start', 'bias', 'return_lse' } do
      err.raise_if(opts[what] and not (what == 'q_start' and opts[what] == 0), 'E_UNSUPPORTED',
         name, "option '%s' is not for a sequence on several ranks", what)
   end
   for _, what in ipairs { 'q_index', 'k_index' } do
      err.arg_if(opts[what] ~= nil and opts[what].id ~= mine.id, name, what, 'nil, or the pairs '
         .. 'that the context holds for this rank', opts[what])
   end
   for what, t in each { q = q, k = k } do
      err.raise_if(t:size(2) ~= mine:size(2), 'E_SHAPE', name, "argument '%s': expected %d tokens, "
         .. 'those of this rank in the context, got %d', what, mine:size(2), t:size(2))
   end
end

-- Returns the context of a call: its own, or that of `with`.
local function context_for(self, name, opts)
   local context = opts.context or self.context
   err.raise_if(not context, 'E_STATE', name, 'no batch is set; call the model with the context of '
      .. 'its batch ({ context = context }), or with parallel.cp.null for a whole sequence on each '
      .. 'rank')
   context_.check(name, 'context', context)
   err.raise_if(not context.null and context.size ~= self.comm.size, 'E_ARG', name,
      'the context is for %d ranks, but this layer is attached over %d', context.size,
         self.comm.size)
   err.raise_if(not context.null and context.rank ~= self.comm.rank, 'E_ARG', name,
      'the context is for rank %d, but this layer is on rank %d', context.rank, self.comm.rank)
   return context
end

-- Returns a call in a line.
local function kind_of(method, mask, q, k, v)
   local left, right = window.sides(mask.window)
   return ('%s, causal %s, window %s %s, softcap %s, scale %s, dropout %s, %s, %d rows, '
      .. '%d heads of %d on %d of %d%s'):format(method, tostring(mask.causal), left, right,
      tostring(mask.softcap), tostring(mask.scale), tostring(mask.dropout), q.dtype, q:size(1),
      q:size(3), q:size(4), k:size(3), v:size(4), mask.sinks and ', sinks' or '')
end

-- Computes tide.attention(q_BTHD, k_BTKD, v_BTKD, opts) of this rank's tokens with opts.context.
-- Every rank must call. Ranks that differ in plan, documents, mask, method or heads all raise
-- E_COMM.
function Inner:__call(q, k, v, opts)
   local name = 'parallel.cp.attention'
   opts = err.options(name, opts, known)
   local context = context_for(self, name, opts)
   if context.null then
      local rest = copy(opts)
      rest.context = nil
      return nn_attend(q, k, v, rest)
   end
   check_call(name, context, q, k, opts)
   local mask = { causal = opts.causal, window = opts.window or context.window,
      softcap = opts.softcap, scale = opts.scale, sinks = opts.sinks, dropout = opts.dropout }
   if mask.causal == nil then mask.causal = context.causal end
   if context.size == 1 then
      return attend(q, k, v, mask.sinks, mask, context, true, false)
   end
   local method = self.method or context.method
   if opts.dropout then cp_attention.check_dropout(name, method) end
   context:check_agreed(name, self.comm, 'attention', kind_of(method, mask, q, k, v))
   return run[method](self, context, q, k, v, mask)
end

function Inner:__tostring()
   return ('CpAttention(%s over %d ranks)'):format(self.method or 'as the context says',
      self.comm.size)
end

return signature.doors('parallel.cp.attention', cp_attention, {
   new = { op = 'parallel.cp.attention', opts = {
      'axis: any -- axis of a mesh, or a communicator',
      'method: any? -- by default that of the context',
      'a2a: any? -- ranks of the inner exchange of a2a+p2p',
      'near: any? -- communicator of that exchange, if it exists',
      'far: any? -- communicator of the ring, if it exists' } },
})
