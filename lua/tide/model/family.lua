-- Finds the family of tide.model that a model or a saved configuration belongs to, by the names of
-- published configurations (architectures, model_type).
--
-- A checkpoint stores the family beside the configuration. Older ones, and those of other programs,
-- do not: their family follows from the published fields, or from fields that one family alone has.
--
-- The table `family` of a class says how its files differ; all of it may be nil.
--
--    op              name of the class in errors
--    counts          fields that count layers
--    sizes           fields that are a factor of the size of a tensor
--    rename          function: a tensor's name in the file -> in the model, nil to ignore it
--    packing         kinds of packed weights beside FP8 (see packing.lua)
--    peft, from_peft, peft_target    names of layers in adapters (see pretrained/peft_names.lua)
--    peft_experts    how transformers has experts (see pretrained/peft_moe.lua)
--    peft_obstacle   why PEFT cannot read adapters of the family
--    peft_refuses    last name of a layer whose adapters PEFT refuses
--
-- Families derived from llama.lua also say how their configuration and layers differ from Llama's.
-- c is the complete configuration, and layers i count from 1.
--
--    fields          rows of their own fields (see published.read)
--    defaults        field of a Llama -> the family's default
--    without         field of a Llama that files lack -> { why, written } (see config.lua)
--    nullable        fields whose default a null in the file takes away
--    act             value of hidden_act; 'silu' if nil
--    local_theta     field for the rotary base of layers with a window
--    alias, only, free, translate, where, complete    as in published.read
--    window          function (c, i): whether a layer has the window; nil: each has it
--    layer           function (c, i, mixer, mlp) that changes options of nn.Attention and nn.MLP
--    kinds           values of layer_types beside those of attention
--    mixer           function (c, options, i, opts) that returns another mixer than nn.Attention,
--                    and its name; nil: attention
--    experts         function (c, i): options of part.experts for a mixture; nil: an MLP
--    Block           class of blocks; names: of their parts; norms: which norms they have
--    norm_offset     number that is added to the weights of norms
--    residual        function (c): the factor of the branches of a block
--    embed_scale     function (c): that of embeddings; scales_given: of given ones, too
--    out_scale       function (c): that of the last hidden states
--    rope            { interleaved }: whether pairs of channels lie side by side

local canonical = require 'tide.util.canonical'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local published = require 'tide.model.published'
require 'tide.nn.module'                -- the kind 'module'

local family = {}

-- Published fields by family.
local files = {
   gemma2 = { architectures = { 'Gemma2ForCausalLM' }, model_type = 'gemma2' },
   gpt2 = { architectures = { 'GPT2LMHeadModel' }, model_type = 'gpt2' },
   gemma3 = { architectures = { 'Gemma3ForCausalLM' }, model_type = 'gemma3_text' },
   gemma3_vl = { architectures = { 'Gemma3ForConditionalGeneration' }, model_type = 'gemma3' },
   qwen2_5_vl = { architectures = { 'Qwen2_5_VLForConditionalGeneration' },
      model_type = 'qwen2_5_vl', hidden_act = 'silu' },
   qwen3_vl = { architectures = { 'Qwen3VLForConditionalGeneration' }, model_type = 'qwen3_vl',
      hidden_act = 'silu' },
   qwen3_vl_moe = { architectures = { 'Qwen3VLMoeForConditionalGeneration' },
      model_type = 'qwen3_vl_moe', hidden_act = 'silu' },
   qwen3_5_vl = { architectures = { 'Qwen3_5ForConditionalGeneration' }, model_type = 'qwen3_5',
      hidden_act = 'silu' },
   qwen3_5_moe_vl = { architectures = { 'Qwen3_5MoeForConditionalGeneration' },
      model_type = 'qwen3_5_moe', hidden_act = 'silu' },
   qwen3_5 = { architectures = { 'Qwen3_5ForCausalLM' }, model_type = 'qwen3_5_text',
      hidden_act = 'silu' },
   qwen3_5_moe = { architectures = { 'Qwen3_5MoeForCausalLM' }, model_type = 'qwen3_5_moe_text',
      hidden_act = 'silu' },
   hybrid = { architectures = { 'NemotronHForCausalLM' }, model_type = 'nemotron_h' },
}
for name, title in each { llama = 'Llama', mistral = 'Mistral', qwen2 = 'Qwen2', qwen3 = 'Qwen3',
   phi3 = 'Phi3', ministral = 'Ministral', granite = 'Granite', smollm3 = 'SmolLM3',
   olmo2 = 'Olmo2', bamba = 'Bamba', mamba2 = 'Mamba2', mixtral = 'Mixtral', olmoe = 'Olmoe',
   qwen2_moe = 'Qwen2Moe', qwen3_moe = 'Qwen3Moe', qwen3_next = 'Qwen3Next', glm4_moe = 'Glm4Moe',
   deepseek_v2 = 'DeepseekV2', deepseek_v3 = 'DeepseekV3',
   glm4_moe_lite = 'Glm4MoeLite', gpt_oss = 'GptOss',
   granitemoehybrid = 'GraniteMoeHybrid' } do
   files[name] = { architectures = { title .. 'ForCausalLM' }, model_type = name,
      hidden_act = 'silu' }
