-- Plans: which style each module of a model gets.
--
-- A plan is a table of patterns and styles. It is built from the parts of a model, so a subclass or
-- a mixture of known parts gets one too. A family may register its own function; a model may carry
-- what its author declared (_tp_plan, style names by pattern); the caller may give a table, a
-- function, or the dotted path of either. Sequence parallelism rewrites a plan: sums are scattered
-- along the sequence, the layers that read them gather them, norms work on their part.

local tide = require 'tide'
local class = require 'tide.class'
local each = require 'tide.util.each'
local names_ = require 'tide.util.names'
local err = require 'tide.util.err'
local nn = require 'tide.nn'
local import = require 'tide.parallel.import'
local norm = require 'tide.nn.norm'
local tp_style = require 'tide.parallel.tp.style'

local tp_plans = {}

local get = tp_style.get

local join = names_.join

-- ---- by structure ----------------------------------------------------------------------------

local usual = { embed = 'embed_tokens', norm = 'norm' }
local bodies = {
   { 'model', { embed = 'embed_tokens', norm = 'final_layernorm', has_norm = true } },
   { 'model.language_model', usual }, { 'language_model.model', usual },
   { 'language_model', usual }, { 'model', usual }, { '', usual },
   { 'backbone', { embed = 'embeddings', norm = 'norm_f' } },
}

local function child_at(model, path)
   local m = model
   for name in path:gmatch '[^.]+' do m = class.is(m, nn.Module) and m[name] or nil end
   return m
end

-- Returns the module that holds an embedding and a stack of layers, its path and the names of its
-- embedding and of its last norm; nil without one.
function tp_plans.body(model)
   for _, row in ipairs(bodies) do
      local path, names = row[1], row[2]
      local m = child_at(model, path)
      if class.is(m, nn.Module) and class.is(m[names.embed], nn.Embedding)
         and class.is(m.layers, nn.Stack)
         and (not names.has_norm or class.is(m[names.norm], nn.Module)) then
         return m, path, names
      end
   end
end

-- Returns child -> style of what a module says of itself; nil: nothing.
local function own_plan(m)
   local said = m:tp_plan()
   if said == nil then return nil end
   local out = {}
   for child, v in each(err.type(m.class_name .. '.tp_plan', 'result', said, 'table')) do
      out[child] = tp_style.read(v) or get(v)
   end
   return out
end

-- Returns the plan of a decoder: embedding by vocabulary rows, attention and Mamba-2 by heads, MLP
-- by its hidden size, head by vocabulary rows with its output left cut. The head of a model whose
-- loss does not go by head_loss stays whole: that loss would take the rows of a rank for all.
function tp_plans.decoder(model)
   local body, path, names = tp_plans.body(model)
   if not body then return nil end
   local plan = { [join(path, names.embed)] = get 'rowwise_rep' }
   for i, block in ipairs(body.layers) do
      for _, name in ipairs(block._child) do
         for child, style in each(own_plan(block[name]) or {}) do
            -- a style of the part itself is not that of parts of the same name in other blocks
            local at = child == '' and body.layers._child[i] or '*'
            plan[join(path, 'layers', at, name, child)] = style
         end
      end
   end
   if model.head_loss and class.is(rawget(model, 'lm_head'), nn.Linear) then
      plan.lm_head = get 'colwise'
   end
   return plan
end

-- ---- the sequence ----------------------------------------------------------------------------

local function refuse_sequence(text, ...)
   err.raise('E_ARG', 'parallel.tensor_parallel', 'sequence_parallel is not supported in this tp '
      .. 'plan: ' .. text, ...)
end

-- Returns whether a child of a module reads the stream, and not what another child makes.
local function reads_stream(m, child)
   if child == 'qkv_proj' then return true end
   for _, name in ipairs(m.shared_input or {}) do
      if name == child then return true end
   end
   return false
end

-- Cuts a module along the sequence: children that read the stream gather it, and the last child
-- leaves its sum cut. Where their results are whole, the module computes the whole sequence and
-- gathers the stream itself. own: the plan of the module's own tp_plan; '' is the module itself.
local function cut_stream(plan, path, m, own)
   local ends = false
   for child, style in each(own) do
      local key = join(path, child)
      if style.output ~= 'S(-1)' and reads_stream(m, child) then
         plan[path] = get 'gather_input'
      elseif style.output ~= 'S(-1)' then
         ends = ends or plan[key] ~= nil
         plan[key] = plan[key] and plan[key]:with { output = 'S(1)',
            input = child == '' and 'S(1)' or nil }
      elseif style.input == 'R' and not (m.whole_input or {})[child] then
         plan[key] = plan[key] and plan[key]:with { input = 'S(1)' }
      end
   end
   if not ends then refuse_sequence("'%s' is whole", path) end
end

-- Cuts a child of a block along the sequence; of a child with branches, each of them.
local function block_sequence(plan, at, name, m)
   local path, own = join(at, name), own_plan(m)
   if norm.is(m) then
      plan[path] = get 'sequence_parallel'
   elseif m.branches then
      for _, child in ipairs(m.branches) do block_sequence(plan, path, child, m[child]) end
   elseif own then
      cut_stream(plan, path, m, own)
   elseif #m:parameters() > 0 then
      refuse_sequence("no rule for the %s at '%s'", m.class_name, path)
   end
end

