-- A conversation: messages through a chat template to a model, and its answers as messages.
--
--    local talk = tide.chat.conversation(model, { tokenizer = tok, template = template })
--    print(talk:say('What is 2 + 2?', { temperature = 0 }).text)
--
-- Fields: messages (a list of { role =, content = }), stops (ids that end an answer), context (most
-- tokens that the model reads). Only the template writes special tokens: their letters in a message
-- are text. Keys, values and states of earlier turns are reused as far as ids and pictures are the
-- same.
--
-- A message may hold pictures (see tide.data.vision) where the conversation has a processor of
-- images.

local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local signature = require 'tide.util.signature'
local sample = require 'tide.train.sample'
local image_text = require 'tide.data.image_text'
local rows = require 'tide.train.rows'
local tide = require 'tide'
local vision = require 'tide.data.vision'

local op = 'chat.conversation'

local Conversation = {}
Conversation.__index = Conversation

-- ---- text and ids ------------------------------------------------------------------------------

-- While the template is rendered, text in messages that reads as a special token is replaced by a
-- number between two characters of a private plane of Unicode.
local open, close = '\244\143\191\176', '\244\143\191\177'

local function hide(text, added)
   for i, name in ipairs(added) do
      local at = 1
      while true do
         local first, last = text:find(name, at, true)
         if not first then break end
         local mark = ('%s%d%s'):format(open, i, close)
         text, at = text:sub(1, first - 1) .. mark .. text:sub(last + 1), first + #mark
      end
   end
   return text
end

local function encode(self, text, special)
   return self.tokenizer:encode(text, { special = special, add_special_tokens = false })
end

