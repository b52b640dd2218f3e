-- tide.model.generation: generation_config.json as options of train.sample.

local tide = require 'tide'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'

local null = tide.json.null

local function options(generation, config)
   return tide.model.generation { generation = generation, config = config or {} }
end

describe('tide.model.generation', function()
   it('takes the fields that train.sample knows', function()
      local o, said = options { do_sample = true, temperature = 0.6, top_k = 20, top_p = 0.9,
         min_p = 0.05, repetition_penalty = 1.1, max_new_tokens = 64, eos_token_id = { 2, 7 },
         bos_token_id = 1, stop_strings = 'END', transformers_version = '5.0', max_length = 4096,
         use_cache = true, pad_token_id = null, num_beams = 1, top_h = null }
      assert.same({ temperature = 0.6, top_k = 20, top_p = 0.9, min_p = 0.05, tokens = 64,
         repetition_penalty = 1.1, stop = { 2, 7 }, stop_strings = { 'END' } }, o)
      assert.same({ do_sample = true, bos = 1, unused = { 'max_length' } }, said)
      o = options({ eos_token_id = 3 }, { eos_token_id = 4 })
      assert.same({ stop = { 3 } }, o)
   end)

   it('is greedy without do_sample = true, and draws from 50 with it, as transformers', function()
      assert.same({ temperature = 0 }, (options { do_sample = false, temperature = 0.5,
         top_k = 9, top_p = 0.5, min_p = 0.1 }))
      assert.same({ temperature = 1, top_k = 50 }, (options { do_sample = true }))
      assert.same({ temperature = 0.5 }, (options { temperature = 0.5 }))
   end)

   it('takes ids that end a text from config.json where there are no others', function()
      assert.same({ stop = { 5 } }, (options(nil, { eos_token_id = 5 })))
      assert.same({ stop = { 5, 6 } }, (options({ eos_token_id = null },
         { eos_token_id = { 5, 6 } })))
      assert.same({}, (options(nil, { eos_token_id = null })))
   end)

   it('refuses fields that would change the text, all in one line', function()
      local e = raised(options, { num_beams = 4, no_repeat_ngram_size = 3, typical_p = 1,
         suppress_tokens = {}, bad_words_ids = { { 1 } }, guidance_scale = null })
      assert.equal('E_UNSUPPORTED', e.code)
      assert.matches('bad_words_ids = [[1]], no_repeat_ngram_size = 3, num_beams = 4: not '
         .. 'supported', e.message, 1, true)
      for _, name in ipairs { 'typical_p', 'suppress_tokens', 'guidance_scale' } do
         assert.is_nil(e.message:find(name, 1, true))
      end
   end)

   it('names a field of another kind', function()
      for text, config in pairs {
         ["'temperature': expected a number in [0, inf], got \"hot\""] = { temperature = 'hot' },
         ["'top_k': expected an integer in [0, inf], got 1.5"] = { top_k = 1.5 },
         ["'top_p': expected a number in [1e-09, 1], got 2"] = { top_p = 2 },
         ["'eos_token_id': expected a token id or a list of them"] = { eos_token_id = { 'x' } },
         ["'do_sample': expected true or false, got \"yes\""] = { do_sample = 'yes' },
         ["'stop_strings': expected a text or a list of them"] = { stop_strings = { 1 } } } do
         local e = raised(options, config)
         assert.equal('E_FORMAT', e.code)
         assert.matches(text, e.message, 1, true)
      end
      assert.equal('E_FORMAT', raised(options, 5).code)
      assert.equal('E_ARG', raised(tide.model.generation, {}).code)
   end)

   it('names the file of a model that was loaded', function()
      tmp.with(function(dir)
         local model = tide.model.llama({ vocab_size = 16, hidden_size = 8, num_hidden_layers = 1,
            num_attention_heads = 2, intermediate_size = 8 }, { seed = 1 })
         model.generation = { num_beams = 2, eos_token_id = { 3 } }
         tide.model.save(model, dir .. '/m')
         local e = raised(tide.model.generation, (tide.model.load(dir .. '/m')))
         assert.matches(dir .. '/m/generation_config.json: num_beams = 2', e.message, 1, true)
      end)
   end)
end)
