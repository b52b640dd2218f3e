-- Good files of each kind that tide reads, and what a user does with them. A spec and a sweep
-- change them at random: what was changed works, or is refused by one clear line.
--
-- Each kind: make(dir, random) writes good files and returns the paths of those that may change;
-- use(dir) reads them as a user does.

local tide = require 'tide'
local ffi = require 'ffi'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local mutate = require 'spec.support.mutate'

local json = tide.json
local kinds = {}

local read = require('spec.support.files').read
local function write(path, text)
   require('spec.support.files').write(path, text)
   return path
end
local function pick(list, random) return list[random(#list)] end

-- ---- tokenizers --------------------------------------------------------------------------------

local text = ("Hello wörld 12345  \t\n<|end|> 你好 😀 don't a\0b \255" .. ('a'):rep(64)):rep(8)

local function use_tokenizer(path)
   local tok = tide.tokenizer.load(path)
   local ids = tok:encode(text, { invalid = 'replace', offsets = true })
   tok:encode(text, { invalid = 'replace', special = true })
   tok:encode_batch({ 'a', '', 'b c' }, { width = 4, threads = 2 })
   tok:decode(ids)
   local stream = tok:stream()
   for i = 1, math.min(#ids, 50) do stream:push(ids[i]) end
   stream:finish()
end

local golden = { 'gpt2', 'added', 'llama3', 'qwen2', 'falcon', 'llama2', 'llama2_metaspace', 't5',
   'bert', 'bert_cased' }

kinds.tokenizer = {
   make = function(dir, random)
      local value = json.decode(read('spec/golden/tokenizer/' .. pick(golden, random) .. '.json'))
      write(dir .. '/tokenizer_config.json', '{"bos_token": "<s>", "eos_token": {"content": "a"}, '
         .. '"added_tokens_decoder": {"3": {"content": "<x>", "special": true}}}')
      write(dir .. '/tokenizer.json', json.encode(value.tokenizer))
      return { random(8) == 1 and dir .. '/tokenizer_config.json' or dir .. '/tokenizer.json' }
   end,
   use = use_tokenizer,
}

local function field(number, value) return string.char(number * 8 + 2, #value) .. value end

local function piece(name, score, kind)
   return field(1, field(1, name) .. '\21' .. ffi.string(ffi.new('float[1]', score), 4)
      .. '\24' .. string.char(kind))
end

kinds.sentencepiece = {
   make = function(dir, random)
      local parts = { piece('<unk>', 0, 2), piece('<s>', 0, 3), piece('</s>', 0, 3) }
      for b = 0, 255 do parts[#parts + 1] = piece(('<0x%02X>'):format(b), 0, 6) end
      for i, name in ipairs { '▁H', 'el', '▁', 'a', 'l', 'o', '▁He', 'aa', 'aaaa', '好' } do
         parts[#parts + 1] = piece(name, -i / 4, name == '好' and 4 or 1)
      end
      parts[#parts + 1] = random(2) == 1 and '\18\5\24\2\152\2\1' or '\18\5\24\1\152\2\1'
      parts[#parts + 1] = '\26\4\32\0\24\0'
      return { write(dir .. '/tokenizer.model', table.concat(parts)) }
   end,
   use = use_tokenizer,
}

local function base64(s)
   local set = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
   local a, b, c = s:byte(1, 3)
   local v, out = a * 65536 + (b or 0) * 256 + (c or 0), {}
   for i = 1, 4 do
      local at = math.floor(v / 64 ^ (4 - i)) % 64 + 1
      out[i] = i <= #s + 1 and set:sub(at, at) or '='
   end
   return table.concat(out)
end

local function ranks()
   local list = {}
   for b = 0, 255 do list[#list + 1] = string.char(b) end
   for _, name in ipairs { 'he', 'll', 'or', ' w', 'aa', '世' } do list[#list + 1] = name end
   for i, name in ipairs(list) do list[i] = base64(name) end
   return list
end

kinds.tiktoken = {
   make = function(dir, random)
      local lines = {}
      for i, name in ipairs(ranks()) do lines[i] = name .. ' ' .. i - 1 .. '\n' end
      return { pick({ write(dir .. '/x.tiktoken', table.concat(lines)),
         write(dir .. '/tokenizer_config.json', [[{"pat_str": "\\s?\\p{L}+|\\s+|.",
            "added_tokens_decoder": {"300": {"content": "<|end|>"}}}]]) }, random) }
   end,
   use = use_tokenizer,
}

kinds.tekken = {
   make = function(dir)
      local vocab = json.array {}
      for i, name in ipairs(ranks()) do vocab[i] = { rank = i - 1, token_bytes = name } end
      return { write(dir .. '/tekken.json', json.encode { vocab = vocab,
         special_tokens = { { rank = 0, token_str = '<unk>', is_control = true } },
         config = { pattern = '\\s?\\p{L}+|.', version = 'v3', default_num_special_tokens = 10,
            default_vocab_size = 10 + #vocab } }) }
   end,
   use = use_tokenizer,
}

-- ---- chats and their templates -----------------------------------------------------------------

local records = {
   chats = { [[{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "é"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "function": {"name": "f",
      "arguments": {"x": 1.0}}}]}, {"role": "tool", "content": "5"}, {"role": "assistant",
      "content": [{"type": "text", "text": "q"}]}], "tools": [{"type": "function"}]}]],
      [[{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
      "system": "s"}]],
      [=[{"instruction": "i", "input": "", "output": "o", "history": [["q", "a"]]}]=],
      [[{"prompt": "p", "completion": "c"}]], [[{"text": "some text"}]] },
   choices = { [[{"question": "q", "choices": ["a", "b", "c"], "answer": "B"}]],
      [[{"ctx": "q", "endings": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}]],
      [[{"query": "q", "options": ["a", "b"], "gold": 1}]] },
   preference = { [[{"prompt": "p", "chosen": "a", "rejected": "b"}]],
      [[{"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant",
      "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]}]] },
}

local plain = '{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}'

-- Kind of a file of records; read(path, template, skip): what reads it.
local function of_records(name, load)
   local function make(dir, random)
      local lines = {}
      for i = 1, 12 do
         lines[i] = pick(records[name], random):gsub('\n%s*', ' ')
      end
      if random(3) == 1 then
         local i = random(#lines)
         lines[i] = mutate.json(lines[i], random)
      end
      local whole = table.concat(lines, '\n')
      if random(6) == 1 then whole = '[' .. table.concat(lines, ',\n') .. ']' end
      return { write(dir .. '/x.jsonl', whole) }
   end
   return { make = make, use = function(dir)
      local template = tide.chat.template(plain)
      pcall(load, dir .. '/x.jsonl', template, true)
      load(dir .. '/x.jsonl', template, false)
   end }
end

kinds.chats = of_records('chats', function(path, template, skip)
   local corpus = tide.data.chat.load(path, { tokenizer = tide.data.bytes, template = template,
      skip_bad = skip })
   corpus.train:raw(0, corpus.train.count)
end)
kinds.choices = of_records('choices', function(path, _, skip)
   return tide.data.choices.load(path, { skip_bad = skip })
end)
kinds.preference = of_records('preference', function(path, template, skip)
   return tide.data.preference.load(path, { tokenizer = tide.data.bytes, template = template,
      skip_bad = skip })
end)

local templates

kinds.template = {
   make = function(dir, random)
      templates = templates or json.decode(read 'spec/golden/jinja.json', { lossless = true })
      local row = templates[1 + random(#templates - 1)]
      return { write(dir .. '/chat_template.jinja', row.template) }
   end,
   use = function(dir)
      local template = tide.chat.load(dir)
      template:render({ { role = 'user', content = 'é' }, { role = 'assistant', content = 'x' } },
         { add_generation_prompt = true, tools = { { type = 'function' } }, s = 'Hello World',
            l = { 3, 1, 2 }, n = 5, d = { b = 1, a = { x = { 1 } } } })
   end,
}

-- ---- folders of models -------------------------------------------------------------------------

local configs = {
   llama = { vocab_size = 32, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2, eos_token_id = 2,
      max_position_embeddings = 64,
      rope_scaling = { rope_type = 'yarn', factor = 2, original_max_position_embeddings = 32 } },
   gemma3 = { vocab_size = 32, hidden_size = 16, head_dim = 4, intermediate_size = 32,
      num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, sliding_window = 3,
      layer_types = { 'sliding_attention', 'full_attention' } },
   gpt2 = { vocab_size = 32, n_embd = 16, n_layer = 1, n_head = 2, n_positions = 32 },
   hybrid = { vocab_size = 32, hidden_size = 16, hybrid_override_pattern = 'M*-',
      num_attention_heads = 2, mamba_head_dim = 8, ssm_state_size = 4, intermediate_size = 12 },
}
local families = { 'llama', 'gemma3', 'gpt2', 'hybrid' }
local saved = {}

-- Returns the files of a folder of a family by name, written once.
local function folder_of(family, parts)
   local key = family .. (parts and '+' or '')
   if not saved[key] then
      local dir = os.tmpname() .. '.model'
      tide.model.save(tide.model[family](configs[family], { seed = 1 }), dir,
         { max_shard = parts and '4kB' or nil })
      write(dir .. '/generation_config.json', '{"eos_token_id": [2, 3], "temperature": 0.5, '
         .. '"top_k": 5, "do_sample": true, "max_new_tokens": 3}')
      saved[key] = {}
      for _, name in ipairs(fs.list('spec', dir)) do saved[key][name] = read(dir .. '/' .. name) end
      fs.remove_dir('spec', dir)
   end
   return saved[key]
end

-- Kind of a folder in which files may change whose names match.
local function of_folder(pattern, parts)
   local function make(dir, random)
      local list = {}
      for name, content in each(folder_of(pick(families, random), parts)) do
         write(dir .. '/' .. name, content)
         if name:find(pattern) then list[#list + 1] = dir .. '/' .. name end
      end
      table.sort(list)
      return { pick(list, random) }
   end
   return { make = make, use = function(dir)
      local model = tide.model.load(dir)
      local ids = tide.tensor({ { 1, 2, 3, 4, 5 } }, { dtype = 'i64' })
      model(ids)
      local opts = tide.model.generation(model)
      opts.tokens, opts.seed = 3, 1
      tide.train.sample.generate(model, { 1, 2 }, opts)
   end }
end

kinds.config = of_folder '^config%.json$'
kinds.generation = of_folder '^generation_config%.json$'
kinds.weights = of_folder '%.safetensors$'
kinds.index = of_folder('%.index%.json$', true)

-- ---- tokens ------------------------------------------------------------------------------------

kinds.megatron = {
   make = function(dir, random)
      local writer = tide.data.megatron.writer(dir .. '/x', { width = 2 * random(2) })
      for i = 1, 12 do writer:add { i, i + 1, i + 2 } end
      writer:finish()
      return { dir .. (random(4) == 1 and '/x.bin' or '/x.idx') }
   end,
   use = function(dir)
      local set = tide.data.megatron.open(dir .. '/x')
      local ok, e = pcall(function()
         local sampler = tide.data.packed { cu = set.cu, seq = 8, batch = 2, seed = 1 }
         sampler:make(set.source, sampler:next())
         set.source:raw(0, set.source.count)
      end)
      set.source:close()
      if not ok then error(e, 0) end
   end,
}

kinds.tokens = {
   make = function(dir, random)
      local words = { 20240520, 1, 64 }
      for i = 4, 256 do words[i] = 0 end
      local head = ffi.string(ffi.new('int32_t[256]', words), 1024)
      return { write(dir .. '/x.bin', (random(2) == 1 and head or '') .. ('\5\0\7\0'):rep(32)) }
   end,
   use = function(dir)
      local source = tide.data.tokens.file(dir .. '/x.bin')
      source:raw(0, source.count)
      source:close()
   end,
}

-- ---- images ------------------------------------------------------------------------------------

local pictures

-- Returns a picture of spec/golden/image.py, as bytes.
local function picture(random)
   if not pictures then
      pictures = {}
      for name, t in each(tide.train.checkpoint.tensors 'spec/golden/image.safetensors') do
         local bytes = name:find '^file/' and string.char(unpack(t:tolist()))
         if bytes then pictures[#pictures + 1] = { name, bytes } end
      end
      table.sort(pictures, function(a, b) return a[1] < b[1] end)
   end
   return pick(pictures, random)[2]
end

kinds.image = {
   make = function(dir, random) return { write(dir .. '/x', picture(random)) } end,
   use = function(dir)
      local h, w = tide.data.image.size(dir .. '/x')
      local proc = tide.data.image.processor { patch_size = 2, min_pixels = 60, max_pixels = 120 }
      local _, grid = proc:read(dir .. '/x')
      local same = table.concat(proc:grid(h, w), ' ') == table.concat(grid, ' ')
      assert(same, 'the header has another size than the pixels')
   end,
}

kinds.processor = {
   make = function(dir)
      local fields = read 'spec/golden/vl_chat/processor_config.json'
      return { write(dir .. '/processor_config.json', fields) }
   end,
   use = function(dir)
      local proc = tide.data.image.processor(dir)
      local x = tide.zeros({ 30, 40, 3 }, { dtype = 'u8' })
      local one, three = proc:tokens(proc:grid(30, 40)), proc:tokens(proc:video_grid(3, 30, 40))
      if one < 1e4 then proc:read(x) end           -- a file may ask for any number of pixels
      if three < 1e4 then proc:frames { x, x, x } end
   end,
}

local files = { kinds = kinds, names = {} }
for name in each(kinds) do files.names[#files.names + 1] = name end
table.sort(files.names)

-- Makes mutant `seed` of a kind in a folder of its own below dir and uses it. Returns whether it
-- works, and the error where it does not.
function files.try(dir, name, seed)
   local random, at = mutate.random(seed), ('%s/%s-%d'):format(dir, name, seed)
   fs.mkdirs('spec', at)
   for _, path in ipairs(kinds[name].make(at, random)) do
      local old = read(path)
      local by_value = path:find '%.json$' and random(2) == 1
      write(path, mutate[by_value and 'json' or 'bytes'](old, random))
   end
   local ok, e = pcall(kinds[name].use, at)
   os.execute("rm -rf '" .. at .. "'")
   return ok, e
end

-- Returns what is wrong with an error as one clear line, or nil.
function files.complaint(e)
   local shown = tostring(e):sub(1, 300)
   if not tide.is_error(e) then return 'is no error of tide: ' .. shown end
   if e.code == 'E_INTERNAL' or e.code == 'E_NOMEM' then return 'is ' .. shown end
   if e.message:find '[%z\1-\8\10-\31\127]' then
      return ('holds control characters: %q'):format(shown)
   end
   if #e.message > 4100 then return ('has %d bytes: %s'):format(#e.message, shown) end
   return nil
end

return files
