-- The files of runs and checkpoints, without a model: which folder means what, what is
-- removed, what a manifest and state.json must say, each with its message.

local tide = require 'tide'
local ahead = require 'tide.train.ahead'
local choice = require 'spec.deep.fuzz.choice'
local each = require 'tide.util.each'
local files = require 'spec.support.files'
local folder = require 'tide.train.folder'
local fs = require 'tide.util.fs'
local identity = require 'tide.train.identity'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'
local verify = require 'tide.train.verify'

local op = 'spec'
local write = files.write

-- A checkpoint of a step with an empty manifest.
local function put(out, step, prefix)
   local path = out .. '/' .. (prefix or '') .. folder.name(step)
   fs.mkdirs(op, path)
   write(path .. '/manifest.json', '{}')
   return path
end

local function latest(out, text) write(out .. '/LATEST', text .. '\n') end

describe('the folder of a run', function()
   it('lists complete checkpoints, and knows the newest', function()
      tmp.with(function(dir)
         assert.same({}, folder.list(op, dir .. '/none'))
         assert.is_nil(folder.step_in(op, dir))
         for _, step in ipairs { 20, 3, 100 } do put(dir, step) end
         fs.mkdirs(op, dir .. '/step-00000200')
         fs.mkdirs(op, dir .. '/step-x')
         assert.same({ 'step-00000003', 'step-00000020', 'step-00000100' }, folder.list(op, dir))
         assert.same({ nil, 100 }, { folder.latest(op, dir), folder.step_in(op, dir) })
         latest(dir, 'step-00000020')
         assert.same({ 'step-00000020', 20 }, { folder.latest(op, dir), folder.step_in(op, dir) })
         latest(dir, 'nonsense')
         assert.equal(0, folder.step_in(op, dir))
      end)
   end)

   it('stands for its newest checkpoint, or says which there are', function()
      tmp.with(function(dir)
         local function fails(code, text, where) refused(code, text, folder.find, op, where) end
         fails('E_IO', dir .. '/none: there is no such folder', dir .. '/none')
         fails('E_IO', dir .. ' (neither manifest.json nor LATEST)', dir)
         local e = refused('E_IO', 'no such folder', folder.find, op, dir .. '/step-00000009')
         assert.is_nil(e.message:find('there are', 1, true))
         local paths = {}
         for i = 1, 7 do paths[i] = put(dir, i) end
         local last = table.concat(paths, ', ', 3)
         fails('E_IO', dir .. ' by itself: LATEST is not there; name one (--resume-from); there '
            .. 'are ' .. last, dir)
         fails('E_IO', dir .. '/step-00000009/: there is no such folder; there are ' .. last,
            dir .. '/step-00000009/')
         latest(dir, 'step-00000004')
         assert.equal(paths[4], folder.find(op, dir))
         assert.equal(paths[2], folder.find(op, paths[2]))
         latest(dir, 'nonsense')
         fails('E_FORMAT', dir .. '/LATEST does not name a checkpoint: "nonsense"; there are '
            .. last, dir)
         latest(dir, 'step-00000009')
         fails('E_FORMAT', { dir .. '/LATEST names step-00000009, which has no manifest.json'
            .. '; the checkpoint before it is ' .. paths[7] }, dir)
         local old = put(dir, 9, '.old-')
         assert.equal(old, folder.find(op, dir))
         assert.equal(old, folder.find(op, dir .. '/step-00000009'))
      end)
   end)

   it('offers another checkpoint for a damaged one', function()
      tmp.with(function(dir)
         local alone = '; its run has no other checkpoint: restore this one from a copy, or start '
            .. 'over (overwrite = true, or --overwrite)'
         local a = put(dir, 1)
         assert.equal(alone, folder.older(op, a))
         assert.equal('', folder.older(op, dir))
         local b, c = put(dir, 5), put(dir, 7)
         for path, row in each { [a] = { 'a later checkpoint of its run', c },
            [b] = { 'the checkpoint before it', a }, [c .. '/'] = { 'the checkpoint before it', b },
            [dir .. '/.old-step-00000007'] = { 'the checkpoint before it', b } } do
            assert.equal(('; %s is %s (resume = %q, or --resume-from %s)'):format(row[1], row[2],
               row[2], row[2]), folder.older(op, path))
         end
      end)
   end)

   it('keeps the newest few, the one that LATEST names and the spare one', function()
      for seed = 1, 25 do
         tmp.with(function(dir)
            local pick = choice.drawn('retain', seed)
            local steps, n = {}, pick:int(1, 7)
            for i = 1, n do
               steps[i] = (steps[i - 1] or 0) + pick:int(1, 9)
               put(dir, steps[i])
            end
            local newest, keep = steps[pick:int(1, n)], pick:int(1, 4)
            local spare = pick:chance(0.6) and steps[pick:int(1, n)] or nil
            latest(dir, folder.name(newest))
            local counted, want = {}, {}
            for _, s in ipairs(steps) do
               if s ~= spare or s == newest then counted[#counted + 1] = s end
            end
            for _, s in ipairs(steps) do
               local kept = s == newest or s == spare
               for i = math.max(1, #counted - keep + 1), #counted do
                  kept = kept or counted[i] == s
               end
               if kept then want[#want + 1] = folder.name(s) end
            end
            folder.retain(op, dir, keep, spare)
            assert.same(want, folder.list(op, dir), seed)
         end)
      end
   end)

   -- Puts a file into a folder of a checkpoint.
   local function mine(path, text)
      fs.mkdirs(op, path)
      write(path .. '/mine', text or 'x')
   end

   it('keeps a folder of the user when its checkpoint goes', function()
      tmp.with(function(dir)
         for i = 1, 4 do put(dir, i) end
         latest(dir, folder.name(4))
         write(put(dir, 9, '.gone-') .. '/x', 'x')
         mine(dir .. '/step-00000001/model')
         mine(dir .. '/.gone-step-00000009/eval')
         fs.mkdirs(op, dir .. '/step-00000002/.ipynb_checkpoints')
         folder.retain(op, dir, 1)
         folder.repair(op, dir)
         assert.same({ 'LATEST', 'kept-step-00000001', 'kept-step-00000009', 'step-00000004' },
            fs.list(op, dir))
         mine(dir .. '/step-00000004/eval', 'y')
         folder.clear(op, dir)
         assert.same({ 'kept-step-00000001', 'kept-step-00000004', 'kept-step-00000009' },
            fs.list(op, dir))
         assert.same({ 'x', 'y', 'x' }, { fs.read(op, dir .. '/kept-step-00000001/model/mine'),
            fs.read(op, dir .. '/kept-step-00000004/eval/mine'),
            fs.read(op, dir .. '/kept-step-00000009/eval/mine') })
      end)
   end)

   it('takes the newer version of a step whose older one held a folder of the user', function()
      tmp.with(function(dir)
         for version = 1, 3 do
            local staged = folder.stage(op, dir, folder.name(4))
            write(staged .. '/manifest.json', '{}')
            write(staged .. '/version', tostring(version))
            folder.publish(op, dir, staged, folder.name(4))
            mine(dir .. '/step-00000004/eval', tostring(version))
         end
         assert.same({ 'LATEST', 'kept-step-00000004', 'kept-step-00000004-2', 'step-00000004' },
            fs.list(op, dir))
         assert.equal('3', fs.read(op, dir .. '/step-00000004/version'))
         for i, name in ipairs { 'kept-step-00000004', 'kept-step-00000004-2', 'step-00000004' } do
            assert.equal(tostring(i), fs.read(op, dir .. '/' .. name .. '/eval/mine'))
         end
      end)
   end)

   it('is cleared of what a run writes, and of nothing else', function()
      tmp.with(function(dir)
         put(dir, 1)
         put(dir, 2, '.old-')
         for _, name in ipairs { 'metrics.jsonl', 'loss.svg', 'notes.txt', 'LATEST' } do
            write(dir .. '/' .. name, 'x')
         end
         for _, name in ipairs { '.staging-step-00000003', 'aside-1', '.mine' } do
            fs.mkdirs(op, dir .. '/' .. name)
         end
         folder.clear(op, dir)
         assert.same({ '.mine', 'aside-1', 'notes.txt' }, fs.list(op, dir))
         folder.clear(op, dir .. '/none')
      end)
   end)

   it('sets later checkpoints aside under the next number, with a copy of the metrics', function()
      tmp.with(function(dir)
         for _, step in ipairs { 2, 4, 6 } do put(dir, step) end
         write(dir .. '/metrics.jsonl', 'lines')
         latest(dir, 'step-00000006')
         assert.is_nil(folder.set_aside(op, dir, 6))
         fs.mkdirs(op, dir .. '/aside-1')
         assert.equal(dir .. '/aside-2', folder.set_aside(op, dir, 4))
         assert.same({ 'step-00000002', 'step-00000004' }, folder.list(op, dir))
         assert.same({ 'step-00000006' }, folder.list(op, dir .. '/aside-2'))
         assert.same({ 'step-00000004', 'step-00000006', 'lines', 'lines' }, {
            folder.latest(op, dir), folder.latest(op, dir .. '/aside-2'),
            files.read(dir .. '/metrics.jsonl'), files.read(dir .. '/aside-2/metrics.jsonl') })
         os.remove(dir .. '/metrics.jsonl')
         put(dir, 8)                               -- not named by LATEST: a leftover, which stays
         assert.is_nil(folder.set_aside(op, dir, 4))
         fs.mkdirs(op, dir .. '/.aside')           -- a start that was killed before it moved any
         os.remove(dir .. '/step-00000008/manifest.json')
         assert.is_nil(folder.set_aside(op, dir, 4))
         assert.is_false(fs.exists(dir .. '/.aside'))
         put(dir, 9)
         latest(dir, 'step-00000009')
         assert.equal(dir .. '/aside-3', folder.set_aside(op, dir, 2))
         assert.same({ 'LATEST', 'step-00000004', 'step-00000009' }, fs.list(op,
            dir .. '/aside-3'))
         put(dir, 2)
         fs.mkdirs(op, dir .. '/store')
         put(dir .. '/store', 3)
         fs.io().symlink('store/step-00000003', dir .. '/step-00000003')
         latest(dir, 'step-00000003')
         assert.equal(dir .. '/aside-4', folder.set_aside(op, dir, 2))
         assert.same({ 'step-00000003' }, folder.list(op, dir .. '/aside-4'))
         assert.same({ 'step-00000003' }, folder.list(op, dir .. '/store'))
      end)
   end)

   it('ends what was left half done, and publishes in one rename', function()
      tmp.with(function(dir)
         put(dir, 1)
         put(dir, 1, '.old-')
         put(dir, 2, '.old-')
         fs.mkdirs(op, dir .. '/.old-step-00000003')
         put(dir, 4, '.gone-')
         folder.repair(op, dir)
         assert.same({ 'step-00000001', 'step-00000002' }, fs.list(op, dir))
         local staged = folder.stage(op, dir, 'step-00000005')
         write(staged .. '/manifest.json', '{}')
         assert.equal(dir .. '/step-00000005', folder.publish(op, dir, staged, 'step-00000005'))
         assert.equal('step-00000005\n', files.read(dir .. '/LATEST'))
         staged = folder.stage(op, dir, 'step-00000005')
         assert.same({}, fs.list(op, staged))
         write(staged .. '/manifest.json', '{ }')
         folder.publish(op, dir, staged, 'step-00000005')
         assert.equal('{ }', files.read(dir .. '/step-00000005/manifest.json'))
         assert.same({ 'LATEST', 'step-00000001', 'step-00000002', 'step-00000005' },
            fs.list(op, dir))
         folder.repair(op, dir .. '/none')
      end)
   end)

   it('is one run at a time, and no checkpoint', function()
      tmp.with(function(dir)
         local path, solo = put(dir, 3), { rank = 0, size = 1 }
         refused('E_ARG', ("argument 'out': %s is a checkpoint; give the folder of a run, which is "
            .. '%s here'):format(path, dir), folder.check_out, op, path)
         write(dir .. '/manifest.json', '{}')
         local e = refused('E_ARG', dir .. ' is a checkpoint', folder.check_out, op, dir)
         assert.is_nil(e.message:find('here', 1, true))
         os.remove(dir .. '/manifest.json')
         for _, name in ipairs { 'LATEST.tmp-1', 'loss.svg.tmp-2', 'metrics.jsonl.tmp-3',
                                 'mine' } do
            write(dir .. '/' .. name, 'x')
         end
         fs.mkdirs(op, dir .. '/.staging-step-00000004')
         local lock = folder.lock(op, dir, solo)
         assert.same({ '.lock', 'mine', 'step-00000003' }, fs.list(op, dir))
         lock:release()
         refused('E_ARG', ('%s is a checkpoint'):format(path), folder.lock, op, path, solo)
         folder.lock(op, path, { rank = 1, size = 1 }):release()
         assert.is_true(folder.is_of(path, dir) and folder.is_of(dir .. '/.old-step-00000009',
            dir .. '/.'))
         assert.is_false(folder.is_of(path, '/') or folder.is_of(dir, dir))
         latest(dir, 'step-00000003')
         refused('E_ARG', ("argument 'out': %s holds a run at step 3; give resume = %q"):format(dir,
            dir), folder.check_free, op, dir)
         folder.check_free(op, dir, path)
         folder.check_free(op, dir .. '/other', path)
         local other = put(dir .. '/b', 1)
         refused('E_ARG', 'holds a run at step 3', folder.check_free, op, dir, other)
      end)
   end)
end)

describe('a checkpoint', function()
   local weights = 'model.safetensors'

   -- Writes files and a manifest of them, which change(manifest) may alter.
   local function with(dir, change)
      write(dir .. '/' .. weights, 'weights')
      write(dir .. '/state.json', '{}')
      local manifest = { version = 1, files = {} }
      for _, name in ipairs { weights, 'state.json' } do
         manifest.files[name] = { size = fs.size(dir .. '/' .. name),
            xxh64 = fs.hash(op, dir .. '/' .. name) }
      end
      if change then change(manifest) end
      fs.write_json(op, dir .. '/manifest.json', manifest)
   end

   it('has the files of its manifest, with their sizes and hashes', function()
      tmp.with(function(dir)
         with(dir)
         assert.equal(1, verify.files(op, dir, 'shards.json').version)
         local function check(sizes_only)
            return verify.files(op, dir, 'shards.json', sizes_only)
         end
         for text, change in each {
            ['manifest.json: version 2, this library reads 1'] = function(m) m.version = 2 end,
            ["manifest.json: field 'files': expected a table, got 5"] = function(m) m.files = 5 end,
            ['manifest.json has a bad entry ../x'] = function(m) m.files['../x'] = {} end,
            ['manifest.json has a bad entry .x'] = function(m)
               m.files['.x'] = { size = 1, xxh64 = 'a' }
            end,
            ['manifest.json has a bad entry y'] = function(m) m.files.y = { size = 1 } end,
            ['manifest.json has a bad entry z'] = function(m) m.files.z = { xxh64 = 'a' } end,
            ['manifest.json has a bad entry w'] = function(m) m.files.w = 3 end,
            ['none has no bytes, the manifest says 5: the file is damaged'] = function(m)
               m.files.none = { size = 5, xxh64 = 'a' }
            end,
            ['state.json has 2 bytes, the manifest says 3'] = function(m)
               m.files['state.json'].size = 3
            end,
            ['state.json differs from its hash in the manifest'] = function(m)
               m.files['state.json'].xxh64 = 'x'
            end,
            ['manifest.json does not list model.safetensors'] = function(m)
               m.files[weights] = nil
            end,
            ['manifest.json does not list state.json'] = function(m)
               m.files['state.json'] = nil
            end,
         } do
            with(dir, change)
            refused('E_FORMAT', (text:gsub('bad entry (%S+)$', 'bad entry "%1"')), check)
         end
         with(dir, function(m) m.files[weights].xxh64 = 'x' end)
         check(true)
         refused('E_FORMAT', weights .. ' differs from its hash', check)
         with(dir, function(m)
            m.files['shards.json'], m.files[weights] = m.files['state.json'], nil
         end)
         write(dir .. '/shards.json', '{}')
         check()
         write(dir .. '/manifest.json', '[1')
         refused('E_FORMAT', 'manifest.json', check)
         local damaged = put(dir, 2)
         local before = put(dir, 1)
         refused('E_FORMAT', { damaged .. '/state.json', 'the checkpoint before it is ' .. before },
            verify.plain, op, damaged)
         refused('E_IO', 'manifest.json', verify.files, op, dir .. '/none', 'shards.json')
      end)
   end)

   it('has fields of their types in state.json', function()
      local function state()
         return { step = 1, optim = { kind = 'adamw', steps = 1, counts = { a = 1, b = 0 } },
            sampler = {}, rng = { seed = 1, stream = 2, offset = 3 }, config = {}, family = 'llama',
            data = {}, val_loss = 1.5, recipe = {}, job = 'x' }
      end
      tmp.with(function(dir)
         local function check(t)
            fs.write_json(op, dir .. '/state.json', t)
            return verify.plain(op, dir)
         end
         assert.equal(1.5, check(state()).val_loss)
         local t = state()
         t.family = false
         check(t)
         check { step = 0, optim = { kind = '', steps = 0, counts = {} } }
         for name, wrong in each { step = -1, ['optim.kind'] = 5, ['optim.steps'] = 0.5,
            ['optim.counts'] = 'x', ['optim.counts.a'] = -1, optim = 1, sampler = 1, rng = 1,
            ['rng.seed'] = 'x', ['rng.stream'] = -1, ['rng.offset'] = 0.5, config = 'x',
            family = true, data = 1, val_loss = 'x', recipe = 1, job = 1 } do
            local value = state()
            local at, last = value, name
            for part, rest in name:gmatch '([^.]+)%.([^.]+)$' do at, last = value[part], rest end
            if name == 'optim.counts.a' then at, last = value.optim.counts, 'a' end
            at[last] = wrong
            refused('E_FORMAT', ("state.json: field '%s': expected "):format(name), check, value)
            at[last] = nil
            if name:find '^optim' and name ~= 'optim.counts.a' or name == 'step'
               or name:find '^rng%.' then
               refused('E_FORMAT', { ("field '%s': expected "):format(name), 'got nil' }, check,
                  value)
            else
               check(value)
            end
         end
         for n, config in each { [3] = { num_hidden_layers = 3 }, [2] = {
            hybrid_override_pattern = 'M*' }, [0] = {} } do
            for count = 1, 4 do
               local names = { unpack({ 'a', 'b', 'c', 'd' }, 1, count) }
               if n > count then
                  refused('E_FORMAT', ("field 'config' describes %d layers, the checkpoint has %d "
                     .. 'tensors'):format(n, count), verify.layers, op, dir, { config = config },
                     names)
               else
                  verify.layers(op, dir, { config = config }, names)
               end
            end
         end
         verify.layers(op, dir, {}, { 'a' })
         refused('E_FORMAT', 'holds no tensor of a model', verify.layers, op, dir, {}, {})
      end)
   end)
end)

describe('the identity of a model', function()
   it('is of its configuration, and of names, sizes and parts of its weights', function()
      tmp.with(function(dir)
         local size = 2 ^ 20
         local function of(name, at, char, config)
            fs.mkdirs(op, dir .. '/m')
            for _, old in ipairs(fs.list(op, dir .. '/m')) do os.remove(dir .. '/m/' .. old) end
            write(dir .. '/m/config.json', config or '{}')
            local text = ('\0'):rep(size)
            if at then text = text:sub(1, at) .. (char or 'x') .. text:sub(at + 2) end
            write(dir .. '/m/' .. name, text)
            return identity.of(dir .. '/m')
         end
         local whole = of 'a.safetensors'
         assert.equal(whole, of 'a.safetensors')
         write(dir .. '/m/optim.safetensors', 'x')
         write(dir .. '/m/notes.txt', 'x')
         assert.equal(whole, identity.of(dir .. '/m'))
         write(dir .. '/m/b.safetensors', 'x')
         local seen = { [identity.of(dir .. '/m')] = true, [whole] = true }
         local piece = (size - 4096) / 64
         for _, at in ipairs { 0, 2 ^ 16 - 1, math.floor(piece * 5), math.floor(piece * 5) + 4095,
            math.floor(piece * 63), size - 4096, size - 1 } do
            local id = of('a.safetensors', at)
            assert.is_nil(seen[id], at)
            seen[id] = true
         end
         assert.equal(whole, of('a.safetensors', math.floor(piece * 5) + 4096))
         for _, id in ipairs { of 'c.safetensors', of('a.safetensors', nil, nil, '{"a":1}') } do
            assert.is_nil(seen[id])
            seen[id] = true
         end
         size = size + 1
         assert.is_nil(seen[of 'a.safetensors'])
         local id = of 'a.safetensors'
         fs.mkdirs(op, dir .. '/run')
         fs.io().rename(dir .. '/m', dir .. '/run/step-00000004')
         write(dir .. '/run/step-00000004/manifest.json', '{}')
         write(dir .. '/run/LATEST', 'step-00000004')
         assert.equal(id, identity.of(dir .. '/run'))
         fs.mkdirs(op, dir .. '/empty')
         write(dir .. '/empty/config.json', '{}')
         refused('E_IO', '/empty holds no weights (.safetensors)', identity.of, dir .. '/empty')
      end)
   end)
end)

describe('batches that are made ahead', function()
   it('are those of the next step, unless the sampler was moved meanwhile', function()
      local source = tide.data.tokens.memory(('abcdefghij'):rep(9), 1)
      local function sampler(o)
         local s = tide.data.sampler { count = source.count, seq = 4, batch = 4, seed = 1 }
         for k, v in each(o or {}) do s[k] = v end
         return s
      end
      local function ids(list)
         local out = {}
         for i, b in ipairs(list) do out[i] = b.ids:tolist() end
         return out
      end
      local function new(s, device)
         local o = { sampler = s, accum = 2, device = device, train = source }
         local a = ahead(o)
         o.device = nil                                  -- where the batches lie
         return a
      end
      local plain, early = new(sampler()), new(sampler(), 'cuda')
      assert.is_false(plain.fill)
      for step = 1, 6 do
         if step ~= 3 then early:fill() end
         local state = early.opts.sampler:state()
         assert.equal(4 * (step - 1), state.position)
         local want, got = plain:take(), early:take()
         assert.same({ 2, ids(want) }, { #got, ids(got) })
         assert.equal(4 * step, early.opts.sampler:state().position)
      end
      early:fill()
      for _, a in ipairs { plain, early } do a.opts.sampler.position = 40 end
      assert.same(ids(plain:take()), ids(early:take()))
      local function make(self, from, starts, device)
         return tide.data.batch.make(from, starts, self.seq, device)
      end
      assert.is_false(new(sampler { make = make }, 'cuda').fill)
      assert.is_truthy(new(sampler { make = make, ahead = true }, 'cuda').fill)
      assert.is_false(new({ next = print, restore = print }, 'cuda').fill)
      assert.is_false(new({ next = print, state = print }, 'cuda').fill)
      assert.is_true(tide.data.packed({ cu = { 0, 4 }, seq = 4, batch = 1 }).ahead)
      assert.same(ids(plain:take()), ids(new(sampler { make = make, position = 44 }):take()))
   end)

   it('are those of a mixture of data sets, too, whose parts begin again meanwhile', function()
      local function mixture(device)
         local parts = {}
         for i, text in ipairs { 'abcdefghij', 'klmnopqrstuvwxyz' } do
            parts[i] = { source = tide.data.tokens.memory(text, 1), cu = { 0, 3, 5, 9, #text },
               weight = i }
         end
         local mix = tide.data.mixture { parts = parts, seq = 8, batch = 2, seed = 3 }
         local o = { sampler = mix, accum = 1, device = device, train = mix.source }
         local a = ahead(o)
         o.device = nil
         return a, mix
      end
      local plain, mix = mixture()
      local early, same = mixture 'cuda'
      assert.is_function(early.fill)
      for _ = 1, 9 do
         early:fill()
         assert.same(mix:state(), same:state())
         local want, got = plain:take()[1], early:take()[1]
         assert.is_true(want.ids:equal(got.ids))
         assert.is_true(want.labels:equal(got.labels))
      end
      assert.is_true(mix:epochs() > 2)
   end)
end)
