-- Recipes on JSON Lines of chats, and on several data sets by weights.

local tide = require 'tide'
local fs = require 'tide.util.fs'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local small = ' --dim 32 --heads 2 --layers 1 --seq 64 --batch 4 --steps 6 --sample 0 --threads 1 '
   .. '--val-windows 4 '

local function ok(words)
   local out, status = recipe.luajit(words)
   assert.equal(0, status, out)
   return out
end

local function refused(words)
   local out, status = recipe.luajit(words)
   assert.is_true(status == 1 or status == 2, status .. ': ' .. out)
   assert.is_nil(out:find('stack traceback', 1, true), out)
   return out
end

-- Calls fn(dir) with chats in a.jsonl (the last line broken), texts in b.jsonl, and a template.
local function with_data(fn)
   return tmp.with(function(dir)
      local chats, texts = {}, {}
      for i = 1, 80 do
         chats[i] = ('{"messages": [{"role": "user", "content": "%d?"}, '):format(i % 7)
            .. ('{"role": "assistant", "content": "%d!"}]}\n'):format(i % 7)
         texts[i] = ('{"text": "line %d of a text, which goes on"}\n'):format(i % 5)
      end
      write(dir .. '/a.jsonl', table.concat(chats) .. '{"messages": 5}\n')
      write(dir .. '/b.jsonl', table.concat(texts))
      write(dir .. '/t.jinja', '{% for m in messages %}<{{ m.role }}>{% generation %}'
         .. '{{ m.content }}{% endgeneration %}{% endfor %}')
      return fn(dir)
   end)
end

describe('recipes/pretrain.lua', function()
   it('learns from records, several by weights, and resumes', function()
      with_data(function(dir)
         local words = ('pretrain.lua --data %s/a.jsonl --data %s/b.jsonl --data-weight 3 '
            .. '--data-weight 1 --chat-template %s/t.jinja --skip-bad --packed --out %s/run')
            :format(dir, dir, dir, dir)
         local out = ok(words .. small)
         assert.matches('1 broken record left out; %S+/a.jsonl, line 81: messages: ', out)
         assert.matches('validation loss %d', out)
         assert.matches('2 files', out, 1, true)
         write(dir .. '/short.txt', 'x')
         assert.matches(('--seq 64: a window needs 65 tokens, the training part of --data %s'
            .. '/short.txt has 2'):format(dir), refused(('pretrain.lua --overwrite --out %s/run '
            .. '--data %s/a.jsonl --data %s/short.txt --data-weight 1 --data-weight 2')
               :format(dir, dir, dir) .. small), 1, true)
         out = ok('pretrain.lua --resume --steps 8 --out ' .. dir .. '/run')
         assert.matches('step 8/8', out, 1, true)
         out = refused(('pretrain.lua --resume --steps 9 --out %s/run --data-weight 1 '
            .. '--data-weight 1'):format(dir))
         assert.matches('share', out, 1, true)
      end)
   end)

   it('refuses broken records, missing templates and weights that do not fit', function()
      with_data(function(dir)
         local a = 'pretrain.lua --out ' .. dir .. '/run --data ' .. dir .. '/a.jsonl' .. small
         assert.matches('a.jsonl, line 81: messages: expected a list, got 5',
            refused(a .. '--chat-template ' .. dir .. '/t.jinja'), 1, true)
         assert.matches('there is no template', refused(a .. '--records'), 1, true)
         assert.matches('cannot read', refused(a .. '--chat-template ' .. dir .. '/x'), 1, true)
         assert.matches('one for each --data (1), got 2', refused(a .. '--records --data-weight 1 '
            .. '--data-weight 2'), 1, true)
         write(dir .. '/bad.jinja', 'x\n{{ y')
         assert.matches("line 2, column 1: the tag has no '}}'",
            refused(a .. '--chat-template ' .. dir .. '/bad.jinja'), 1, true)
      end)
   end)

   it('takes weights of plain texts', function()
      with_data(function(dir)
         local out = ok(('pretrain.lua --out %s/run --data %s/a.jsonl --data %s/b.jsonl '
            .. '--data-weight 1 --data-weight 2'):format(dir, dir, dir) .. small)
         assert.matches('2 files', out, 1, true)
      end)
   end)
end)

