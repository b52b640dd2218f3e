-- Chats with images of a small Gemma 3 (spec/golden/gemma3_chat.py): ids, losses and answers are
-- those of transformers, from records and in conversations.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'
local vlm = require 'spec.lua.vlm_case'

local golden = 'spec/golden/gemma3_chat'
local numbers = dofile(golden .. '/numbers.lua')
local config = tide.json.decode(fs.read('spec', golden .. '/config.json'))
local tokenizer, template = tide.tokenizer.load(golden), tide.chat.load(golden)
local processor = tide.data.image.processor(golden)

local function model_of() return vlm.gemma3_vl.fill(tide.model.gemma3_vl(config)):eval() end

-- Chats of the records, whose images lie beside those of vl_chat.
local function chats()
   local list = {}
   for line in fs.read('spec', golden .. '/chats.jsonl'):gmatch '[^\n]+' do
      list[#list + 1] = tide.json.decode(line).messages
   end
   return list
end

local function corpus(dir, model)
   fs.write('spec', dir .. '/c.jsonl', fs.read('spec', golden .. '/chats.jsonl'))
   for _, name in ipairs { 'a.png', 'b.png', 'c.png' } do
      fs.write('spec', dir .. '/' .. name, fs.read('spec', 'spec/golden/vl_chat/' .. name))
   end
   return tide.data.chat.load(dir .. '/c.jsonl', { tokenizer = tokenizer, val = 0,
      template = template, images = tide.data.chat.images(model, processor) })
end

describe('chats of Gemma 3 with images', function()
   it('have the ids of transformers, and rows their losses', function()
      local model = model_of()
      tmp.with(function(dir)
         local c, alone = corpus(dir, model), {}
         local function call(batch)
            local o = { index = batch.index, positions = batch.positions }
            for _, name in ipairs(model.input_fields) do o[name] = batch[name] end
            return o
         end
         for i, want in ipairs(numbers) do
            local n = c.cu[i + 1] - c.cu[i]
            local rows = { { { c.cu[i], n, false, n } } }
            local batch = tide.data.packed.make(c.train, rows, n)
            local ids, o = batch.ids:select(1, 1):tolist(), call(batch)
            for t, id in ipairs(ids) do ids[t] = tonumber(id) end
            assert.same(want.ids, ids)
            alone[i] = model(batch.ids, o)
            local labels = batch.ids:narrow(2, 2, n - 1):contiguous()
            labels = tide.cat({ labels, tide.full({ 1, 1 }, -100, { dtype = 'i64' }) }, 2)
            local at = tide.arange(n, { dtype = 'i64' }):reshape(1, n)
            labels = labels:masked_fill(at:lt(want.first - 1), -100)
            assert.near(want.loss, model:loss(batch.ids, labels, o):item(), 1e-4)
         end
         -- in one row each sees what it sees alone
         local rows, at = { {} }, 0
         for i in ipairs(numbers) do
            local n = c.cu[i + 1] - c.cu[i]
            rows[1][i], at = { c.cu[i], n, false, n }, at + n
         end
         local batch = tide.data.packed.make(c.train, rows, at)
         assert.same({ 1, at, 3 }, batch.index.shape)
         local all = model(batch.ids, call(batch))
         assert.is_true((all - tide.cat(alone, 2)):abs():amax():item() <= 1e-5)
      end)
   end)

   it('are answered as transformers answers them, turn after turn', function()
      local model = model_of()
      for i, chat in ipairs(chats()) do
         local messages = { unpack(chat, 1, #chat - 1) }
         local talk = tide.chat.conversation(model, { tokenizer = tokenizer, template = template,
            processor = processor, messages = messages, dir = 'spec/golden/vl_chat' })
         local ids, inputs = talk:ids()
         assert.same({ unpack(numbers[i].ids, 1, numbers[i].first) }, ids)
         assert.equal(i < 3, inputs ~= nil)
         local _, r = tide.train.sample.generate(model, ids, { tokens = 6, temperature = 0,
            inputs = inputs, tokenizer = tokenizer, cache = {} })
         assert.same(numbers[i].answer, r.ids)
      end
   end)

   it('have patches of the sizes of a model where the folder has no config.json', function()
      tmp.with(function(dir)
         fs.write('spec', dir .. '/processor_config.json', fs.read('spec', golden
            .. '/processor_config.json'))
         assert.matches('has no config.json with vision_config, which says how large patches are; '
            .. 'give the model as the second argument', raised(tide.data.image.processor, dir)
               .message, 1, true)
         local proc = tide.data.image.processor(dir, tide.model.gemma3_vl(config,
            { device = 'null' }))
         assert.same(processor.config, proc.config)
      end)
   end)

   it('refuse what the processor does not do', function()
      local fields = tide.json.decode(fs.read('spec', golden .. '/processor_config.json'))
         .image_processor
      local function message(change)
         local f = copy(fields)
         f.patch_size, f.merge_size = 2, 2
         change(f)
         return raised(tide.data.image.processor, f).message
      end
      assert.matches('do_pan_and_scan is on', message(function(f) f.do_pan_and_scan = true end), 1,
         true)
      assert.matches('size: expected height and width in pixels, the same', message(function(f)
         f.size = { height = 8, width = 12 }
      end), 1, true)
      assert.matches('resample: expected 2 (bilinear), got 3', message(function(f)
         f.resample = 3
      end), 1, true)
      assert.matches('size: expected a multiple of 4 pixels', message(function(f)
         f.size = { height = 6, width = 6 }
      end), 1, true)
      assert.matches('reads no videos; give frames as images', raised(processor.frames, processor,
         { 'spec/golden/vl_chat/a.png' }).message, 1, true)
      local other = copy(config)
      other.vision_config = copy({ image_size = 16 }, copy(config.vision_config))
      assert.matches("'processor.side': expected 16, as vision_config.image_size", raised(
         tide.data.chat.images, tide.model.gemma3_vl(copy({ mm_tokens_per_image = 16 }, other),
            { device = 'null' }), processor).message, 1, true)
   end)
end)
