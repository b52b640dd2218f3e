-- Chats with images: tokens, masks and positions as of transformers (spec/golden/vl_chat.py), the
-- forms in which records name images, rows that cut no image, and what is refused.

local tide = require 'tide'
local case = require 'spec.lua.vl_chat_case'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local chat, packed = tide.data.chat, tide.data.packed

-- The ids and the mask of a document, as lists.
local function document(source, cu, i)
   local n = cu[i + 1] - cu[i]
   local raw, mask, ids, counts = source:raw(cu[i], n), source:mask(cu[i], n), {}, {}
   for k = 1, n do
      ids[k], counts[k] = raw:byte(2 * k - 1) + 256 * raw:byte(2 * k), mask:byte(k)
   end
   return ids, table.concat(counts)
end

-- Loads records (JSON Lines) beside the images of the chats.
local function load_text(text, more)
   return tmp.with(function(dir)
      for _, name in ipairs { 'a.png', 'b.png', 'c.png' } do
         fs.write('spec', dir .. '/' .. name, fs.read('spec', case.golden .. '/' .. name))
      end
      write(dir .. '/x.jsonl', (text:gsub('DIR', dir)))
      return chat.load(dir .. '/x.jsonl', case.options(more))
   end)
end

local function user(content, more)
   return ('{"messages": [{"role": "user", "content": %s}, {"role": "assistant", "content": '
      .. '"A."}]%s}\n'):format(content, more or '')
end

