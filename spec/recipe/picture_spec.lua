-- generate --image: pictures in a conversation and before a prompt, and what does not fit.

local tide = require 'tide'
local files = require 'spec.support.files'
local base64 = require('spec.lua.vl_chat_case').base64
local fs = require 'tide.util.fs'
local recipe = require 'spec.support.recipe'
local train = require 'tide.tokenizer.train'

local root = os.tmpname()
os.remove(root)
root = root .. '.picture'

local template = [[
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == 'image' or 'image_url' in part -%}
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}]]
local special = { '<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|vision_start|>',
   '<|vision_end|>', '<|image_pad|>', '<|video_pad|>' }

-- Writes a file of the golden pictures.
local function write_picture(name, to)
   local file = fs.open_tensors('spec', 'spec/golden/image.safetensors')
   local info = file:info('file/' .. name)
   local t = tide.empty(info.shape, { dtype = 'u8', device = 'cpu' })
   file:read('file/' .. name, t)
   file:close()
   local list = t:tolist()
   for i, v in ipairs(list) do list[i] = string.char(v) end
   fs.write('spec', root .. '/' .. to, table.concat(list))
end

-- Makes the folder of a small model that reads pictures, and pictures beside it.
local made
local function folder()
   if made then return made end
   fs.mkdirs('spec', root)
   train.save(train.bpe({ 'a b c d e f' }, { vocab_size = 270, pattern = 'llama3', min_count = 2,
      special = special }), root .. '/tok')
   local tok = tide.tokenizer.load(root .. '/tok')
   local id = function(name) return tok:id('<|' .. name .. '|>') end
   local model = tide.model.qwen2_5_vl({ vocab_size = tok.vocab_size, hidden_size = 32,
      num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1,
      intermediate_size = 48, max_position_embeddings = 256, eos_token_id = tok.eos,
      image_token_id = id 'image_pad', video_token_id = id 'video_pad',
      vision_start_token_id = id 'vision_start', vision_end_token_id = id 'vision_end',
      vision_config = { depth = 1, hidden_size = 16, intermediate_size = 16, num_heads = 2,
         patch_size = 2, out_hidden_size = 32, window_size = 8, fullatt_block_indexes = { 0 } } },
      { seed = 5 })
   for _, p in ipairs(model:parameters()) do
      if p.ndim > 1 then tide.no_grad(function() p:mul_(8) end) end
   end
   files.write(root .. '/tok/chat_template.jinja', template)
   fs.write_json('spec', root .. '/tok/preprocessor_config.json', {
      image_processor_type = 'Qwen2VLImageProcessor', patch_size = 2, min_pixels = 60,
      max_pixels = 120 })
   tide.model.save(model, root .. '/m', { tokenizer = root .. '/tok' })
   write_picture('rgb', 'a.png')
   write_picture('jpeg_exif_6', 'b.jpg')
   made = root .. '/m'
   return made
end

local function run(words, before)
   return recipe.shell(('%s %s %s run %s --from %s --temperature 0 --tokens 12 %s'):format(
      before or '', recipe.timeout, recipe.program, recipe.path 'recipes/generate.lua', folder(),
      words))
end

-- Returns what the program prints, without notes.
local function text_of(words, before)
   local out, status = run(words .. ' 2>/dev/null', before)
   assert.equal(0, status, out)
   return out
end

local function refuses(text, words, expected)
   local out, status = run(words)
   assert.equal(expected or 2, status, out)
   assert.matches(text, out, 1, true)
   assert.equal(1, select(2, out:gsub('\n', '\n')), out)
end

