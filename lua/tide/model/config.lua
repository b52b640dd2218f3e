-- Fields that the configurations of published decoders have in common, checked.
--
-- A field either changes the computation or is checked: a value of another model, or an invalid
-- one, is E_ARG with the field's name. No field is ignored.

local canonical = require 'tide.util.canonical'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local sorted_keys = require('tide.util.pretty').sorted_keys

local config = {}

-- ---- rotary positions ------------------------------------------------------------------------

-- Moves the entries of rope_parameters (transformers 5) for one kind of layer to the older fields,
-- whose names are theta and scaling.
local function spread_rope(f, rope, theta, scaling, problems)
   local rest = copy(rope)
   local kind = rest.rope_type or rest.type or 'default'
   if rest.rope_theta ~= nil then
      if f[theta] ~= nil and f[theta] ~= rest.rope_theta then
         problems[#problems + 1] = ("field '%s' is %s, 'rope_parameters' says %s"):format(theta,
            err.show(f[theta]), err.show(rest.rope_theta))
      end
      f[theta], rest.rope_theta = rest.rope_theta, nil
   end
   if rest.partial_rotary_factor ~= nil then
      f.partial_rotary_factor, rest.partial_rotary_factor = rest.partial_rotary_factor, nil
   end
   if kind == 'default' then rest.rope_type, rest.type = nil, nil end
   if next(rest) == nil then return end
   if scaling then
      rest.rope_type, rest.type = kind, nil
      f[scaling] = rest
   else
      local name = kind == 'default' and sorted_keys(rest)[1] or 'rope_type'
      problems[#problems + 1] = ("field 'rope_parameters.sliding_attention.%s' is %s%s"):format(
         name, err.show(rest[name]), kind == 'default'
            and ', which is not supported; leave it out' or '; only "default" is supported')
   end
end

