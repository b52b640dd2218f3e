-- Chats from files as token sources with masks: which tokens a model learns to say.
--
--    local corpus = tide.data.chat.load('chats.jsonl', {
--       tokenizer = tide.data.bytes, template = tide.chat.load 'models/qwen' })
--
-- Each record becomes one document. Its mask is 1 for tokens that count as labels: what the
-- template's `generation` blocks hold or, in templates without them, the messages of the roles in
-- `train_on` (the opening that add_generation_prompt writes is not theirs). The
-- completion of a prompt counts, and all of a text.

local err = require 'tide.util.err'
local image_parts = require 'tide.data.image_parts'
local image_text = require 'tide.data.image_text'
local jsonl = require 'tide.data.jsonl'
local little = require 'tide.util.little'
local near = require 'tide.util.near'
local record = require 'tide.data.record'
local signature = require 'tide.util.signature'
local sorted_keys = require('tide.util.pretty').sorted_keys
local text_files = require 'tide.data.text'
local tokens = require 'tide.data.tokens'
require 'tide.nn.module'                -- the kind 'module'

local chat = {}

-- ---- which bytes count -------------------------------------------------------------------------

-- Returns the byte ranges that the messages of some roles make up in a chat's text. The template is
-- asked for the chat up to each message, which must begin the whole text.
local function ranges_by_role(template, messages, variables, whole, wanted)
   local ranges = {}
   for i, message in ipairs(messages) do
      if wanted[message.role] then
         local opts = { tools = variables.tools,
            add_generation_prompt = message.role == 'assistant' }
         local before = template:render({ unpack(messages, 1, i - 1) }, opts)
         local after = i == #messages and whole
            or template:render({ unpack(messages, 1, i) }, { tools = variables.tools })
         if whole:sub(1, #before) ~= before or whole:sub(1, #after) ~= after then
            jsonl._broken('messages[%d]: the template writes it otherwise where more messages '
               .. 'follow, so its part of the text is not known; mark it with '
               .. '{%% generation %%}', i)
         end
         ranges[#ranges + 1] = { #before, #after }
      end
   end
   return ranges
end

-- Returns the text of a chat and the ranges that count.
local function chat_text(example, o)
   if not o.template then
      jsonl._broken('the record is a chat, and there is no template to write it with (template, '
         .. '--chat-template)')
   end
   local variables = { tools = example.tools, add_generation_prompt = false }
   local text, ranges = jsonl._guard('the template: ', o.template.render, o.template,
      example.messages, variables)
   if o.by_block then return text, ranges end
   return text, jsonl._guard('the template, given the first messages alone: ', ranges_by_role,
      o.template, example.messages, variables, text, o.roles)
end

local known = { 'system', 'user', 'assistant', 'tool', 'developer' }
local other_names = { human = 'user', gpt = 'assistant', chatgpt = 'assistant', bot = 'assistant' }

-- Returns the role that a misspelt one is meant to be, or nil.
local function meant_by(role)
   if other_names[role] then return other_names[role] end
   for _, name in ipairs(known) do
      if role ~= name and near.distance(role:lower(), name) <= (#role > 5 and 2 or 1) then
         return name
      end
   end
end

-- Refuses a role that is misspelt or belongs to another form: the template would write it, and
-- training would silently skip it.
local function check_roles(messages, o)
   for i, message in ipairs(messages) do
      local role = message.role
      local meant = not o.roles[role] and meant_by(role)
      if meant then
         jsonl._broken("messages[%d].role: expected a role such as '%s', got '%s' (a role that is "
            .. 'meant so is named in train_on)', i, meant, role)
      end
   end
end

-- Returns the text of a record and the ranges that count.
local function text_of(example, o)
   if example.messages then
      check_roles(example.messages, o)
      return chat_text(example, o)
   end
   if example.text then return example.text, { { 0, #example.text } } end
   if o.template then
      return chat_text({ messages = { { role = 'user', content = example.prompt },
         { role = 'assistant', content = example.completion } } }, o)
   end
   local n = #example.prompt
   return example.prompt .. example.completion, { { n, n + #example.completion } }
end

-- ---- tokens ------------------------------------------------------------------------------------

-- Returns the ids of a text, and the places { first, last } of each.
local function encode(o, text, is_chat)
   return o.tokenizer:encode(text, { offsets = true, special = is_chat,
      add_special_tokens = not is_chat })
end

-- Returns the mask of ids as a list of '\0' and '\1': a token counts if a byte of it does.
local function mask_of(ids, places, ranges)
   local out, at = {}, 1
   for i = 1, #ids do
      local first, last = places[i][1], places[i][2]
      while ranges[at] and ranges[at][2] < first do at = at + 1 end
      local range = ranges[at]
      local counts = range and first <= last and last > range[1] and first <= range[2]
      out[i] = counts and '\1' or '\0'
   end
   return out
end

-- Returns a text as { ids, mask, count, labels, images }: two texts, the tokens, and those that
-- count. is_chat: a template has written it. why: the reason where nothing counts. found: the
-- images of the text, or nil.
local function tokenized(text, ranges, is_chat, o, why, found)
   local ids, places = jsonl._guard('', encode, o, text, is_chat)
   local mask = mask_of(ids, places, ranges)
   if found and o.images and not o.images.refused then
      ids, mask = image_parts._expanded(ids, mask, found, o.images)
   end
   if not is_chat and o.eos and ids[#ids] ~= o.eos then
      ids[#ids + 1], mask[#mask + 1] = o.eos, '\1'
   end
   if #ids < 2 then jsonl._broken 'the record has fewer than two tokens' end
   local pieces, labels = {}, 0
   for i, id in ipairs(ids) do
      pieces[i] = little.write(id, o.width)
      if i > 1 and mask[i] == '\1' then labels = labels + 1 end
   end
   if labels == 0 then
      jsonl._broken('no token of the record counts as a label%s', why and ': ' .. why() or '')
   end
   return { ids = table.concat(pieces), mask = table.concat(mask), count = #ids, labels = labels,
      images = found }
end

-- Returns names in their order, each once, as 'a', 'b'.
local function quoted(names)
   local list, seen = {}, {}
   for _, name in ipairs(names) do
      if not seen[name] then list[#list + 1] = ("'%s'"):format(name) end
      seen[name] = true
   end
   return table.concat(list, ', ')
end

-- Returns why no token of a chat is a label: none of its roles counts, or those that count say
-- nothing.
local function why_unlabelled(messages, o)
   if o.by_block then return 'the template writes none of it in a generation block' end
   local has = {}
   for i, message in ipairs(messages) do has[i] = message.role end
   return ('its roles are %s, and those that count are %s (train_on, --train-on)'):format(
      quoted(has), quoted(sorted_keys(o.roles)))
end

-- Returns the documents of a record: a list of one. file, place: where it is.
local function of_record(t, o, file, place)
   local example = record._of(t, o.format)
   local found = image_parts._take(t, example.messages, file, place, o.images)
   local text, ranges = text_of(example, o)
   local is_chat = example.messages ~= nil or example.text == nil and o.template ~= nil
   return { tokenized(text, ranges, is_chat, o, example.messages and function()
      return why_unlabelled(example.messages, o)
   end, found) }
end

-- ---- files -------------------------------------------------------------------------------------

local function new_part() return { ids = {}, mask = {}, cu = { 0 }, labels = 0, images = {} } end

-- Adds a document.
local function add(part, doc)
   part.ids[#part.ids + 1], part.mask[#part.mask + 1] = doc.ids, doc.mask
   image_parts._add(part.images, doc.images or {}, part.cu[#part.cu])
   part.cu[#part.cu + 1] = part.cu[#part.cu] + doc.count
   part.labels = part.labels + doc.labels
end

local function source_of(part, width)
   local source = tokens.memory(table.concat(part.ids), width, table.concat(part.mask))
   source.images = #part.images > 0 and part.images or nil
   return source
end

-- Returns what load returns from the records of each file.
local function corpus_of(files, o, bad)
   local train, val, documents, held_out = new_part(), new_part(), 0, 0
   for _, list in ipairs(files) do
      local held = math.floor(#list * o.val)
      for i, docs in ipairs(list) do
         for _, doc in ipairs(docs) do add(i > #list - held and val or train, doc) end
      end
      documents, held_out = documents + #list, held_out + held
   end
   return {
      kind = 'chat', files = #files, documents = documents, held_out = held_out, bad = bad,
      vocab_size = o.vocab_size,
      train = source_of(train, o.width), val = source_of(val, o.width),
      cu = train.cu, val_cu = val.cu, labels = train.labels, val_labels = val.labels,
   }
end

-- Returns the roles as a set, and whether generation blocks decide instead.
local function roles_of(o)
   local roles = {}
   for _, role in ipairs(o.train_on or { 'assistant' }) do roles[role] = true end
   return roles, not o.train_on and o.template ~= nil and o.template:marks_generation()
end

-- Completes the options.
local function settled(op, opts)
   local o = opts
   local size = err.integer(op, 'tokenizer.vocab_size', o.tokenizer.vocab_size, 1)
   err.arg_if(o.template ~= nil and type(o.template.render) ~= 'function', op, 'template',
      'a template of tide.chat', o.template)
   o.roles, o.by_block = roles_of(o)
   if o.images and not o.images.refused then
      o.template = image_text.of(o.template, o.tokenizer, o.images)
   end
   o.eos = o.tokenizer.eos
   o.vocab_size, o.width = size, size > 65536 and 4 or 2
   return o
end

-- Returns the files of records at or below a path. The texts about them that a folder often has,
-- README, LICENSE and Markdown, are left out.
local function record_files(path)
   local list = {}
   for _, file in ipairs(text_files.files(path)) do
      local name = file:match('[^/]*$'):lower()
      local about = name:find '%.md$' or name:find '^readme' or name:find '^license'
      if file == path or not about then list[#list + 1] = file end
   end
   return list
end

-- Does what load does, for another kind of records. op: the name in errors; read(t, o, file,
-- place): the documents of a record (see data.jsonl).
function chat._load(op, paths, opts, read)
   local o = settled(op, opts)
   local bad, files, names = { count = 0 }, {}, {}
   if type(paths) == 'string' then paths = { paths } end
   for _, path in ipairs(err.type(op, 'paths', paths, 'table')) do
      for _, file in ipairs(record_files(path)) do
         files[#files + 1] = jsonl._records(op, file, o.skip_bad, bad, function(t, place)
            return read(t, o, file, place)
         end)
         names[#names + 1] = file
      end
   end
   if #files == 0 then err.arg_text(op, 'paths', 'at least one file', 'none') end
   local corpus = corpus_of(files, o, bad)
   if corpus.documents == 0 then
      err.raise('E_FORMAT', op, '%s has no record that can be used%s', table.concat(names, ', '),
         bad[1] and '; the first one: ' .. bad[1] or '')
   end
   return corpus
end

-- For functions read of other kinds: makes a document of a text and its ranges; checks roles.
chat._tokenized, chat._check_roles = tokenized, check_roles

-- Reads chats and texts of JSON Lines. paths: a file or folder, or a list of them. Every
-- text file of a folder is read but README, LICENSE and Markdown. Headers of images are read; an
-- image takes as many tokens as the model has features of it.
-- Returns { kind = 'chat', train, val, cu, val_cu, labels, val_labels, documents, held_out,
-- vocab_size, bad }: token sources with masks, cumulative lengths of documents for data.packed,
-- numbers of labels, of records and of those held out, and bad = { count, the first messages }.
-- E_FORMAT names file, line and field of what is broken.
function chat.load(paths, opts) return chat._load('data.chat.load', paths, opts, of_record) end

-- Returns the option `images` of load: how the images of chats become tokens and patches of a
-- model. model: of a family that reads images, on any device; processor: of data.image. The sources
-- of the corpus then have the paths and sizes of the images, and data.packed reads the images of
-- the rows of a batch.
function chat.images(model, processor, opts)
   return image_parts.of(model, processor, opts.decode)
end

return signature.doors('data.chat', chat, {
   images = { 'model: module; processor: table', opts = {
      'decode: boolean? -- load decodes each image, and a damaged one is a broken record' } },
   load = { 'paths: string | string[]', opts = {
      'tokenizer: table -- of tide.tokenizer, or tide.data.bytes',
      'template: table? -- of tide.chat, which writes chats as text',
      'train_on: string[]? -- roles that count; default: generation blocks, or the assistant',
      record._format .. ' -- form of the records; default: by the fields of each record',
      'images: table? -- of data.chat.images; without it a chat with images is a broken record',
      'skip_bad: boolean = false -- broken records are counted and left out',
      'val: number in [0, 0.5] = 0.05 -- share of the records of a file that is held out' } },
})
