-- A model that continues text, for hosts: an editor, a server.
--
--   local writer = require('recipes.embed.writer').open(dir, { threads = 1 })
--   local text, reason = writer:continue('local function', { tokens = 40, pause = pause })
--
-- `pause` is called after each token, also to yield: several texts may be under way in one state.

local tide = require 'tide'

local sample = tide.train.sample
local writer = {}
local Writer = {}
Writer.__index = Writer

-- Loads a published folder or a run. Raises what tide.model.load raises.
function writer.open(dir, opts)
   if opts and opts.threads then tide.set_nthread(opts.threads) end
   local model = tide.model.load(dir)
   local tokenizer = tide.tokenizer.find(dir, model.config.vocab_size)
   if not tokenizer then error(dir .. ' has no tokenizer', 0) end
   return setmetatable({ model = model, tokenizer = tokenizer }, Writer)
end

-- Continues a text, as the options of tide.train.sample.generate say; `stop` is a list of texts.
-- Returns the new text, and why it ended.
function Writer:continue(prompt, opts)
   local _, result = sample.generate(self.model, prompt, {
      tokenizer = self.tokenizer, tokens = opts.tokens or 64, temperature = opts.temperature or 0,
      seed = opts.seed or 0, stop = { self.tokenizer.eos }, stop_strings = opts.stop,
      on_token = opts.pause and function() opts.pause() end })
   return result.text, result.reason
end

return writer
