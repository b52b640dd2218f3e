-- A small model of bytes that knows one line by heart, in the form of a published folder.

local rhyme = {}

-- Writes the folder `dir`, which does not exist. Returns its path.
function rhyme.write(dir)
   local tide = require 'tide'
   local bytes = tide.data.bytes
   local model = tide.model.qwen3({ vocab_size = bytes.vocab_size, hidden_size = 64, head_dim = 16,
      num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
      intermediate_size = 128, max_position_embeddings = 512 }, { seed = 1 })
   local step = tide.train.step { model = model, clip = 1,
      optim = tide.optim.AdamW(model, { lr = 1e-2 }) }
   local ids = tide.tensor({ bytes:encode(('one two three four\n'):rep(6)) }, { dtype = 'i64' })
   for _ = 1, 60 do step:run { { ids = ids, labels = tide.nn.loss.shift(ids) } } end
   return tide.model.save(model, dir)
end

if arg and (arg[0] or ''):find 'rhyme%.lua$' then rhyme.write(arg[1]) end

return rhyme
