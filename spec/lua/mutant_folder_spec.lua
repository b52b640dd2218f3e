-- 200 folders, each with one random change: it loads, or is refused in one line by an error of
-- tide. (A changed byte of a tensor is another number, which no file format can tell.)

local tide = require 'tide'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local mutate = require 'spec.support.mutate'
local tmp = require 'spec.support.tmp'

local configs = {
   llama = { vocab_size = 32, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2, eos_token_id = 2,
      max_position_embeddings = 64,
      rope_scaling = { rope_type = 'yarn', factor = 2, original_max_position_embeddings = 32 } },
   gemma2 = { vocab_size = 32, hidden_size = 16, head_dim = 4, intermediate_size = 32,
      num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, sliding_window = 3 },
   hybrid = { vocab_size = 32, hidden_size = 16, hybrid_override_pattern = 'M*-',
      num_attention_heads = 2, mamba_head_dim = 8, ssm_state_size = 4, intermediate_size = 12 },
}

local function read(path) return fs.read('spec', path) end
local function write(path, text) fs.write('spec', path, text) end

local null = tide.json.null
local values = { -1, 0, 1, 2, 3, 0.5, 1e9, 2 ^ 53, 1e300, 'x', '', 'Infinity', true, false, null,
   {}, { 1, 2 }, { a = 1 }, -1e-9, 1 / 0 }

local change = {}

-- A field of a JSON file takes another value, or goes.
local function set_field(path, random)
   local value = fs.read_json('spec', path)
   local names = {}
   for k in each(value) do names[#names + 1] = k end
   table.sort(names)
   local name = names[random(#names)]
   local to = values[random(#values)]
   if random(6) == 1 then to = nil end
   value[name] = to
   write(path, tide.json.encode(value, { nonfinite = 'word' }))
   return name .. ' = ' .. tostring(to)
end

function change.field(dir, random) return set_field(dir .. '/config.json', random) end
function change.field_again(dir, random) return set_field(dir .. '/config.json', random) end

-- A byte of a file becomes another.
local function set_byte(path, random, most)
   local text = read(path)
   local at = random(math.min(#text, most or #text))
   write(path, text:sub(1, at - 1) .. string.char(random(256) - 1) .. text:sub(at + 1))
   return path .. ' byte ' .. at
end

-- A file of weights.
local function weights_of(dir, random)
   local list = {}
   for _, name in ipairs(fs.list('spec', dir)) do
      if name:find '%.safetensors$' then list[#list + 1] = dir .. '/' .. name end
   end
   return list[random(#list)]
end

local function json_of(dir, random)
   local list = { '/config.json' }
   for _, name in ipairs { '/model.safetensors.index.json', '/generation_config.json' } do
      if fs.exists(dir .. name) then list[#list + 1] = name end
   end
   return dir .. list[random(#list)]
end

function change.json_byte(dir, random) return set_byte(json_of(dir, random), random) end
function change.header_byte(dir, random) return set_byte(weights_of(dir, random), random, 900) end
function change.any_byte(dir, random) return set_byte(weights_of(dir, random), random) end

-- A file is cut, longer, empty or gone.
function change.length(dir, random)
   local path = random(2) == 1 and weights_of(dir, random) or json_of(dir, random)
   local text, how = read(path), random(4)
   if how == 1 then write(path, text:sub(1, random(#text) - 1)) end
   if how == 2 then write(path, text .. ('x'):rep(random(9))) end
   if how == 3 then write(path, '') end
   if how == 4 then fs.io().remove(path) end
   return path .. ' length ' .. how
end

-- A tensor is another one, is missing, or has another dtype or shape.
function change.tensor(dir, random)
   local path = weights_of(dir, random)
   local tensors, names = tide.train.checkpoint.tensors(path), {}
   for name in each(tensors) do names[#names + 1] = name end
   table.sort(names)
   local name, how = names[random(#names)], random(5)
   local t = tensors[name]
   if how == 1 then tensors[name] = nil end
   if how == 2 then tensors[name .. '.x'] = t end
   if how == 3 then tensors[name] = t:to(({ 'i64', 'bf16', 'u8', 'f64' })[random(4)]) end
   if how == 4 then tensors[name] = tide.zeros { random(4), random(4) } end
   if how == 5 then tensors[name] = tensors[names[random(#names)]] end
   fs.io().safetensors_save(path, tensors)
   return name .. ' tensor ' .. how
end

-- Two files change places.
function change.swap(dir, random)
   local a, b = weights_of(dir, random), weights_of(dir, random)
   local x, y = read(a), read(b)
   write(a, y)
   write(b, x)
   return a .. ' and ' .. b
end

local kinds = { 'field', 'field_again', 'json_byte', 'header_byte', 'any_byte', 'length', 'tensor',
   'swap' }

local codes = { E_ARG = true, E_IO = true, E_FORMAT = true, E_SHAPE = true, E_UNSUPPORTED = true,
   E_DTYPE = true }

local function copy(from, to)
   fs.mkdirs('spec', to)
   for _, name in ipairs(fs.list('spec', from)) do
      write(to .. '/' .. name, read(from .. '/' .. name))
   end
end

-- Makes mutant `seed` of one of the folders below dir, and loads it.
local function try(dir, seed)
   local random = mutate.random(seed)
   local family = ({ 'llama', 'gemma2', 'hybrid' })[random(3)]
   local from = dir .. '/' .. family .. (random(2) == 1 and '-whole' or '-parts')
   local at = ('%s/%d'):format(dir, seed)
   copy(from, at)
   local what = change[kinds[random(#kinds)]](at, random)
   local ok, e = pcall(tide.model.load, at)
   local text = ('mutant %d of %s, %s: %s'):format(seed, from, what, tostring(e))
   if ok then return true end
   assert(tide.is_error(e) or type(e) == 'table' and codes[e.code], text)
   assert(codes[e.code], text)
   assert(not e.message:find '\n' and #e.message < 1500, text)
   return false
end

describe('a folder with one random change', function()
   it('loads, or is refused in one line: 200 of them', function()
      tmp.with(function(dir)
         for family, config in each(configs) do
            local model = tide.model[family](config, { seed = 1 })
            tide.model.save(model, dir .. '/' .. family .. '-whole')
            tide.model.save(model, dir .. '/' .. family .. '-parts', { max_shard = '4kB' })
         end
         local loaded = 0
         for seed = 1, 200 do
            if try(dir, seed) then loaded = loaded + 1 end
         end
         assert.is_true(loaded > 20 and loaded < 120, loaded)
         try(dir, 1040)            -- a width that no device holds
      end)
   end)
end)
