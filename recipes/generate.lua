-- Generation: a checkpoint of recipes/pretrain.lua or a published folder continues text or ids, or
-- answers in a conversation.
--
--    tide run recipes/generate.lua --from runs/pretrain --prompt "local function"
--    tide run recipes/generate.lua --from models/llama --chat
--    tide run recipes/generate.lua --from models/llama --ids "1 450 4996"
--    tide run recipes/generate.lua --from models/qwen2_5_vl --chat --image cat.jpg --prompt "What?"
--
-- The folder's tokenizer turns text into ids. Without one, a model whose vocabulary is not bytes
-- continues --ids and prints ids. Options that are not given are those of the folder's
-- generation_config.json. With --chat each line of standard input is a message. --image shows
-- pictures to a model with a vision tower.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local drawing = require 'recipes.support.drawing'
local err = require 'tide.util.err'
local picture = require 'recipes.support.picture'
local talk = require 'recipes.support.talk'

local function table_of_options()
   local rows = {
      { 'from', 'runs/pretrain', 'checkpoint, folder of a run (its newest checkpoint is used), or '
        .. 'published folder (config.json, model.safetensors)' },
      { 'prompt', nil, "text to continue; default: '-- '; with --chat: the one message",
        type = 'string' },
      { 'special', false, 'read special tokens in --prompt as tokens; without it they are text' },
      { 'ids', nil, 'token ids to continue, instead of --prompt; ids are printed',
        type = 'string' },
   }
   local last = {
      { 'seed', 0, 'seed of the sampling', min = 0 },
      { 'device', 'cpu', 'device to compute on', choices = { 'cpu', 'ref', 'cuda' } },
      { 'threads', 0, 'threads; 0: chosen by the program', min = 0, max = 1024 },
      { 'verbose', false, 'print how answers are sampled, and which fields of the folder have no '
        .. 'effect' },
   }
   for _, more in ipairs { picture.rows, talk.rows, drawing.rows, last } do
      for _, row in ipairs(more) do rows[#rows + 1] = row end
   end
   return rows
end

-- The ids of --ids.
local function read_ids(opt, n)
   local list = args.ids('generate', opt.ids, n)
   if opt.stop then err.usage('generate', '--stop needs text; it does not work with --ids') end
   return list
end

-- The tokenizer of texts: that of the folder, or bytes.
local function tokenizer_of(tide, opt, model)
   local n = model.config.vocab_size
   local tok = tide.tokenizer.find(opt.from, n)
   if tok then return tok end
   err.usage('generate', '%s has a vocabulary of %d; text needs the byte vocabulary (%d) or a '
      .. 'folder with a tokenizer; give --ids', opt.from, n, tide.data.bytes.vocab_size)
end

-- Says that letters of a special token are read as text: other programs take them for the token.
local function note_special(tokenizer, text)
   for _, token in ipairs(tokenizer:special_texts()) do
      if text:find(token, 1, true) then
         io.stderr:write(('[%s in --prompt is read as text; --special reads it as the token]\n')
            :format(token))
      end
   end
end

-- The ids of --prompt; a text without ids is the token that begins texts.
local function encode(opt, tokenizer, bos)
   local text = opt.prompt or '-- '
   if not opt.special then note_special(tokenizer, text) end
   local ids = tokenizer:encode(text, { special = opt.special or nil })
   if #ids == 0 then ids = { bos or tokenizer.bos } end
   if #ids == 0 then err.usage('generate', '--prompt: expected at least one character') end
   return ids
end

local function show(text)
   io.stdout:write(text)
   io.stdout:flush()
end

-- Continues ids; prints them as text where there is a tokenizer.
local function continue(tide, model, opt, ids, options)
   ids, options.inputs = picture.prompt(tide, opt, model, ids)
   local most = require('tide.train.rows').new(model).context
   if #ids > most then
      err.usage('generate', 'the prompt has %d tokens, the model reads %d; give a shorter one',
         #ids, most)
   end
   local tokenizer = options.tokenizer
   show(opt.ids or opt.prompt or '-- ')
   options.on_text = tokenizer and show or nil
   if not tokenizer then options.on_token = function(id) show((' %d'):format(id)) end end
   tide.train.sample.generate(model, ids, options)
   io.stdout:write '\n'
end

local function check(opt)
   if opt.chat and opt.ids then err.usage('generate', '--chat does not go with --ids') end
   if opt.image and opt.ids then err.usage('generate', '--image does not go with --ids') end
   if opt.special and (opt.chat or opt.ids) then
      err.usage('generate', '--special needs --prompt without --chat or --ids')
   end
   for _, name in ipairs { 'system', 'messages', 'chat_template', 'template_name' } do
      if opt[name] and not opt.chat then
         err.usage('generate', '--%s is about --chat', (name:gsub('_', '-')))
      end
   end
end

-- Reads the model and what goes with it, and continues the prompt or answers.
local function answer(tide, opt)
   local model = tide.model.load(opt.from, { device = opt.device, verbose = opt.verbose })
   local options, said = drawing.options(tide, model, opt)
   local ids = opt.ids and read_ids(opt, model.config.vocab_size)
   if not ids then
      local tokenizer = tokenizer_of(tide, opt, model)
      options.tokenizer = tokenizer
      options.stop = options.stop or { tokenizer.eos }
   end
   if opt.verbose then drawing.tell(options, said) end
   if opt.chat then return talk.run(tide, model, opt, options) end
   continue(tide, model, opt, ids or encode(opt, options.tokenizer, said.bos), options)
end

-- On several ranks only the first one samples.
local function run(opt)
   local tide = require 'tide'
   check(opt)
   if tide.comm.world().rank > 0 then return end
   if opt.threads > 0 then tide.default():set_nthread(opt.threads) end
   err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_SHAPE', 'E_DEVICE', 'E_UNSUPPORTED' }, answer, tide,
      opt)
end

args.main(function(...)
   local opt = args.parse('generate: text of a checkpoint or a published folder, or a conversation',
      table_of_options(), { ... })
   if opt then run(opt) end
end, ...)
