-- Checkpoints whose files say what they cannot mean, with sizes and hashes that fit: each is
-- refused by an error that names the file, never by a raw Lua error.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'
local files = require 'spec.support.files'
local raised = require 'spec.support.raised'

local checkpoint, json = tide.train.checkpoint, fs.io().json
local step_folder = '/run/step-00000001'

-- Saves a small model after a step; sharded over the ranks if there are several. On a rank.
local function save(_, n, out)
   local t = require 'tide'
   local model = t.model.llama({ vocab_size = 12, hidden_size = 4, num_hidden_layers = 1,
      num_attention_heads = 1, intermediate_size = 6 }, { seed = 1,
         device = n > 1 and 'null' or 'cpu' })
   local sharded = n > 1 and t.parallel.fully_shard(model, { seed = 1 }) or nil
   local optim = t.optim.AdamW(sharded or model, { lr = 1e-2 })
   local step = t.train.step.new { model = model, optim = optim, parallel = sharded }
   local ids = t.tensor({ { 1, 2, 3 } }, { dtype = 'i64' })
   step:run { { ids = ids, labels = ids } }
   local sampler = t.data.sampler.new { count = 100, seq = 3, batch = 1, seed = 1 }
   t.train.checkpoint.save(out, t.train.state.collect { model = model, optim = optim, step = 1,
      parallel = sharded, sampler = sampler, accum = 1, fingerprint = '1:2:3', val_loss = 2 })
end

-- Makes the manifest fit the files again.
local function reseal(folder)
   local manifest = fs.read_json('spec', folder .. '/manifest.json')
   for name in each(manifest.files) do
      manifest.files[name] = { size = fs.size(folder .. '/' .. name),
         xxh64 = fs.hash('spec', folder .. '/' .. name) }
   end
   files.write(folder .. '/manifest.json', json.encode(manifest))
end

