-- Tensors of a checkpoint in pieces: random boxes of ranks are written and any box is read again;
-- an index is accepted exactly if its boxes tile the tensor, element by element.

local tide = require 'tide'
local choice = require 'spec.deep.fuzz.choice'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local refused = require 'spec.support.refused'
local shard_index = require 'tide.train.shard_index'
local store = require 'tide.train.shard_store'
local tmp = require 'spec.support.tmp'

-- A tensor whose elements are their numbers.
local function numbered(shape)
   local n = dims.numel(shape)
   local t = tide.arange(n, { dtype = 'i64' })
   return #shape == 0 and t:reshape {} or t:reshape(unpack(shape))
end

local function some_box(pick, shape)
   local box = { offset = {}, size = {} }
   for d, n in ipairs(shape) do
      box.offset[d] = pick:int(0, math.max(0, n - 1))
      box.size[d] = pick:int(n > 0 and 1 or 0, n - box.offset[d])
   end
   return box
end

-- Calls fn(number) for the elements of a box.
local function each_element(shape, box, fn)
   local function walk(d, number)
      if d > #shape then return fn(number) end
      for i = box.offset[d], box.offset[d] + box.size[d] - 1 do
         walk(d + 1, number * shape[d] + i)
      end
   end
   walk(1, 0)
end

