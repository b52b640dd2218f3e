-- Tokenizers against the `tokenizers` package: files and answers of spec/golden/tokenizer.py.

local tide = require 'tide'
local decoder = require 'tide.tokenizer.decoder'
local fs = require 'tide.util.fs'

local json = fs.io().json
local folder = os.tmpname()
os.remove(folder)
fs.io().mkdir(folder)

local kinds = { 'gpt2', 'added', 'llama3', 'qwen2', 'falcon', 'llama2', 'llama2_metaspace', 't5',
   'bert', 'bert_cased' }

local loaded = {}

-- The tokenizer of a golden file, and the cases in it.
local function load(name)
   if not loaded[name] then
      local value = json.decode(fs.read('spec', 'spec/golden/tokenizer/' .. name .. '.json'))
      local path = folder .. '/' .. name .. '.json'
      fs.write('spec', path, json.encode(value.tokenizer))
      loaded[name] = { tide.tokenizer.load(path), value.cases }
   end
   return loaded[name][1], loaded[name][2]
end

local function plain(list)
   local t = {}
   for i, v in ipairs(list) do t[i] = v end
   return t
end

teardown(function() os.execute("rm -rf '" .. folder .. "'") end)

for _, kind in ipairs(kinds) do
   describe('tokenizer ' .. kind, function()
      it('gives the ids of the original', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            assert.same(plain(case.ids), (tok:encode(case.text, { special = true })))
            assert.same(plain(case.plain), (tok:encode(case.text, { special = true,
               add_special_tokens = false })))
            assert.same(plain(case.user), (tok:encode(case.text, { add_special_tokens = false })))
         end
      end)

      it('gives the texts of the original, also id by id', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            assert.equal(case.decoded, tok:decode(case.ids))
            assert.equal(case.special, tok:decode(case.ids, { special = true }))
            local stream, parts = tok:stream(), {}
            for i, id in ipairs(case.ids) do
               parts[i] = stream:push(id)
               assert.equal(parts[i], (decoder.repair(parts[i])))
            end
            parts[#parts + 1] = stream:finish()
            assert.equal(case.decoded, table.concat(parts))
         end
      end)

      it('says where each id lies', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            local ids, offsets = tok:encode(case.text, { special = true, offsets = true })
            assert.equal(#ids, #offsets)
            local last = 1
            for _, place in ipairs(offsets) do
               assert.is_true(place[1] >= 1 and place[2] <= #case.text)
               assert.is_true(place[1] >= last)
               last = place[1]
            end
         end
      end)

      it('gives the same in a batch, on any number of threads, and as bytes', function()
         local tok, cases = load(kind)
         local texts, want, bytes = {}, {}, {}
         for round = 1, 3 do
            for _, case in ipairs(cases) do
               texts[#texts + 1] = case.text .. (' again'):rep(round)
               want[#texts] = tok:encode(texts[#texts])
               local t = {}
               for i, id in ipairs(want[#texts]) do
                  t[i] = string.char(id % 256, math.floor(id / 256))
               end
               bytes[#texts] = table.concat(t)
            end
         end
         for _, threads in ipairs { 1, 3 } do
            assert.same(want, (tok:encode_batch(texts, { threads = threads })))
            assert.same(bytes, (tok:encode_batch(texts, { threads = threads, width = 2 })))
         end
      end)
   end)
end

-- Offsets of the original count characters; a part of a character is all of it there.
local function in_characters(text, place)
   local count, at = 0, {}
   for i = 1, #text do
      if text:byte(i) < 0x80 or text:byte(i) >= 0xC0 then count = count + 1 end
      at[i] = count
   end
   return { (at[place[1]] or count + 1) - 1, at[place[2]] or 0 }
end

describe('offsets', function()
   for _, kind in ipairs { 'gpt2', 'llama3', 'llama2', 'llama2_metaspace' } do
      it('of ' .. kind .. ' are those of the original', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            local _, offsets = tok:encode(case.text, { special = true, offsets = true,
               add_special_tokens = false })
            for i, place in ipairs(offsets) do
               assert.same(plain(case.offsets[i]), in_characters(case.text, place))
            end
         end
      end)
   end

   it('cut the text into the bytes of the tokens', function()
      local tok = load 'gpt2'
      local text, parts = 'naïve 😀 données\0\1', {}
      local _, offsets = tok:encode(text, { offsets = true })
      for i, place in ipairs(offsets) do parts[i] = text:sub(place[1], place[2]) end
      assert.equal(text, table.concat(parts))
   end)
end)

describe('text that is not UTF-8', function()
   it('is refused with its place, or replaced as asked', function()
      local tok = load 'gpt2'
      local ok, why = pcall(tok.encode, tok, 'abc\255')
      assert.is_false(ok)
      assert.equal('E_ARG', why.code)
      assert.truthy(tostring(why):find 'UTF%-8')
      for bad, good in pairs { ['a\255b'] = 'a�b', ['\226\130'] = '�', ['\226\130a'] = '�a',
         ['\237\160\128'] = '���', ['\240\159\152'] = '�', ['\244\144\128\128'] = '����' } do
         assert.same(tok:encode(good), (tok:encode(bad, { invalid = 'replace' })))
      end
      ok, why = pcall(tok.encode_batch, tok, { 'a', 'b\128' })
      assert.is_false(ok)
      assert.truthy(tostring(why):find('texts[1]', 1, true))
   end)

   it('of tokens comes as U+FFFD, and half characters wait', function()
      local tok = load 'gpt2'
      local ids = tok:encode '€'
      local stream, parts = tok:stream(), {}
      for i, id in ipairs(ids) do parts[i] = stream:push(id) end
      assert.equal('€', table.concat(parts))
      assert.equal('', stream:finish())
      table.remove(ids)
      if #ids > 0 then assert.equal('�', tok:decode(ids)) end
   end)
end)

describe('a damaged tokenizer.json', function()
   local function refused(change)
      local value = json.decode(fs.read('spec', 'spec/golden/tokenizer/gpt2.json')).tokenizer
      change(value)
      local path = folder .. '/damaged.json'
      fs.write('spec', path, json.encode(value))
      local ok, why = pcall(tide.tokenizer.load, path)
      assert.is_false(ok)
      assert.is_true(tide.is_error(why), tostring(why))
      return tostring(why)
   end

   it('is refused by name', function()
      assert.truthy(refused(function(t) t.model.type = 'Magic' end):find 'Magic')
      assert.truthy(refused(function(t) t.pre_tokenizer.type = 'Odd' end):find 'Odd')
      assert.truthy(refused(function(t) t.normalizer = { type = 'Strange' } end):find 'Strange')
      assert.truthy(refused(function(t) t.decoder.type = 'Other' end):find 'Other')
      assert.truthy(refused(function(t) t.model.merges[3] = { 'no', 'piece' } end):find 'merge 3')
      assert.truthy(refused(function(t) t.model.vocab.a = 1.5 end):find '1.5')
      assert.truthy(refused(function(t)
         t.pre_tokenizer = { type = 'Split', pattern = { Regex = '(' }, behavior = 'Isolated' }
      end):find 'pattern')
      assert.truthy(refused(function(t) t.model = nil end):find 'tokenizer.json')
   end)

   it('and a folder without one name what was looked for', function()
      local ok, why = pcall(tide.tokenizer.load, folder .. '/nothing')
      assert.is_false(ok)
      assert.truthy(tostring(why):find 'no such')
      fs.io().mkdir(folder .. '/empty')
      ok, why = pcall(tide.tokenizer.load, folder .. '/empty')
      assert.is_false(ok)
      assert.truthy(tostring(why):find 'tekken')
   end)
end)

describe('a folder', function()
   it('names its special tokens', function()
      local path = folder .. '/named'
      fs.io().mkdir(path)
      local value = json.decode(fs.read('spec', 'spec/golden/tokenizer/gpt2.json')).tokenizer
      fs.write('spec', path .. '/tokenizer.json', json.encode(value))
      fs.write('spec', path .. '/tokenizer_config.json', '{"eos_token": {"content": '
         .. '"<|endoftext|>", "lstrip": false}, "bos_token": null, "model_max_length": 1e30}')
      fs.write('spec', path .. '/special_tokens_map.json', '{"pad_token": "<|im_start|>"}')
      local tok = tide.tokenizer.load(path)
      assert.same({ eos_token = '<|endoftext|>', pad_token = '<|im_start|>' }, tok.special)
      assert.same({ 0, 1 }, { tok.eos, tok.pad })
      assert.is_nil(tok.bos)
      assert.equal(0, tok:id '<|endoftext|>')
      assert.equal('<|endoftext|>', tok:token(0))
      assert.equal(420, tok.vocab_size)
   end)
end)
