-- A conversation with a model (generate --chat): turns at a terminal or from a pipe, or one answer.

local copy = require 'tide.util.copy'
local edit = require 'tide.ffi.edit'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local picture = require 'recipes.support.picture'

local talk = {}

local codes = { 'E_ARG', 'E_IO', 'E_FORMAT', 'E_UNSUPPORTED' }

-- Rows for util.args.
talk.rows = {
   { 'chat', false, 'hold a conversation with the chat template of the folder: each line of '
     .. 'standard input is a message; with --prompt, answer one message' },
   { 'system', nil, 'with --chat: system message', type = 'string' },
   { 'messages', nil, 'with --chat: JSON file of messages to start with; if the last one is from '
     .. 'the user, answer it and exit', type = 'string' },
   { 'chat-template', nil, 'with --chat: chat template (.jinja), or the folder of a model that has '
     .. 'one; default: that of --from', type = 'string', also = { 'template' } },
   { 'template-name', nil, 'with --chat: which template to use, if the folder has several',
     type = 'string' },
}

-- ---- opening -----------------------------------------------------------------------------------

local function template_of(tide, opt)
   local path = opt.chat_template or opt.from
   local template = tide.chat.find(path, opt.template_name, opt.from)
   if template then return template end
   err.usage('generate', '%s has no chat template (chat_template.jinja, or chat_template in '
      .. 'tokenizer_config.json); give --chat-template FILE, or leave out --chat', path)
end

-- Returns the system message, then those of the file: a list, or { "messages": list }.
local function first_messages(tide, opt)
   local list = { opt.system and { role = 'system', content = opt.system } or nil }
   if not opt.messages then return list end
   local value = tide.json.decode(fs.read('generate', opt.messages), { lossless = true })
   if type(value) == 'table' and value.messages then value = value.messages end
   if type(value) ~= 'table' or type(value[1]) ~= 'table' then
      err.usage('generate', '--messages: expected a list of { "role": .., "content": .. } in %s',
         opt.messages)
   end
   for _, message in ipairs(value) do list[#list + 1] = message end
   return list
end

-- ---- one turn ----------------------------------------------------------------------------------

local function note(text, ...) io.stderr:write('[', text:format(...), ']\n') end

local function show(text)
   io.stdout:write(text)
   io.stdout:flush()
end

-- Says one message (a text or parts; nil: the messages end with one) and prints the answer while it
-- is drawn.
-- interrupts: of tide.ffi.signal, which end the answer; nil: they end the program.
local function say(conversation, text, options, interrupts)
   local o = copy(options)
   o.on_text = show
   o.on_token = interrupts and function() return interrupts.came() and 'stop' or nil end
   local result = conversation:say(text, o)
   show '\n'
   if result.dropped > 0 then
      note('the context of %d tokens was full: the %d oldest messages are forgotten',
         conversation.context, result.dropped)
   end
   if result.full then
      note('the answer is cut: the context of %d tokens is full', conversation.context)
   elseif result.reason == 'length' then
      note('the answer is cut after %d tokens; --tokens allows more', #result.ids)
   end
end

-- Does the same at a terminal, where errors are shown and the conversation continues.
local function say_or_tell(conversation, text, options, interrupts)
   local ok, problem = pcall(say, conversation, text, options, interrupts)
   local e = err.of(problem)
   if ok then return end
   if not e or e.code == 'E_INTERNAL' then error(problem, 0) end
   show '\n'
   note('%s', e.message)
end

-- ---- turn after turn ---------------------------------------------------------------------------

local help = [[
/reset         starts over
/system TEXT   starts over with another system message; without TEXT with none
/image FILE    shows a picture with the next message
/exit          leaves, as the end of input (Ctrl-D) does
Ctrl-C stops an answer. Any other line is a message.
]]

-- Puts a picture into the list of those of the next message. A mistake is reported at a terminal,
-- and ends the program elsewhere.
local function add_image(conversation, path, waiting, at_terminal)
   local ok, problem = pcall(function()
      err.usage_if(not conversation.processor, 'generate', '/image: the model takes texts alone')
      require('tide').data.image.size(path)
   end)
   if ok then
      waiting[#waiting + 1] = path
   elseif at_terminal and err.of(problem) then
      note('%s', err.of(problem).message)
   else
      error(problem, 0)
   end
end

local commands = {
   exit = function() return 'exit' end, image = add_image,
   reset = function(conversation) conversation:reset() end,
   system = function(conversation, text) conversation:system(text ~= '' and text or nil) end,
   help = function() io.stdout:write(help) end,
}
commands.quit = commands.exit

-- Returns a function that reads a line (nil: the input has ended; nil and 'interrupt': Ctrl-C), and
-- one that ends reading.
local function reader(interrupts)
   local editor = interrupts and edit.open {}
   if editor then
      return function()
         local line, why = editor:read '> '
         if interrupts.came() then why = 'interrupt' end
         return line, why
      end, function() editor:close() end
   end
   return function()
      if interrupts then show '> ' end
      local line = io.read()
      return line, not line and interrupts and interrupts.came() and 'interrupt' or nil
   end, function() end
end

-- Reads lines and answers them until the end. waiting: pictures of the next message.
local function turns(conversation, options, interrupts, read, waiting)
   local answer = interrupts and say_or_tell or say
   repeat
      local line, why = read()
      local word, rest = (line or ''):match '^%s*/(%l+)%s*(.-)%s*$'
      local known = word and (commands[word] or rest == '' and commands.help)
      local done = not line and why ~= 'interrupt'
      if known then
         done = known(conversation, rest, waiting, interrupts) == 'exit'
      elseif (line or ''):find '%S' then
         answer(conversation, picture.message(waiting, line), options, interrupts)
         waiting = {}
      elseif not line and interrupts then
         io.stdout:write '\n'
      end
   until done
end

-- At a terminal Ctrl-C ends answers; in a pipe it ends the program, and so does an error.
local function converse(conversation, options, waiting)
   local interrupts = edit.isatty(0) and require('tide.ffi.signal').interrupts() or nil
   if interrupts then io.stdout:write '/help lists the commands, Ctrl-C stops an answer\n' end
   local read, close = reader(interrupts)
   local ok, problem = pcall(turns, conversation, options, interrupts, read, waiting)
   close()
   if interrupts then interrupts:close() end
   if not ok then error(problem, 0) end
end

-- ---- door --------------------------------------------------------------------------------------

-- Runs --chat. opt: options of the recipe; options: of sample.generate, with stop ids and the
-- tokenizer.
function talk.run(tide, model, opt, options)
   err.people(codes, function()
      local messages = first_messages(tide, opt)
      local conversation = tide.chat.conversation(model, { tokenizer = options.tokenizer,
         template = template_of(tide, opt), stop = options.stop, messages = messages,
         processor = picture.processor(tide, opt, model),
         dir = opt.messages and opt.messages:match '^(.*)/[^/]*$' })
      if opt.verbose then
         io.stderr:write('ids that end an answer: ', table.concat(conversation.stops, ', '), '\n')
      end
      options.tokenizer, options.stop = nil, nil
      local last = opt.messages and messages[#messages] or {}
      local files = picture.files(opt)
      if opt.prompt then
         say(conversation, picture.message(files, opt.prompt), options)
      elseif last.role == 'user' then
         err.usage_if(files[1], 'generate', '--image goes with --prompt or with messages that are '
            .. 'typed; --messages has parts of its own: { "type": "image", "image": FILE }')
         say(conversation, nil, options)
      else
         converse(conversation, options, files)
      end
   end)
end

return talk