describe('a chat with images', function()
   it('has the tokens, labels, grids and positions of transformers', function()
      local corpus = chat.load(case.golden .. '/chats.jsonl', case.options())
      assert.equal(4, corpus.documents)
      for i, want in ipairs(case.numbers) do
         local ids, counts = document(corpus.train, corpus.cu, i)
         assert.same(want.ids, ids)
         assert.equal(want.counts, counts)
         local n = #ids
         local row = { { corpus.cu[i], n, false, n } }
         local batch = packed.make(corpus.train, { row }, n, {})
         local positions = batch.positions:tolist()
         if want.grids then
            assert.same(want.grids, batch.image_grid_thw:tolist())
            assert.same({ { want.time }, { want.height }, { want.width } }, positions)
         else
            assert.is_nil(batch.pixel_values)
            assert.equal(2, batch.positions.ndim)
         end
         assert.equal(#want.counts:sub(2):gsub('0', ''), batch.count)
      end
   end)

   it('reads every spelling of an image', function()
      local want = load_text(user('[{"type": "image", "image": "a.png"}, {"type": "text", '
         .. '"text": "Q"}]'))
      local function check(text)
         local got = load_text(text)
         assert.same({ document(want.train, want.cu, 1) }, { document(got.train, got.cu, 1) })
         assert.same(want.train.images[1].grid, got.train.images[1].grid)
         assert.matches('a%.png$', got.train.images[1].path)
      end
      for _, part in ipairs { '"path": "a.png"', '"url": "file://DIR/a.png"',
         '"url": "file://localhostDIR/a.png"', '"image": "DIR/a.png"',
         '"image_url": {"url": "file:///DIR/%61.png"}', '"image": {"path": "a.png"}',
         '"text": null, "image": "a.png"' } do
         check(user('[{"type": "image", ' .. part .. '}, {"type": "text", "image": null, '
            .. '"text": "Q"}]'))
      end
      check(user('[{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", '
         .. '"text": "Q"}]'))
      -- a list of images beside the messages
      check(user('[{"type": "image"}, {"type": "text", "text": "Q"}]', ', "images": ["a.png"]'))
      check(user('"<image>Q"', ', "images": [{"path": "a.png"}]'))
      check(user('"Q"', ', "images": ["a.png"], "videos": []'))
      check(user('[{"type": "text", "text": "Q"}]', ', "images": ["a.png"]'))
      check(user('"<image>Q"', ', "image": "a.png"'))
      check('{"image": "a.png", "conversations": [{"from": "human", "value": "<image>Q"}, '
         .. '{"from": "gpt", "value": "A."}]}')
      check('{"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": '
         .. '"Q"}]}], "completion": [{"role": "assistant", "content": "A."}], "images": ["a.png"]}')
      -- without images the mark is a text
      assert.is_nil(load_text(user('"<image>Q"', ', "images": []')).train.images)
   end)

   it('reads images inside its record', function()
      local ask = '[{"type": "%s", %s}, {"type": "text", "text": "Q"}]'
      local want = load_text(user(ask:format('image', '"image": "a.png"')))
      want.train.images[1].path = case.golden .. '/a.png'        -- that of the folder is gone
      local function batch(corpus)
         local n = corpus.train.count
         return packed.make(corpus.train, { { { 0, n, false, n } } }, n, {})
      end
      local url, pixels = case.data_url 'a.png', batch(want).pixel_values
      local text = url:match ',(.*)'
      for _, record in ipairs { user(ask:format('image', '"image": "' .. url .. '"')),
         user(ask:format('image_url', '"image_url": {"url": "' .. url .. '", "detail": "low"}')),
         user(ask:format('image', '"url": "DATA:;charset=utf-8;base64,' .. text .. '"')),
         user(ask:format('image', '"base64": "' .. text:gsub('=', ''):gsub(('.'):rep(60), '%0\\n')
            .. '"')),
         user('"<image>Q"', ', "images": ["' .. url:gsub('/', '\\/') .. '"]') } do
         local got = load_text(record)
         assert.same({ document(want.train, want.cu, 1) }, { document(got.train, got.cu, 1) })
         assert.is_true(batch(got).pixel_values:equal(pixels))
         assert.matches('^data:%x+$', got.train.images[1].path)
      end
      -- the fingerprint of a corpus knows the bytes
      local fingerprint = tide.data.tokens.fingerprint
      local function of(name)
         return fingerprint(load_text(user(ask:format('image', '"image": "' .. case.data_url(name)
            .. '"'))).train)
      end
      assert.equal(of 'a.png', of 'a.png')
      local prints = { of 'a.png', of 'b.png', of 'c.png', fingerprint(want.train) }
      for i = 1, 4 do
         for k = i + 1, 4 do assert.not_equal(prints[i], prints[k]) end
      end
      -- a pair holds them in its prompt
      tmp.with(function(dir)
         local line = '{"prompt": [{"role": "user", "content": %s}], "chosen": "Yes.", '
            .. '"rejected": "No"}\n'
         write(dir .. '/p.jsonl', line:format(ask:format('image', '"image": "' .. url .. '"')))
         local pair = tide.data.preference.load(dir .. '/p.jsonl', case.options())
         assert.equal(2, #pair.train.images)
         assert.is_true(batch(pair).pixel_values:equal(tide.cat({ pixels, pixels }, 1)))
      end)
   end)

   it('is refused with its file, line and part', function()
      local function bad(text, problem, more)
         local e = raised(load_text, text, more)
         assert.equal('E_FORMAT', e.code)
         assert.matches('x.jsonl, line 1: ' .. problem, e.message, 1, true)
         assert.is_nil(e.message:find('raised from', 1, true))
         return e.message
      end
      local image = '[{"type": "image", "image": "%s"}]'
      local said = bad(user(image:format 'no.png'), 'messages[1].content[1]: ')
      assert.matches('no.png', said, 1, true)
      local expected = 'messages[1].content[1]: expected the path of an image file, or a data: URL '
         .. 'in base64, got '
      bad(user(image:format 'http://h/a.png'), expected
         .. 'http://h/a.png (http: is not read; save the image as a file)')
      bad(user(image:format 'data:image/png,%89PNG'), expected
         .. 'data:image/png,%89PNG (data: is read in base64 alone)')
      bad(user(image:format 'data:image/png;base64,iVBO*w0K'), expected
         .. 'data:image/png;base64,iVBO*w0K (its base64 has other characters)')
      bad(user(image:format('data:;base64,' .. ('*'):rep(60))), expected
         .. 'data:;base64,' .. ('*'):rep(27) .. '.. (its base64 has')
      bad(user(image:format 'data:image/gif;base64,R0lGODlh'), 'messages[1].content[1]: the bytes: '
         .. 'it is a GIF')
      bad(user(image:format(case.data_url 'a.png':sub(1, 102))), 'messages[1].content[1]: the '
         .. 'bytes: it is a damaged PNG', { images = chat.images(case.model { device = 'null' },
            tide.data.image.processor(case.golden), { decode = true }) })
      bad(user '[{"type": "image", "image": 5}]', 'messages[1].content[1]: expected the path of an '
         .. 'image, got 5')
      bad(user '[{"type": "image"}]', 'messages[1].content[1]: expected the path of an image, got '
         .. 'nothing')
      bad(user('"<image>"', ', "images": ["a.png", "b.png"]'), 'images: expected 1 images, one for '
         .. 'each <image> or image part without a path, got 2')
      bad(user('[{"type": "image"}, {"type": "image"}]', ', "images": ["a.png"]'),
         'messages[1].content[2]: expected the path of an image, got nothing')
      bad(user('[{"type": "image"}, {"type": "image"}]', ', "images": ["a.png", null]'),
         'images[2]: expected the path of an image, got nothing')
      bad(user '[{"type": "image", "image": "a.png"}, {"type": "video", "video": "v"}]',
         'messages[1].content[2].type: expected text or image, got "video"')
      bad(user '[{"type": "image", "image": "a.png"}, {"type": "text", "text": "<|image_pad|>"}]',
         'the template writes 2 tokens that stand for images, and the record has 1 image')
      bad(user '"<|image_pad|>"', 'the template writes 1 tokens that stand for images, and the '
         .. 'record has 0 images')
      bad(user '"<|video_pad|>"', 'a token stands for a video, and videos are not read')
      -- media that a template would leave out without a word
      for _, kind in ipairs { 'video', 'input_audio', 'audio', 'Image' } do
         bad(user('[{"type": "text", "text": "Q"}, {"type": "' .. kind .. '", "path": "a"}]'),
            'messages[1].content[2].type: expected text or image, got "' .. kind .. '"')
      end
      bad('{"text": "t", "images": ["a.png"]}', 'images: an image belongs to a chat')
      bad(user('"Q"', ', "videos": ["v.mp4"]'), 'videos: expected none, got a list; videos are not '
         .. 'read')
      local plain = case.options()
      plain.images = nil
      local e = raised(chat.load, case.golden .. '/chats.jsonl', plain)
      assert.matches('chats.jsonl, line 1: messages[1].content[1]: the record has an image, and '
         .. 'images are not read here', e.message, 1, true)
      local list = load_text(user(image:format 'no.png') .. user '"Q"', { skip_bad = true })
      assert.same({ 1, 1 }, { list.documents, list.bad.count })
      e = raised(chat.images, tide.model.llama({ vocab_size = 9, hidden_size = 8,
         num_hidden_layers = 1, num_attention_heads = 2 }, { device = 'null' }), {})
      assert.matches('a model that reads images', e.message, 1, true)
      tmp.with(function(dir)
         write(dir .. '/preprocessor_config.json', '{"patch_size": 6}')
         e = raised(chat.images, case.model { device = 'null' }, tide.data.image.processor(dir))
         assert.matches(("argument 'processor.patch_size': expected 4, as vision_config.patch_size "
            .. 'of the model (the processor is that of %s), got 6'):format(dir), e.message, 1, true)
      end)
   end)

   it('may be the prompt of a pair of answers', function()
      tmp.with(function(dir)
         fs.write('spec', dir .. '/a.png', fs.read('spec', case.golden .. '/a.png'))
         local ask = '{"role": "user", "content": [%s, {"type": "text", "text": "Q"}]}'
         local path = ask:format '{"type": "image", "image": "a.png"}'
         local listed = ask:format '{"type": "image"}'
         local says = '[{"role": "assistant", "content": "%s"}]'
         local function load(text, more)
            write(dir .. '/p.jsonl', text .. '\n')
            local o = case.options(more)
            if more and more.images == false then o.images = nil end
            if more and more.template == false then o.template = nil end
            return tide.data.preference.load(dir .. '/p.jsonl', o)
         end
         local want
         for _, text in ipairs {
            ('{"prompt": [%s], "chosen": "Yes.", "rejected": "No"}'):format(path),
            ('{"prompt": [%s], "chosen": %s, "rejected": %s, "images": ["a.png"]}'):format(listed,
               says:format 'Yes.', says:format 'No'),
            ('{"chosen": [%s, %s], "rejected": [%s, %s], "images": ["a.png"]}'):format(listed,
               says:format('Yes.'):sub(2, -2), listed, says:format('No'):sub(2, -2)),
            ('{"prompt": [%s], "chosen": "Yes.", "rejected": "No", "images": ["a.png"]}'):format(
               ask:format('x'):gsub('x, ', '')),
         } do
            local got = load(text)
            local list = {}
            for i = 1, 2 do list[i] = { document(got.train, got.cu, i) } end
            want = want or list
            assert.same(want, list)
            assert.equal(2, #got.train.images)
            assert.equal(#('Yes.' .. 'No') + 4, got.labels)         -- and their ends, two tokens
         end
         local e = raised(load, ('{"prompt": [%s], "chosen": "a", "rejected": "b"}'):format(path),
            { images = false })
         assert.matches('p.jsonl, line 1: prompt[1].content[1]: the record has an image, and '
            .. 'images are not read here', e.message, 1, true)
         e = raised(load, ('{"prompt": [%s], "chosen": "a", "rejected": "b"}'):format(
            ask:format '{"type": "image", "image": "b.png"}'))
         assert.matches('p.jsonl, line 1: prompt[1].content[1]: ', e.message, 1, true)
         e = raised(load, '{"prompt": "p", "chosen": "a", "rejected": "b", "images": ["a.png"]}',
            { template = false })
         assert.matches('images: an image belongs to a chat', e.message, 1, true)
      end)
   end)
end)

-- Documents of 20 tokens, of which the images take these places { first, stop }.
local function source_of(images, count)
   local source = tide.data.tokens.memory(('\1\0'):rep(count), 2)
   source.images = {}
   for i, place in ipairs(images) do
      source.images[i] = { path = 'p' .. i, place = 'x.jsonl, line ' .. i, field = 'images[1]',
         first = place[1], at = place[1], stop = place[2], n = place[2] - place[1],
         grid = { 1, 2, 2 } }
   end
   return source
end

local function rows_of(source, cu, seq, long)
   local s = packed.new { cu = cu, source = source, seq = seq, batch = 1, fit = 'alone',
      long = long }
   local list = {}
   for i, row in ipairs(s:all()) do list[i] = ('%d+%d'):format(row[1][1], row[1][2]) end
   return table.concat(list, ' ')
end

describe('rows of chats with images', function()
   it('cut no image', function()
      local source = source_of({ { 3, 9 }, { 9, 15 }, { 28, 33 } }, 40)
      local cu = { 0, 20, 40 }
      assert.equal('0+9 9+10 19+1 20+8 28+10 38+2', rows_of(source, cu, 10, 'split'))
      assert.equal('0+3 3+6 9+6 15+5 20+6 26+2 28+6 34+6', rows_of(source, cu, 6, 'split'))
      assert.equal('0+9 20+8', rows_of(source, cu, 10, 'cut'))
      assert.equal('0+20 20+20', rows_of(source, cu, 20, 'split'))
      local e = raised(rows_of, source, cu, 5, 'split')
      assert.matches('x.jsonl, line 1: images[1]: p1 takes 6 tokens, more than seq (5); an image '
         .. 'is not cut: give a larger seq', e.message, 1, true)
      assert.matches('longer than seq', raised(rows_of, source, cu, 10, 'refuse').message)
      e = raised(tide.data.batch.make, source, { 0 }, 10)
      assert.equal('E_UNSUPPORTED', e.code)
   end)

   it('cut no image of a pair', function()
      local source = source_of({ { 0, 6 }, { 20, 26 } }, 40)
      source.mask = function(_, _, n) return ('\1'):rep(n) end
      local function rows(seq)
         local s = packed.new { cu = { 0, 20, 40 }, source = source, seq = seq, batch = 1,
            fit = 'alone', long = 'cut', together = 2 }
         local row = s:all()[1] or {}
         return #row == 2 and ('%d+%d %d+%d'):format(row[1][1], row[1][2], row[2][1], row[2][2])
      end
      assert.equal('0+10 20+10', rows(20))
      assert.is_false(rows(10))                        -- no room for the image, so for a label
   end)

   it('of a sampler without the source are refused where they cut an image', function()
      local corpus = chat.load(case.golden .. '/chats.jsonl', case.options())
      local e = corpus.train.images[1]
      local function make(from, to)
         return packed.make(corpus.train, { { { from, to - from, false, to - from } } }, 160, {})
      end
      assert.equal(1, make(e.first, e.stop).image_grid_thw:size(1))
      assert.is_nil(make(e.stop, e.stop + 5).pixel_values)
      for _, place in ipairs { { e.first, e.stop - 1 }, { e.stop - 2, e.stop + 5 } } do
         assert.matches('a.png; give data.packed.new the source of the images', raised(make,
            unpack(place)).message, 1, true)
      end
   end)

   it('read the images of their pieces, those of joined sources too', function()
      local corpus = chat.load(case.golden .. '/chats.jsonl', case.options())
      local plain = case.options()
      local text = load_text(user '"Q"', plain)
      local joined = tide.data.tokens.join { text.train, corpus.train, text.train, corpus.train }
      assert.equal(12, #joined.images)
      local n, at = corpus.cu[2], text.train.count
      local row = { { corpus.cu[1], n, false, n } }
      local moved = { { at, n, false, n } }
      local want, got = packed.make(corpus.train, { row }, n, {}), packed.make(joined, { moved }, n,
         {})
      for _, name in ipairs { 'ids', 'positions', 'pixel_values', 'image_grid_thw',
         'feature_rows' } do
         assert.is_true(want[name]:equal(got[name]), name)
      end
      local mix = tide.data.mixture { seq = 160, batch = 4, seed = 3, parts = {
         { source = text.train, cu = text.cu, weight = 0.5 },
         { source = corpus.train, cu = corpus.cu, weight = 0.5 } } }
      local rows = mix:next()
      local batch = mix:make(mix.source, rows)
      assert.equal(packed.images(mix.source, rows).patches, batch.pixel_values:size(1))
      local again = tide.data.tokens.fingerprint(corpus.train)
      assert.equal(again, tide.data.tokens.fingerprint(corpus.train))
      local images = corpus.train.images
      images[1].path = images[2].path
      assert.is_false(again == tide.data.tokens.fingerprint(corpus.train))
   end)

   it('notice an image that has changed, or cannot be decoded', function()
      tmp.with(function(dir)
         local function put(name) return fs.read('spec', case.golden .. '/' .. name) end
         write(dir .. '/a.png', put 'a.png')
         write(dir .. '/x.jsonl', user '[{"type": "image", "image": "a.png"}]')
         local corpus = chat.load(dir .. '/x.jsonl', case.options())
         local function make()
            local n = corpus.train.count
            return packed.make(corpus.train, { { { 0, n, false, n } } }, n, {})
         end
         assert.equal(1, make().image_grid_thw:size(1))
         write(dir .. '/a.png', put 'b.png')
         assert.matches('x.jsonl, line 1: messages[1].content[1]: ' .. dir .. '/a.png has another '
            .. 'size than when the chats were read', raised(make).message, 1, true)
         write(dir .. '/a.png', put('a.png'):sub(1, 60))
         local e = raised(chat.load, dir .. '/x.jsonl', case.options { images = chat.images(
            case.model { device = 'null' }, tide.data.image.processor(case.golden),
            { decode = true }) })
         assert.matches('x.jsonl, line 1: messages[1].content[1]: ' .. dir .. '/a.png: it is a '
            .. 'damaged PNG', e.message, 1, true)
         e = raised(make)
         assert.equal('E_FORMAT', e.code)
         assert.matches('x.jsonl, line 1: messages[1].content[1]: ', e.message, 1, true)
      end)
   end)
end)

describe('the price of a plan', function()
   it('has the patches of images', function()
      local function price(mesh, images)
         return tide.parallel.plan(case.model { device = 'null' }, mesh, { ranks = 2 })
            :price { batch = 1, seq = 128, images = images }
      end
      for _, mesh in ipairs { { dp_shard = 2 }, { cp = 2 }, { tp = 2 } } do
         local text, one = price(mesh), price(mesh, { { 1, 4, 10 } })
         local two = price(mesh, { { 1, 4, 10 }, { 1, 16, 20 } })
         assert.is_true(one.activations > text.activations)
         assert.is_true(two.peak > one.peak)
      end
      local e = raised(price, { dp_shard = 2 }, { { 1, 40, 40 } })
      assert.matches('they take 400 tokens, and a batch of 1 x 128 has 128', e.message, 1, true)
   end)
end)

describe('adapters', function()
   it('leave out modules', function()
      local model = case.model { device = 'null' }
      local all = tide.nn.lora.attach(model, { rank = 2, except = 'visual' })
      assert.is_true(#all.modules > 0)
      for _, path in ipairs(all.modules) do assert.is_nil(path:find '^visual') end
      local e = raised(tide.nn.lora.attach, case.model { device = 'null' },
         { rank = 2, targets = 'qkv', except = { 'visual' } })
      assert.matches('except: no layer that targets names is outside visual', e.message, 1, true)
   end)
end)
