-- Mistakes of users of `tide run`: one line each, with the remedy.

local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

-- Runs a script of this text; returns output and status.
local function script(text, before, after)
   local out, status
   tmp.with(function(dir)
      write(dir .. '/a.lua', text)
      out, status = recipe.shell(('%s %s run %s %s/a.lua'):format(before or '', recipe.program,
         after or '', dir))
   end)
   return out, status
end

local function one_line(out)
   assert.is_nil(out:find 'stack traceback', out)
   assert.equal(1, select(2, out:gsub('\n', '\n')), out)
end

describe('tide run', function()
   it('shows what does not load in one line', function()
      for _, ranks in ipairs { '', '-n 2' } do
         local out, status = script('local x = = 2', nil, ranks)
         assert.equal(1, status, out)
         one_line(out)
         assert.matches("a.lua:1: unexpected symbol near '='", out, 1, true)
      end
   end)

   it('shows the fields of a table that is raised', function()
      local out, status = script "error { code = 3, why = 'no disk', list = {} }"
      assert.equal(1, status)
      assert.matches('{ code = 3, list = a table, why = "no disk" }', out, 1, true)
      out = script "local t = {} for i = 1, 20 do t[i] = i end error(t)"
      assert.matches(', 13 more })', out, 1, true)
   end)

   it('says what to write for a method that was called with a dot', function()
      local out, status = script [[
         local data = require('tide').data
         local sampler = data.sampler { count = 99, seq = 8, batch = 2 }
         sampler.next() ]]
      assert.equal(1, status, out)
      assert.matches('(a nil value); call a method with a colon: object:method(...)', out, 1, true)
   end)

   it('names the variable of the environment that is wrong or misspelt', function()
      local out, status = script("print 'ran'", 'env TIDE_CHECK=yes')
      assert.equal(2, status, out)
      assert.matches("TIDE_CHECK: expected a whole number in [0, 1], got 'yes'", out, 1, true)
      one_line(out)
      out, status = script("print 'ran'", 'env TIDE_CHEK=1')
      assert.equal(0, status, out)
      assert.matches('warning: TIDE_CHEK is not read; did you mean TIDE_CHECK?\n', out, 1, true)
      out = script("print 'ran'", 'env TIDE_memory=1g')
      assert.matches('TIDE_memory is not read; did you mean TIDE_MEMORY?\n', out, 1, true)
      out = script("print 'ran'", 'env TIDE_CHECK=0 TIDE_OTHER=1 TIDE_TRACEBACK=1')
      assert.equal('ran\n', out)
   end)

   it('shows an absent device in one line, whatever recipe asks for it', function()
      if require('tide').cuda.is_available() then return pending 'there is a GPU' end
      tmp.with(function(dir)
         local out, status = recipe.ranks(1, ('pretrain.lua --data %s --out %s/run --steps 1 '
            .. '--sample 0 --seq 16 --dim 16 --heads 2 --layers 1'):format(
            recipe.path 'README.md', dir))
         assert.equal(0, status, out)
         for _, words in ipairs { 'generate.lua --prompt a', 'logprob.lua --text ab' } do
            out, status = recipe.ranks(1, ('%s --from %s/run --device cuda'):format(words, dir))
            assert.is_true(status ~= 0, out)
            assert.matches("device 'cuda' is not available", out, 1, true)
            one_line(out)
         end
      end)
   end)

   it('shows wrong numbers of threads and too little memory in one line', function()
      local out, status = recipe.ranks(1, 'generate.lua --threads 10000')
      assert.equal(2, status, out)
      assert.matches('--threads: expected an integer in [0, 1024]', out, 1, true)
      one_line(out)
      tmp.with(function(dir)
         out, status = recipe.shell(('%s run -p memory=2m %s --data %s --out %s/run --steps 1 '
            .. '--sample 0 --seq 64'):format(recipe.program, recipe.path 'recipes/pretrain.lua',
            recipe.path 'README.md', dir))
         assert.equal(1, status, out)
         assert.is_nil(out:find 'stack traceback', out)
         assert.matches('a smaller --batch or --seq, more --accum, --recompute selective or full',
            out, 1, true)
      end)
   end)

   it('names the option whose path is empty, as a variable that is not set makes it', function()
      for _, name in ipairs { 'data', 'out', 'from' } do
         local out, status = recipe.ranks(1, ('pretrain.lua --steps 1 --%s='):format(name))
         assert.equal(2, status, out)
         assert.matches(('--%s: expected a path, got an empty text'):format(name), out, 1, true)
         one_line(out)
      end
   end)

   it('refuses a folder to export to or from that cannot serve', function()
      for words, want in pairs {
         ['run %s --from a --data b --out /nowhere/x --export /nowhere/x/'] = 'finetune: --export '
            .. '/nowhere/x/ is --out, which holds the checkpoints; choose another folder',
         ['export --tokenizer /nowhere a b'] = 'export: --tokenizer: expected a folder with a '
            .. 'tokenizer (tokenizer.json, ...), got "/nowhere"' } do
         local out, status = recipe.shell(recipe.program .. ' '
            .. words:format(recipe.path 'recipes/finetune.lua'))
         assert.equal(2, status, out)
         assert.matches(want, out, 1, true)
      end
   end)
end)