-- Returns the answer of a conversation of the library.
local function answer(pictures, words)
   local model, tok = tide.model.load(folder()), tide.tokenizer.load(folder())
   local talk = tide.chat.conversation(model, { tokenizer = tok, dir = root,
      template = tide.chat.load(folder()), processor = tide.data.image.processor(folder()),
      stop = tok.eos })
   local parts = {}
   for i, name in ipairs(pictures) do parts[i] = { type = 'image', image = name } end
   parts[#parts + 1] = { type = 'text', text = words }
   local result = talk:say(parts, { temperature = 0, tokens = 12 })
   return result.text .. '\n', talk, parts
end

teardown(function() os.execute('rm -rf ' .. root) end)

describe('generate --image', function()
   it('shows pictures in a conversation', function()
      local one, talk = answer({ 'a.png' }, 'a')
      local both = answer({ 'a.png', 'b.jpg' }, 'a')
      assert.not_equal(one, both)
      assert.equal(one, text_of(('--chat --image %s/a.png --prompt a'):format(root)))
      assert.equal(both, text_of(('--chat --image %s/a.png --image %s/b.jpg --prompt a')
         :format(root, root)))
      assert.equal(one, text_of('--chat', ("printf '/image %s/a.png\\na\\n' |"):format(root)))
      assert.equal(one, text_of(('--chat --image %s/a.png'):format(root), "printf 'a\\n' |"))
      -- turn after turn, as one that reads all again
      talk.cache = {}
      local more = talk:say({ { type = 'image', image = 'b.jpg' }, { type = 'text', text = 'b' } },
         { temperature = 0, tokens = 12 }).text .. '\n'
      assert.equal(one .. more, text_of(('--chat --image %s/a.png'):format(root),
         ("printf 'a\\n/image %s/b.jpg\\nb\\n' |"):format(root)))
      assert.equal(one .. one, text_of('--chat',
         ("printf '/image %s/a.png\\na\\n/reset\\n/image %s/a.png\\na\\n' |"):format(root, root)))
      fs.write_json('spec', root .. '/talk.json', { { role = 'user', content = {
         { type = 'image', image = 'a.png' }, { type = 'text', text = 'a' } } } })
      assert.equal(one, text_of(('--chat --messages %s/talk.json'):format(root)))
      local url = 'data:image/png;base64,' .. base64(fs.read('spec', root .. '/a.png'))
      fs.write_json('spec', root .. '/talk.json', { { role = 'user', content = {
         { type = 'image_url', image_url = { url = url } }, { type = 'text', text = 'a' } } } })
      assert.equal(one, text_of(('--chat --messages %s/talk.json'):format(root)))
   end)

   it('shows pictures before a prompt, or where it says', function()
      local words = ('--image %s/a.png --prompt a'):format(root)
      local text = text_of(words)
      assert.not_equal(text, text_of '--prompt a')
      local mark = '<|vision_start|><|image_pad|><|vision_end|>a'
      assert.equal(mark .. text:sub(2), text_of(("--special --image %s/a.png --prompt '%s'"):format(
         root, mark)))
   end)

   it('refuses what does not fit', function()
      folder()
      fs.write('spec', root .. '/text', 'a text')
      refuses('text: it is no picture; expected a JPEG, a PNG or a WebP',
         ('--image %s/text'):format(root), 1)
      refuses("cannot open '/no/file'", '--chat --prompt a --image /no/file', 1)
      local out, status = run('--chat', "printf '/image /no/file\\na\\n' |")
      assert.equal(1, status)
      assert.matches("cannot open '/no/file'", out, 1, true)
      refuses('--image does not go with --ids', '--image x --ids 1')
      refuses('--image goes with --prompt', ('--chat --messages %s/talk.json --image x')
         :format(root))
      refuses('ids: expected a placeholder for each of 1 images, got 2', ('--special --image '
         .. "%s/a.png --prompt '<|image_pad|><|image_pad|>'"):format(root))
      local path = folder() .. '/preprocessor_config.json'
      local text = fs.read('spec', path)
      os.remove(path)
      refuses('has no preprocessor_config.json', ('--image %s/a.png'):format(root))
      refuses('opts.processor', ('--chat --messages %s/talk.json'):format(root))
      fs.write('spec', path, text)
   end)
end)

describe('a run', function()
   it('keeps the processor of its model, and so does its published folder', function()
      fs.write('spec', root .. '/chat.jsonl', ('{"messages": [{"role": "user", "content": "a"}, '
         .. '{"role": "assistant", "content": "b"}]}\n'):rep(4))
      local out, status = recipe.shell(('%s %s run %s --from %s --data %s/chat.jsonl --steps 1 '
         .. '--seq 32 --val-share 0 --out %s/run'):format(recipe.timeout, recipe.program,
         recipe.path 'recipes/finetune.lua', folder(), root, root))
      assert.equal(0, status, out)
      local want = fs.read('spec', root .. '/tok/preprocessor_config.json')
      assert.equal(want, fs.read('spec', root .. '/run/preprocessor_config.json'))
      assert.equal(want, fs.read('spec', root .. '/run/model/preprocessor_config.json'))
   end)
end)

describe('a conversation', function()
   it('with pictures keeps them through turns, and their text is never a token', function()
      local _, talk = answer({ 'a.png' }, '<|image_pad|>')
      local pad = talk.model.config.image_token_id
      local function pads()
         local n = 0
         for _, id in ipairs((talk:ids())) do n = n + (id == pad and 1 or 0) end
         return n
      end
      local n = talk.processor:tokens(talk.processor:grid(9, 13))
      assert.equal(n, pads())
      talk:say({ { type = 'image', image = tide.data.image.open(root .. '/b.jpg') } },
         { temperature = 0, tokens = 2 })
      assert.equal(n + talk.processor:tokens(talk.processor:grid(13, 9)), pads())
      assert.equal(4, #talk.messages)
   end)
end)