-- Calls fn(path, change) for every value of a tree of tables; change(v) gives a copy of the tree
-- with v in its place.
local function each_value(tree, fn)
   local function copy(t, path, i, v)
      local out = {}
      for k, w in each(t) do out[k] = w end
      local k = path[i]
      if i == #path then out[k] = v else out[k] = copy(t[k], path, i + 1, v) end
      return setmetatable(out, getmetatable(t))
   end
   local function walk(t, path)
      for k, v in each(t) do
         path[#path + 1] = k
         fn(table.concat(path, '.'), function(new) return copy(tree, path, 1, new) end)
         if type(v) == 'table' then walk(v, path) end
         path[#path] = nil
      end
   end
   walk(tree, {})
end

local strange = { {}, 'x', -1, 1.5, 1e300, 2 ^ 40, true, { 1, 'y' }, { x = {} }, json.null }

-- What people do with a checkpoint; results are not looked at.
local function use(where)
   local saved = checkpoint.load(where)
   local model = tide.model.llama({ vocab_size = 12, hidden_size = 4, num_hidden_layers = 1,
      num_attention_heads = 1, intermediate_size = 6 }, { seed = 2 })
   tide.train.state.restore({ model = model, optim = tide.optim.AdamW(model, { lr = 1 }),
      sampler = tide.data.sampler.new { count = 100, seq = 3, batch = 1, seed = 1 },
      accum = 1, fingerprint = '1:2:3' }, saved)
   checkpoint.recipe(where)
   checkpoint.consolidate(where, where .. '/../hf')
   tide.train.score.load(where)
end

-- Every value of a JSON file of the checkpoint of n ranks, replaced by every strange one.
local function try_all(n, name)
   tmp.with(function(dir)
      ranks.run(n, save, dir .. '/run')
      local folder = dir .. step_folder
      local path = folder .. '/' .. name
      local tree, refused, seen = fs.read_json('spec', path), 0, 0
      use(dir .. '/run')
      each_value(tree, function(at, change)
         local skipped = at:find '%.weight' and not at:find 'q_proj'      -- one tensor of many
         for _, v in ipairs(skipped and {} or strange) do
            files.write(path, json.encode(change(v)))
            if name ~= 'manifest.json' then reseal(folder) end
            local ok, e = pcall(use, dir .. '/run')
            seen, refused = seen + 1, refused + (ok and 0 or 1)
            local told = ok or err.is(e) and e.code ~= 'E_INTERNAL'
               and (not e.op:find '^train%.checkpoint' or e.message:find(dir, 1, true) ~= nil)
            assert.is_true(told, ('%s: %s = %s: %s'):format(name, at, json.encode(v), tostring(e)))
         end
      end)
      assert.is_true(seen > 100 and refused > seen / 3, refused .. ' of ' .. seen)
   end)
end

describe('a checkpoint with strange values', function()
   it('in state.json', function() try_all(1, 'state.json') end)
   it('in manifest.json', function() try_all(1, 'manifest.json') end)
   it('in shards.json', function() try_all(2, 'shards.json') end)
end)

describe('a checkpoint in pieces', function()
   -- Changes shards.json by fn(index) and gives the message of loading.
   local function changed(dir, fn)
      local path = dir .. step_folder .. '/shards.json'
      local good = files.read(path)
      local index = json.decode(good)
      fn(index)
      files.write(path, json.encode(index))
      reseal(dir .. step_folder)
      local e = raised(checkpoint.load, dir .. '/run')
      files.write(path, good)
      assert.equal('E_FORMAT', e.code)
      assert.matches(path, e.message, 1, true)
      return e.message
   end

   it('must tile each tensor: no overlap, no hole, nothing outside', function()
      tmp.with(function(dir)
         ranks.run(2, save, dir .. '/run')
         local name = 'model.layers.0.mlp.up_proj.weight'
         local found
         local function pieces(index)
            for key, row in each(index.model) do
               if #row.pieces == 2 then name, found = key, row end
            end
            return found.pieces
         end
         -- the volumes add up, rows 1 are there twice
         assert.matches('has pieces that overlap, at', changed(dir, function(index)
            pieces(index)[2].offset[1] = pieces(index)[2].offset[1] - 1
         end), 1, true)
         assert.matches(name, changed(dir, function(index) pieces(index)[2] = nil end), 1, true)
         assert.matches('elements in all', changed(dir, function(index)
            pieces(index)[2] = nil
         end), 1, true)
         assert.matches(', outside [', changed(dir, function(index)
            pieces(index)[2].offset[1] = pieces(index)[2].offset[1] + 1
         end), 1, true)
      end)
   end)

   it('must lie in files as the index says', function()
      tmp.with(function(dir)
         ranks.run(2, save, dir .. '/run')
         local path = dir .. step_folder .. '/shards.json'
         local index = fs.read_json('spec', path)
         local key, row = next(index.model)
         row.dtype = 'f64'
         fs.write_json('spec', path, index)
         reseal(dir .. step_folder)
         local e = raised(checkpoint.load, dir .. '/run')
         assert.equal('E_FORMAT', e.code)
         assert.matches(("'%s' is F32 ["):format(key), e.message, 1, true)
         assert.matches('the index says f64', e.message, 1, true)
      end)
   end)
end)

describe('a small file', function()
   it('does not cost the time of a large model', function()
      tmp.with(function(dir)
         ranks.run(1, save, dir .. '/run')
         local path = dir .. step_folder .. '/state.json'
         local state = fs.read_json('spec', path)
         state.config.num_hidden_layers = 100000
         fs.write_json('spec', path, state)
         reseal(dir .. step_folder)
         for _, fn in ipairs { tide.train.score.load, checkpoint.load } do
            local e = raised(fn, dir .. '/run')
            assert.equal('E_FORMAT', e.code)
            assert.matches('describes 100000 layers, the checkpoint has', e.message, 1, true)
         end
      end)
   end)

   it('that is no file of bytes is not waited for', function()
      tmp.with(function(dir)
         assert(os.execute('mkfifo ' .. dir .. '/pipe.bin') == 0)
         for _, path in ipairs { dir .. '/pipe.bin', dir } do
            local e = raised(tide.data.tokens.file, path)
            assert.equal('E_FORMAT', e.code)
            assert.matches('not a regular file', e.message, 1, true)
         end
         assert.equal('E_IO', raised(tide.data.text.load, dir .. '/pipe.bin').code)
         assert.matches('no text or .bin file', raised(tide.data.text.load, dir).message, 1, true)
      end)
   end)
end)
