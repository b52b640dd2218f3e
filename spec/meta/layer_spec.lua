-- Uses go down only: reads every #include and require line, and the symbols of core's object files,
-- and holds them against the layer map of core/README.md. The rules are data; a new folder needs a
-- row here.

local lines_of = require('spec.support.files').lines_of
local read = require('spec.support.files').read

-- Layer of each folder, and what it may use besides its own folder and lower core folders.
local core = {
   base = 0, device = 1, tensor = 2, op = 3, io = 4, grad = 5, comm = 5, text = 5, image = 3,
}

-- Paths of quoted includes, as written.
local function includes(path)
   local list = {}
   for name in read(path):gmatch '\n%s*#%s*include%s*"([^"]+)"' do list[#list + 1] = name end
   return list
end

-- Lua code without comments (long ones are not used in this tree).
local function lua_code(path) return (read(path):gsub('%-%-[^\n]*', '')) end

local function requires(path)
   local list = {}
   for name in lua_code(path):gmatch 'require%s*%(?%s*[\'"]([%w_%.]+)[\'"]' do
      list[#list + 1] = name
   end
   return list
end

local function c_files(folder)
   return lines_of('find ' .. folder .. " -name '*.c' -o -name '*.h' -o -name '*.def' -o -name "
      .. "'*.cu' -o -name '*.cuh'")
end

local function lua_files(folder) return lines_of('find ' .. folder .. " -name '*.lua'") end

-- Calls allowed(used) for each use; collects what is not.
local function check(files, uses, allowed)
   local wrong = {}
   for _, path in ipairs(files) do
      for _, used in ipairs(uses(path)) do
         if not allowed(used, path) then wrong[#wrong + 1] = path .. ' uses ' .. used end
      end
   end
   assert.same({}, wrong)
end

local public = { ['tide/tide.h'] = true, ['tide/tide_ext.h'] = true }

describe('layers', function()
   it('see files at all', function()
      assert.is_true(#c_files 'core' > 10)
      assert.is_true(#lua_files 'lua' > 3)
      local n = 0
      for _, path in ipairs(c_files 'core') do n = n + #includes(path) end
      assert.is_true(n > 50)
   end)

   for folder, level in pairs(core) do
      it('of core/' .. folder, function()
         check(c_files('core/' .. folder), includes, function(used)
            if public[used] then return true end
            if level >= 3 and used:find '^kernels/[%w_]+%.%w+$' then return true end
            local other = used:match '^core/(%w+)/'
            return other == folder or (core[other] and core[other] < level) or false
         end)
      end)
   end

   it('of core, by the symbols that its object files define and use', function()
      local folder_of, uses = {}, {}
      for _, line in ipairs(lines_of(("nm -A $(find '%s/core' -name '*.o' -path '*tide_core*')")
         :format(os.getenv 'TIDE_BUILD' or 'build'))) do
         local path, kind, name = line:match '^(.-%.o):%x*%s+(%a) (tide_[%w_]+)$'
         local folder = path and path:match 'tide_core%.dir/(%w+)/'
         if folder and kind == 'U' then uses[#uses + 1] = { path, folder, name }
         elseif folder then folder_of[name] = folder end
      end
      assert.is_true(#uses > 500)
      local wrong = {}
      for _, use in ipairs(uses) do
         local path, folder, name = unpack(use)
         local other = folder_of[name] or folder
         if other ~= folder and core[other] >= core[folder] then
            wrong[#wrong + 1] = ('%s uses %s of %s'):format(path:match '[^/]*$', name, other)
         end
      end
      assert.same({}, wrong)
   end)

   it('of the contract: nothing but itself', function()
      check(c_files 'core/include', includes, function(used) return used == 'tide_abi.h' end)
   end)

   it('of kernels: core/base, the kernel interface, their own backend', function()
      check(c_files 'kernels', includes, function(used, path)
         if path:find('^kernels/bench/') or public[used] then return true end
         if used:find '^kernels/[%w_]+%.%w+$' or used:find '^core/base/' then return true end
         if used == 'core/device/backend.h' then return path:find('/backend%.%w+$') ~= nil end
         local own, other = path:match '^kernels/(%w+)/', used:match '^kernels/(%w+)/'
         return other ~= nil and (other == own or other == 'ref')
      end)
   end)

   it('of the C host: the public headers only', function()
      check(c_files 'bindings/host', includes, function(used)
         return public[used] or not used:find '/'
      end)
   end)

   it('of the FFI binding: itself, not the library above', function()
      local plain = { ['tide.error'] = true, ['tide.near'] = true, ['tide.compile'] = true,
         ['tide.utf8'] = true }
      check(lua_files 'bindings/tide', requires, function(used)
         return plain[used] or used:find '^tide%.ffi%.' or not used:find '^tide'
      end)
   end)

   it('of errors and other plain Lua: no FFI', function()
      local plain = { 'bindings/tide/error.lua', 'bindings/tide/near.lua',
         'bindings/tide/compile.lua', 'bindings/tide/utf8.lua', 'bindings/tide/ffi/pack.lua' }
      local known = { ['tide.error'] = true, ['tide.near'] = true, ['tide.ffi.pack'] = true }
      check(plain, requires, function(used) return known[used] end)
   end)

   it('of the Lua library: no FFI calls', function()
      local wrong = {}
      for _, path in ipairs(lua_files 'lua/tide') do
         local code = lua_code(path):gsub('[\'"]tide[%./][%w_%./]*[\'"]', '""')
         if code:find '%f[%w_]ffi%f[^%w_]' then wrong[#wrong + 1] = path end
      end
      assert.same({}, wrong)
   end)

   it('of the library: each folder uses those before it', function()
      local order = { 'util', 'tokenizer', 'comm', 'chat', 'nn', 'model', 'optim', 'data',
         'parallel', 'train', 'pretrained' }
      local rank = {}
      for i, folder in ipairs(order) do rank[folder] = i end
      -- What a file requires, and what it reaches as tide.FOLDER.NAME; no strings.
      local function uses(path)
         local list = requires(path)
         local code = lua_code(path):gsub("'[^'\n]*'", "''")
         for name in code:gmatch '%f[%w_.]tide%.(%l+)%.' do list[#list + 1] = 'tide.' .. name end
         return list
      end
      for _, folder in ipairs(order) do
         check(lua_files('lua/tide/' .. folder), uses, function(used)
            local other = rank[used:match '^tide%.(%w+)']
            return other == nil or other <= rank[folder]
         end)
      end
   end)

   -- Else a wrong argument is a fault of the declaration as long as no other file has loaded it.
   it('of kinds of arguments: a file that names one loads the file that makes it', function()
      local home, code, loads = {}, {}, {}
      for _, path in ipairs(lua_files 'lua/tide') do
         local name = path:match '^lua/(.-)%.lua$':gsub('/init$', ''):gsub('/', '.')
         code[name], loads[name] = '', {}
         for line in io.lines(path) do
            if not line:find '^%s*%-%-' then code[name] = code[name] .. line .. '\n' end
            local used = line:find '^%S' and line:match "require%s*%(?'(tide%.[%w_.]+)'"
            if used then table.insert(loads[name], used) end
         end
         for how, kind in code[name]:gmatch "signature%.(%l+)%('([%w_]+)'" do
            if how ~= 'check' and how ~= 'doors' then home[kind] = name end
         end
      end
      local function reaches(from, to, seen)
         if from == to then return true end
         seen[from] = true
         for _, used in ipairs(loads[from] or {}) do
            if not seen[used] and reaches(used, to, seen) then return true end
         end
         return false
      end
      local wrong, n = {}, 0
      for name, text in pairs(code) do
         for kind, after in text:gmatch '[%w_]: ([%w_]+)%??(..)' do
            local made = after:find '^[;%[\'"]' or after:find '^ [-|=<>]'
            made = made and home[kind]
            n = n + (made and made ~= name and 1 or 0)
            if made and not reaches(name, made, {}) then
               wrong[#wrong + 1] = ('%s names %s of %s'):format(name, kind, made)
            end
         end
      end
      assert.same({}, wrong)
      assert.is_true(n > 100, n)
   end)

   it('of a step and the optimiser: few rooms, and no ranks or capturing in the update', function()
      local rooms = 0
      for _, used in ipairs(requires 'lua/tide/train/step.lua') do
         if not used:find '^tide%.util%.' then rooms = rooms + 1 end
      end
      assert.is_true(rooms <= 7, rooms)
      check({ 'lua/tide/optim/optimizer.lua', 'lua/tide/optim/adamw.lua' }, requires, function(used)
         return used ~= 'tide.ffi.graph' and used ~= 'tide.nn.spread'
      end)
   end)

   it('of names of other libraries: nothing else requires them', function()
      local rest = {}
      for _, path in ipairs(lua_files 'lua/tide') do
         if not path:find '/parallel/names/' then rest[#rest + 1] = path end
      end
      assert.is_true(#lua_files 'lua/tide/parallel/names' > 5)
      check(rest, requires, function(used) return not used:find '^tide%.parallel%.names' end)
   end)

   it('of models and modules: they do not know the plan', function()
      for _, folder in ipairs { 'lua/tide/nn', 'lua/tide/model' } do
         check(lua_files(folder), requires, function(used)
            return not used:find '^tide%.parallel' and not used:find '^tide%.ffi%.parallel'
         end)
      end
   end)

   -- What the library takes from the binding it takes from tide. The doors: where tide is made,
   -- what belongs to the program rather than the library, and what runs without a context.
   it('of the binding: named doors alone', function()
      local doors = {
         ['lua/tide/init.lua'] = 'ctx grad op arg info instead json status update',
         ['lua/tide/cuda.lua'] = 'arg ctx event graph',
         ['lua/tide/cuda_captured.lua'] = 'arg ctx graph',
         ['lua/tide/optim/captured.lua'] = 'graph', ['lua/tide/util/private.lua'] = 'grad own',
         ['lua/tide/comm/init.lua'] = 'dist', ['lua/tide/comm/solo.lua'] = 'dist',
         ['lua/tide/debug/leak.lua'] = 'own', ['lua/tide/debug/trace.lua'] = 'dist',
         ['lua/tide/comm/launch.lua'] = 'signal',
         ['lua/tide/util/args.lua'] = 'signal', ['lua/tide/util/fs.lua'] = 'io',
         ['lua/tide/tokenizer/build.lua'] = 'tokenizer',
         ['lua/tide/tokenizer/bytes.lua'] = 'widen',
         ['lua/tide/tokenizer/train.lua'] = 'tokenizer',
         ['lua/tide/comm/agree.lua'] = 'io',
         ['lua/tide/parallel/fingerprint.lua'] = 'io', ['lua/tide/data/tokens.lua'] = 'io',
         ['lua/tide/data/image.lua'] = 'image', ['lua/tide/data/image_processor.lua'] = 'image',
         ['lua/tide/repl.lua'] = 'edit', ['lua/tide/repl/session.lua'] = 'op',
         ['lua/tide/repl/ranks.lua'] = 'dist plain',
         ['lua/tide/repl/stored.lua'] = 'plain', ['lua/tide/repl/help.lua'] = 'edit instead',
         ['lua/tide/repl/complete.lua'] = 'op', ['lua/tide/repl/reference.lua'] = 'lib',
         ['lua/tide/train/progress.lua'] = 'edit',
      }
      local wrong = {}
      for _, path in ipairs(lua_files 'lua/tide') do
         local text = lua_code(path)
         for module in text:gmatch '[\'"]tide%.ffi%.([%w_]+)[\'"]' do
            local allowed = (' %s '):format(doors[path] or '')
            if module ~= 'pack' and not allowed:find(' ' .. module .. ' ', 1, true) then
               wrong[#wrong + 1] = path .. ' uses tide.ffi.' .. module
            end
         end
      end
      assert.same({}, wrong)
   end)

   -- Fields of a module that parallelism writes: asked through nn.spread and parallel.layout.
   it('of notes on a module: one file knows the field', function()
      local wrong = {}
      for _, path in ipairs(lua_files 'lua/tide') do
         local code = lua_code(path)
         for _, field in ipairs { '_spread', '_tp', '_cp', '_sharded', '_sharded_in' } do
            local used = code:find('%.' .. field .. '%f[^%w_]')
               or code:find('[\'"]' .. field .. '[\'"]')
            if used and not (field == '_spread' and path == 'lua/tide/nn/spread.lua') then
               wrong[#wrong + 1] = path .. ' uses ' .. field
            end
         end
      end
      assert.same({}, wrong)
   end)

   it('of the Lua library below recipes', function()
      check(lua_files 'lua/tide', requires, function(used) return not used:find '^recipes' end)
   end)
end)
