-- Reads files of tiktoken (lines of a piece in base64 and its rank) and tekken.json as descriptions
-- of tokenizers. The rank is the id; two pieces merge if their joined bytes are a piece, lower
-- ranks first.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local build = require 'tide.tokenizer.build'
local decoder = require 'tide.tokenizer.decoder'
local field = require 'tide.tokenizer.field'
local pattern = require 'tide.tokenizer.pattern'
local visible = require 'tide.tokenizer.visible'

local tiktoken = {}

local op = 'tokenizer.load'

-- Patterns of published vocabularies, which the files do not contain.
local cl100k = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}"
   .. '| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+'
local llama3 = cl100k:gsub('%?%+\\p{L}', '?\\p{L}'):gsub('%+%+', '+')
   :gsub('|\\s%*%[\\r\\n%]|', '|\\s*[\\r\\n]+|')
local qwen = llama3:gsub('{1,3}', '')
local upper, lower = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]', '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]'
local ending = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
local o200k = '[^\\r\\n\\p{L}\\p{N}]?' .. upper .. '*' .. lower .. '+' .. ending
   .. '|[^\\r\\n\\p{L}\\p{N}]?' .. upper .. '+' .. lower .. '*' .. ending
   .. '|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+'

-- Known vocabularies by their number of ranks: pattern, and special tokens in order.
local known = {
   [50256] = { pattern.gpt2, { '<|endoftext|>' } },
   [50257] = { pattern.gpt2, {} },
   [100256] = { cl100k, { [100257] = '<|endoftext|>', [100258] = '<|fim_prefix|>',
      [100259] = '<|fim_middle|>', [100260] = '<|fim_suffix|>', [100276] = '<|endofprompt|>' } },
   [128000] = { llama3, {} },
   [151643] = { qwen, { '<|endoftext|>', '<|im_start|>', '<|im_end|>' } },
   [199998] = { o200k, { [199999] = '<|endoftext|>', [200018] = '<|endofprompt|>' } },
}

