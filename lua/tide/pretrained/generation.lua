-- tide.model.generation: generation_config.json of a published folder as options of train.sample.
--
-- Fields have the meaning of transformers' GenerationConfig, whose version 5.23 names them.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'

local op = 'model.generation'
local file = 'generation_config.json'

-- Option and bounds of fields that hold a number.
local numbers = {
   temperature = { 'temperature', 0 }, top_k = { 'top_k', 0 }, top_p = { 'top_p', 1e-9, 1 },
   min_p = { 'min_p', 0, 1 }, repetition_penalty = { 'repetition_penalty', 1e-9 },
   max_new_tokens = { 'tokens', 0 },
}

-- Fields that change the text and are not supported, with the values that change nothing.
local refused = {
   num_beams = { 1 }, num_beam_groups = { 1 }, num_return_sequences = { 1 }, penalty_alpha = { 0 },
   typical_p = { 1 }, epsilon_cutoff = { 0 }, eta_cutoff = { 0 }, top_h = { 1 },
   encoder_repetition_penalty = { 1 }, no_repeat_ngram_size = { 0 }, min_length = { 0 },
   encoder_no_repeat_ngram_size = { 0 }, min_new_tokens = { 0 }, guidance_scale = { 1 },
   diversity_penalty = { 0 }, renormalize_logits = { false, true }, token_healing = { false },
   bad_words_ids = {}, force_words_ids = {}, constraints = {}, forced_bos_token_id = {},
   forced_eos_token_id = {}, suppress_tokens = {}, begin_suppress_tokens = {}, sequence_bias = {},
   exponential_decay_length_penalty = {}, watermarking_config = {}, dola_layers = {},
}

-- Fields that do not affect the text, in every file.
local passed = { transformers_version = true, _from_model_config = true, pad_token_id = true,
   bos_token_id = true, use_cache = true }

local is_null = fs.is_null

local function wrong(where, name, expected, v)
   err.raise('E_FORMAT', op, "%s: field '%s': expected %s, got %s", where, name, expected,
      err.show(v))
end

local is_one = {
   ['a token id'] = function(v) return type(v) == 'number' and v >= 0 and v % 1 == 0 end,
   ['a text'] = function(v) return type(v) == 'string' and v ~= '' end,
}

-- Returns a value or a list of them as a list. what: a key of is_one.
local function list_of(where, name, what, v)
   local list = type(v) == 'table' and v or { v }
   for _, one in ipairs(list) do
      if not is_one[what](one) then wrong(where, name, what .. ' or a list of them', v) end
   end
   return #list > 0 and list or nil
end

local function read_number(where, name, v, row)
   local lo, hi = row[2], row[3] or math.huge
   local whole = name == 'top_k' or name == 'max_new_tokens'
   local fits = type(v) == 'number' and v >= lo and v <= hi and v < math.huge
   if not fits or whole and v % 1 ~= 0 then
      wrong(where, name, ('%s in [%g, %g]'):format(whole and 'an integer' or 'a number', lo, hi), v)
   end
   return v
end

local function changes(name, v)
   if type(v) == 'table' and next(v) == nil then return false end
   for _, neutral in ipairs(refused[name]) do
      if v == neutral then return false end
   end
   return true
end

-- Raises E_UNSUPPORTED with all unsupported fields that would change the text.
local function refuse(where, config)
   local list = {}
   for name in each(refused) do
      local v = config[name]
      if not is_null(v) and changes(name, v) then
         list[#list + 1] = ('%s = %s'):format(name, fs.io().json.encode(v))
      end
   end
   if #list == 0 then return end
   table.sort(list)
   err.raise('E_UNSUPPORTED', op, '%s: %s: not supported; remove %s from the file, or generate '
      .. 'without it', where, table.concat(list, ', '), #list == 1 and 'it' or 'them')
end

-- Returns the fields that are read here, and by `refuse`.
local function unused_of(config)
   local list = {}
   for name, v in each(config) do
      local known = numbers[name] or refused[name] or passed[name] or name == 'do_sample'
         or name == 'eos_token_id' or name == 'stop_strings'
      if not known and not is_null(v) then list[#list + 1] = tostring(name) end
   end
   table.sort(list)
   return list
end

-- Sets sampling as transformers does: greedy without do_sample, else top_k 50 by default.
local function settle_draws(o, config, where)
   local sample = config.do_sample
   if is_null(sample) then sample = nil end
   if sample ~= nil and type(sample) ~= 'boolean' then
      wrong(where, 'do_sample', 'true or false', sample)
   end
   o.do_sample = sample
   if sample then
      o.temperature, o.top_k = o.temperature or 1, o.top_k or 50
   elseif sample == false then
      o.temperature, o.top_k, o.top_p, o.min_p = 0, nil, nil, nil
   end
end

local generation = {}

-- Returns the options that generation_config.json of a model's folder sets for
-- train.sample.generate: temperature, top_k, top_p, min_p, repetition_penalty, tokens,
-- stop_strings, and stop (a list of ids; without that file, or without eos_token_id in it, those
-- of config.json); and its other facts: { do_sample, bos (an id), unused (names of fields that
-- are not read) }, each nil where it is absent. do_sample = false is temperature 0, do_sample =
-- true without top_k is top_k 50, as in transformers. model: of tide.model.load. E_FORMAT: a field
-- of another type; E_UNSUPPORTED: fields that would change the text, such as num_beams = 4.
function generation.options(model)
   err.arg_if(type(model) ~= 'table' or type(model.config) ~= 'table', op, 'model', 'a model',
      model)
   local config, from = model.generation or {}, model.loaded_from
   local where = from and fs.join(from, file) or file
   err.raise_if(type(config) ~= 'table', 'E_FORMAT', op, '%s: expected an object of JSON', where)
   refuse(where, config)
   local o = {}
   for name, row in each(numbers) do
      if not is_null(config[name]) then o[row[1]] = read_number(where, name, config[name], row) end
   end
   settle_draws(o, config, where)
   if not is_null(config.stop_strings) then
      o.stop_strings = list_of(where, 'stop_strings', 'a text', config.stop_strings)
   end
   for _, c in ipairs { config, model.config } do
      if not o.stop and not is_null(c.eos_token_id) then
         o.stop = list_of(where, 'eos_token_id', 'a token id', c.eos_token_id)
      end
   end
   local said = { do_sample = o.do_sample, unused = unused_of(config) }
   o.do_sample = nil
   if not is_null(config.bos_token_id) then
      said.bos = list_of(where, 'bos_token_id', 'a token id', config.bos_token_id)[1]
   end
   return o, said
end

return generation
