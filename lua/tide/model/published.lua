-- Reads configurations in the dialects of published checkpoints: fields that change nothing, other
-- names, fields with a single supported value, infinite numbers.
--
-- No field is ignored silently: one that would change the numbers and is not supported is refused,
-- all such fields of a file in one message; one that changes nothing is listed.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local near = require 'tide.util.near'
local packing = require 'tide.model.packing'
local signature = require 'tide.util.signature'
local sorted_keys = require('tide.util.pretty').sorted_keys

local published = {}

-- The default of a row of an optional field, which stays nil.
published.optional = {}

local function set(names)
   local s = {}
   for name in names:gmatch '%S+' do s[name] = true end
   return s
end

-- Fields of any file that do not change what a given set of weights computes: names of the model,
-- the form of its output, how text is generated.
local free = set [[
   architectures model_type torch_dtype dtype transformers_version _name_or_path auto_map
   use_cache sep_token_id decoder_start_token_id
   num_logits_to_keep return_dict output_hidden_states output_attentions chunk_size_feed_forward
   id2label label2id problem_type task_specific_params finetuning_task tokenizer_class prefix
   torchscript pretraining_tp
   max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups
   diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
   no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
   output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
   remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
   pruned_heads attn_implementation _attn_implementation _attn_implementation_internal
   _commit_hash summary_type summary_use_proj summary_activation summary_proj_to_labels
   summary_first_dropout z_loss_coefficient cache_implementation
   is_llama_config transformers.js_config max_sequence_length _attn_implementation_autoset
]]

-- Fields of any file with the only value that is supported.
local only = {
   is_encoder_decoder = false, is_decoder = false, add_cross_attention = false,
   cross_attention_hidden_size = false, tf_legacy_loss = false, use_bfloat16 = false,
   tie_encoder_decoder = false, rope_interleaved = false, use_mrope = false,
   quantization_config = false,
}

-- Dtypes that a file may name; they change nothing here.
local dtypes = { 'auto', 'float32', 'float64', 'bfloat16', 'float16', 'f32', 'f64', 'bf16', 'f16' }

-- Checks the dtype of a file, which is that of its tensors; the model has the dtype of its options.
local function dtype(op, name, v)
   err.choice(op, name, type(v) == 'string' and v:gsub('^torch%.', '') or v, dtypes)
end
-- A token, or a list of them.
local tokens = 'integer >= -1 | integer[] >= 0'
local checked = {
   torch_dtype = dtype, dtype = dtype, use_cache = 'boolean', pretraining_tp = 'integer >= 1',
   transformers_version = 'string', architectures = 'table',
}

-- Fields of any file that are kept, for the program that generates text.
local kept = {
   { 'bos_token_id', published.optional, tokens }, { 'eos_token_id', published.optional, tokens },
   { 'pad_token_id', published.optional, tokens },
}

local is_kept = {}
for _, row in ipairs(kept) do is_kept[row[1]] = true end

-- Fields that say which model it is.
local names_model = { architectures = true, model_type = true }

local words = { Infinity = math.huge, ['-Infinity'] = -math.huge }

-- Returns a value without the tags of infinite numbers, in lists too; nil of JSON's null.
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

-- Stores a field under its name here, and reports a second spelling with another value.
local function take(c, from, name, key, v, problems)
   if c[name] ~= nil and not same(c[name], v) then
      problems[#problems + 1] = ("field '%s' is %s, but '%s', which means the same, is %s"):format(
         key, err.show(v), from[name], err.show(c[name]))
   else
      c[name], from[name] = v, key
   end
end

