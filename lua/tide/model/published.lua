-- Reads configurations in the dialects of published checkpoints: fields that change nothing, other
-- names, fields that only one value is supported of, infinite numbers.
--
-- No field is passed over by chance: one that would change the numbers and is not supported is
-- refused, all such fields of a file in one message.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local near = require 'tide.util.near'

local published = {}

local function set(names)
   local s = {}
   for name in names:gmatch '%S+' do s[name] = true end
   return s
end

-- Fields of any file that do not change what a given set of weights computes: what the model is
-- called, how its output is shown, how text is generated.
local free = set [[
   architectures model_type torch_dtype dtype transformers_version _name_or_path auto_map
   use_cache bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id
   num_logits_to_keep return_dict output_hidden_states output_attentions chunk_size_feed_forward
   id2label label2id problem_type task_specific_params finetuning_task tokenizer_class prefix
   torchscript pretraining_tp _attn_implementation_autoset
   max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups
   diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
   no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
   output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
   remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
]]

-- Fields of any file with the only value that is supported.
local only = {
   is_encoder_decoder = false, is_decoder = false, add_cross_attention = false,
   cross_attention_hidden_size = false, tf_legacy_loss = false, use_bfloat16 = false,
   tie_encoder_decoder = false,
}

local words = { Infinity = math.huge, ['-Infinity'] = -math.huge }

-- A value without the tags of infinite numbers, in lists too; nil of JSON's null.
local function plain(v)
   if v == tide.json.null then return nil end
   if type(v) ~= 'table' then return v end
   if words[v.__float__] then return words[v.__float__] end
   local list = setmetatable({}, getmetatable(v))
   for k, item in each(v) do list[k] = plain(item) end
   return list
end

local function same(a, b)
   local canonical = require 'tide.util.canonical'
   return canonical(a) == canonical(b)
end

local function names_of(t)
   local list = {}
   for k in each(t) do list[#list + 1] = tostring(k) end
   table.sort(list)
   return list
end

-- A field under its own name or another.
local function take(c, from, name, key, v, problems)
   if c[name] ~= nil and not same(c[name], v) then
      problems[#problems + 1] = ("field '%s' is %s, but '%s', which means the same, is %s"):format(
         key, err.show(v), from[name], err.show(c[name]))
   else
      c[name], from[name] = v, key
   end
end

-- One field of the file.
local function read_field(self, c, from, key, v)
   local name, rules = self.rules.alias[key] or key, self.rules
   if self.known[name] then return take(c, from, name, key, v, self.problems) end
   local one = rules.only[key]
   if one == nil then one = only[key] end
   if one ~= nil then
      if v ~= one and v ~= false then
         self.problems[#self.problems + 1] = ("field '%s' is %s; supported is %s"):format(key,
            err.show(v), one == false and 'none' or err.show(one))
      end
   elseif not free[key] and not rules.free[key] then
      self.problems[#self.problems + 1] = ("unknown field '%s'%s"):format(key,
         near.hint(key, self.names))
   end
end

-- A file of another model: its fields may have the same names and mean other things.
local function check_type(op, fields, problems)
   local kind, family = fields.model_type, require 'tide.model.family'
   local name = op:match '^model%.(.*)$'
   if kind ~= nil and family.of_type(kind) ~= name then
      problems[#problems + 1] = ("field 'model_type' is %s; supported is %s"):format(
         err.show(kind), err.show(family.published(name).model_type))
   end
end

local function finish(op, c, known)
   for _, row in ipairs(known) do
      local name, default, kind = row[1], row[2], row[3]
      if c[name] == nil then c[name] = type(default) == 'function' and default(c) or default end
      if c[name] ~= nil or default == nil then c[name] = kind(op, name, c[name]) end
   end
   return c
end

-- Returns the complete configuration of `config`, a table of its own. known: a list of { name,
-- default or nil (required), kind }, where kind is a function (op, name, value) -> value. rules:
-- alias (other names of known fields), free (names of fields that change nothing, in a text), only
-- (fields with the one value that is supported; false: none), translate(op, fields, problems),
-- which may change the fields first. JSON's null stands for a field that is not there. Raises E_ARG
-- with all that does not fit.
function published.read(op, config, known, rules)
   err.type(op, 'config', config, 'table')
   local self = { known = {}, names = {}, problems = {}, rules = {
      alias = rules.alias or {}, only = rules.only or {}, free = set(rules.free or '') } }
   for _, row in ipairs(known) do
      self.names[#self.names + 1] = row[1]
      self.known[row[1]] = true
   end
   local fields = {}
   for k, v in each(config) do fields[tostring(k)] = plain(v) end
   check_type(op, fields, self.problems)
   if rules.translate then rules.translate(op, fields, self.problems) end
   local c, from = {}, {}
   for _, k in ipairs(names_of(fields)) do read_field(self, c, from, k, fields[k]) end
   if #self.problems > 0 then
      table.sort(self.problems)
      err.raise('E_ARG', op, '%s', table.concat(self.problems, '; '))
   end
   return finish(op, c, known)
end

-- Returns the limits { least, most } of a time step, false where they limit nothing (steps are
-- positive). A kind for `known`.
function published.time_step_limit(op, name, v)
   if v == false or v == nil then return false end
   err.type(op, name, v, 'table')
   local least, most = v[1] or 0, v[2] or math.huge
   if type(least) ~= 'number' or type(most) ~= 'number' or #v > 2
      or not (0 <= least and least <= most) then
      err.raise('E_ARG', op, "argument '%s': expected two numbers { least, most }, 0 <= least <= "
         .. 'most, got { %s%s }', name, err.show(least), #v > 1 and ', ' .. err.show(most)
         .. (#v > 2 and ', ...' or '') or '')
   end
   return (least > 0 or most < math.huge) and { least, most }
end

-- Returns the range that steps are initialised in. A published file may have no least step (0).
function published.dt_range(c)
   local least = c.time_step_min > 0 and c.time_step_min or c.time_step_floor
   return { least > 0 and least or 1e-4, c.time_step_max }
end

return published
