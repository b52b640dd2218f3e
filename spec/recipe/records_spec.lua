-- Recipes on JSON Lines of chats, and on several data sets by weights.

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
         assert.matches('cannot open', refused(a .. '--chat-template ' .. dir .. '/x'), 1, true)
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
         assert.matches('does not go with --ids', refused(words .. '--ids "1 2" --stop a'), 1, true)
      end)
   end)
end)
