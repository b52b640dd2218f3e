-- Recomputation (activation checkpointing): what a model does not keep for backward.
--
--    tide.parallel.recompute(model, 'mlp')
--
--    'none'                nothing
--    'selective'           in every block, norms and gated products that a linear layer reads
--    'mlp'                 the MLP of every block
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
-- parallelism and before FSDP. It replaces the one before. opts.scope limits it to parts of a
-- model: 'language', 'vision', 'audio'.

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

local function all_scopes() return { language = true, vision = true, audio = true } end

-- Set of scopes from nil, 'auto' or 'all' (all of them), or names joined by '+' or ','.
function recompute.scope(v)
   if v == nil then return all_scopes() end
   if type(v) ~= 'string' then err.arg(op, 'scope', 'a string', v) end
   if v == 'auto' or v == 'all' then return all_scopes() end
   local set, count = {}, 0
   for name in v:gmatch '[^+,]+' do
      name = name:match '^%s*(.-)%s*$'
      set[err.choice(op, 'scope', name, scopes)], count = true, count + 1
   end
   if count == 0 then err.arg(op, 'scope', 'at least one of ' .. table.concat(scopes, ', '), v) end
   return set
end

local function scope_of(path)
   if path:find 'vision' or path:find 'visual' then return 'vision' end
   if path:find 'audio' then return 'audio' end
   return 'language'
end

-- ---- around a module -------------------------------------------------------------------------

local mark = 'recompute'

-- How long a sequence cut over ranks is, is given from outside a module (see tp/layer.lua); a call
-- made again needs the same length.
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

-- A function of a set of scopes that changes the modules of a list which lie in them.
local function changing(list, change)
   return function(set)
      for _, m in ipairs(list) do
         if set[scope_of(m.name)] then change(m.module) end
      end
   end
end

-- Adds the modules that a name stands for to a list.
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

local function by_names(model, names)
   local list = {}
   err.arg_if(#err.type(op, 'policy.modules', names, 'table') == 0, op, 'policy',
      'at least one name', names)
   for _, name in ipairs(names) do
      add_named(list, model, err.type(op, 'policy', name, 'string'))
   end
   return changing(outermost(list), add)
end

-- 'mlp' means the MLPs of blocks, whatever their name is.
local function each_module(model, fits, change, what)
   local list = {}
   for _, m in ipairs(model:named_modules()) do
      if fits(m.module) then list[#list + 1] = m end
   end
   err.raise_if(#list == 0, 'E_ARG', op, "argument 'policy': the model has no %s to recompute",
      what)
   return changing(list, change)
end

local function every(model, k, change)
   err.integer(op, 'policy', k, 1)
   return each_module(model, function(m) return class.is(m, nn.Stack) end,
      function(m)
         for i = k, #m, k do change(m[i]) end
      end, 'list of blocks (nn.Stack)')
end

local by_op = {
   norm = function(model) return each_module(model, norm.is, add, 'norm') end,
   linear = function(model)
      return each_module(model, function(m) return class.is(m, nn.Linear) end, add,
         'nn.Linear')
   end,
   attention = function(model)
      return each_module(model, function(m)
         return class.is(m, nn.Attention)
      end, function(m)
         add(m, 'attend')
      end, 'nn.Attention')
   end,
}

local function all_of(list)
   return function(set)
      for _, fn in ipairs(list) do fn(set) end
   end
end

local function by_ops(model, ops)
   local list = {}
   for _, name in ipairs(err.type(op, 'ops', ops, 'table')) do
      list[#list + 1] = by_op[err.choice(op, 'ops', name, { 'attention', 'norm', 'linear' })](model)
   end
   return all_of(list)
end

local function split(text)
   local names = {}
   for name in text:gmatch '[^,]+' do names[#names + 1] = name:match '^%s*(.-)%s*$' end
   return names
end

local function changes_of(model, policy)
   if policy == nil or err.same(policy, 'none') then return function() end end
   if err.same(policy, 'full') then return every(model, 1, add) end
   if err.same(policy, 'selective') then return every(model, 1, add_remade) end
   if err.same(policy, 'mlp') then
      return each_module(model, function(m) return class.is(m, nn.MLP) end, add, 'nn.MLP')
   end
   if type(policy) == 'string' and policy:find '^every:' then
      policy = tonumber(policy:match '^every:(%d+)$') or 0
   end
   if type(policy) == 'number' then return every(model, policy, add) end
   if type(policy) == 'string' then return by_names(model, split(policy)) end
   err.type(op, 'policy', policy, 'table')
   err.options(op, policy, { 'ops', 'modules', 'every' })
   local list = {}
   if policy.ops then list[#list + 1] = by_ops(model, policy.ops) end
   if policy.modules then list[#list + 1] = by_names(model, policy.modules) end
   if policy.every then list[#list + 1] = every(model, policy.every, add) end
   if #list == 0 then err.arg(op, 'policy', 'ops, modules or every', policy) end
   return all_of(list)
end

-- Sets what a model recomputes in backward, and returns the model. opts: scope.
function recompute.apply(model, policy, opts)
   local set = recompute.scope(opts.scope)
   local change = changes_of(model, policy)
   reset(model)
   change(set)
   return model
end

-- The names of what is recomputed now, sorted.
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
   report = { 'model: module', op = op } })
return setmetatable(recompute, {
   calls = recompute.apply,
   __call = function(_, model, policy, opts) return recompute.apply(model, policy, opts) end,
})
