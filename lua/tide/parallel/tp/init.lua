-- Tensor parallelism: a plan applied to a model.
--
--    local tp = tide.parallel
--    tp.tensor_parallel(model, mesh:axis 'tp', { sequence_parallel = true })
--    tp.parallelize_module(model, axis, { ['model.layers.*.mlp.up_proj'] = 'colwise', ... })
--
-- Everything is found and checked first, as a list of changes; then they are made. So
-- an error leaves the model as it was. A plan maps patterns ('*' is one name) to styles. A model on
-- the null device gets its numbers later (materialise), those of the whole model.
--
-- On every rank of the axis the batch is the same. The loss of the model is the same on every rank,
-- and gradients are those of the whole model: whole for what is replicated, this rank's part for
-- what is cut. With one rank nothing is changed.

local class = require 'tide.class'
local each = require 'tide.util.each'
local names_ = require 'tide.util.names'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local near = require 'tide.util.near'
local nn = require 'tide.nn'
local agree = require 'tide.comm.agree'
local async = require 'tide.parallel.tp.async'
local fingerprint = require 'tide.parallel.fingerprint'
local head = require 'tide.parallel.tp.head'
local layer = require 'tide.parallel.tp.layer'
local layout = require 'tide.parallel.layout'
local axis_of = require 'tide.parallel.axis_of'
local tp_plans = require 'tide.parallel.tp.plans'
local question = require 'tide.parallel.tp.question'
local norm = require 'tide.nn.norm'
local spread = require 'tide.nn.spread'
local tp_style = require 'tide.parallel.tp.style'

local tp = {}

local op = 'parallel.parallelize_module'

-- ---- patterns --------------------------------------------------------------------------------

local function as_style(pattern, v)
   local style = tp_style.read(v)
   err.arg_if(not style, op, ("plan['%s']"):format(tostring(pattern)), 'a style, its name or '
      .. '{ name, input =, output = }', v)
   return style
end

-- Returns the patterns of a plan in a fixed order, each with its style.
local function entries(plan)
   err.type(op, 'plan', plan, 'table')
   local list = {}
   for pattern, v in each(plan) do
      if type(pattern) ~= 'string' then err.arg(op, 'plan', 'patterns as keys', pattern) end
      list[#list + 1] = { text = pattern, pattern = names_.pattern(pattern),
         style = as_style(pattern, v) }
   end
   table.sort(list, function(a, b) return a.text < b.text end)
   return list
end

local function no_match(entry, modules)
   local names = {}
   for i, m in ipairs(modules) do names[i] = m.name end
   local near_name = near.best(entry.text, names)
   err.raise('E_ARG', op, "the plan's '%s' names no module of the model%s", entry.text,
      near_name and ("; did you mean '%s'?"):format(near_name) or '')
end

-- Returns path -> style of every module that the plan names.
local function expand(model, plan)
   local modules, styles = model:named_modules(), {}
   for _, entry in ipairs(entries(plan)) do
      local found = false
      for _, m in ipairs(modules) do
         if m.name:find(entry.pattern) then
            found = true
            err.raise_if((styles[m.name] or entry.style) ~= entry.style, 'E_ARG', op, "the plan "
               .. "gives '%s' two styles: %s and %s", m.name, tostring(styles[m.name]),
               tostring(entry.style))
            styles[m.name] = entry.style
         end
      end
      if not found then no_match(entry, modules) end
   end
   return styles
end

-- ---- a run -------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

