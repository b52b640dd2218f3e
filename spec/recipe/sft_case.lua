-- A decoder, adapters of it, chats and command lines for the curve of recipes/finetune.lua that
-- PyTorch's own loop has, too (spec/golden/sft.py). Weights are sines, so no generator is needed.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local json = require 'tide.ffi.io'.json
local low_rank = require 'tide.nn.low_rank'
local write = require('spec.support.files').write

local sft = { steps = 50, seq = 160, batch = 4, seed = 11, lr = { full = 3e-3, lora = 2e-3 } }

-- Fills the parameters for which holds(name), in the order of their names.
local function fill(model, holds)
   local list = {}
   for _, e in ipairs(model:named_parameters()) do
      if holds(e.name) then list[#list + 1] = e end
   end
   table.sort(list, function(a, b) return a.name < b.name end)
   tide.no_grad(function()
      for k, e in ipairs(list) do
         local t = (tide.arange(e.param:numel(), { dtype = 'f64' }) * 0.7 + 1.3 * k):sin() * 0.2
         if e.name:find 'norm' then t = t / 3 + 1 end
         e.param:copy_(t:reshape(e.param.shape))
      end
   end)
   return model
end

-- Writes the model, its adapters and the chats into dir.
function sft.write(dir)
   local model = tide.model.llama { vocab_size = 258, hidden_size = 32, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 48,
      max_position_embeddings = 256, tie_word_embeddings = false }
   case.save(dir .. '/m', fill(model, function() return true end))
   write(dir .. '/c.jsonl', case.chats(120))
   tide.nn.lora.attach(model, { rank = 4, alpha = 8, targets = 'q_proj|v_proj|down_proj' })
   fill(model, low_rank.is_name)
   tide.model.save_adapter(model, dir .. '/a', { base = dir .. '/m' })
end

-- The words of the recipe. kind: 'full' or 'lora'.
function sft.words(dir, kind)
   return ('--threads 1 --from %s/m --data %s/c.jsonl --seq %d --batch %d --seed %d --steps %d '
      .. '--lr %g --schedule constant --warmup 0 --val-share 0 --long refuse --save-every 0 --out '
      .. '%s/%s %s'):format(dir, dir, sft.seq, sft.batch, sft.seed, sft.steps, sft.lr[kind], dir,
      kind, kind == 'lora' and '--adapter ' .. dir .. '/a' or '')
end

-- Which records make up which row of which step: lists of lists of lists of numbers from 0.
function sft.order(dir)
   local corpus = tide.data.chat.load({ dir .. '/c.jsonl' }, { tokenizer = tide.data.bytes,
      template = tide.chat.find(dir .. '/m'), val = 0 })
   local sampler = tide.data.packed.new { cu = corpus.cu, source = corpus.train, seq = sft.seq,
      batch = sft.batch, seed = sft.seed, fit = 'best', long = 'refuse' }
   local place, steps = {}, {}
   for i, start in ipairs(corpus.cu) do place[start] = i - 1 end
   for s = 1, sft.steps do
      steps[s] = {}
      for r, row in ipairs(sampler:next()) do
         steps[s][r] = {}
         for i, piece in ipairs(row) do steps[s][r][i] = place[piece[1]] end
      end
   end
   return json.encode { steps = steps, lr = sft.lr }
end

return sft
