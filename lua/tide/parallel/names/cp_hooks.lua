-- Names of others for models whose sequence lies over ranks: hooks at attention layers, and a
-- frozen target.

local tide = require 'tide'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local finally = require 'tide.util.finally'
local nn = require 'tide.nn'
local spread = require 'tide.nn.spread'
local cp = require 'tide.parallel.cp'
local mask_ = require 'tide.nn.mask'
require 'tide.nn.module'                -- the kind 'module'

local cp_hooks = {}

-- Makes the attention of a model run over all ranks of a mesh's axis 'cp' (or of an axis). opts: of
-- attach. Each layer's own call is replaced, so it holds in recomputation and affects no other
-- layer.
function cp_hooks.attach_cp_sdpa_hooks(model, mesh, opts)
   local op = 'parallel.cp.attach_cp_sdpa_hooks'
   return cp.attach(model, cp.axis_of(op, mesh, 'cp'),
      err.type(op, 'opts', opts or {}, 'table'))
end

local function take_mask(_, x, at, ...)
   if type(at) ~= 'table' or at.attention_mask == nil then return x, at, ... end
   local op = 'parallel.cp.attach_context_parallel_hooks'
   local out = setmetatable(copy(at), getmetatable(at))
   local mask, context = at.attention_mask, at.context
   out.attention_mask, out.is_causal = nil, true
   if mask and context and not context.null then
      mask_.check(op, mask, context:q_index(mask.device))
   elseif mask then
      out.q_index = at.mask_index or mask_.index(op, 'attention_mask', mask)
      out.k_index = out.q_index
   end
   return x, out, ...
end

-- Hooks the attention layers of a model (modules named '...self_attn', and all nn.Attention), which
-- turn explicit masks into documents. The hook takes at.attention_mask [B, T], which numbers
-- documents from 1, out of a call and passes (document, position) pairs on, or compares them with
-- the context. The layer is causal for that call (at.is_causal). model(ids, { attention_mask = mask
-- }) reaches the hooks. A mask of another kind is refused and not dropped. The hooks run before the
-- module's other ones; returns a handle with remove().
function cp_hooks.attach_context_parallel_hooks(model)
   local op, handles = 'parallel.cp.attach_context_parallel_hooks', {}
   for _, e in ipairs(model:named_modules()) do
      if e.name:find 'self_attn$' or class.is(e.module, nn.Attention) then
         handles[#handles + 1] = e.module:hook_pre(take_mask, { first = true })
      end
   end
   err.arg_if(#handles == 0, op, 'model', "a model with attention layers ('...self_attn')", model)
   return { count = #handles, remove = function()
      for _, h in ipairs(handles) do h:remove() end
   end }
end

-- ---- a frozen target -------------------------------------------------------------------------

-- Returns the logits of a region's shards, and the outputs of the modules of these names.
local function target_pass(model, region, names)
   local collected, handles = {}, {}
   for i, name in ipairs(names) do
      handles[i] = model:get(name):hook_post(function(_, _, y) collected[i] = y end)
   end
   local logits = finally(function()
      for _, h in ipairs(handles) do h:remove() end
   end, region.run, region, function(shards, context)
      return model(shards[1], { positions = shards[2], context = context })
   end)
   for i, name in ipairs(names) do
      err.raise_if(collected[i] == nil, 'E_STATE', 'parallel.cp.run_target_cp_forward_and_gather',
         "module '%s' was not called", name)
   end
   return logits, collected
end

-- Runs forward of a model, such as a frozen target, over the ranks of an axis. The shards are
-- contiguous, every layer gathers keys and values, and results are whole on every rank. ids [B, T].
-- Returns the logits [B, T, V] and the list of the outputs of opts.collect. The model is attached
-- for the call if it is not.
function cp_hooks.run_target_cp_forward_and_gather(model, axis, ids, opts)
   local region, _, _, T = cp.make_target_cp_ctx(axis, ids, opts.positions)
   local handle
   if not spread.of(model).cp then
      handle = cp.attach(model, axis, { method = 'allgather', layout = 'contiguous' })
   end
   local results = finally(function() if handle then handle:restore() end end, tide.no_grad,
      function()
         local logits, collected = target_pass(model, region, opts.collect or {})
         table.insert(collected, 1, logits)
         return cp.gather_cp_seq(region, collected, 2, T)
      end)
   return table.remove(results, 1), results
end

return signature.doors('parallel.cp', cp_hooks, {
   attach_context_parallel_hooks = 'model: module',
   run_target_cp_forward_and_gather = { 'model: module', opts = {
      'positions: any? -- positions of the tokens',
      'collect: string[]? -- names of modules whose outputs are returned' } },
})
