-- Published folders against plain loops: runs and boxes of stored tensors, which tensors lie in
-- which file, what a save and an adapter refuse.

local each = require 'tide.util.each'
local folder = require 'tide.pretrained.folder'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local ranks = require 'spec.support.ranks'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local weights = require 'tide.pretrained.weights'

local config = { vocab_size = 20, hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2,
   num_key_value_heads = 1, intermediate_size = 12, eos_token_id = { 2, 3 } }

local function model_of(opts) return tide.model.llama(config, opts or { seed = 1 }) end

-- A random box of a shape: offset and size.
local function box_in(shape)
   local offset, size = {}, {}
   for k, n in ipairs(shape) do
      size[k] = math.random(3) == 1 and n or math.random(0, n)
      offset[k] = math.random(0, n - size[k])
   end
   return offset, size
end

local function product(list)
   local n = 1
   for _, v in ipairs(list) do n = n * v end
   return n
end

describe('a box of a stored tensor', function()
   it('is read in the fewest runs that lie in one piece', function()
      math.randomseed(21)
      for _ = 1, 300 do
         local shape = {}
         for k = 1, math.random(0, 4) do shape[k] = math.random(1, 4) end
         local offset, size = box_in(shape)
         local want, got, nrun, last = {}, {}, 0, nil
         local total = product(size)
         for i = 0, total - 1 do                        -- the place of element i of the box
            local rest, place, step = i, 0, 1
            for k = #shape, 1, -1 do
               local at = rest % size[k]
               rest, place = (rest - at) / size[k], place + (offset[k] + at) * step
               step = step * shape[k]
            end
            want[i + 1] = place
         end
         weights.each_run(shape, offset, size, function(first, at, n)
            nrun = nrun + 1
            for i = 0, n - 1 do got[at + i + 1] = first + i end
            last = n
         end)
         assert.same(want, got)
         local d = #shape
         while d > 1 and size[d] == shape[d] do d = d - 1 end
         local rows = total == 0 and 0 or 1
         for k = 1, d - 1 do rows = rows * size[k] end
         assert.equal(rows, nrun)
         if nrun > 0 then assert.equal(total / rows, last) end
      end
   end)

   it('loads as stored, in another dtype, and on another device', function()
      math.randomseed(22)
      tmp.with(function(dir)
         local long = 2 ^ 19
         local tensors = { a = tide.randn({ 5, 7 }),
            b = tide.randn({ 3, 4, 5 }, { dtype = 'bf16' }),
            ['x.rotary_emb.inv_freq'] = tide.ones { 2 },
            c = tide.randn({ 3, long / 2 }),
            d = tide.randn({}, { dtype = 'f64' }) }
         fs.io().safetensors_save(dir .. '/model.safetensors', tensors, {})
         local w = weights.open('op', dir)
         assert.same({ 'a', 'b', 'c', 'd' }, w:names())
         assert.is_nil(w:shape('model', 'e'))
         assert.is_nil(w:dtype('model', 'e'))
         assert.same({ { 3, 4, 5 }, 'bf16' }, { w:shape('model', 'b'), w:dtype('model', 'b') })
         assert.equal('f32', w:main_dtype())
         local function part(t, offset, size)
            for k, n in ipairs(size) do t = t:narrow(k, offset[k] + 1, n) end
            return t
         end
         for _ = 1, 40 do
            for _, name in ipairs { 'a', 'b', 'd' } do
               local t = tensors[name]
               local offset, size = box_in(t.shape)
               local want, before = part(t, offset, size), w.nbyte
               assert.is_true(want:equal(w:read('model', name, offset, size)))
               assert.equal(before + product(size) * tide.dtype_size(t.dtype), w.nbyte)
               for _, dtype in ipairs { 'f32', 'f64', 'bf16' } do
                  local room = tide.zeros(size, { dtype = dtype })
                  w:fill(name, offset, size, room)
                  assert.is_true(want:to(dtype):equal(room))
               end
               if #size == 2 then
                  local room = tide.zeros({ size[2], size[1] }):t()
                  w:fill(name, offset, size, room)
                  assert.is_true(want:equal(room))
               end
            end
         end
         -- more than a piece that is converted at a time
         for _, row in ipairs { { { 0, 0 }, { 3, long / 2 } }, { { 1, 1 }, { 2, long / 2 - 1 } },
            { { 0, 3 }, { 3, long / 2 - 3 } } } do
            local room, before = tide.zeros(row[2], { dtype = 'f64' }), w.nbyte
            w:fill('c', row[1], row[2], room)
            assert.is_true(part(tensors.c, row[1], row[2]):to('f64'):equal(room))
            assert.equal(before + 4 * product(row[2]), w.nbyte)
         end
         w:drop 'a'
         assert.same({ 'b', 'c', 'd' }, w:names())
         w:close()
      end)
   end)
end)

