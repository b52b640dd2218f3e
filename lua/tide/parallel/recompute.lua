-- Recomputation (activation checkpointing): what a model does not keep for backward.
--
--    tide.parallel.recompute(model, 'mlp')
--
--    'none'                nothing
--    'selective'           in every block, norms and gated products that a linear layer reads
--    'mlp'                 the MLP of every block, and experts
--    'full'                every block
--    k, or 'every:k'       every k-th block
--    'name,name'           modules of these names: the last part of a path, or a pattern with dots
--                          ('model.layers.*.self_attn')
--    { ops = {...} }       by what is computed: 'attention' (the inner call only: scores are made
--                          again, projections kept), 'norm', 'linear'
--
-- The call of a module, its hooks included, runs inside tide.checkpoint, so that a
-- module cut over ranks repeats its collectives in the same order on every rank and keeps only its
-- part of the sequence. 'selective' runs no module again: the tape makes those results again from
-- what it holds anyway (parameter remake, set while a block runs). Apply a policy after tensor
-- parallelism and before pipeline_parallel, which leaves some blocks of the model, and FSDP. It
-- replaces the one before. opts.scope limits it to parts of a model: 'language', 'vision', 'audio'.

local tide = require 'tide'
local class = require 'tide.class'
local names_ = require 'tide.util.names'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local signature = require 'tide.util.signature'
local private = require 'tide.util.private'
local nn = require 'tide.nn'
local norm = require 'tide.nn.norm'
local spread = require 'tide.nn.spread'
local wrap = require 'tide.nn.wrap'

local recompute = {}

local op = 'parallel.recompute'

-- ---- scopes ----------------------------------------------------------------------------------

local scopes = { 'language', 'vision', 'audio' }

-- Returns the set of scopes from nil, 'auto' or 'all' (all of them), or names joined by '+' or ','.
function recompute.scope(v)
   v = v == nil and 'all' or err.type(op, 'scope', v, 'string')
   if v == 'auto' or v == 'all' then v = table.concat(scopes, ',') end
   local set = {}
   for name in v:gmatch '[^+,]+' do
      name = name:match '^%s*(.-)%s*$'
      set[err.choice(op, 'scope', name, scopes)] = true
   end
   err.arg_if(next(set) == nil, op, 'scope', 'at least one of ' .. table.concat(scopes, ', '), v)
   return set
end

local function scope_of(path)
   if path:find 'vision' or path:find 'visual' then return 'vision' end
   if path:find 'audio' then return 'audio' end
   return 'language'
end

-- ---- around a module -------------------------------------------------------------------------

local mark = 'recompute'

-- Calls next so that backward can make the call again. The length of a sequence cut over ranks is
-- given from outside a module (see tp/layer.lua); the second call needs the same.
local function again(next, self, ...)
   if not tide.is_grad_enabled() then return next(self, ...) end
   local env = spread.of(self).tp
   local length = env and env.length
   return private.checkpoint(function(...)
      if env then env.length = length end
      return next(self, ...)
   end, ...)
end

local function add(m, of)
   if wrap.find(m, mark, of) then return end
   m:wrap(mark, again, { of = of, order = wrap.order.recompute, by = mark })
end

local mark_remade = 'recompute.selective'

-- Calls a block whose norms and gated products the tape makes again in backward.
local function remade(next, self, ...)
   local ctx = tide.default()
   local before = tonumber(ctx:param 'remake')
   if before == 1 or not tide.is_grad_enabled() then return next(self, ...) end
   ctx:param('remake', 1)
   return finally(function() ctx:param('remake', before) end, next, self, ...)
end

local function add_remade(m)
   m:wrap(mark_remade, remade, { order = wrap.order.recompute, by = mark })
end

local function reset(model)
   model:walk(function(m)
      wrap.drop(m, mark)
      wrap.drop(m, mark_remade)
      wrap.drop(m, mark, 'attend')
   end)
end

-- ---- policies --------------------------------------------------------------------------------

-- A policy makes a list of changes { name, module, change }; those that lie in the scopes are made.

local function is(cls)
   return function(m) return class.is(m, cls) end
end