-- Returns the ids of a rendered text, in which hidden special tokens are text again.
local function ids_of(self, text)
   local out, at = {}, 1
   local function add(part, special)
      for _, id in ipairs(part ~= '' and encode(self, part, special) or {}) do
         out[#out + 1] = id
      end
   end
   for first, number, after in text:gmatch('()' .. open .. '(%d+)' .. close .. '()') do
      local name = self.added[tonumber(number)]
      if name then
         add(text:sub(at, first - 1), true)
         add(name, false)
         at = after
      end
   end
   add(text:sub(at), true)
   return out
end

-- Returns a part of a message for the template: special tokens in its text are hidden, and fields
-- that are pixels are texts.
local function hidden_part(self, part)
   if type(part) ~= 'table' then return part end
   part = copy(part)
   for name, v in each(part) do
      if tide.is_tensor(v) then part[name] = name end
   end
   if type(part.text) == 'string' then part.text = hide(part.text, self.added) end
   return part
end

local function hidden_content(self, content)
   if type(content) == 'string' then return hide(content, self.added) end
   if type(content) ~= 'table' or content[1] == nil then return content end
   local parts = {}
   for i, part in ipairs(content) do parts[i] = hidden_part(self, part) end
   return parts
end

local function hidden(self, messages)
   local list = {}
   for i, message in ipairs(messages) do
      list[i] = message
      if message.role ~= 'assistant' then
         list[i] = copy(message)
         list[i].content = hidden_content(self, message.content)
      end
   end
   return list
end

-- Returns a text that other pictures do not have, of a source: a path, pixels, bytes of a file, or
-- the frames of a video. A file or pixels that have changed since have another text.
local function key_of(source)
   if type(source) == 'string' then
      return ('file %s %s'):format(source, fs.size(source) and fs.io().xxh64_file(source) or '')
   end
   if tide.is_tensor(source) then return ('pixels %d %d'):format(source.id, source:version()) end
   if source.bytes then return 'bytes ' .. source.bytes end
   local list = { 'video ' .. tostring(source.fps) }
   for i, frame in ipairs(source.frames) do list[i + 1] = key_of(frame) end
   return table.concat(list, '\n')
end

-- Returns the pictures of sources. Those of the last call are not read again.
local function read(self, sources)
   local first = self.model:parameters()[1]
   local opts, kept, out = { device = first and first.device }, {}, {}
   for kind, list in each(sources) do
      out[kind] = {}
      for i, source in ipairs(list) do
         local key = key_of(source)
         kept[key] = kept[key] or self.kept[key]
            or vision.read(self.processor, { [kind] = { source } }, opts)[kind][1]
         out[kind][i] = kept[key]
      end
   end
   self.kept = kept
   return out
end

-- Returns the pictures of all messages; nil without any.
local function pictures_of(self)
   local sources = vision.sources(self.messages, { dir = self.dir })
   if not (sources.images[1] or sources.videos[1]) then
      self.kept = {}
      return nil
   end
   err.arg_if(not self.model.image_fields, op, 'messages', 'texts, as the model takes ids alone',
      'images')
   err.raise_if(sources.videos[1] and self.model.frames_apart, 'E_UNSUPPORTED', op, 'messages: '
      .. '%s reads each frame of a video behind its time in words, and no template writes these; '
      .. 'give frames as images', self.model.class_name)
   err.arg_if(not self.processor, op, 'opts.processor', 'tide.data.image.processor(folder), which '
      .. 'reads the images of messages', nil)
   return read(self, sources)
end

-- Returns the id with which the template ends an answer, or nil: the first special token after
-- one.
local function turn_end(self)
   local mark = 'an answer of tide'
   local ok, text = pcall(self.template.render, self.template, {
      { role = 'user', content = 'a question' }, { role = 'assistant', content = mark } }, {})
   local last = ok and select(2, text:find(mark))
   local id = last and ids_of(self, (text:sub(last + 1):gsub('^%s+', '')))[1]
   return id and self.tokenizer.added[id] and id or nil
end

-- ---- turns -------------------------------------------------------------------------------------

local leads = { system = true, developer = true }

-- Removes the oldest turn: a user message and what follows it, up to the next user message. Returns
-- how many messages went; 0 where one turn is left.
local function drop_turn(messages)
   local first = 1
   while messages[first] and leads[messages[first].role] do first = first + 1 end
   for i = first + 1, #messages do
      if messages[i].role == 'user' then
         for _ = first, i - 1 do table.remove(messages, first) end
         return i - first
      end
   end
   return 0
end

-- ---- doors -------------------------------------------------------------------------------------

local conversation = {}

-- Begins a conversation with a model (of tide.model.load, say). The id that ends a turn of the
-- template ends an answer, beside those of opts.stop.
function conversation.new(model, opts)
   local template = image_text.of(opts.template, opts.tokenizer, image_text.ids(model))
   local self = setmetatable({ model = model, tokenizer = opts.tokenizer, template = template,
      variables = opts.variables or {}, start = opts.messages or {}, cache = {},
      processor = opts.processor, dir = opts.dir, kept = {},
      stops = type(opts.stop) == 'table' and copy(opts.stop) or { opts.stop },
      added = opts.tokenizer:special_texts(), context = rows.new(model).context }, Conversation)
   self.stops[#self.stops + 1] = turn_end(self)
   self:reset()
   return self
end

-- Goes back to the messages of the beginning.
function Conversation:reset()
   self.messages = copy(self.start)
end

-- Sets the system message (nil: none), and goes back to the messages of the beginning.
function Conversation:system(text)
   local start = { text and { role = 'system', content = text } or nil }
   for _, message in ipairs(self.start) do
      if not leads[message.role] then start[#start + 1] = message end
   end
   self.start = start
   self:reset()
end

-- Returns the ids of the conversation so far, with the opening of an answer; and what the model
-- gets beside them where messages have pictures.
function Conversation:ids()
   local vars = copy(self.variables)
   vars.add_generation_prompt = true
   local pictures = pictures_of(self)
   local ids = ids_of(self, (self.template:render(hidden(self, self.messages), vars)))
   if not pictures then return ids end
   ids = vision.expand(self.processor, self.model.config, ids, pictures)
   return ids, vision.fields(pictures)
end

-- Drops oldest turns until the context has room for an answer. Returns the ids of the rest, what
-- the model gets beside them, and how many messages went.
local function fitted(self, tokens)
   local room = math.max(1, math.min(tokens, math.floor(self.context / 4)))
   local dropped, ids, inputs = 0, self:ids()
   while #ids + room > self.context do
      local n = drop_turn(self.messages)
      if n == 0 then break end
      dropped, ids, inputs = dropped + n, self:ids()
   end
   err.raise_if(#ids >= self.context, 'E_ARG', op, 'the message makes %d tokens, the model reads '
      .. '%d; give a shorter one', #ids, self.context)
   return ids, inputs, dropped
end

local function answer(self, opts)
   local o = copy(opts)
   o.tokens = o.tokens or 128
   local ids, inputs, dropped = fitted(self, o.tokens)
   o.tokens = math.min(o.tokens, self.context - #ids)
   o.tokenizer, o.stop, o.inputs = self.tokenizer, self.stops, inputs
   o.cache = self.cache
   local _, result = sample.generate(self.model, ids, o)
   result.dropped = dropped
   result.full = result.reason == 'length' and #ids + #result.ids >= self.context
   return result
end

-- Adds a user message (nil: the messages end with one already) and the answer to the messages. The
-- message is a text, or a list of parts: { type = 'image', image = PATH }, { type = 'text', .. }.
-- Returns what sample.generate does, { ids, text, reason }, and in it `dropped`, the number of old
-- messages that went to make room, and `full`: the answer ends because the context does. Turns go
-- oldest first, system messages stay; room is a quarter of the context, or opts.tokens if fewer.
-- opts: of sample.generate, without tokenizer, stop and cache. After an error the messages are as
-- before. E_ARG: the message alone is too long.
function Conversation:say(text, opts)
   local before = self.messages
   self.messages = copy(before)
   self.messages[#before + 1] = text and { role = 'user', content = text }
   local ok, result = pcall(answer, self, opts or {})
   if not ok then
      self.messages = before
      error(result, 0)
   end
   self.messages[#self.messages + 1] = { role = 'assistant', content = result.text }
   return result
end

signature.record('chat_model', 'a model of tide.model', { 'config: table' })
signature.doors('chat', Conversation, { system = 'text: string?', say = 'text: string | table?' })
return signature.doors('chat', conversation, { new = { 'model: chat_model', op = op, opts = {
   'tokenizer: table -- of tide.tokenizer, or tide.data.bytes', 'template: table -- of tide.chat',
   'messages: table? -- to begin with', 'variables: table? -- of the template',
   'stop: any? -- an id that ends an answer, or a list of them',
   'processor: image_processor? -- of tide.data.image: reads pictures in messages',
   'dir: string? -- folder of relative paths of pictures' } } })
