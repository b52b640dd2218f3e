-- Sampling from a checkpoint that recipes/pretrain.lua made from text, or from a published folder.
--
--    tide run recipes/generate.lua --from runs/pretrain --prompt "local function"
--    tide run recipes/generate.lua --from models/llama --ids "1 450 4996"
--
-- The tokenizer of the folder turns text into ids; without one a model of another vocabulary than
-- bytes continues --ids, and its ids are printed.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local err = require 'tide.util.err'

local options = {
   { 'from', 'runs/pretrain', 'a checkpoint, the folder of a run (its newest is taken), or a '
     .. 'published folder (config.json, model.safetensors)' },
   { 'prompt', '-- ', 'text to continue' },
   { 'ids', nil, 'token ids to continue, in place of --prompt; ids are printed', type = 'string' },
   { 'tokens', 400, 'tokens to sample', min = 1, also = { 'max-tokens', 'max-new-tokens' } },
   { 'temperature', 0.8, '0 takes the most likely token', type = 'number', min = 0 },
   { 'top-k', 40, 'draw from the k most likely; 0: all', min = 0 },
   { 'top-p', 1, 'draw from the most likely that make up this share', type = 'number', min = 1e-6,
     max = 1 },
   { 'min-p', 0, 'leave out what is less likely than this share of the best', type = 'number',
     min = 0, max = 1 },
   { 'repetition-penalty', 1, 'above 1: tokens that were there get rarer', type = 'number',
     min = 1e-6 },
   { 'stop', nil, 'a text that ends the answer; may be given several times', type = 'string',
     list = true },
   { 'seed', 0, 'of the draws', min = 0 },
   { 'device', 'cpu', 'where to compute', choices = { 'cpu', 'ref', 'cuda' } },
   { 'threads', 0, 'threads; 0: as the program decides', min = 0, max = 4096 },
}

-- What is continued, the ids that end a text, if any, and the tokenizer of texts.
local function read_prompt(tide, opt, model)
   local bytes, n = tide.data.bytes, model.config.vocab_size
   if opt.ids then
      local list = {}
      for word in opt.ids:gmatch '[^%s,]+' do
         local id = tonumber(word)
         if not id or id % 1 ~= 0 or id < 0 or id >= n then
            err.usage('generate', "--ids: expected whole numbers below %d, got '%s'", n, word)
         end
         list[#list + 1] = id
      end
      if #list == 0 then err.usage('generate', '--ids: expected at least one id') end
      if opt.stop then err.usage('generate', '--stop is about text; it does not go with --ids') end
      local eos = model.config.eos_token_id
      return list, eos
   end
   local tok = tide.tokenizer.find(opt.from)
   if tok then
      return opt.prompt, model.config.eos_token_id or tok.eos, tok
   end
   if n ~= bytes.vocab_size then
      err.usage('generate', '%s has a vocabulary of %d; text is for the byte vocabulary (%d) or '
         .. 'a folder with a tokenizer, give --ids', opt.from, n, bytes.vocab_size)
   end
   if opt.prompt == '' then err.usage('generate', '--prompt: expected at least one character') end
   return opt.prompt, bytes.eos, bytes
end

local function show(text)
   io.stdout:write(text)
   io.stdout:flush()
end

-- On several ranks the first one samples; the others have nothing to add.
local function run(opt)
   local tide = require 'tide'
   if tide.comm.world().rank > 0 then return end
   if opt.threads > 0 then tide.default():set_nthread(opt.threads) end
   local model = err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_SHAPE', 'E_DEVICE',
      'E_UNSUPPORTED' }, tide.model.load, opt.from, { device = opt.device })
   local prompt, stop, tokenizer = read_prompt(tide, opt, model)
   io.stdout:write(opt.ids or opt.prompt)
   tide.train.sample.generate(model, prompt, {
      tokens = opt.tokens, temperature = opt.temperature, top_k = opt.top_k, top_p = opt.top_p,
      min_p = opt.min_p, repetition_penalty = opt.repetition_penalty,
      stop_strings = type(opt.stop) == 'string' and { opt.stop } or opt.stop,
      seed = opt.seed, stop = stop, device = opt.device, tokenizer = tokenizer,
      on_token = not tokenizer and function(id) show((' %d'):format(id)) end or nil,
      on_text = tokenizer and show,
   })
   io.stdout:write '\n'
end

args.main(function(...)
   local opt = args.parse('generate: sample from a checkpoint', options, { ... })
   if opt then run(opt) end
end, ...)