local function elements(shape, box)
   local list = {}
   each_element(shape, box, function(n) list[#list + 1] = n end)
   return list
end

describe('pieces of ranks', function()
   it('are written once, and any box of the whole is read again', function()
      for seed = 1, 25 do
         local pick = choice.drawn('pieces', seed)
         local size, held = pick:int(1, 4), {}
         local shape = {}
         for d = 1, pick:int(0, 3) do shape[d] = pick:int(1, 5) end
         local whole = numbered(shape)
         for r = 1, size do
            held[r] = { model = {}, optim = {} }
            local boxes = { r == size and { offset = dims.zeros(#shape), size = shape }
               or some_box(pick, shape) }
            for _, box in ipairs(boxes) do
               held[r].model[1] = { name = 'w', shape = shape, offset = box.offset, size = box.size,
                  t = dims.view(whole, box.offset, box.size) }
            end
            if pick:chance(0.5) then
               held[r].optim[1] = { name = 'w.m', shape = { 3 }, offset = { 0 }, size = { 3 },
                  t = tide.ones { 3 } }
            end
         end
         local said = {}
         for r = 1, size do
            said[r] = { model = {}, optim = {} }
            for kind, list in each(held[r]) do
               for i, item in ipairs(list) do
                  said[r][kind][i] = { name = item.name, dtype = item.t.dtype, shape = item.shape,
                     offset = item.offset, size = item.size }
               end
            end
         end
         tmp.with(function(dir)
            local index, written, manifest = nil, 0, { files = { [store.index_name] = {} } }
            for r = 1, size do
               local comm = { rank = r - 1, size = size, all_gather_object = function(_, mine)
                  assert.same(said[r], mine)
                  return said
               end }
               local files, all = store.plan(comm, held[r])
               for name, tensors in each(files) do
                  assert.matches(('-%05d-of-%05d.safetensors'):format(r - 1, size), name, 1, true)
                  manifest.files[name] = {}
                  fs.io().safetensors_save(dir .. '/' .. name, tensors, {})
                  if name:find '^model' then
                     for _, t in each(tensors) do written = written + t:numel() end
                  end
               end
               if index then assert.same(index, all) end
               index = all
            end
            assert.equal(dims.numel(shape), written)             -- each element once
            fs.write_json('spec', dir .. '/' .. store.index_name, index)
            local checked = {}
            local s = store.open('spec', dir, manifest, function(name) checked[name] = true end)
            assert.same({ 'w' }, s:names 'model')
            assert.same({ shape, 'i64' }, { s:shape('model', 'w'), s:dtype('model', 'w') })
            assert.is_nil(s:shape('model', 'x') or s:dtype('optim', 'x'))
            for _ = 1, 6 do
               local box = some_box(pick, shape)
               local got = s:read('model', 'w', box.offset, box.size)
               assert.same({ box.size, elements(shape, box) }, { got.shape,
                  got:reshape(-1):tolist() })
               local opened, needed, own = {}, {}, {}
               for _, n in ipairs(elements(shape, box)) do own[n] = true end
               for _, piece in ipairs(index.model.w.pieces) do
                  each_element(shape, piece, function(n)
                     if own[n] then needed[piece.file] = true end
                  end)
               end
               local t = store.open('spec', dir, manifest, function(name) opened[name] = true end)
               t:touch('model', 'w', box.offset, box.size)
               assert.same(needed, opened)
               t:close()
            end
            local all = s:all 'model'
            assert.same(elements(shape, { offset = dims.zeros(#shape), size = shape }),
               all.w:reshape(-1):tolist())
            for name in each(checked) do assert.is_truthy(manifest.files[name]) end
            refused('E_FORMAT', "has no 'x'", s.read, s, 'model', 'x', {}, {})
            s:close()
            assert.same({}, s.files)
         end)
      end
   end)

   it('are read from a checkpoint of one rank, and counted', function()
      tmp.with(function(dir)
         local io_ = fs.io()
         io_.safetensors_save(dir .. '/model.safetensors', { a = numbered { 6, 4 } }, {})
         local s = store.open('spec', dir, { files = { ['model.safetensors'] = {} } },
            function() end)
         assert.same({ { 'a' }, {}, { 6, 4 } }, { s:names 'model', s:names 'optim',
            s:shape('model', 'a') })
         assert.same({ { 9, 10 }, { 13, 14 } }, s:read('model', 'a', { 2, 1 }, { 2, 2 }):tolist())
         assert.equal(2 * 4 * 8, s.nbyte)                        -- the rows that hold the box
         io_.safetensors_save(dir .. '/model.safetensors', { a = tide.ones { 2 } }, {})
         for text, row in each { ["'a' is F32 [2], the index says i64 [2]"] = { 'i64', { 2 } },
            ["'a' is F32 [2], the index says f32 [3]"] = { 'f32', { 3 } } } do
            local t = store.open('spec', dir, { files = { ['model.safetensors'] = {} } },
               function() end)
            local part = t.index.model.a
            part.dtype, part.shape, part.pieces[1].size = row[1], row[2], row[2]
            refused('E_FORMAT', text, t.read, t, 'model', 'a', { 0 }, { 1 })
            part.pieces[1].name = 'b'
            refused('E_FORMAT', "'b' is not there", t.read, t, 'model', 'a', { 0 }, { 1 })
            t.files['model.safetensors'] = { info = function()
               require('tide.util.err').raise('E_NOMEM', 'spec', 'no memory')
            end }
            refused('E_NOMEM', 'no memory', t.read, t, 'model', 'a', { 0 }, { 1 })
         end
      end)
   end)
end)

describe('an index of pieces', function()
   local function checked(row)
      return shard_index.check('spec', 'shards.json', { version = 1, model = { w = row },
         optim = {} }, 1)
   end

   it('is accepted exactly if its boxes tile the tensor', function()
      local good, bad = 0, 0
      for seed = 1, 500 do
         local pick, moved = choice.drawn('tiles', seed), seed > 150
         local shape = {}
         for d = 1, moved and 2 or pick:int(0, 2) do shape[d] = pick:int(moved and 3 or 1, 4) end
         -- boxes that tile, by cutting; then one may be moved, dropped, doubled or grown
         local boxes = { { offset = dims.zeros(#shape), size = dims.copy(shape) } }
         for _ = 1, moved and 5 or #shape > 0 and pick:int(0, 3) or 0 do
            local b, d = table.remove(boxes, pick:int(1, #boxes)), pick:int(1, #shape)
            local cut = pick:int(0, b.size[d])
            local other = { offset = dims.copy(b.offset), size = dims.copy(b.size) }
            b.size[d], other.offset[d] = cut, other.offset[d] + cut
            other.size[d] = other.size[d] - cut
            boxes[#boxes + 1], boxes[#boxes + 2] = other, b
         end
         local change = moved and 3 or pick:int(1, 5)
         local at = pick:int(1, #boxes)
         local one = boxes[at]
         if change == 1 then table.remove(boxes, at)
         elseif change == 2 then boxes[#boxes + 1] = one
         elseif #shape > 0 and change == 3 then
            local d = pick:int(1, #shape)
            one.offset[d] = math.max(0, one.offset[d] + pick:pick { -1, 1 })
         elseif #shape > 0 and change == 4 then
            local d = pick:int(1, #shape)
            one.size[d] = math.max(0, one.size[d] + pick:pick { -1, 1 })
         end
         local counts, inside, total = {}, true, 0
         for _, b in ipairs(boxes) do
            for d = 1, #shape do inside = inside and b.offset[d] + b.size[d] <= shape[d] end
         end
         for _, b in ipairs(inside and boxes or {}) do
            each_element(shape, b, function(n)
               counts[n], total = (counts[n] or 0) + 1, total + 1
            end)
         end
         local tiles = inside and total == dims.numel(shape)
         for _, n in each(counts) do tiles = tiles and n == 1 end
         local pieces = {}
         for i, b in ipairs(boxes) do
            pieces[i] = { file = 'f' .. i, offset = b.offset, size = b.size }
         end
         local ok = pcall(checked, { shape = shape, dtype = 'f32', pieces = pieces })
         assert.equal(tiles, ok, seed)
         good, bad = good + (ok and 1 or 0), bad + (ok and 0 or 1)
      end
      assert.is_true(good > 30 and bad > 30)
   end)

   it('says what is wrong with it', function()
      local function row(o)
         local r = { shape = { 4, 2 }, dtype = 'f32', pieces = {
            { file = 'a', offset = { 0, 0 }, size = { 2, 2 } },
            { file = 'b', offset = { 2, 0 }, size = { 2, 2 } } } }
         for k, v in each(o or {}) do
            if type(k) == 'number' then
               for name, value in each(v) do r.pieces[k][name] = value end
            else
               r[k] = v
            end
         end
         return r
      end
      checked(row())
      for text, o in each { ["field 'dtype'"] = { dtype = 'f8' },
         ["field 'shape'"] = { shape = 'x' }, ["field 'pieces[1].file'"] = { { file = 5 } },
         ["a name without '/'"] = { { file = 'a/b' } },
         ["field 'pieces[1].size[2]'"] = { { size = { 1, -1 } } },
         ['a piece of 1 dims at 2, where the tensor has 2'] = { { size = { 2 } } },
         ['a piece of 2 dims at 1, where the tensor has 2'] = { { offset = { 2 } } },
         ['a piece at [2, 0] of [3, 2], outside [4, 2]'] = { [2] = { size = { 3, 2 } } },
         ['pieces that overlap, at [0, 0] in a and at [1, 0] in b'] = { [2] = {
            offset = { 1, 0 }, size = { 3, 2 } } },
         ['pieces of 6 elements in all, [4, 2] has 8'] = { [2] = { size = { 1, 2 } } } } do
         refused('E_FORMAT', { 'shards.json: model "w" has ', text }, checked, row(o))
      end
      local scalar = { file = 'a', offset = {}, size = {} }
      checked { shape = {}, dtype = 'f32', pieces = { scalar } }
      refused('E_FORMAT', 'pieces that overlap, at [] in a and at [] in a', checked, { shape = {},
         dtype = 'f32', pieces = { scalar, scalar } })
      local function check(t) return shard_index.check('spec', 'p', t, 1) end
      refused('E_FORMAT', 'p: version 2, this library reads 1', check, { version = 2 })
      refused('E_FORMAT', "p has no list 'model'", check, { version = 1, optim = {} })
      refused('E_FORMAT', "p has no list 'optim'", check, { version = 1, model = {} })
      refused('E_FORMAT', 'p: model 1 has no name', check, { version = 1, model = { row() },
         optim = {} })
   end)
end)
