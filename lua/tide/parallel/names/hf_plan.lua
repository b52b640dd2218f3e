-- What the author of a checkpoint has declared as the plan of a model (_tp_plan), as styles.

local class = require 'tide.class'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local nn = require 'tide.nn'
local tp_plans = require 'tide.parallel.tp.plans'
local tp_style = require 'tide.parallel.tp.style'

local hf_plan = {}

local not_here = { 'ep_', 'local_', 'gather', 'replicated_with_grad_allreduce' }

local function is_left_out(style)
   for _, prefix in ipairs(not_here) do
      if type(style) == 'string' and style:sub(1, #prefix) == prefix then return true end
   end
   return false
end

local function none_declared(op, model)
   err.raise('E_ARG', op, 'Hugging Face tp plan is not supported for this model (%s): it '
      .. 'declares none in _tp_plan', model.class_name or 'a table')
end

-- Returns what a decoder of tide.model would declare: the plan of its structure, with a tied
-- embedding whole, as published plans have it.
local function by_structure(model, op)
   local plan = tp_plans.decoder(model) or none_declared(op, model)
   local _, path, names = tp_plans.body(model)
   if model.config and model.config.tie_word_embeddings then
      plan[(path == '' and '' or path .. '.') .. names.embed] = nil
   end
   return plan
end

-- Returns the plan that a model declares: that of its class, then of the object, then of the model
-- inside, at the path `prefix`; empty without one.
local function declared(model, prefix)
   local inner, plan = model[prefix], {}
   local function merge(from, before)
      for pattern, style in each(from or {}) do plan[before .. pattern] = style end
   end
   merge(tp_plans.class_plan(model), '')
   merge(rawget(model, '_tp_plan'), '')
   if type(inner) == 'table' then
      merge(rawget(inner, '_tp_plan') or tp_plans.class_plan(inner), prefix .. '.')
   end
   return plan
end

-- Returns a plan as styles by pattern. tied: whether the embedding is also the head.
local function as_styles(plan, tied)
   local out = {}
   for pattern, style in each(plan) do
      if not is_left_out(style) then
         out[pattern] = tp_style.translate_to_parallel_style(style)
         if pattern == 'lm_head' and style == 'colwise_rep' and not tied then
            out[pattern] = out[pattern]:with { output = 'S(-1)' }
         end
      end
   end
   return out
end

-- Returns the declared plan of a model as styles by pattern: that of its class, then of the object,
-- then of the model inside; of a decoder that declares none, that of its structure. An embedding
-- that is not named is cut by rows unless it is also the head.
function hf_plan.get_hf_tp_shard_plan(model)
   local op = 'parallel.get_hf_tp_shard_plan'
   err.type(op, 'model', model, 'table')
   local name = tostring(rawget(model, 'class_name') or model.class_name or '')
   local prefix = name:find '^Gemma3ForConditionalGeneration' and 'language_model' or 'model'
   local plan, config = declared(model, prefix), model.config or {}
   if next(plan) == nil then
      return class.is(model, nn.Module) and by_structure(model, op) or none_declared(op, model)
   end
   local tied = (config.text_config or config).tie_word_embeddings and true or false
   local embed = prefix .. '.embed_tokens'
   if not plan[embed] and not tied then plan[embed] = 'rowwise_rep' end
   return as_styles(plan, tied)
end

return hf_plan