-- Adds the modules that a name means to a list.
local function add_named(list, model, name)
   local pattern, found = names_.pattern(name), false
   for _, m in ipairs(model:named_modules()) do
      local text = name:find('.', 1, true) and m.name or m.name:match '[^.]*$'
      if m.name ~= '' and text:find(pattern) then list[#list + 1], found = m, true end
   end
   err.raise_if(not found, 'E_ARG', op, "no module of the model is named '%s'; policies are none, "
      .. 'selective, mlp, full and every:k', name)
end

local function outermost(list)
   local taken, out = {}, {}
   for _, m in ipairs(list) do taken[m.name] = true end
   for _, m in ipairs(list) do
      local inside, path = false, m.name
      while path do
         path = path:match '^(.*)%.[^.]+$'
         inside = inside or taken[path or ''] == true
      end
      if not inside then out[#out + 1] = m end
   end
   return out
end

local function by_names(changes, model, names)
   local list = {}
   err.arg_if(#err.type(op, 'policy.modules', names, 'table') == 0, op, 'policy',
      'at least one name', names)
   for _, name in ipairs(names) do
      add_named(list, model, err.type(op, 'policy', name, 'string'))
   end
   for _, m in ipairs(outermost(list)) do
      changes[#changes + 1] = { name = m.name, module = m.module, change = add }
   end
end

-- Changes each module that fits. 'mlp' means the MLPs of blocks, whatever their name is.
local function each_module(changes, model, fits, change, what)
   local before = #changes
   for _, m in ipairs(model:named_modules()) do
      if fits(m.module) then
         changes[#changes + 1] = { name = m.name, module = m.module, change = change }
      end
   end
   err.raise_if(#changes == before, 'E_ARG', op, "argument 'policy': the model has no %s to "
      .. 'recompute', what)
end

local function every(changes, model, k, change)
   err.integer(op, 'policy', k, 1)
   each_module(changes, model, is(nn.Stack), function(m)
      for i = k, #m, k do change(m[i]) end
   end, 'list of blocks (nn.Stack)')
end

-- Returns whether a module is the MLP of a block, or the experts in its place.
function recompute._is_mlp(m) return class.is(m, nn.MLP) or class.is(m, nn.MoE) end

-- What is computed: which modules do so, the change, and what errors call them.
local by_op = {
   norm = { norm.is, add, 'norm' }, linear = { is(nn.Linear), add, 'nn.Linear' },
   attention = { is(nn.Attention), function(m) add(m, 'attend') end, 'nn.Attention' },
}

local function by_table(changes, model, policy)
   err.options(op, err.type(op, 'policy', policy, 'table'), { 'ops', 'modules', 'every' })
   err.arg_if(not (policy.ops or policy.modules or policy.every), op, 'policy',
      'ops, modules or every', policy)
   for _, name in ipairs(policy.ops and err.type(op, 'ops', policy.ops, 'table') or {}) do
      name = err.choice(op, 'ops', name, { 'attention', 'norm', 'linear' })
      each_module(changes, model, unpack(by_op[name]))
   end
   if policy.modules then by_names(changes, model, policy.modules) end
   if policy.every then every(changes, model, policy.every, add) end
end

local function changes_of(model, policy)
   local changes, names = {}, {}
   if type(policy) == 'string' and policy:find '^every:' then
      policy = tonumber(policy:match '^every:(%d+)$')
         or err.arg(op, 'policy', 'every:k with an integer k >= 1', policy)
   end
   if policy == nil or err.same(policy, 'none') then
      return changes
   elseif err.same(policy, 'full') then
      every(changes, model, 1, add)
   elseif err.same(policy, 'selective') then
      every(changes, model, 1, add_remade)
   elseif err.same(policy, 'mlp') then
      each_module(changes, model, recompute._is_mlp, add, 'nn.MLP or nn.MoE')
   elseif type(policy) == 'number' then
      every(changes, model, policy, add)
   elseif type(policy) == 'string' then
      for name in policy:gmatch '[^,]+' do names[#names + 1] = name:match '^%s*(.-)%s*$' end
      by_names(changes, model, names)
   else
      by_table(changes, model, policy)
   end
   return changes
end

-- Sets what a model recomputes in backward, and returns the model. opts: scope.
function recompute.apply(model, policy, opts)
   local set = recompute.scope(opts.scope)
   local changes = changes_of(model, policy)
   reset(model)
   for _, c in ipairs(changes) do
      if set[scope_of(c.name)] then c.change(c.module) end
   end
   return model
end

-- Returns the names of what is recomputed now, sorted.
function recompute.report(model)
   local list = {}
   for _, m in ipairs(model:named_modules()) do
      if wrap.find(m.module, mark) then list[#list + 1] = m.name end
      if wrap.find(m.module, mark_remade) then
         list[#list + 1] = m.name .. ' (norms, gated products)'
      end
      if wrap.find(m.module, mark, 'attend') then list[#list + 1] = m.name .. '.attend' end
   end
   table.sort(list)
   return list
end

signature.doors('parallel.recompute', recompute, {
   apply = { 'model: module', op = op, opts = { "scope: any? -- 'language', 'vision', 'audio'" } },
   report = 'model: module' })
return setmetatable(recompute, {
   calls = recompute.apply,
   __call = function(_, model, policy, opts) return recompute.apply(model, policy, opts) end,
})
