-- Conversations with pictures: turn after turn the answers of transformers
-- (spec/golden/vl_chat.py). They keep what they have read and notice what has changed.

local case = require 'spec.lua.vl_chat_case'
local columns = require 'tide.train.rows'
local dims = require 'tide.util.dims'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

describe('a conversation with images', function()
   local vision = tide.data.vision
   local proc = tide.data.image.processor { patch_size = 4, min_pixels = 256, max_pixels = 640 }
   local model = case.model():eval()
   local c = model.config

   -- Returns fn(...), and how many ids and patches a model reads in it.
   local function counted_of(m, fn, ...)
      local ids, patches = 0, 0
      local hooks = { m:hook_pre(function(_, x) ids = ids + x:size(2) end),
         m.visual:hook_pre(function(_, x) patches = patches + x:size(1) end) }
      local result = fn(...)
      for _, hook in ipairs(hooks) do hook:remove() end
      return result, ids, patches
   end

   local function counted(fn, ...) return counted_of(model, fn, ...) end

   -- Returns what the model gets beside ids with images of these names and videos of these frames.
   local function inputs_of(images, videos)
      local sources = { images = {}, videos = videos or {} }
      for i, name in ipairs(images) do sources.images[i] = case.golden .. '/' .. name end
      local pictures = vision.read(proc, sources)
      return vision.fields(pictures), pictures
   end

   local function patches_of(inputs)
      return inputs.pixel_values and inputs.pixel_values:size(1) or 0
   end

   -- Checks the answers of a model, turn after turn.
   local function check_turns(m, turns)
      local cache, prompt, names, last = {}, {}, {}, 0
      for k, turn in ipairs(turns) do
         for _, id in ipairs(turn.ids) do prompt[#prompt + 1] = id end
         for _, name in ipairs(turn.images) do names[#names + 1] = name end
         local o = { tokens = #turn.answer, temperature = 0, cache = cache,
            inputs = inputs_of(names) }
         local got, ids, patches = counted_of(m, tide.train.sample.generate, m, prompt, o)
         assert.same(turn.answer, got)
         -- the last id of an answer is read with the next turn
         assert.equal(#turn.ids + #turn.answer - 1 + (k > 1 and 1 or 0), ids)
         assert.equal(patches_of(o.inputs) - last, patches)
         last = patches_of(o.inputs)
         for _, id in ipairs(got) do prompt[#prompt + 1] = id end
      end
   end

   it('answers turn after turn as transformers does, and reads only what is new', function()
      check_turns(model, case.numbers.turns)
      check_turns(case.qwen3_vl.model():eval(), case.qwen3_vl.numbers.turns)
      check_turns(case.qwen3_5.model():eval(), case.qwen3_5.numbers.turns)
   end)

   it('has no videos where each frame is apart behind its time in words', function()
      local talk = tide.chat.conversation(case.qwen3_vl.model(), { processor = proc,
         tokenizer = tide.tokenizer.load(case.golden), template = tide.chat.load(case.golden),
         dir = case.golden })
      assert.matches('messages: Qwen3_VL reads each frame of a video behind its time in words, and '
         .. 'no template writes these; give frames as images', raised(talk.say, talk, {
            { type = 'video', video = { 'a.png', 'a.png' } } }).message, 1, true)
   end)

   -- Returns a prompt of pieces: numbers are ids, names are images, lists of names are videos.
   local function prompt_of(pieces)
      local ids, images, videos = {}, {}, {}
      for _, piece in ipairs(pieces) do
         if type(piece) == 'number' then
            ids[#ids + 1] = piece
         elseif type(piece) == 'string' then
            ids[#ids + 1], images[#images + 1] = c.image_token_id, piece
         else
            local frames = {}
            for i, name in ipairs(piece) do frames[i] = case.golden .. '/' .. name end
            ids[#ids + 1], videos[#videos + 1] = c.video_token_id, { frames = frames,
               fps = piece.fps }
         end
      end
      local inputs, pictures = inputs_of(images, videos)
      ids = vision.expand(proc, c, ids, pictures)
      return ids, next(inputs) and inputs or nil
   end

   it('is as without a cache after any change of an earlier turn', function()
      local cache, n = {}, 0
      local film, slow = { 'b.png', 'b.png', 'b.png', fps = 2 }, { 'b.png', 'b.png', 'b.png',
         fps = 1 }
      for _, pieces in ipairs { { 1, 2, 'a.png', 3 }, { 1, 2, 'a.png', 3, 4, 'b.png', 5 },
         { 1, 2, 'a.png', 3, 4, 'c.png', 5 },                -- another image in its place
         { 1, 2, 'a.png', 3, 6 }, { 1, 2, 'a.png', 3, 6, film, 7 },
         { 1, 2, 'a.png', 3, 6, slow, 7 },
         { 1, 2, 'a.png', 3, 6, slow, 7, 'b.png' },          -- ends with an image
         { 1, 2, 'a.png', 3, 6, slow, 7, 'b.png' },
         { 1, 2, 'a.png', 3, 6, slow, 7, 'b.png', 'a.png' },
         { 1, 2 }, { 1, 2, 3, 4 }, { 1, 2, 3, 4, 'a.png', 5 }, { 'a.png', 'b.png', 5 },
         { 'b.png', 'a.png', 5 }, { 'b.png', 'a.png' }, { 8, film, 'a.png', 9 },
         { 8, film, film, 'a.png', 9 }, { 8, film, 'a.png', 9, 9 } } do
         local ids, inputs = prompt_of(pieces)
         local o = { tokens = 3, temperature = 0, inputs = inputs }
         local want = tide.train.sample.generate(model, ids, o)
         o.cache = cache
         local got, read = counted(tide.train.sample.generate, model, ids, o)
         assert.same(want, got)
         n = n + #ids + 2 - read
      end
      assert.is_true(n > 200, n)                             -- ids that are not read again
   end)

   it('reads an answer again that lies elsewhere in a longer prompt: behind an image', function()
      for _, pieces in ipairs { { 1, 2, 'a.png' }, { 1, { 'b.png', 'b.png', 'b.png', fps = 1 } },
         { 1, 'a.png', 2 } } do
         local cache, ids, inputs = {}, prompt_of(pieces)
         local o = { tokens = 4, temperature = 0, inputs = inputs, cache = cache }
         local answer = tide.train.sample.generate(model, ids, o)
         for _, id in ipairs(answer) do ids[#ids + 1] = id end
         ids[#ids + 1] = 7
         local alone = columns.new(model)
         alone.inputs = inputs
         local want, kept = tide.no_grad(alone.begin, alone, { ids }), cache.rows
         kept.inputs = inputs
         local got, read = counted(tide.no_grad, kept.begin, kept, { ids })
         assert.is_true((want - got):abs():amax():item() < 1e-3 * want:abs():amax():item())
         assert.equal(pieces[3] == 2 and 2 or 5, read)
      end
   end)

   it('reads an image again whose numbers have changed in place', function()
      local ids, inputs = prompt_of { 1, 'a.png', 2 }
      local o = { tokens = 4, temperature = 0, inputs = inputs, cache = {} }
      local before = tide.train.sample.generate(model, ids, o)
      inputs.pixel_values:mul_(-1)
      local got, read = counted(tide.train.sample.generate, model, ids, o)
      assert.equal(#ids - 1 + 3, read)
      o.cache = nil
      assert.same(tide.train.sample.generate(model, ids, o), got)
      assert.not_same(before, got)
   end)

   it('refuses images that its ids do not name, with a cache and without', function()
      local ids, inputs = prompt_of { 1, 'a.png', 2 }
      for _, cache in ipairs { false, {} } do
         local o = { tokens = 1, inputs = inputs, cache = cache or nil }
         assert.matches('image_grid_thw has 1 rows, but ids have tokens', raised(
            tide.train.sample.generate, model, { 1, 2 }, o).message, 1, true)
         o.inputs = { image_grid_thw = inputs.image_grid_thw }
         assert.matches('pixel_values and image_grid_thw: give both of them or none', raised(
            tide.train.sample.generate, model, ids, o).message, 1, true)
         o.inputs = { image_grid_thw = inputs.image_grid_thw,
            pixel_values = inputs.pixel_values:narrow(1, 1, 8) }
         assert.matches('pixel_values: the grids have', raised(tide.train.sample.generate, model,
            ids, o).message, 1, true)
         if cache then assert.is_nil(cache.rows.inputs) end     -- a cache keeps no patches
      end
   end)

   it('is one of messages: only new pictures are decoded and read', function()
      local function new()
         return tide.chat.conversation(model, { tokenizer = tide.tokenizer.load(case.golden),
            template = tide.chat.load(case.golden), processor = proc, dir = case.golden })
      end
      local talk, plain, decoded = new(), new(), 0
      local reading = setmetatable({ read = function(_, ...)
         decoded = decoded + 1
         return proc:read(...)
      end, frames = function(_, ...)
         decoded = decoded + 1
         return proc:frames(...)
      end }, { __index = proc })
      talk.processor = reading
      local function ask(...)
         local parts = {}
         for i, v in ipairs { ... } do
            parts[i] = type(v) == 'table' and { type = 'video', video = v }
               or v:find '%.png$' and { type = 'image', image = v } or { type = 'text', text = v }
         end
         plain.cache = {}
         local want = plain:say(parts, { temperature = 0, tokens = 5 }).ids
         local got, ids = counted(talk.say, talk, parts, { temperature = 0, tokens = 5 })
         assert.same(want, got.ids)
         return ids, #talk:ids()
      end
      ask('a.png', 'What?')
      local first = decoded
      assert.equal(1, first)
      local read, all = ask('b.png', { 'c.png', 'c.png' }, 'And these?')
      assert.is_true(read < all - 60, read)
      assert.equal(3, decoded)
      ask 'So?'
      assert.equal(3, decoded)
      for _, t in ipairs { talk, plain } do t:reset() end
      assert.is_true((ask('b.png', 'And?')) < 80)           -- the system message is kept
      for _, t in ipairs { talk, plain } do
         t.messages[1].content[2].text = 'Another?'          -- a turn that is edited
      end
      ask 'Why?'
   end)
end)

describe('a picture of a conversation', function()
   it('is read again where its file or its pixels have changed', function()
      tmp.with(function(dir)
         local function put(name) return fs.read('spec', case.golden .. '/' .. name) end
         local model, decoded = case.model():eval(), 0
         local proc = tide.data.image.processor(case.golden)
         local talk = tide.chat.conversation(model, { tokenizer = tide.tokenizer.load(case.golden),
            template = tide.chat.load(case.golden), dir = dir,
            processor = setmetatable({ read = function(_, ...)
               decoded = decoded + 1
               return proc:read(...)
            end }, { __index = proc }) })
         local function show(image)
            talk:reset()
            talk.messages[1] = { role = 'user', content = { { type = 'image', image = image } } }
            local _, inputs = talk:ids()
            return inputs.pixel_values
         end
         write(dir .. '/x.png', put 'a.png')
         local first = show 'x.png'
         assert.is_true(rawequal(first, show 'x.png'))
         write(dir .. '/x.png', put 'b.png')
         assert.is_false(dims.equal(first.shape, show('x.png').shape))
         local pixels = tide.data.image.open(case.golden .. '/a.png')
         local before, n = show(pixels):clone(), decoded
         pixels:fill_(7)
         assert.is_false(show(pixels):equal(before))
         assert.equal(n + 1, decoded)
         -- and its patches are freed once no message has pictures
         talk:reset()
         talk.messages[1] = { role = 'user', content = 'Q' }
         talk:ids()
         assert.is_nil(next(talk.kept))
      end)
   end)
end)