describe('recipes/generate.lua', function()
   it('ends at a stop text, and says which options are about text', function()
      with_data(function(dir)
         ok('pretrain.lua --out ' .. dir .. '/run --data ' .. dir .. '/b.jsonl' .. small)
         local words = 'generate.lua --from ' .. dir .. '/run --prompt "line " --tokens 30 '
         local all = ok(words)
         local at = assert(all:find('%w', 6), all)              -- the first letter of the answer
         local out = ok(words .. ' --stop "' .. all:sub(at, at) .. '" --min-p 0')
         assert.equal(all:sub(1, at - 1) .. '\n', out)
         assert.are_not.equal(all, ok(words .. ' --repetition-penalty 5'))
         assert.matches('does not work with --ids', refused(words .. '--ids "1 2" --stop a'), 1,
            true)
      end)
   end)
end)

describe('recipes/pretrain.lua beside a model', function()
   -- Calls fn(dir, folder of a model of 420 ids with tokenizer and template).
   local function with_model(fn)
      with_data(function(dir)
         local folder = dir .. '/m'
         tide.model.save(tide.model.llama({ vocab_size = 420, hidden_size = 16,
            num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 24 },
            { seed = 5 }), folder)
         local value = tide.json.decode(fs.read('spec', 'spec/golden/tokenizer/gpt2.json'))
         write(folder .. '/tokenizer.json', tide.json.encode(value.tokenizer))
         write(folder .. '/tokenizer_config.json', '{"eos_token":"<|endoftext|>"}')
         write(folder .. '/chat_template.jinja', '{% for m in messages %}{{ m.role }}: '
            .. '{{ m.content }}{{ eos_token }}{% endfor %}')
         write(folder .. '/chats.jsonl', ('{"messages":[{"role":"user","content":"what?"},'
            .. '{"role":"assistant","content":"the quick function returns"}]}\n'):rep(200))
         return fn(dir, folder)
      end)
   end

   it('reads chats by the tokenizer and the template of a model, with or without it', function()
      with_model(function(dir, folder)
         local words = ('pretrain.lua --records --data %s/chats.jsonl --out %s/run --overwrite')
            :format(folder, dir) .. small
         local out = ok(words .. '--tokenizer ' .. folder)
         local count = out:match '(%d+) training tokens'
         out = ok(words .. '--from ' .. folder)
         assert.equal(count, out:match '(%d+) training tokens')
         local files = ('--tokenizer %s/tokenizer.json '):format(folder)
         assert.equal(count, ok(words .. files):match '(%d+) training tokens')
         out = ok(words .. files .. ('--chat-template %s/chat_template.jinja'):format(folder))
         assert.equal(count, out:match '(%d+) training tokens')
         assert.matches(('--chat-template: %s has no chat template; give a file'):format(dir),
            refused(words .. '--chat-template ' .. dir), 1, true)
         for _, name in ipairs { 'tokenizer.json', 'chat_template.jinja' } do
            assert.equal(fs.read('spec', folder .. '/' .. name),
               fs.read('spec', dir .. '/run/' .. name))
         end
      end)
   end)

   it('leaves no tokenizer of the run that it replaces, nor joins one that is there', function()
      with_model(function(dir, folder)
         local words = ('pretrain.lua --data %s/b.jsonl --binary --out %s/run '):format(dir, dir)
            .. small
         ok(words .. '--tokenizer ' .. folder)
         assert.is_true(fs.exists(dir .. '/run/tokenizer.json'))
         write(dir .. '/run/notes.txt', 'mine')
         assert.matches('b.jsonl is read as plain text; --records reads its records', ok(
            ('pretrain.lua --data %s/b.jsonl --out %s/plain '):format(dir, dir) .. small), 1, true)
         ok(words .. '--overwrite')
         for name, is_there in pairs { ['tokenizer.json'] = false, ['notes.txt'] = true,
            ['tokenizer_config.json'] = false, ['chat_template.jinja'] = false } do
            assert.equal(is_there, fs.exists(dir .. '/run/' .. name), name)
         end
         fs.mkdirs('spec', dir .. '/other')
         write(dir .. '/other/tokenizer.json', '{}')
         assert.matches('holds tokenizer.json, and the checkpoints of this run of bytes would be '
            .. 'read with it; choose another --out', refused(words .. '--out ' .. dir .. '/other'),
            1, true)
         assert.is_true(fs.exists(dir .. '/other/tokenizer.json'))
      end)
   end)

   it('goes on with the tokenizer of the run, which is exported with it', function()
      with_model(function(dir, folder)
         write(dir .. '/text.txt', ('the quick function returns '):rep(400))
         local words = ('pretrain.lua --data %s/text.txt --out %s/run'):format(dir, dir)
         ok(words .. ' --from ' .. folder .. small)
         fs.remove_dir('spec', folder)
         assert.matches('step 7/7', ok('pretrain.lua --resume --steps 7 --out ' .. dir .. '/run'))
         tide.model.export(dir .. '/run', dir .. '/out')
         assert.equal(420, tide.tokenizer.load(dir .. '/out').vocab_size)
      end)
   end)

   it('refuses a vocabulary that is too small, and takes a larger one', function()
      with_model(function(dir, folder)
         local words = ('pretrain.lua --records --data %s/chats.jsonl --out %s/run '
            .. '--tokenizer %s'):format(folder, dir, folder) .. small
         assert.matches('--vocab 100: the data has a vocabulary of 420',
            refused(words .. '--vocab 100'), 1, true)
         ok(words .. '--vocab 512')
         assert.equal(512, tide.model.load(dir .. '/run').config.vocab_size)
         tide.model.save(tide.model.llama({ vocab_size = 40, hidden_size = 16,
            num_hidden_layers = 1, num_attention_heads = 2 }), dir .. '/small')
         assert.matches('its vocabulary of 40 is smaller than that of the data, 420',
            refused(words .. '--overwrite --from ' .. dir .. '/small'), 1, true)
         assert.matches('neither a tokenizer.json', refused(words .. '--overwrite --tokenizer '
            .. folder .. '/chats.jsonl'), 1, true)
      end)
   end)

   it('refuses files that are not what their names say, with and without tokenizer', function()
      with_model(function(dir, folder)
         local ids, wide = {}, {}
         for i = 1, 4000 do
            ids[i] = string.char(i * 7 % 160, i % 2)
            wide[i] = string.char(i * 7 % 256, i % 251, i % 2, 0)
         end
         local index = 'MMIDIDX\0\0' .. ('\1\0'):rep(200)
         write(dir .. '/elf.txt', '\127ELF\2\1\1\0\0\0')
         write(dir .. '/elf.bin', '\127ELF\2\1\1\0\0\0')
         write(dir .. '/idx.bin', index)
         write(dir .. '/idx.txt', index)
         write(dir .. '/u16.bin', table.concat(ids))
         write(dir .. '/u32.bin', table.concat(wide))
         write(dir .. '/gz.bin', '\31\139\8\0\7\7\7')
         local rows = {
            { 'elf.txt', 'it is a program' }, { 'elf.bin', 'it is a program' },
            { 'idx.txt', 'it is the index of a Megatron data set' },
            { 'idx.bin', 'it is the index of a Megatron data set' },
            { 'gz.bin', 'no multiple of the token width 2; it is compressed with gzip' },
            { 'u32.bin --vocab 420', 'as if ids had 4 bytes' },
            { 'u16.bin --vocab 420 --token-bytes 4', "the model's vocab_size is 420" },
            { 'elf.txt --records', 'is no JSON Lines: it is a program' },
            { 'u16.bin --records', 'it holds bytes of 0' },
         }
         for _, row in ipairs(rows) do
            for _, more in ipairs { '', ' --tokenizer ' .. folder } do
               local words = ('pretrain.lua --out %s/run --data %s/%s%s'):format(dir, dir, row[1],
                  more)
               assert.matches(row[2], refused(words .. small), 1, true)
            end
         end
         local words = ('pretrain.lua --out %s/run --data %s/u16.bin '):format(dir, dir) .. small
         assert.matches("is id %d+; the model's vocab_size is 256", refused(words .. '--vocab 256'))
         assert.matches('--vocab is needed', refused(words), 1, true)
         ok(words .. '--from ' .. folder)
      end)
   end)
end)