end

-- tide's names for its own forms of published families.
local own = { TideHybridForCausalLM = 'hybrid', tide_hybrid = 'hybrid',
   TideGPT2LMHeadModel = 'gpt2', tide_gpt2 = 'gpt2' }

local function value_of(row, field)
   return field == 'architectures' and row.architectures[1] or row[field]
end

-- Returns the family whose published files have this value of a field, 'architectures' (the first)
-- or 'model_type'; nil of one that is not known.
local function find(field, value)
   for name, row in each(files) do
      if value_of(row, field) == value then return name end
   end
   return own[value]
end

-- Returns the family that find returns; raises E_UNSUPPORTED with the known values if no family has
-- this value.
local function found(op, field, value, what)
   local name, list = find(field, value), {}
   if name then return name end
   for _, row in each(files) do list[#list + 1] = value_of(row, field) end
   table.sort(list)
   err.raise('E_UNSUPPORTED', op, "the checkpoint is of the %s '%s'; known are %s", what,
      tostring(value), table.concat(list, ', '))
end

-- Returns plain, what a checkpoint keeps beside its tensors; raises unless it is a table.
local function check_plain(op, plain) return err.type(op, 'plain', plain, 'table') end

-- Returns what a family says of its configurations and files, the table `family` of its class; an
-- empty one where name is nil or false, for a user's class.
function family.rules(name) return files[name] and require('tide.model')[name].family or {} end

-- Returns the name of a model's family; false for a user's class, whose configuration does not
-- determine what it computes.
function family.of(model)
   for name in each(files) do
      if package.loaded['tide.model.' .. name] == getmetatable(model) then return name end
   end
   return false
end

-- Returns the configuration to save: defaults of the family that are absent are absent on purpose.
function family.config(model)
   if not model.config then return nil end
   local c, null = {}, require('tide').json.null
   local of = type(model.family) == 'table' and model.family or {}
   for k in each(of.defaults or {}) do c[k] = null end
   for _, row in ipairs(of.fields or {}) do
      if row[2] ~= published.optional then c[row[1]] = null end
   end
   -- where these are not given, transformers takes ids that a small vocabulary does not have
   for _, k in ipairs { 'bos_token_id', 'eos_token_id', 'pad_token_id' } do c[k] = null end
   return copy(model.config, c)
end

-- Returns the configuration of what a checkpoint of `name` keeps, without fields that earlier
-- versions wrote for the family and that change nothing.
local function config_of(name, config)
   local without = family.rules(name).without
   if not without then return config end
   local c = {}
   for k, v in each(config) do
      if not (without[k] and v == without[k].written) then c[k] = v end
   end
   return c
end

-- Returns the fields of a published configuration file that name the family.
function family.published(name) return files[name] or {} end

-- Returns the rows of the fields that a class of models has (see published.read): those of a Llama
-- for a user's class that has none.
local function fields_of(made)
   if made._rows then return made._rows end
   return made._fields and made:_fields() or require('tide.model').llama:_fields()
end

-- Gives numbers of fields a decimal point, which published readers require.
local function as_floats(c, fields, json)
   for _, row in ipairs(fields) do
      local v = row.float and c[row[1]]
      if type(v) == 'number' then
         c[row[1]] = json.float(v)
      elseif type(v) == 'table' and v ~= json.null then
         local list = {}
         for i, item in ipairs(v) do list[i] = json.float(item) end
         c[row[1]] = list
      end
   end
end

local dtype_names = { f32 = 'float32', bf16 = 'bfloat16', f16 = 'float16', f64 = 'float64' }

-- Returns the text of the published config.json for what a checkpoint keeps, of weights in dtype.
-- transposed: true where the tensors beside it are stored as model:stored() says.
-- Infinite numbers are written as Python does, which every version of transformers reads.
function family.config_file(plain, dtype, transposed)
   local op = 'model.family.config_file'
   local json = require('tide').json
   err.type(op, 'config', check_plain(op, plain).config, 'table')
   local c = copy(config_of(plain.family, plain.config))
   local made = files[plain.family] and require('tide.model')[plain.family] or {}
   copy(files[plain.family] or {}, c)
   if made.publish then made.publish(c, transposed) end
   c.torch_dtype = dtype_names[dtype]
   as_floats(c, fields_of(made), json)
   if c.text_config then as_floats(c.text_config, fields_of(made), json) end
   return json.encode(c, { nonfinite = 'word' }) .. '\n'
end

-- Returns the family whose published files have this architecture; nil of one that is not known.
function family.of_architecture(name) return find('architectures', name) end

-- Returns the family whose published files have this model_type; nil of one that is not known.
function family.of_type(kind) return find('model_type', kind) end

-- Returns the family that a checkpoint names. Older ones call a Llama with windows a Llama.
local function named(plain)
   if plain.family == 'llama' and type(plain.config) == 'table'
      and type(plain.config.sliding_window) == 'number' then
      return 'mistral'
   end
   return plain.family
end

-- Returns the family of what a checkpoint keeps: plain.family if it is there, else by plain.config.
function family.saved(op, plain)
   local config = err.type(op, 'config', check_plain(op, plain).config, 'table')
   if plain.family == false then
      err.raise('E_UNSUPPORTED', op, 'the checkpoint holds a model of a custom class; give make = '
         .. 'function(config, options) that returns such a model')
   elseif plain.family ~= nil then
      err.raise_if(not files[plain.family], 'E_UNSUPPORTED', op, 'the checkpoint has the '
         .. "family '%s', which this version of tide does not have", tostring(plain.family))
      return named(plain)
   end
   if type(config.architectures) == 'table' and config.architectures[1] then
      return found(op, 'architectures', config.architectures[1], 'architecture')
   elseif type(config.model_type) == 'string' then
      return found(op, 'model_type', config.model_type, 'model type')
   end
   if config.hybrid_override_pattern then return 'hybrid' end
   return config.state_size and 'mamba2' or 'llama'
end

-- Returns the set of the fields that do not change what a given set of weights computes, of classes
-- of models.
local function neutral_fields(...)
   local set = {}
   for _, made in ipairs { ... } do
      for _, row in ipairs(fields_of(made)) do set[row[1]] = set[row[1]] or row.neutral end
   end
   return set
end

-- Raises E_SHAPE if a saved configuration computes something else than the model, even if all
-- shapes are equal (other heads, another rotary base).
function family.check(op, plain, model)
   check_plain(op, plain)
   signature.check(op, 'model', model, 'module')
   if type(plain.config) ~= 'table' or type(model.config) ~= 'table' then return end
   local kind = family.of(model)
   local theirs, mine = config_of(kind, plain.config), family.config(model)
   local neutral = neutral_fields(model, files[plain.family]
      and require('tide.model')[plain.family])
   local names, problems = {}, {}
   if plain.family and kind and named(plain) ~= kind then
      problems[1] = ('family %s, this one %s'):format(plain.family, kind)
   end
   for _, c in ipairs { theirs, mine } do
      for k in each(c) do
         if not neutral[k] and not published._is_neutral(k) then names[k] = true end
      end
   end
   for k in each(names) do
      local a, b = canonical(theirs[k]), canonical(mine[k])
      if a ~= b then problems[#problems + 1] = ('%s %s, this one %s'):format(k, a, b) end
   end
   table.sort(problems)
   if #problems > 0 then
      err.raise('E_SHAPE', op, 'the checkpoint is of another model: %s',
         table.concat(problems, '; '))
   end
end

-- Returns a model of a saved configuration. make: see family.saved. opts: as of every module.
function family.build(op, plain, opts, make)
   check_plain(op, plain)
   if make ~= nil then return err.type(op, 'make', make, 'function')(plain.config, opts) end
   local name = family.saved(op, plain)
   local model = require('tide.model')[name](config_of(name, plain.config), opts)
   if plain.quantised then require('tide.nn.nf4')._quantise_as(model, plain.quantised) end
   if plain.adapter then family.adapt(model, plain.adapter) end
   return model
end

-- Gives a model the adapters that a checkpoint describes (see nn.lora).
function family.adapt(model, adapter)
   require('tide.nn.lora').attach(model, { rank = adapter.rank, alpha = adapter.alpha,
      dropout = adapter.dropout, rslora = adapter.rslora, dora = adapter.dora,
      targets = adapter.modules })
end

return signature.doors('model.family', family, { of = 'model: module', config = 'model: module' })
