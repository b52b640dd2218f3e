-- Configurations of decoders with a vision tower: what config.json says beside the fields of the
-- text model and in its tables text_config and vision_config, and the names of modules in files.

local tide = require 'tide'
local Llama = require 'tide.model.llama'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local published = require 'tide.model.published'

local config, methods = {}, {}

local id = 'integer >= 0'

-- Fields of Qwen's families, before those of their text model.
config.fields = {
   { 'vision_config', nil, function(_, _, v) return v end },
   { 'image_token_id', 151655, id }, { 'video_token_id', 151656, id },
   { 'vision_start_token_id', published.optional, id },
   { 'vision_end_token_id', published.optional, id },
   { 'vision_token_id', published.optional, id },
}

-- Raises unless a token of a complete configuration is in the vocabulary. name: of its field.
function config.check_token(op, c, name, token)
   err.arg_if(token >= c.vocab_size, op, name, ('an id below vocab_size (%d)'):format(
      c.vocab_size), token)
end

-- Raises unless the two tokens of a complete configuration are in the vocabulary, and differ.
function config.check_tokens(op, c)
   for _, name in ipairs { 'image_token_id', 'video_token_id' } do
      config.check_token(op, c, name, c[name])
   end
   err.arg_if(c.image_token_id == c.video_token_id, op, 'video_token_id', 'another id than '
      .. 'image_token_id', c.video_token_id)
end

-- Returns the name in transformers of a module or parameter with this name here.
function config.transformers_name(name)
   return (name:gsub('^model%.', 'model.language_model.'):gsub('^visual%.', 'model.visual.'))
end

-- Returns the name here of a module or parameter with this name in transformers.
function config.own_name(name)
   return (name:gsub('^model%.visual%.', 'visual.'):gsub('^model%.language_model%.', 'model.'))
end

-- Returns rope_scaling of a configuration in one spelling. sections: mrope_section where the file
-- has none; is_interleaved: whether the family has them interleaved, as no field changes.
function config.rope_scaling(op, c, sections, is_interleaved)
   local s = copy(c.rope_scaling or {})
   local kind = s.rope_type or s.type or 'default'
   s.rope_type, s.type = kind == 'mrope' and 'default' or kind, nil
   s.mrope_section = s.mrope_section or sections
   err.raise_if(s.mrope_interleaved ~= nil and s.mrope_interleaved ~= is_interleaved, 'E_ARG', op,
      "field 'rope_scaling.mrope_interleaved' is %s; only %s is supported",
      tostring(s.mrope_interleaved), tostring(is_interleaved))
   s.mrope_interleaved = is_interleaved or nil
   return s
end

-- Returns the fields of config.json of a tower's complete configuration.
function config.published_tower(c, kind)
   local v = copy(c)
   v.model_type, v.rope_theta = kind, nil
   v.rope_parameters = { rope_type = 'axial', rope_theta = c.rope_theta }
   return v
end

-- Ids of tokens, which are read beside text_config alone, as transformers does.
local of_tokens = { 'image_token_id', 'video_token_id', 'vision_start_token_id',
   'vision_end_token_id', 'vision_token_id' }
local of_rope = { 'rope_parameters', 'rope_scaling', 'rope_theta' }

-- Fields of config.json that lie beside the tables of the text and of the tower.
local outside = { 'architectures', 'model_type', 'tie_word_embeddings', 'transformers_version',
   'torch_dtype', 'mm_tokens_per_image', unpack(of_tokens) }

-- Moves the fields of c, a complete configuration, into the table text_config, but those that lie
-- outside. text_type: model_type of that table; tower: the table vision_config.
function config.nest(c, text_type, tower)
   local text = copy(c)
   for name in each(text) do c[name] = nil end
   for _, name in ipairs(outside) do c[name], text[name] = text[name], nil end
   text.model_type = text_type
   c.text_config, c.vision_config, text.vision_config = text, tower, nil
end

-- Returns the fields of a configuration without the table text_config, whose fields go before those
-- beside it. With ties_outside, tie_word_embeddings beside text_config decides, also where it is
-- absent. Else it counts only if it is true.
local function flattened(self, given)
   local op, c, null = self.family.op, copy(given), tide.json.null
   local text = c.text_config
   c.text_config = nil
   if text == nil or text == null then return c end
   text = copy(err.type(op, 'text_config', text, 'table'))
   if text.model_type ~= nil then
      err.choice(op, 'text_config.model_type', text.model_type, self.text_types)
   end
   local tied = c.tie_word_embeddings
   text.model_type, text.architectures = nil, nil
   for _, name in ipairs(of_tokens) do text[name] = nil end        -- some files repeat them as null
   for _, name in ipairs(of_rope) do
      if text[name] ~= nil then
         for _, other in ipairs(of_rope) do c[other] = nil end
      end
   end
   copy(text, c)
   if tied == true or self.ties_outside then c.tie_word_embeddings = tied end
   return c
end

-- Returns the complete configuration, and the names of fields that change nothing.
function methods:_read(given)
   local op = self.family.op
   local c, unused = Llama._read(self, flattened(self, err.type(op, 'config', given, 'table')))
   local more
   c.vision_config, more = self.Vision:read(c.vision_config, c.hidden_size)
   if self._check_parts then self._check_parts(op, c) end
   for _, name in ipairs(more) do unused[#unused + 1] = 'vision_config.' .. name end
   return c, unused
end

-- Methods of every class with a tower.
config.methods = methods

return config