describe('recipes/tokenizer.lua', function()
   it('reads every --data, names a file that is not text, and replaces nothing unasked', function()
      tmp.with(function(dir)
         write(dir .. '/a.txt', ('low lower '):rep(9))
         write(dir .. '/b.txt', ('new newer '):rep(9))
         local words = ('tokenizer.lua --out %s/tok --vocab-size 270 --data %s/a.txt'):format(dir,
            dir)
         assert.matches('^2 files, 180 bytes: ', ok(words .. ' --data ' .. dir .. '/b.txt'))
         local before = fs.read('spec', dir .. '/tok/tokenizer.json')
         assert.matches('/tok/tokenizer.json is there already', refused(words), 1, true)
         assert.equal(before, fs.read('spec', dir .. '/tok/tokenizer.json'))
         assert.matches('^1 file, 90 bytes: ', ok(words .. ' --overwrite'))
         for name, want in pairs { ['a\255'] = 'c.txt: byte 2 is not UTF-8',
            ['a\0'] = 'c.txt is not text, it has a byte of 0', [''] = 'c.txt has no text' } do
            write(dir .. '/c.txt', name)
            assert.matches(want, refused(('tokenizer.lua --out %s/other --data %s/c.txt'):format(
               dir, dir)), 1, true)
         end
      end)
   end)
end)
