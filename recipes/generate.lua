-- Sampling from a checkpoint that recipes/pretrain.lua made from text.
--
--    tide run recipes/generate.lua --from runs/pretrain --prompt "local function"

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local err = require 'tide.util.err'

local options = {
   { 'from', 'runs/pretrain', 'a checkpoint, or the folder of a run (its newest is taken)' },
   { 'prompt', '-- ', 'text to continue' },
   { 'tokens', 400, 'tokens to sample', min = 1, also = { 'max-tokens', 'max-new-tokens' } },
   { 'temperature', 0.8, '0 takes the most likely token', type = 'number', min = 0 },
   { 'top-k', 40, 'draw from the k most likely; 0: all', min = 0 },
   { 'top-p', 1, 'draw from the most likely that make up this share', type = 'number', min = 1e-6,
     max = 1 },
   { 'seed', 0, 'of the draws', min = 0 },
   { 'device', 'cpu', 'where to compute', choices = { 'cpu', 'ref', 'cuda' } },
   { 'threads', 0, 'threads; 0: as the program decides', min = 0, max = 4096 },
}

local function load_model(tide, opt)
   local saved = tide.train.checkpoint.load(opt.from, { device = opt.device, model_only = true })
   if type(saved.plain.config) ~= 'table' then
      err.raise('E_FORMAT', 'generate', '%s has no model configuration', saved.folder)
   end
   local _, first = next(saved.model)
   local model = require('tide.model.family').build('generate', saved.plain,
      { dtype = first.dtype, device = opt.device, init = false })
   model:load_state_dict(saved.model)
   return model:eval(), saved
end

-- On several ranks the first one samples; the others have nothing to add.
local function run(opt)
   local tide = require 'tide'
   if tide.comm.world().rank > 0 then return end
   if opt.threads > 0 then tide.default():set_nthread(opt.threads) end
   local bytes = tide.data.bytes
   local model, saved = err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_SHAPE', 'E_DEVICE',
      'E_UNSUPPORTED' }, load_model, tide, opt)
   if model.config.vocab_size ~= bytes.vocab_size then
      err.usage('generate', '%s has a vocabulary of %d; only the byte vocabulary (%d) can be '
         .. 'printed', saved.folder, model.config.vocab_size, bytes.vocab_size)
   end
   if opt.prompt == '' then err.usage('generate', '--prompt: expected at least one character') end
   io.stdout:write(opt.prompt)
   tide.train.sample.generate(model, bytes.ids(opt.prompt), {
      tokens = opt.tokens, temperature = opt.temperature, top_k = opt.top_k, top_p = opt.top_p,
      seed = opt.seed, stop = bytes.eos, device = opt.device,
      on_token = function(id)
         io.stdout:write(bytes.decode { id })
         io.stdout:flush()
      end,
   })
   io.stdout:write '\n'
end

args.main(function(...)
   local opt = args.parse('generate: sample from a checkpoint', options, { ... })
   if opt then run(opt) end
end, ...)
