-- Fields that the configurations of published decoders have in common, checked.
--
-- A field either decides what is computed, or is checked: a value that would mean another model, or
-- that cannot be what its name says, is E_ARG with the field's name. Nothing is passed over.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local family = require 'tide.model.family'
local near = require 'tide.util.near'

local config = {}

-- ---- fields that compute nothing -------------------------------------------------------------

local dtypes = { 'auto', 'float32', 'float64', 'bfloat16', 'float16', 'f32', 'f64', 'bf16', 'f16' }

-- A file's dtype is that of its tensors; the model has the one of its options.
local function dtype(op, name, v)
   err.choice(op, name, type(v) == 'string' and v:gsub('^torch%.', '') or v, dtypes)
end

local function text(op, name, v) err.type(op, name, v, 'string') end
local function flag(op, name, v) err.type(op, name, v, 'boolean') end
local function one(op, name, v) err.integer(op, name, v, 1) end

-- A token, or a list of them.
local function tokens(op, name, v)
   if type(v) == 'table' then err.integers(op, name, v, 0) else err.integer(op, name, v, -1) end
end

local without_effect = {
   torch_dtype = dtype, dtype = dtype, use_cache = flag, transformers_version = text,
   _name_or_path = text, bos_token_id = tokens, eos_token_id = tokens, pad_token_id = tokens,
   pretraining_tp = one,
}

-- ---- which family it is ----------------------------------------------------------------------

local function check_type(op, name, v)
   local want = family.published(name).model_type
   if err.type(op, 'model_type', v, 'string') ~= want then
      err.arg(op, 'model_type', ("'%s', as this family's files have (or none)"):format(want), v)
   end
end

-- A head of another kind (classification, reward) has the same layers; another family does not.
local function check_architectures(op, name, list)
   for i, v in ipairs(err.type(op, 'architectures', list, 'table')) do
      local field = ('architectures[%d]'):format(i)
      local other = family.of_architecture(err.type(op, field, v, 'string'))
      if other and other ~= name then
         err.arg(op, field, ("'%s' (or none)"):format(family.published(name).architectures[1]), v)
      end
   end
end

-- Raises for a field that is neither in the lists `known` nor among those above, and for values of
-- the latter that are wrong. null: the value that stands for an absent field.
function config.check_names(op, given, known, null)
   local names, set = {}, {}
   for _, list in ipairs(known) do
      for _, k in ipairs(list) do names[#names + 1], set[k] = k, true end
   end
   local name = op:match '^model%.(.*)$'
   for k, v in each(given) do
      local check = without_effect[k]
      if v ~= null then
         if k == 'model_type' then
            check_type(op, name, v)
         elseif k == 'architectures' then
            check_architectures(op, name, v)
         elseif check then
            check(op, k, v)
         elseif not set[k] then
            err.raise('E_ARG', op, "unknown field '%s'%s", tostring(k),
               near.hint(tostring(k), names))
         end
      end
   end
end

-- Raises for a field that the family's published files do not have, and that changes nothing there.
-- without: nil, or field -> { why, written }, where `written` is the value that older files of
-- tide may have; a file, which says its model_type or architectures, is read without it.
function config.check_without(op, c, without)
   for k, row in each(without or {}) do
      local is_file = c.model_type ~= nil or c.architectures ~= nil
      if c[k] == row.written and is_file then c[k] = nil end
      if c[k] ~= nil then err.arg(op, k, 'nil or null: ' .. row.why, c[k]) end
   end
end

-- ---- windows by layer ------------------------------------------------------------------------

local kinds = { 'full_attention', 'sliding_attention' }

-- layer_types: nil, or the kind of every layer. Windows need sliding_window.
function config.check_layer_types(op, c)
   local list = c.layer_types
   if list == nil then return end
   if #err.type(op, 'layer_types', list, 'table') ~= c.num_hidden_layers then
      err.raise('E_ARG', op, "argument 'layer_types': expected a list of %d names, one for each "
         .. 'layer, got a list of %d', c.num_hidden_layers, #list)
   end
   for i, v in ipairs(list) do
      local field = ('layer_types[%d]'):format(i)
      err.choice(op, field, v, kinds)
      if v == 'sliding_attention' and not c.sliding_window then
         err.arg(op, field, "'full_attention' without sliding_window", v)
      end
   end
end

-- Whether layer i (from 1) is of a kind in layer_types; nil without that list.
function config.is_kind(c, i, kind)
   if c.layer_types then return c.layer_types[i] == kind end
end

return config
