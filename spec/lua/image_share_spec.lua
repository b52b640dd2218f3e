-- Batches with images that several ranks make: each image is decoded on one rank, the batch is that
-- of one rank, and what one rank cannot read ends all.

local case = require 'spec.lua.vl_chat_case'
local fs = require 'tide.util.fs'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

-- On a rank: makes the batch of all chats of a folder, and of the first alone. change(e): changes
-- the images. Returns how many images the rank decodes, and checksums of the batches.
local function on_rank(rank, size, dir, how)
   local t = require 'tide'
   local case_ = require 'spec.lua.vl_chat_case'
   local image = t.data.image
   local corpus = t.data.chat.load(dir .. '/c.jsonl', case_.options())
   local n, open = 0, image.open
   rawset(image, 'open', function(path)
      n = n + 1
      if how.broken and path:find(how.broken, 1, true) and rank == 1 then
         error('it cannot be read here', 0)
      end
      return open(path)
   end)
   local rows, marks = {}, {}
   for i = 1, corpus.documents do
      local length = corpus.cu[i + 1] - corpus.cu[i]
      rows[i] = { { corpus.cu[i], length, false, length } }
   end
   if how.other and rank == 1 then rows[1], rows[2] = rows[2], rows[1] end
   local ok, problem = pcall(function()
      for _, list in ipairs { rows, { rows[1] }, { rows[3] } } do
         local batch = t.data.packed.make(corpus.train, list, 200,
            { same_rows = size > 1 and t.comm.world() or nil })
         for _, name in ipairs { 'pixel_values', 'image_grid_thw', 'ids' } do
            marks[#marks + 1] = batch[name] and require('tide.ffi.io').checksum(batch[name]) or '-'
         end
      end
   end)
   rawset(image, 'open', open)
   if not ok then error(problem, 0) end
   return { n, marks }
end

local function with_chats(fn)
   tmp.with(function(dir)
      for _, name in ipairs { 'a.png', 'b.png', 'c.png' } do
         fs.write('spec', dir .. '/' .. name, fs.read('spec', case.golden .. '/' .. name))
      end
      write(dir .. '/c.jsonl', table.concat(case.lines(), '\n') .. '\n')
      fn(dir)
   end)
end

describe('a batch that several ranks make', function()
   it('is that of one rank, and each image is decoded once', function()
      with_chats(function(dir)
         local want = ranks.run(1, on_rank, dir, {})[1]
         assert.equal(7, want[1])                            -- 6, the first again, and none
         for size = 2, 3 do
            local n = 0
            for _, got in ipairs(ranks.run(size, on_rank, dir, {})) do
               assert.same(want[2], got[2])
               assert.is_true(got[1] < 6)
               n = n + got[1]
            end
            assert.equal(7, n)
         end
      end)
   end)

   it('ends on all ranks with what one of them cannot read', function()
      with_chats(function(dir)
         for _, row in ipairs((ranks.try(2, on_rank, dir, { broken = 'b.png' }))) do
            assert.matches('c.jsonl, line 4: messages[2].content[1]: it cannot be read here',
               row.message, 1, true)
         end
      end)
   end)

   it('is refused where ranks make different ones', function()
      with_chats(function(dir)
         for _, row in ipairs((ranks.try(2, on_rank, dir, { other = true }))) do
            assert.matches('rank 1 has other images than rank 0', row.message, 1, true)
            assert.matches('same_rows is for ranks that make the same batch', row.message, 1, true)
         end
      end)
   end)
end)