-- Copies rope_parameters of each kind of layer into the fields of the configuration, of a family
-- with two bases (local_theta is the field of the second) or one.
local function spread_by_kind(f, rope, local_theta, problems)
   local full, sliding = rope.full_attention, rope.sliding_attention
   if type(full) == 'table' then spread_rope(f, full, 'rope_theta', 'rope_scaling', problems) end
   if type(sliding) ~= 'table' then return end
   if local_theta then
      spread_rope(f, sliding, local_theta, nil, problems)
   elseif type(full) ~= 'table' then
      spread_rope(f, sliding, 'rope_theta', 'rope_scaling', problems)
   elseif canonical(full) ~= canonical(sliding) then
      problems[#problems + 1] = "field 'rope_parameters' says different things of full_attention "
         .. 'and sliding_attention; they must be the same'
   end
end

local measured = { yarn = true, longrope = true, llama3 = true }

-- Completes a scaling table by other fields of the file, which some kinds need.
local function complete_scaling(f)
   local s = f.rope_scaling
   local kind = s.rope_type or s.type
   if kind == 'su' then kind, s.rope_type, s.type = 'longrope', 'longrope', nil end
   local outer = f.original_max_position_embeddings
   if measured[kind] then
      s.original_max_position_embeddings = outer or s.original_max_position_embeddings
         or f.max_position_embeddings
   end
   local own, all = s.original_max_position_embeddings, f.max_position_embeddings
   if (kind == 'yarn' or kind == 'longrope') and s.factor == nil and type(own) == 'number'
      and type(all) == 'number' then
      s.factor = all / own
   end
end

-- Changes the fields f of a configuration: rope_parameters become rope_theta, rope_scaling and
-- partial_rotary_factor. local_theta: the field for the base of layers with a window, of a family
-- that has two.
function config.translate_rope(f, problems, local_theta)
   local rope = f.rope_parameters
   f.rope_parameters = nil
   if type(rope) == 'table' then
      if rope.full_attention ~= nil or rope.sliding_attention ~= nil then
         spread_by_kind(f, rope, local_theta, problems)
      else
         spread_rope(f, rope, 'rope_theta', 'rope_scaling', problems)
      end
   elseif rope ~= nil then
      problems[#problems + 1] = ("field 'rope_parameters' is %s; expected a table"):format(
         err.show(rope))
   end
   if type(f.rope_scaling) == 'table' then
      f.rope_scaling = copy(f.rope_scaling)
      complete_scaling(f)
   end
end

-- ---- fields that a family does not have ------------------------------------------------------

-- Raises for a field that the family's published files lack and that changes nothing there.
-- without: nil, or field -> { why, written }, where `written` is the value that older files of
-- tide may have; a file, which says its model_type or architectures, is read without it.
function config.check_without(f, problems, without)
   for k, row in each(without or {}) do
      local is_file = f.model_type ~= nil or f.architectures ~= nil
      if f[k] ~= nil and not (f[k] == row.written and is_file) then
         problems[#problems + 1] = ("field '%s': expected nil or null: %s, got %s"):format(k,
            row.why, err.show(f[k]))
      end
      f[k] = nil
   end
end

-- Rows of `without` for biases that tide can compute and the family does not have: another program
-- that reads a folder drops their weights.
config.no_attention_bias = { written = false,
   why = 'q_proj, k_proj, v_proj and o_proj of this family have no biases' }
config.no_mlp_bias = { written = false, why = 'the MLPs of this family have no biases' }

-- ---- windows by layer ------------------------------------------------------------------------

local kinds = { 'full_attention', 'sliding_attention' }

-- Checks layer_types: nil, or the kind of every layer. Windows need sliding_window. own: the kinds
-- of a family, or nil.
function config.check_layer_types(op, c, own)
   local list = c.layer_types
   if list == nil then return end
   err.raise_if(#err.type(op, 'layer_types', list, 'table') ~= c.num_hidden_layers, 'E_ARG', op,
      "argument 'layer_types': expected a list of %d names, one for each layer, got a list of %d",
      c.num_hidden_layers, #list)
   for i, v in ipairs(list) do
      local field = ('layer_types[%d]'):format(i)
      err.choice(op, field, v, own or kinds)
      err.arg_if(v == 'sliding_attention' and not c.sliding_window, op, field,
         "'full_attention' without sliding_window", v)
   end
end

-- Raises for a window that use_sliding_window switches on without sliding_window, and for one in
-- layer_types that it leaves off.
function config.check_window(c, op)
   err.arg_if(c.use_sliding_window and c.sliding_window == nil, op, 'sliding_window',
      'tokens that a layer sees, with use_sliding_window', nil)
   for i = 1, c.layer_types and not c.use_sliding_window and #c.layer_types or 0 do
      if c.layer_types[i] == 'sliding_attention' then
         err.arg(op, ('layer_types[%d]'):format(i), "'full_attention' where "
            .. 'use_sliding_window is false', c.layer_types[i])
      end
   end
end

-- Returns whether a layer (from 1) has the window of a configuration: by layer_types, one name a
-- layer, else by rule(c, i) (nil: each layer has it). use_sliding_window = false: no layer has it.
function config.has_window(c, i, rule)
   if c.use_sliding_window == false then return false end
   if c.layer_types then return c.layer_types[i] == 'sliding_attention' end
   return not rule or rule(c, i)
end

-- ---- heads -----------------------------------------------------------------------------------

-- A relation (see util.signature): each head of keys serves as many heads of queries.
config.whole_groups = 'where num_attention_heads % num_key_value_heads == 0 -- num_attention_heads '
   .. '({num_attention_heads}) must be a multiple of num_key_value_heads ({num_key_value_heads})'

-- Returns the head size that follows from the hidden size.
function config.head_dim(c)
   err.raise_if(c.hidden_size % c.num_attention_heads ~= 0, 'E_ARG', 'model',
      'hidden_size (%d) must be a multiple of num_attention_heads (%d), or give head_dim',
      c.hidden_size, c.num_attention_heads)
   return c.hidden_size / c.num_attention_heads
end

return config