-- Returns a plan with a key for each module in place of patterns such as layers.*, so that keys can
-- be looked up.
local function spelt(plan, model)
   local out = {}
   for pattern, style in each(plan) do
      err.type('parallel.tp_plans', 'pattern of the plan', pattern, 'string')
      style = tp_style.read(style) or get(style)
      local lua = names_.pattern(pattern)
      local found = false
      for _, m in ipairs(model:named_modules()) do
         if m.name:find(lua) then out[m.name], found = style, true end
      end
      if not found then out[pattern] = style end
   end
   return out
end

-- Returns whether a style of a plan, or one of its names, cuts the sequence.
function tp_plans.cuts_sequence(plan)
   for _, v in each(err.type('parallel.tp_plans.cuts_sequence', 'plan', plan, 'table')) do
      local style = tp_style.read(v)
      if style and (style.input == 'S(1)' or style.output == 'S(1)') then return true end
   end
   return false
end

-- Returns a copy of a plan that also cuts the residual stream along the sequence.
function tp_plans.with_sequence(plan, model)
   local op = 'parallel.tp_plans.with_sequence'
   if not class.is(model, nn.Module) then err.arg(op, 'model', 'a module', model) end
   err.type(op, 'plan', plan, 'table')
   local body, path, names = tp_plans.body(model)
   if not body then refuse_sequence 'the model is not a decoder of a known form' end
   plan = spelt(plan, model)
   local embed = join(path, names.embed)
   if not plan[embed] then refuse_sequence("'%s' is whole", embed) end
   for _, name in ipairs(body._child) do
      if name ~= names.embed and class.is(body[name], nn.Embedding) then
         refuse_sequence("no rule for learned positions, '%s'; leave sequence_parallel out",
            join(path, name))
      end
   end
   plan[embed] = plan[embed]:with { output = 'S(1)' }
   for i, block in ipairs(body.layers) do
      local at = join(path, 'layers', body.layers._child[i])
      for _, name in ipairs(block._child) do block_sequence(plan, at, name, block[name]) end
   end
   if not norm.is(body[names.norm]) then refuse_sequence("'%s' has no final norm", path) end
   plan[join(path, names.norm)] = get 'sequence_parallel'
   if plan.lm_head then plan.lm_head = plan.lm_head:with { input = 'S(1)' } end
   return plan
end

-- ---- registered and given plans --------------------------------------------------------------

local registry = {}

-- Sets the plan, fn(model, sequence_parallel), of a class of models and of those made from it.
function tp_plans.register(cls, fn)
   local op = 'parallel.tp_plans.register'
   err.type(op, 'class', cls, 'table')
   registry[cls] = err.type(op, 'fn', fn, 'function')
end

local function registered(model)
   local cls = getmetatable(model)
   while type(cls) == 'table' do
      if registry[cls] then return registry[cls] end
      cls = rawget(cls, 'super')
   end
end

local function custom(plan)
   local value = plan
   if type(value) == 'string' then value = import.import_class_from_path(value) end
   if type(value) == 'function' then value = value() end
   return err.type('parallel.tensor_parallel', 'plan', value, 'table')
end

-- Returns the plan that a caller gave as a table.
function tp_plans.custom(plan)
   local ok, value = pcall(custom, plan)
   if ok then return value end
   err.raise('E_ARG', 'parallel.tensor_parallel', "Custom parallel plan '%s' is not valid. It can "
      .. 'be 1. a table of patterns and styles, 2. the dotted path of such a table, or 3. the '
      .. 'dotted path of a function (or a function) that returns one, called without arguments. '
      .. '(%s)', type(plan) == 'string' and plan or err.show(plan), err.text(value))
end

-- Returns what the class of a model declares as its plan, or nil.
function tp_plans.class_plan(model)
   local mt = getmetatable(model)
   local index = type(mt) == 'table' and mt.__index
   return type(index) == 'table' and index._tp_plan or nil
end

local function has_declared(model)
   return tp_plans.class_plan(model) ~= nil or rawget(model, '_tp_plan') ~= nil
end

-- Refuses a model that neither is a decoder nor declares a plan.
local function check_known(model)
   if not class.is(model, nn.Module) or has_declared(model) then return end
   err.raise('E_ARG', 'parallel.tensor_parallel', 'no plan is known for %s, which is not a decoder '
      .. "of a known form; give plan = { pattern = style }, as { ['layers.*.mlp.up'] = 'colwise', "
      .. "['layers.*.mlp.down'] = 'rowwise' }, or parallel.tp_plans.register(class, fn)",
      model.class_name)
end

-- Returns the plan for a model. opts: plan (given by the caller), sequence_parallel (false; a given
-- plan that cuts the sequence itself is left as it is), declared (false; true: the model's own
-- _tp_plan goes before what its structure implies).
function tp_plans.plan_for(model, opts)
   local op = 'parallel.plan_for'
   opts = err.options(op, opts, { 'plan', 'sequence_parallel', 'declared' })
   local sequence = opts.sequence_parallel or false
   if opts.plan ~= nil then
      local given = tp_plans.custom(opts.plan)
      if not sequence or tp_plans.cuts_sequence(given) then return given end
      return tp_plans.with_sequence(given, model)
   end
   local fn = not opts.declared and registered(model)
   if fn then return fn(model, sequence) end
   local plan
   if not opts.declared then plan = tp_plans.decoder(model) end
   if not plan then
      err.raise_if(sequence and not tp_plans.body(model) and has_declared(model), 'E_ARG', op,
         'sequence_parallel is not supported in HF tp plan of a model that is not a decoder of a '
         .. 'known form')
      if not opts.declared then check_known(model) end
      plan = tide.parallel.get_hf_tp_shard_plan(model)
   end
   return sequence and tp_plans.with_sequence(plan, model) or plan
end

return tp_plans