-- Calls fn(...); what it raises about the configuration is one more problem. Returns its result.
local function try(problems, fn, ...)
   local problem, result = err.problem(fn, ...)
   problems[#problems + 1] = problem
   return result
end

-- Reads a value of a kind: a type of util.signature, or a function (op, name, value) -> value.
local function read_as(kind, op, name, v)
   if type(kind) == 'function' then return kind(op, name, v) end
   return signature.check(op, name, v, kind)
end

-- Reads one field of the file into the configuration, or reports it.
local function read_field(self, c, from, key, v)
   local name, rules = self.rules.alias[key] or key, self.rules
   if self.known[name] then return take(c, from, name, key, v, self.problems) end
   local want = rules.only[key]
   if want == nil then want = only[key] end
   if want ~= nil then
      if v ~= want and (v ~= false or want == true) then
         self.problems[#self.problems + 1] = ("field '%s' is %s%s"):format(key, err.show(v),
            want == false and ', which is not supported'
               or ('; only %s is supported'):format(err.show(want)))
      end
   elseif free[key] or rules.free[key] then
      if checked[key] then try(self.problems, read_as, checked[key], self.op, key, v) end
      if not names_model[key] then self.unused[#self.unused + 1] = key end
   else
      self.problems[#self.problems + 1] = ("unknown field '%s'%s"):format(key,
         near.hint(key, self.names))
   end
end

-- Returns whether a field of any file does not change what a given set of weights computes.
function published._is_neutral(name) return free[name] == true or is_kept[name] == true end

-- Returns the rows of several lists as one list.
function published._rows(...)
   local rows = {}
   for _, list in ipairs { ... } do
      for _, row in ipairs(list) do rows[#rows + 1] = row end
   end
   return rows
end

-- Reports a file of another family: its fields may have the same names and mean other things. A
-- head of another kind (classification, reward) has the same layers, so it is accepted.
local function check_type(op, fields, problems)
   local kind, family = fields.model_type, require 'tide.model.family'
   local name = op:match '^model%.(.*)$'
   local own = family.published(name)
   if kind ~= nil and family.of_type(kind) ~= name then
      problems[#problems + 1] = ("field 'model_type' is %s; only %s is supported"):format(
         err.show(kind), err.show(own.model_type))
   end
   for i, v in ipairs(type(fields.architectures) == 'table' and fields.architectures or {}) do
      local other = family.of_architecture(v)
      if type(v) ~= 'string' or other and other ~= name then
         problems[#problems + 1] = ("field 'architectures[%d]' is %s; expected %s, or leave the "
            .. 'field out'):format(i, err.show(v),
            err.show(own.architectures and own.architectures[1]))
      end
   end
end

-- Returns the default of a row. One that follows from fields with problems is not known.
local function default_of(self, c, row)
   local default = row[2]
   if type(default) ~= 'function' then return default end
   if #self.problems == 0 then
      local v = try(self.problems, default, c)
      return #self.problems > 0 and published.optional or v
   end
   local ok, v = pcall(default, c)
   return ok and v or published.optional
end

local function finish(self, c, known)
   for _, row in ipairs(known) do
      local name, given = row[1], c[row[1]]
      if given == nil then given = default_of(self, c, row) end
      if given == published.optional then
         c[name] = nil
      else
         local before = #self.problems
         local v = row[3] and try(self.problems, read_as, row[3], self.op, name, given)
         if #self.problems == before and row[3] and v ~= nil then given = v end
         c[name] = given
      end
   end
   return c
end

local function refuse(self)
   if #self.problems == 0 then return end
   table.sort(self.problems)
   err.raise('E_ARG', self.op, '%s', table.concat(self.problems, '; '))
end

-- Returns the complete configuration of `config`, a table of its own, and the sorted names of its
-- fields that change nothing. JSON's null means a field that is missing. Raises E_ARG with all that
-- does not fit. known: rows of fields, each a list with
--    1          name
--    2          default: a value, a function of the fields so far, nil (required) or
--               published.optional
--    3          kind: a type of util.signature, a function (op, name, value) -> value, or nil (any)
--    float      whether other readers want a decimal point in its numbers
--    neutral    whether it does not change what a given set of weights computes
-- rules: how the file of the family differs, a table with
--    alias      other names of known fields
--    free       names of fields that change nothing, in a text
--    only       fields with the one value that is supported, and false unless that is true; false:
--               none
--    packing    kinds of packed weights (see packing.lua)
--    translate  function (fields, problems, config) that may change the fields first
--    where      relations of fields, made by signature.options
--    complete   function (configuration, op) that checks or completes it last
function published.read(op, config, known, rules)
   err.type(op, 'config', config, 'table')
   local self = { op = op, known = {}, names = {}, problems = {}, unused = {}, rules = {
      alias = rules.alias or {}, only = rules.only or {}, free = set(rules.free or '') } }
   local rows = published._rows(known, kept)
   for i, row in ipairs(rows) do
      self.names[i], self.known[row[1]] = row[1], true
   end
   local fields = {}
   for k, v in each(config) do fields[tostring(k)] = plain(v) end
   check_type(op, fields, self.problems)
   packing.translate(fields, self.problems, rules.packing)
   if rules.translate then rules.translate(fields, self.problems, config) end
   local c, from = {}, {}
   for _, k in ipairs(sorted_keys(fields)) do read_field(self, c, from, k, fields[k]) end
   finish(self, c, rows)
   if rules.where and #self.problems == 0 then try(self.problems, rules.where, op, {}, c) end
   if rules.complete and #self.problems == 0 then try(self.problems, rules.complete, c, op) end
   refuse(self)
   return c, self.unused
end

return published
