-- The small Qwen2.5-VL and the chats with images of spec/golden/vl_chat.py, in a folder; and the
-- small models of qwen3_vl_chat.py, as `case.qwen3_vl` and `case.qwen3_5`.

local tide = require 'tide'
local fs = require 'tide.util.fs'
local vlm = require 'spec.lua.vlm_case'

local case = { golden = 'spec/golden/vl_chat' }

case.numbers = dofile(case.golden .. '/numbers.lua')
case.qwen3_vl = { numbers = dofile(case.golden .. '/qwen3_vl.lua') }
case.qwen3_5 = { numbers = dofile(case.golden .. '/qwen3_5.lua') }

-- Returns a model of a family and the configuration in a file, with the weights of the scripts.
local function model_of(family, file, opts)
   local config = tide.json.decode(fs.read('spec', case.golden .. '/' .. file))
   local model = tide.model[family](config, opts)
   if opts and opts.device == 'null' then return model end
   tide.no_grad(function()
      for k, e in ipairs(vlm.parameters(model)) do
         local p = e.param
         local x = (tide.arange(p:numel(), { dtype = 'f64' }) * 12.9898 + 78.233 * k):sin()
            * 43758.5453
         local u = ((x - x:floor()) * 2 - 1):reshape(p.shape)
         local is_norm = e.name:find('norm', 1, true) or e.name:find('.ln_', 1, true)
         p:copy_(p.ndim > 1 and u * 0.6 or u * 0.3 + (is_norm and 1 or 0))
      end
   end)
   return model
end

-- Returns the models, with the weights of the scripts.
function case.model(opts) return model_of('qwen2_5_vl', 'config.json', opts) end
function case.qwen3_vl.model(opts) return model_of('qwen3_vl', 'qwen3_vl.json', opts) end
function case.qwen3_5.model(opts) return model_of('qwen3_5_vl', 'qwen3_5.json', opts) end

local function copy_to(dir, names)
   for _, name in ipairs(names) do
      fs.write('spec', dir .. '/' .. name, fs.read('spec', case.golden .. '/' .. name))
   end
end

-- Writes a model (that of case.model() by default) into dir/m, as transformers has it, and the
-- images into dir.
function case.write(dir, model)
   tide.model.save(model or case.model(), dir .. '/m')
   copy_to(dir .. '/m', { 'tokenizer.json', 'tokenizer_config.json', 'processor_config.json',
      'chat_template.jinja' })
   copy_to(dir, { 'a.png', 'b.png', 'c.png' })
end

-- Returns the lines of the chats.
function case.lines()
   local list = {}
   for line in fs.read('spec', case.golden .. '/chats.jsonl'):gmatch '[^\n]+' do
      list[#list + 1] = line
   end
   return list
end

local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

-- Returns bytes in base64.
function case.base64(bytes)
   local out = {}
   for i = 1, #bytes, 3 do
      local a, b, c = bytes:byte(i, i + 2)
      local v = a * 65536 + (b or 0) * 256 + (c or 0)
      for k, place in ipairs { 2^18, 2^12, 2^6, 1 } do
         local d = math.floor(v / place) % 64 + 1
         out[#out + 1] = (k == 3 and not b or k == 4 and not c) and '=' or digits:sub(d, d)
      end
   end
   return table.concat(out)
end

-- Returns an image of the chats as a URL of data.
function case.data_url(name)
   return 'data:image/png;base64,' .. case.base64(fs.read('spec', case.golden .. '/' .. name))
end

-- n chats of different lengths, as JSON Lines: every fourth has no image.
function case.chats(n)
   local lines, out = case.lines(), {}
   for i = 1, n do
      out[i] = lines[(i - 1) % #lines + 1]:gsub('ramp', 'ramp ' .. i)
         :gsub('Hi!', 'Hi' .. ('!'):rep(3 * i)):gsub('They differ', 'They differ, ' .. i)
   end
   return table.concat(out, '\n') .. '\n'
end

-- Returns the options of data.chat.load for the model.
function case.options(more)
   local o = { tokenizer = tide.tokenizer.load(case.golden), val = 0,
      template = tide.chat.load(case.golden),
      images = tide.data.chat.images(case.model { device = 'null' },
         tide.data.image.processor(case.golden)) }
   for k, v in pairs(more or {}) do o[k] = v end
   return o
end

return case