describe('a published folder', function()
   it('has files of at most the size that is given, in the order of names', function()
      local model = model_of()
      local names, bytes = {}, {}
      for name, t in each(model:state_dict()) do
         names[#names + 1], bytes[name] = name, 4 * t:numel()
      end
      table.sort(names)
      tmp.with(function(dir)
         for size, most in each { [1] = 1, ['1KB'] = 1000, ['0.5 kib'] = 512, ['1.2KB'] = 1200,
            [' 1024 B '] = 1024, ['1MB'] = 1e6, ['1TB'] = 1e12 } do
            local parts, used = { {} }, 0
            for _, name in ipairs(names) do
               if used > 0 and used + bytes[name] > most then parts[#parts + 1], used = {}, 0 end
               table.insert(parts[#parts], name)
               used = used + bytes[name]
            end
            local path = tide.model.save(model, dir .. '/m', { max_shard = size, overwrite = true })
            local index = path .. '/model.safetensors.index.json'
            assert.equal(#parts > 1, fs.exists(index), size)
            assert.equal(#parts == 1, fs.exists(path .. '/model.safetensors'), size)
            if #parts > 1 then
               local total, map = 0, {}
               for i, list in ipairs(parts) do
                  for _, name in ipairs(list) do
                     total = total + bytes[name]
                     map[name] = ('model-%05d-of-%05d.safetensors'):format(i, #parts)
                  end
               end
               local said = fs.read_json('spec', index)
               assert.equal(total, said.metadata.total_size)
               for name, file in each(map) do assert.equal(file, said.weight_map[name], name) end
            end
         end
         assert.same({ eos_token_id = { 2, 3 } },
            fs.read_json('spec', dir .. '/m/generation_config.json'))
      end)
   end)

   it('is written where it is named, and nowhere else', function()
      tmp.with(function(dir)
         local model = model_of()
         assert.equal(dir .. '/a', tide.model.save(model, dir .. '/a//'))
         local card = fs.read('spec', dir .. '/a/README.md')
         assert.matches('\n# a\n', card, 1, true)
         assert.matches("tide.model.load 'a'", card, 1, true)
         assert.matches('A llama model of', card, 1, true)
         fs.mkdirs('spec', dir .. '/empty')
         tide.model.save(model, dir .. '/empty')
         local function message(where, opts)
            return raised(tide.model.save, model, where, opts).message
         end
         local file = dir .. '/a/config.json'
         assert.equal(file .. ' is a file; give a folder', message(file))
         assert.equal(("argument 'dir': %s/a is not empty; give another folder, or overwrite = "
            .. 'true (--overwrite) to replace it'):format(dir), message(dir .. '/a'))
         fs.mkdirs('spec', dir .. '/a/sub')
         assert.equal(("argument 'dir': %s/a holds the folder sub, which overwrite = true would "
            .. 'remove; give another folder'):format(dir),
            message(dir .. '/a', { overwrite = true }))
         assert.equal("argument 'dir': expected the path of a folder, got \"\"", message '')
         for _, size in ipairs { '5', 'GB', '5 XB', '-1GB', '0KB', '1.2.3KB', '1GB2' } do
            assert.equal(("argument 'max_shard': expected a number of bytes, or a text such as "
               .. "'5GB' or '200MiB', got %q"):format(size),
               message(dir .. '/n', { max_shard = size }))
         end
         local list = fs.list('spec', dir)
         table.sort(list)
         assert.same({ 'a', 'empty' }, list)
      end)
   end)

   it('is written by one of the ranks that save it at once; the others get a message', function()
      tmp.with(function(dir)
         local rows = ranks.run(4, function(_, _, where)
            local t = require 'tide'
            local model = t.model.llama({ vocab_size = 200, hidden_size = 64,
               num_hidden_layers = 8, num_attention_heads = 2, intermediate_size = 96 },
               { seed = 1 })
            local list = {}
            for i = 1, 8 do
               t.comm.world():barrier()
               local ok, e = pcall(t.model.save, model, where .. '/m' .. i)
               list[i] = ok and 'written' or e.message
            end
            return list
         end, dir)
         for i = 1, 8 do
            local to, written = dir .. '/m' .. i, 0
            for _, list in ipairs(rows) do
               if list[i] == 'written' then
                  written = written + 1
               else
                  assert.is_truthy(list[i]:find('another save writes ' .. to, 1, true)
                     or list[i]:find(to .. ' is not empty', 1, true), list[i])
               end
            end
            assert.equal(1, written)
            tide.model.load(to)
            assert.is_false(fs.exists(dir .. '/.lock-m' .. i))
            assert.is_false(fs.exists(dir .. '/.staging-m' .. i))
         end
      end)
   end)

   it('is kept from other saves until it is in its place', function()
      tmp.with(function(dir)
         local io_, others = fs.io(), {}
         local sync = io_.fsync_dir
         io_.fsync_dir = function(path)                 -- the last call before the rename
            io_.fsync_dir = sync
            others[1] = raised(tide.model.save, model_of(), dir .. '/a').message
            return sync(path)
         end
         tide.model.save(model_of(), dir .. '/a')
         assert.is_truthy(others[1]:find('another save writes ' .. dir .. '/a at', 1, true))
         tide.model.load(dir .. '/a')
         assert.same({ 'a' }, fs.list('spec', dir))
      end)
   end)

   it('takes the place of what a save that was killed has left', function()
      tmp.with(function(dir)
         fs.write('spec', dir .. '/.lock-a', '')
         fs.mkdirs('spec', dir .. '/.staging-a')
         fs.write('spec', dir .. '/.staging-a/model-00001-of-00009.safetensors', 'part')
         tide.model.save(model_of(), dir .. '/a')
         tide.model.load(dir .. '/a')
         assert.is_false(fs.exists(dir .. '/a/model-00001-of-00009.safetensors'))
         assert.same({ 'a' }, fs.list('spec', dir))
      end)
   end)

   it('is told by what it holds', function()
      tmp.with(function(dir)
         local function said(...) return raised(tide.model.load, ...).message end
         fs.write('spec', dir .. '/file', 'x')
         assert.matches('/file is a file; give its folder', said(dir .. '/file'), 1, true)
         assert.is_true(folder.is(dir))
         for _, name in ipairs { 'manifest.json', 'LATEST' } do
            fs.write('spec', dir .. '/' .. name, '{}')
            assert.is_false(folder.is(dir))
            os.remove(dir .. '/' .. name)
         end
         assert.is_false(folder.is(dir .. '/none'))
         tide.model.save(model_of(), dir .. '/m')
         os.rename(dir .. '/m/model.safetensors', dir .. '/m/consolidated.safetensors')
         assert.matches('/m holds consolidated.safetensors and no model.safetensors; save it as',
            said(dir .. '/m'), 1, true)
         os.remove(dir .. '/m/consolidated.safetensors')
         assert.matches('/m has neither model.safetensors nor model.safetensors.index.json',
            said(dir .. '/m'), 1, true)
         os.remove(dir .. '/m/config.json')
         assert.matches('no checkpoint in', said(dir .. '/m'), 1, true)
      end)
   end)
end)

describe('a folder of an adapter', function()
   -- Writes the adapter of a model, lets `change` change its configuration and tensors, and reads
   -- it into a new model.
   local function read(dir, change, opts)
      local model = model_of()
      tide.nn.lora.attach(model, opts or { rank = 2, targets = 'q_proj', seed = 4 })
      local path = tide.model.save_adapter(model, dir .. '/a')
      local c = fs.read_json('spec', path .. '/adapter_config.json')
      local tensors = {}
      for name, t in each(tide.train.checkpoint.tensors(path .. '/adapter_model.safetensors')) do
         tensors[name] = t:clone()
      end
      tensors = change(c, tensors) or tensors
      fs.write('spec', path .. '/adapter_config.json', tide.json.encode(c))
      fs.io().safetensors_save(path .. '/adapter_model.safetensors', tensors, {})
      local other = model_of()
      tide.model.load_adapter(other, path)
      return model, other, c
   end

   it('names the layers by their last names where these say it', function()
      tmp.with(function(dir)
         local _, _, c = read(dir, function() end)
         assert.same({ 'q_proj' }, { unpack(c.target_modules) })
         _, _, c = read(dir, function() end, { rank = 2, targets = 'layers.1.mlp.*|o_proj' })
         assert.same({ 'model.layers.0.self_attn.o_proj', 'model.layers.1.self_attn.o_proj',
            'model.layers.1.mlp.gate_proj', 'model.layers.1.mlp.up_proj',
            'model.layers.1.mlp.down_proj' }, { unpack(c.target_modules) })
      end)
   end)

   it('has tensors under any of the names that PEFT has given them', function()
      tmp.with(function(dir)
         for _, rename in ipairs { function(n) return n end,
            function(n) return (n:gsub('^base_model%.model%.', '')) end,
            function(n) return (n:gsub('%.weight$', '.default.weight')) end,
            function(n) return (n:gsub('magnitude_vector$', 'magnitude_vector.weight')) end,
            function(n) return (n:gsub('magnitude_vector$', 'magnitude_vector.default')) end } do
            local a, b = read(dir, function(_, tensors)
               local out = {}
               for name, t in each(tensors) do out[rename(name)] = t end
               return out
            end, { rank = 2, dora = true, targets = 'v_proj' })
            local n = 0
            for name, t in each(a:state_dict()) do
               if name:find 'lora' then
                  n = n + 1
                  assert.is_true((t - b:state_dict()[name]):abs():amax():item() < 1e-6, name)
               end
            end
            assert.equal(6, n)
         end
         local e = raised(read, dir, function(_, tensors)
            tensors['base_model.model.x.weight'] = tide.ones { 1 }
         end)
         assert.matches("the tensor 'base_model.model.x.weight' is no part of a LoRA of Linear",
            e.message, 1, true)
      end)
   end)

   it('is refused with what would change the numbers, and with layers of another model', function()
      local null = tide.json.null
      tmp.with(function(dir)
         for _, fields in ipairs { { bias = null, rank_pattern = {}, modules_to_save = {} },
            { fan_in_fan_out = false, lora_bias = null, megatron_config = null } } do
            read(dir, function(c) for k, v in each(fields) do c[k] = v end end)
         end
         for words, fields in each { ["bias = all is not known here"] = { bias = 'all' },
            ['fan_in_fan_out = true is not known here'] = { fan_in_fan_out = true },
            ['rank_pattern = '] = { rank_pattern = { a = 4 } },
            ['use_qalora = '] = { use_qalora = {} },
            ["peft_type is 'LOHA', expected 'LORA'"] = { peft_type = 'LOHA' },
            [': lora_alpha'] = { lora_alpha = 'x' } } do
            local e = raised(read, dir, function(c) for k, v in each(fields) do c[k] = v end end)
            assert.matches(words, e.message, 1, true)
         end
         assert.matches('is of another base model (none): 1 of its 3 layers are not in this '
            .. 'model, the first is model.q', raised(read, dir, function(c, t)
               c.base_model_name_or_path = 'none'
               t['base_model.model.model.q.lora_A.weight'] = tide.ones { 2, 8 }
            end).message, 1, true)
         assert.matches('give the folder of an adapter',
            raised(tide.model.load_adapter, model_of(), dir).message, 1, true)
      end)
   end)
end)