function Run:add(fn) self.changes[#self.changes + 1] = fn end

function Run:refuse(path, text, ...) err.raise('E_ARG', op, "'%s': " .. text, path, ...) end

-- ---- changes of one module -------------------------------------------------------------------

function Run:question(path, m)
   local children = {}
   for _, name in ipairs(m._child) do children[name] = self.styles[names_.join(path, name)] end
   return question.new { module = m, path = path, children = children, given = self.cuts[path],
      env = self.env }
end

-- Returns whether the product of an nn.Linear overlaps with the reduce-scatter after it.
function Run:overlapped(path, m, style)
   if not self.async or not class.is(m, nn.Linear) then return false end
   if m.fp8 or m.weight_nf4 then
      self:refuse(path, 'products in %s do not overlap with collectives; leave out %s or async_tp',
         m.fp8 and 'FP8' or 'NF4', m.fp8 and 'fp8' or 'NF4')
   end
   return style.input == 'S(-1)' and style.output == 'S(1)'
end

function Run:answered(path, m, style, answer)
   local env, shared = self.env, self.shared[path]
   local overlap = self:overlapped(path, m, style)
   self:add(function()
      layer.answered(m, env, style, answer, shared)
      if overlap then async.row(m, env, style) end
   end)
end

-- Leaves a module without an answer for its style whole on every rank.
function Run:whole(path, m, style)
   local env = self.env
   if style.shard then
      self:refuse(path, '%s cannot be %s; %s', m.class_name, tostring(style), #m._child > 0
         and 'give styles to its parts: ' .. table.concat(m._child, ', ')
         or 'its method tp gives no cut for that style (lua/guide/module.md)')
   end
   if style.name == 'gather_input' then
      return self:add(function() layer.convert_input(m, env, layer.into_whole, style.input) end)
   end
   self:add(function() layer.summed_gradients(m, env) end)
end

-- Asks a module how it is cut, and adds the changes that its answer needs.
function Run:ask(path, m)
   local style, env, asked = self.styles[path], self.env, self:question(path, m)
   for _, field in ipairs(style and m._param or {}) do
      if layout.get(m, field) then self:refuse(path, 'is cut over ranks already') end
   end
   local answer = m:tp(style, asked)
   if answer then asked:check(style, answer) end
   if answer and answer.cut then return self:answered(path, m, style, answer) end
   if style then self:whole(path, m, style) end
   if not answer then return end
   for name, given in each(answer.give or {}) do self.cuts[names_.join(path, name)] = given end
   self:add(function()
      for _, name in ipairs(answer.summed or {}) do layer.summed_gradients(m[name], env) end
      if answer.done then answer.done() end
   end)
end

-- Lets children with one input whose rows are cut take it in one collective, done by the parent.
function Run:share_input(path, m)
   local first, all
   for _, name in ipairs(m.shared_input or {}) do
      if m[name] then
         local style = self.styles[names_.join(path, name)]
         all = all ~= false and style ~= nil and style.shard == 'rows'
            and style.input == (first or style).input
         first = first or style
      end
   end
   if not all then return end
   for _, name in ipairs(m.shared_input) do self.shared[names_.join(path, name)] = true end
   local env = self.env
   local overlap = self.async and first.input == 'S(1)' and m.project and first.output == 'S(-1)'
   self:add(function()
      if overlap then return async.share_input(m, env) end
      layer.convert_input(m, env, layer.into_parts, first.input)
   end)
end

-- ---- the sequence and the head ---------------------------------------------------------------

function Run:head(model, opts)
   local path, m = head.of(model)
   local style, env = self.styles[path], self.env
   if not style and not self.sequence then return end
   err.raise_if(not path, 'E_UNSUPPORTED', op, 'the plan cuts the sequence (sequence_parallel), '
      .. 'and the loss of %s would read its part as the whole; only the models of tide.model '
      .. 'gather it; leave sequence_parallel out', model.class_name)
   local from = self.sequence and 'S(1)' or 'R'
   local embed = class.is(m, nn.Embedding)
   local cut = style and (style.shard == 'rows') ~= embed
   if style and not cut then
      self:refuse(path, 'the output projection can only be cut by vocabulary rows')
   end
   local V = embed and m.nvocab or m.nout
   local of_part = cut and head.of_part(env, V, opts.gather_logits ~= false)
   local convert = cut and layer.into_parts or layer.into_whole
   self:add(function()
      if cut then model.keeps_logits_apart = opts.gather_logits == false end
      for _, of in ipairs { 'head_loss', 'head_logits', 'head_logprobs', 'head_distil' } do
         layer.around(model, function(next, me, x, ...)
            return layer.through(cut and of_part[of] or next, me, x, convert(env, x, from), ...)
         end, { of = of })
      end
   end)
end

-- ---- all of it -------------------------------------------------------------------------------

-- Refuses to cut parameters that modules share in one of them only.
local function check_shared(run, model)
   local at = {}
   model:walk(function(m, path)
      for _, field in ipairs(m._param) do
         local id = m[field].id
         if at[id] and (run.styles[path] or run.styles[at[id]]) then
            run:refuse(path, "its '%s' is also that of '%s'", field, at[id])
         end
         at[id] = at[id] or path
      end
   end)
end

-- Checks that the residual stream of a decoder is cut along the sequence from the embedding on,
-- through every norm of a block, or not at all.
local function check_sequence(run, model)
   local body, path, names = tp_plans.body(model)
   if not body then return end
   local function is_cut(name)
      local style = run.styles[name]
      return style ~= nil and style.output == 'S(1)'
   end
   local embed, last = names_.join(path, names.embed), names_.join(path, names.norm)
   if is_cut(last) and not is_cut(embed) then
      run:refuse(last, "the sequence is cut here and not behind the embedding; give the embedding "
         .. "the output 'S(1)', and all norms the style sequence_parallel")
   end
   for i, block in ipairs(body.layers) do
      for _, child in ipairs(block._child) do
         local name = names_.join(path, 'layers', body.layers._child[i], child)
         if norm.is(block[child]) and is_cut(name) ~= is_cut(embed) then
            local here, there = 'here', 'behind the embedding'
            if is_cut(embed) then here, there = there, here end
            run:refuse(name, 'the sequence is cut %s and not %s; give all norms of blocks the '
               .. "style sequence_parallel, and the embedding the output 'S(1)'", here, there)
         end
      end
   end
end

local function prepare(run, model, opts)
   check_shared(run, model)
   if run.sequence then check_sequence(run, model) end
   model:walk(function(m, path)
      run:share_input(path, m)
      run:ask(path, m)
   end)
   model:walk(function(m)
      if run.sequence and class.is(m, nn.Stack) then
         for _, block in ipairs(m) do
            run:add(function() layer.watch_length(block, run.env) end)
         end
      end
   end)
   run:head(model, opts)
end

-- Refuses a model that is cut or sharded already.
local function check_whole(model)
   spread.check_whole(op, model, 'apply tensor parallelism once, before pipeline_parallel and '
      .. 'fully_shard', { inside = true, tp = true, pp = true })
end

-- Returns whether the numbers of attention heads in a configuration are of no layer.
local function is_attention_free(model)
   local state, attention = false, false
   model:walk(function(m)
      state = state or class.is(m, nn.Mamba2) or class.is(m, nn.GatedDeltaNet)
      attention = attention or class.is(m, nn.Attention)
   end)
   return state and not attention
end

local function styles_text(styles, opts)
   local list = {}
   for path, style in each(styles) do list[#list + 1] = path .. ' ' .. tostring(style) end
   table.sort(list)
   return ('%s\nasync_tp %s, gather_logits %s'):format(table.concat(list, '\n'),
      tostring(opts.async_tp or false), tostring(opts.gather_logits ~= false))
end

-- Cuts the modules that a plan names over an axis and returns the model. Collective.
function tp.parallelize_module(model, axis, plan, opts)
   local comm = axis_of(op, 'axis', axis)
   check_whole(model)
   local env, styles = { axis = axis, comm = comm }, expand(model, plan)
   local run = setmetatable({ env = env, changes = {}, shared = {}, cuts = {}, styles = styles,
      async = opts.async_tp, sequence = tp_plans.cuts_sequence(styles) }, Run)
   err.raise_if(opts.async_tp and not run.sequence, 'E_ARG', op, 'async_tp requires '
      .. 'sequence_parallel')
   if axis.size == 1 then return model end
   env.sequence = run.sequence
   env.cut = function(x) return layer.cut(env, x) end
   env.copy = function(x) return layer.into_parts(env, x, 'R') end
   env.styles = styles_text(run.styles, opts)
   agree.check(comm, op, 'E_ARG', { fingerprint.model(model), { 'plans', env.styles } }, model)
   prepare(run, model, opts)
   for _, change in ipairs(run.changes) do change() end
   model:walk(function(m) spread.set(m, 'tp', env) end)
   return model
end

-- Returns a model cut over an axis by the plan that fits it.
function tp.tensor_parallel(model, axis, opts)
   axis_of('parallel.tensor_parallel', 'axis', axis)
   check_whole(model)
   if axis.size > 1 and model.config and not is_attention_free(model) then
      question.check_heads(model.config, axis.size)
   end
   local plan = tp_plans.plan_for(model, { plan = opts.plan, declared = opts.declared,
      sequence_parallel = opts.sequence_parallel })
   return tp.parallelize_module(model, axis, plan,
      { gather_logits = opts.gather_logits, async_tp = opts.async_tp })
end

local cutting = {
   "gather_logits: boolean? -- false: model(ids) gives this rank's part of the vocabulary",
   'async_tp: boolean? -- products overlap with the collectives before and after them; needs a '
      .. 'plan that cuts the sequence',
}
return signature.doors('parallel', tp, {
   parallelize_module = { 'model: module', op = 'parallel.tensor_parallel', opts = cutting },
   tensor_parallel = { 'model: module', opts = { cutting,
      'plan: any? -- patterns and styles, the dotted path of such a table, or a function',
      'sequence_parallel: boolean? -- cuts activations along the sequence between the parts',
      'declared: boolean? -- takes the plan that the model declares' } },
})
