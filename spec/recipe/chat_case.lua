-- A published folder of a small model that has learnt one chat: tokenizer, template and
-- generation_config.json beside the weights.

local tide = require 'tide'
local train = require 'tide.tokenizer.train'
local write = require('spec.support.files').write

local case = {}

case.template = [[
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
]]

-- What the model has learnt; a system message of "loud" gives other answers.
case.chats = {
   { { 'user', 'hi' }, { 'assistant', 'Héllo 中文!' }, { 'user', 'more' }, { 'assistant', 'No. 🙂' } },
   { { 'system', 'loud' }, { 'user', 'hi' }, { 'assistant', 'HELLO' } },
}

local function messages_of(chat)
   local list = {}
   for i, row in ipairs(chat) do list[i] = { role = row[1], content = row[2] } end
   return list
end

local function learn(model, tok, template)
   local optim = tide.optim.AdamW(model, { lr = 1e-2 })
   local step, batches = tide.train.step { model = model, optim = optim, clip = 1 }, {}
   for i, chat in ipairs(case.chats) do
      local text = template:render(messages_of(chat))
      local ids = tide.tensor({ tok:encode(text, { special = true }) }, { dtype = 'i64' })
      batches[i] = { ids = ids, labels = tide.nn.loss.shift(ids) }
   end
   for _ = 1, 60 do
      for _, batch in ipairs(batches) do step:run { batch } end
   end
end

-- Writes the folder dir/m. fields: of generation_config.json. Returns its path.
function case.make(dir, fields)
   local out = dir .. '/m'
   local texts = { case.template }
   for _, chat in ipairs(case.chats) do
      for _, row in ipairs(chat) do texts[#texts + 1] = row[2] end
   end
   train.save(train.bpe(texts, { vocab_size = 270, pattern = 'llama3', min_count = 2,
      special = { '<|endoftext|>', '<|im_start|>', '<|im_end|>' } }), dir .. '/tok')
   local tok = tide.tokenizer.load(dir .. '/tok')
   local model = tide.model.llama({ vocab_size = tok.vocab_size, hidden_size = 48,
      num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 96,
      max_position_embeddings = 160, eos_token_id = tok.eos }, { seed = 1 })
   learn(model, tok, tide.chat.template(case.template))
   model.generation = fields or { eos_token_id = { tok.eos }, do_sample = false }
   tide.model.save(model, out, { tokenizer = dir .. '/tok' })
   write(out .. '/chat_template.jinja', case.template)
   return out
end

return case
