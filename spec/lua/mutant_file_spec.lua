-- Files of tokenizers, chats, templates, models, tokens and images with random changes: each works,
-- or is refused by one clear line. spec/deep/mutant_files.lua makes more of them, in processes of
-- their own, and counts seconds and bytes.

local tide = require 'tide'
local each = require 'tide.util.each'
local files = require 'spec.support.mutant_files'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'

local read, write = require('spec.support.files').read, require('spec.support.files').write

local json = tide.json

describe('a file with random changes', function()
   for _, name in ipairs(files.names) do
      it('works or is refused in one line: ' .. name, function()
         tmp.with(function(dir)
            for seed = 1, 40 do
               local ok, e = files.try(dir, name, seed)
               local problem = not ok and files.complaint(e) or nil
               assert.is_nil(problem, ('%s %d %s'):format(name, seed, problem or ''))
            end
         end)
      end)
   end
end)

-- The error of loading a tokenizer.json after change(value).
local function refused(dir, change)
   local value = json.decode(read 'spec/golden/tokenizer/gpt2.json').tokenizer
   change(value)
   write(dir .. '/tokenizer.json', json.encode(value))
   return raised(function() tide.tokenizer.load(dir):encode 'a b' end, nil)
end

describe('a tokenizer.json', function()
   it('is refused by the field that is wrong', function()
      tmp.with(function(dir)
         for _, row in ipairs {
            { 'added_tokens%[1%]: expected an object, got 5',
               function(v) v.added_tokens = json.array { 5 } end },
            { "pattern a%(%-b: missing closing parenthesis", function(v)
               v.pre_tokenizer = { type = 'Split', pattern = { Regex = 'a(-b' },
                  behavior = 'Isolated' }
            end },
            { 'added_tokens: expected a list, got "x"', function(v) v.added_tokens = 'x' end },
            { 'model.vocab: expected an object, got a list',
               function(v) v.model.vocab = json.array { 1, 2 } end },
            { 'normalizer.prepend: expected a text, got 7',
               function(v) v.normalizer = { type = 'Prepend', prepend = 7 } end },
            { "pre_tokenizer.behavior 'invert' is not supported", function(v)
               v.pre_tokenizer = { type = 'Split', pattern = { String = 'a' }, behavior = 'invert' }
            end },
            { 'post_processor.single%[1%].SpecialToken: expected an object', function(v)
               v.post_processor = { type = 'TemplateProcessing', single = json.array { { A = 1 } } }
            end },
            { 'the id of piece "zz": expected an integer in', function(v)
               v.model.vocab.zz = 2 ^ 30
            end },
         } do
            local e = refused(dir, row[2])
            assert.matches(row[1], e.message)
            assert.matches('/tokenizer.json: ', e.message)
            assert.equal('tokenizer.load', e.op)
         end
      end)
   end)

   it('cannot make a text grow without bound', function()
      tmp.with(function(dir)
         local e = refused(dir, function(v)
            local list = json.array {}
            for i = 1, 12 do
               list[i] = { type = 'Replace', pattern = { String = 'a' }, content = ('a'):rep(16) }
            end
            v.normalizer = { type = 'Sequence', normalizers = list }
         end)
         assert.equal('E_UNSUPPORTED', e.code)
         assert.matches('makes more than 1048768 bytes of the text', e.message)
      end)
   end)
end)

describe('a message about what a file holds', function()
   it('is printable and bounded, whole characters kept', function()
      local e = raised(function()
         tide.chat.template('{% ' .. ('é'):rep(50000) .. ' %}')
      end, nil)
      assert.is_true(#e.message < 500, #e.message)
      assert.is_nil(require('tide.tokenizer.build').bad_utf8(e.message))
      assert.matches('unexpected character \'\\7\'', raised(function()
         tide.chat.template '{{ \7 }}'
      end, nil).message)
      for key, shown in each { ['a\\nb'] = "'a%?b' twice",
         ['x' .. ('é'):rep(60)] = "'x[é]+' twice" } do
         local text = ('{"%s": 1, "%s": 2}'):format(key, key)
         local message = raised(json.decode, text).message
         assert.matches(shown, message)
         assert.is_nil(require('tide.tokenizer.build').bad_utf8(message))
      end
      assert.matches('got "a\\n"', raised(function() tide.zeros('a\n') end, nil).message)
   end)
end)