-- Adds the special tokens of the files of Llama 3. tokenizer_config.json, if present, repeats them.
local function llama3_special(d)
   local names = { '<|begin_of_text|>', '<|end_of_text|>', '<|reserved_special_token_0|>',
      '<|reserved_special_token_1|>', '<|finetune_right_pad_id|>', '<|step_id|>',
      '<|start_header_id|>', '<|end_header_id|>', '<|eom_id|>', '<|eot_id|>', '<|python_tag|>' }
   for i = 2, 256 - #names + 1 do
      names[#names + 1] = ('<|reserved_special_token_%d|>'):format(i)
   end
   for i, name in ipairs(names) do tiktoken.add(d, name, 128000 + i - 1) end
end

-- Adds a special token to a description, once.
function tiktoken.add(d, text, id)
   for _, token in ipairs(d.added) do
      if token.text == text then return end
   end
   d.added[#d.added + 1] = { text = text, find = text, id = id, special = true }
   for i = #d.pieces + 1, id + 1 do d.pieces[i], d.ranks[i] = '', -1 end
   d.pieces[id + 1], d.ranks[id + 1] = '', -1
end

-- Returns the description of pieces (bytes by id + 1) with ranks in order.
local function description(pieces, ranks, regex)
   return { model = 'BPE', pieces = pieces, ranks = ranks, normal = {}, added = {},
      flags = { bytes = true, ignore_merges = true }, before = {}, after = {},
      words = { { kind = 'split', mode = { Isolated = true },
         what = pattern.translate(regex, true) } },
      decoder = decoder.compile { type = 'ByteLevel' } }
end

-- Sets the names of a description: pieces as tokenizer.json writes them, special tokens as text.
local function name_all(d)
   d.names = {}
   for i, piece in ipairs(d.pieces) do d.names[i] = visible.chars(piece) end
   build.normalize_added(d, d.added)
   return d
end

local function read_ranks(text)
   local pieces, ranks, n = {}, {}, 0
   for line in text:gmatch '[^\r\n]+' do
      n = n + 1
      local code, rank = line:match '^(%S+) (%d+)$'
      -- A published file has the line '= 50256' in place of a special token.
      local piece = code == '=' and '' or code and visible.base64(code)
      rank = tonumber(rank)
      err.raise_if(not piece or rank >= 2^22, 'E_FORMAT', op, 'line %d is no piece in base64 and '
         .. 'its rank', n)
      pieces[rank + 1], ranks[rank + 1] = piece, rank
   end
   for i = 1, n do
      if not pieces[i] then err.raise('E_FORMAT', op, 'no line has the rank %d', i - 1) end
   end
   return pieces, ranks, n
end

-- Adds the special tokens of added_tokens_decoder.
local function own_special(d, rows)
   local where = 'tokenizer_config.json: added_tokens_decoder'
   for id, token in each(field.value(where, rows, 'object')) do
      local place = ('%s.%s'):format(where, id)
      tiktoken.add(d, field.check(place, token, { content = 'text' }).content,
         field.value(place, tonumber(id), 'id'))
   end
end

-- Returns the description of a file of tiktoken. config: the value of tokenizer_config.json, whose
-- added_tokens_decoder and pat_str count; the special tokens by name.
function tiktoken.describe(text, path, config)
   local pieces, ranks, n = read_ranks(text)
   local row = known[n]
   local regex = field.value('tokenizer_config.json: pat_str', config.pat_str, 'text?')
      or row and row[1]
   err.raise_if(not regex, 'E_UNSUPPORTED', op, '%s has %d pieces, of a vocabulary whose pattern '
      .. 'is not known; put it beside the file: {"pat_str": "..."} in tokenizer_config.json', path,
      n)
   local d = description(pieces, ranks, regex)
   local own = config.added_tokens_decoder
   if own then
      own_special(d, own)
   elseif n == 128000 then
      llama3_special(d)
   elseif row then
      for i, name in each(row[2]) do
         tiktoken.add(d, name, i < n and n + i - 1 or i)
      end
   end
   table.sort(d.added, function(a, b) return a.id < b.id end)
   local last = { eos_token = d.added[1] and d.added[1].text }
   if n == 128000 then
      d.before = { 128000 }
      last = { bos_token = '<|begin_of_text|>', eos_token = '<|end_of_text|>' }
   end
   return name_all(d), last
end

-- Returns the description of the value of a tekken.json, and the special tokens by name. Special
-- tokens are first: the rank of a piece is its id less their number.
function tiktoken.tekken(value)
   local config = field.check('config', value.config, { pattern = 'text',
      default_vocab_size = 'id', default_num_special_tokens = 'id' })
   field.value('vocab', value.vocab, 'list')
   local nspecial, size = config.default_num_special_tokens, config.default_vocab_size
   local pieces, ranks = {}, {}
   for i = 1, nspecial do pieces[i], ranks[i] = '', -1 end
   for i = 1, math.min(size - nspecial, #value.vocab) do
      local row = value.vocab[i]
      local code = type(row) == 'table' and row.token_bytes
      local piece = type(code) == 'string' and visible.base64(code)
      err.raise_if(not piece or row.rank ~= i - 1, 'E_FORMAT', op, 'entry %d of vocab is damaged',
         i)
      pieces[nspecial + i], ranks[nspecial + i] = piece, i - 1
   end
   local d = description(pieces, ranks, config.pattern)
   local names = { [0] = '<unk>', '<s>', '</s>', '[INST]', '[/INST]', '[AVAILABLE_TOOLS]',
      '[/AVAILABLE_TOOLS]', '[TOOL_RESULTS]', '[/TOOL_RESULTS]', '[TOOL_CALLS]', '[IMG]', '<pad>',
      '[IMG_BREAK]', '[IMG_END]', '[PREFIX]', '[MIDDLE]', '[SUFFIX]' }
   local special = field.value('special_tokens', value.special_tokens, 'list?')
   for i, row in ipairs(special or {}) do
      field.check(('special_tokens[%d]'):format(i), row,
         { rank = 'id', token_str = 'text' })
      names[row.rank] = row.token_str
   end
   for i = 0, nspecial - 1 do
      local text = names[i] or ('<SPECIAL_%d>'):format(i)
      d.added[#d.added + 1] = { text = text, find = text, id = i, special = true }
   end
   d.before = { 1 }
   return name_all(d), { bos_token = names[1], eos_token = names[2], unk_token = names[0] }
end

return tiktoken
