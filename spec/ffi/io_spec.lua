-- tide.ffi.io: files, folders and safetensors as Lua sees them. The formats themselves are tried
-- in spec/native.

local tide = require 'tide'
local leak = require 'spec.support.leak'
local io_ = require 'tide.ffi.io'

local function code_of(fn, ...)
   local ok, err = pcall(fn, ...)
   assert.is_false(ok)
   return err.code, tostring(err)
end

describe('tide.ffi.io', function()
   local dir

   before_each(function()
      dir = os.tmpname()
      os.remove(dir)
      io_.mkdir(dir)
   end)
   after_each(function()
      for _, name in ipairs(io_.listdir(dir)) do io_.remove(dir .. '/' .. name) end
      assert.is_true(io_.remove(dir))
   end)

   it('writes, reads, lists, renames and removes', function()
      local path = dir .. '/a'
      io_.write_file_atomic(path, 'one\0two')
      assert.equal('one\0two', io_.read_file(path))
      io_.append_file(path, '!')
      assert.equal('one\0two!', io_.read_file(path))
      io_.rename(path, dir .. '/b')
      io_.symlink('b', dir .. '/LATEST')
      io_.fsync_file(dir .. '/b')
      io_.fsync_dir(dir)
      assert.same({ 'LATEST', 'b' }, io_.listdir(dir))
      local kind, size = io_.kind(dir .. '/LATEST')
      assert.equal('file', kind)
      assert.equal(8, size)
      assert.equal('dir', io_.kind(dir))
      assert.is_nil(io_.kind(path))
      assert.is_false(io_.exists(path))
      assert.is_true(io_.is_writable(dir))
      assert.is_false(io_.mkdir(dir))
      assert.is_true(io_.remove(dir .. '/b'))
      assert.is_false(io_.remove(dir .. '/b'))
   end)

   it('hashes', function()
      io_.write_file_atomic(dir .. '/h', 'abc')
      assert.equal('44bc2cf5ad770999', io_.xxh64_file(dir .. '/h'))
      assert.equal('44bc2cf5ad770999', io_.xxh64 'abc')
      assert.equal('ef46db3751d8e999', io_.xxh64 '')
   end)

   it('takes checksums of tensors: all of their bytes, row by row', function()
      local x = tide.arange(600000):reshape { 2, 300000 }            -- more than two MiB
      local sum = io_.checksum(x)
      assert.matches('^%x+$', sum)
      assert.equal(16, #sum)
      assert.equal(sum, io_.checksum(x:transpose(1, 2):contiguous():transpose(1, 2)))
      for _, at in ipairs { 1, 262144, 262145, 600000 } do
         local y = x:clone()
         y:reshape(-1):narrow(1, at, 1):add_(0.5)
         assert.are_not.equal(sum, io_.checksum(y), at)
      end
      local small = tide.ones({ 3 }, { dtype = 'bf16' })
      assert.equal(io_.xxh64(small:to_string_bytes()), io_.checksum(small))
   end)

   it('answers nil and an error object where something is opened', function()
      for _, fn in ipairs { 'read_file', 'listdir', 'xxh64_file', 'safetensors_open', 'read_json',
         'safetensors_open_index' } do
         local value, err = io_[fn]('/nowhere/at/all')
         assert.is_nil(value)
         assert.equal('E_IO', err.code)
         assert.truthy(err.message:find("'/nowhere/at/all': No such file or directory", 1, true))
      end
      io_.write_file_atomic(dir .. '/j', '[1,')
      local value, err = io_.read_json(dir .. '/j')
      assert.is_nil(value)
      assert.equal('E_FORMAT', err.code)
      assert.truthy(err.message:find(dir .. '/j: line 1', 1, true))
   end)

   it('names function and argument of a bad call', function()
      for _, bad in ipairs { 7, true, {}, '', 'a\0b' } do
         for _, fn in ipairs { 'read_file', 'listdir', 'mkdir', 'remove', 'kind', 'fsync_dir',
            'xxh64_file', 'safetensors_open', 'is_writable' } do
            local code, text = code_of(io_[fn], bad)
            assert.equal('E_ARG', code)
            assert.truthy(text:find("'path'", 1, true), text)
         end
      end
      assert.equal('E_ARG', (code_of(io_.write_file_atomic, dir .. '/x', 7)))
      assert.equal('E_IO', (code_of(io_.write_file_atomic, '/nowhere/x', 'text')))
   end)

   it('saves and loads tensors of every dtype', function()
      local path, tensors = dir .. '/m', {}
      for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8' } do
         tensors['t.' .. dtype] = tide.arange(6, { dtype = dtype }):reshape(2, 3)
      end
      tensors.flag = tide.tensor { true, false }
      tensors.scalar = tide.full({}, 2.5)
      tensors.empty = tide.zeros { 0, 4 }
      tensors.turned = tide.arange(6):reshape(2, 3):t()
      io_.safetensors_save(path, tensors, { format = 'pt', note = 'é "quoted"' })
      local file = assert(io_.safetensors_open(path))
      assert.same({ format = 'pt', note = 'é "quoted"' }, file.metadata)
      local names = {}
      for name in pairs(tensors) do names[#names + 1] = name end
      table.sort(names)
      assert.same(names, file:names())
      for name, t in pairs(tensors) do
         local back = file:load(name)
         assert.equal(t.dtype, back.dtype)
         assert.same(t.shape, back.shape)
         assert.same(t.shape, file:info(name).shape)
         assert.equal(t:contiguous():to_string_bytes(), back:to_string_bytes())
      end
      assert.is_true(file:has 'flag')
      assert.is_false(file:has 'absent')
      assert.equal('BF16', file:info('t.bf16').stored)
      assert.equal(12, file:info('t.bf16').nbytes)
      file:close()
      file:close()
      assert.equal('E_STATE', (code_of(file.names, file)))
   end)

   it('loads parts, other dtypes and other devices', function()
      local path = dir .. '/m'
      io_.safetensors_save(path, { w = tide.arange(12):reshape(4, 3) })
      local file = assert(io_.safetensors_open(path))
      assert.same({ { 3, 4, 5 }, { 6, 7, 8 } }, file:load('w', { first = 2, count = 2 }):tolist())
      assert.same({ 0, 3 }, file:load('w', { first = 5 }).shape)
      assert.equal('bf16', file:load('w', { dtype = 'bf16' }).dtype)
      assert.equal('null', file:load('w', { device = 'null' }).device)
      local t = tide.zeros { 4 }
      file:read('w', t, 6)
      assert.same({ 5, 6, 7, 8 }, t:tolist())
      assert.equal('E_ARG', (code_of(file.load, file, 'w', { first = 6 })))
      assert.equal('E_ARG', (code_of(file.load, file, 'w', { first = 2, count = 4 })))
      assert.equal('E_ARG', (code_of(file.load, file, 'v')))
      assert.equal('E_ARG', (code_of(file.load, file, 'w', { dtyp = 'f32' })))
      assert.equal('E_SHAPE', (code_of(file.read, file, 'w', t, 10)))
      assert.equal('E_DTYPE', (code_of(file.read, file, 'w', tide.zeros({ 4 }, { dtype = 'i64' }))))
      file:close()
   end)

   it('replaces regular files only', function()
      local x = tide.zeros { 1 }
      os.execute('mkfifo ' .. dir .. '/pipe')
      io_.mkdir(dir .. '/folder')
      for name, kind in pairs { pipe = 'other', folder = 'dir' } do
         local path = dir .. '/' .. name
         assert.equal('E_IO', (code_of(io_.safetensors_save, path, { x = x })))
         assert.equal('E_IO', (code_of(io_.write_file_atomic, path, 'text')))
         assert.equal(kind, (io_.kind(path)))
      end
      assert.equal('E_IO', (code_of(io_.write_file_atomic, '/dev/null', 'text')))
      assert.equal('other', (io_.kind '/dev/null'))
      assert.same({ 'folder', 'pipe' }, io_.listdir(dir))
   end)

   it('locks a file for one holder at a time', function()
      local path = dir .. '/.lock'
      local lock = assert(io_.lock(path))
      assert.is_nil(io_.lock(path))
      lock:release()
      lock:release()
      assert(io_.lock(path))               -- without a reference
      leak.clear()
      collectgarbage()
      collectgarbage()
      io_.lock(path):release()
      assert.equal('E_IO', (code_of(io_.lock, dir .. '/none/.lock')))
      assert.equal('E_IO', (code_of(io_.lock, dir)))
   end)

   it('refuses to save what is no tensor or no text', function()
      local x = tide.zeros { 1 }
      for _, args in ipairs { { { a = 1 } }, { { x } }, { 'x' }, { { a = x }, { k = 1 } },
         { { a = x }, 'meta' }, { { ['a\0'] = x } }, { { ['\255'] = x } },
         { { __metadata__ = x } }, { { a = x }, { k = '\255' } } } do
         assert.equal('E_ARG', (code_of(io_.safetensors_save, dir .. '/m', args[1], args[2])))
      end
      assert.same({}, io_.listdir(dir))
   end)

   describe('several files', function()
      local function write_index(index)
         io_.safetensors_save(dir .. '/one', { a = tide.zeros { 2 }, b = tide.ones { 3 } })
         io_.safetensors_save(dir .. '/two', { c = tide.full({ 4 }, 2) })
         io_.write_file_atomic(dir .. '/index.json', io_.json.encode(index))
         return io_.safetensors_open_index(dir .. '/index.json')
      end
      local map = { a = 'one', b = 'one', c = 'two' }

      it('answer as one', function()
         local files = assert(write_index { metadata = { total_size = 36 }, weight_map = map })
         assert.same({ 'a', 'b', 'c' }, files:names())
         assert.same({ 2, 2, 2, 2 }, files:load('c'):tolist())
         assert.same({ 1, 1 }, files:load('b', { first = 2 }):tolist())
         assert.equal('f32', files:info('a').dtype)
         assert.is_false(files:has 'd')
         assert.equal('E_ARG', (code_of(files.load, files, 'd')))
         files:close()
      end)

      it('are read whatever total_size says', function()
         local files = assert(write_index { metadata = { total_size = 'x' }, weight_map = map })
         assert.same({ 'a', 'b', 'c' }, files:names())
         files:close()
      end)

      it('are refused when index and files disagree', function()
         for _, index in ipairs {
            {}, { weight_map = 1 }, { weight_map = { a = 'one', c = 'two' }, metadata = {} },
            { weight_map = { a = 'one', b = 'one', c = 'one' } },
            { weight_map = { a = 'one', b = 'one', c = 'two', d = 'two' } },
            { weight_map = { a = '../one', b = 'one', c = 'two' } },
            { weight_map = { a = '/etc/passwd', b = 'one', c = 'two' } },
            { weight_map = { a = '..', b = 'one', c = 'two' } },
            { weight_map = { a = 7, b = 'one', c = 'two' } },
         } do
            local files, err = write_index(index)
            if files then assert.same('a refusal', index) end
            assert.equal('E_FORMAT', err.code)
         end
         local files, err = write_index { weight_map = { a = 'three' } }
         assert.is_nil(files)
         assert.equal('E_IO', err.code)
      end)
   end)
end)
