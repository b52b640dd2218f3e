-- Calls every public function with one argument that it may not like, all others good, and writes
-- what went wrong: a failure that left no record, or one of another function, or that names no
-- argument, or left something in an out-parameter. A program of its own, since a missing check
-- ends the process: door_spec.lua runs it, which tries wrong handles, too (door_program.lua).
--
-- Outside of it: null for what a function writes to, and counts beyond an array of the caller.

local ffi = require 'ffi'
require 'tide'
local C = require('tide.ffi.lib').C
local prototypes = require 'spec.support.prototypes'
local good = require 'spec.support.hostile_good'
local read = require('spec.support.files').read

-- Functions that end the process's MPI, or that door_program.lua has.
local skipped = { tide_mpi_abort = true, tide_mpi_end = true, tide_mpi_elect = true,
   tide_comm_mpi = true, tide_ctx_release = true }
-- A negative number is an answer of these, no failure.
local answers = { tide_tensor_dim = true, tide_tensor_stride = true, tide_file_dtype = true,
   tide_file_ndim = true }

local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir '" .. folder .. "'")
local path = folder .. '/x'

local int_max, long_max = 2147483647, 0x7fffffffffffffffLL
local hostile = {
   int = { -int_max - 1, -1000, -9, -1, 0, 1, 2, 3, 8, 9, 64, 1000, int_max },
   count = { -int_max - 1, -1, 0, 2 },
   long = { -long_max - 1, -2147483649LL, -1LL, 0LL, 1LL, 2LL, 1000LL, 2147483648LL, 2LL ^ 40,
      2LL ^ 62, long_max },
   double = { 0 / 0, 1 / 0, -1 / 0, -1, -0.5, 0, 0.5, 1, 3, 1e-320, 1e308, -1e308 },
   text = { false, '', folder .. '/no such', ('x'):rep(5000), folder .. '/\255\254',
      '/no/such/folder/x', '/' },
   shape = { -long_max - 1, -1LL, 0LL, 1LL, 3LL, 2LL ^ 31, 2LL ^ 62, long_max },
   tensor = { 'f32', 'f32 0', 'f32 3', 'f32 2,3', 'f32 0,4', 'f32 1,1,1,1,1,1,1,1', 'f64', 'bf16',
      'f16', 'i64', 'i32', 'u8', 'bool', 'ref', 'null', 'gone', 'leaf', 'sum', 'turned', 'wide',
      'other' },
}

local ctx, other_ctx, other_tensor          -- of one function; of none
local keep = {}                             -- what a call needs until it has returned
local function kept(x)
   keep[#keep + 1] = x
   return x
end

local function made(rc, box, what)
   if rc < 0 then
      error(('cannot make %s: %s'):format(what, ffi.string(C.tide_error(ctx).message)))
   end
   return box[0]
end

local function box_of(kind) return kept(ffi.new(('tide_%s *[4]'):format(kind))) end

local dtypes = { f32 = 0, f64 = 1, bf16 = 2, f16 = 3, i64 = 4, i32 = 5, u8 = 6, bool = 7 }

local function release(t, kind)
   return kept(ffi.gc(t, C['tide_' .. (kind or 'tensor') .. '_release']))
end

local function full(dtype, sizes, device, on)
   local box, shape = box_of 'tensor', ffi.new('int64_t[8]', sizes)
   return release(made(C.tide_full(box, on or ctx, device, dtypes[dtype], #sizes, shape,
      dtypes[dtype] < 4 and device ~= 3 and 0.5 or 0), box, 'a tensor'))
end

local function derived(fn, ...)
   local box = box_of 'tensor'
   return release(made(C[fn](box, ...), box, fn))
end

-- A tensor by its words (hostile_good.lua); base: the words of the good one, whose shape and dtype
-- those of state keep.
local function tensor(words, base)
   local state = words:match '^(%a+) ?' or words
   if dtypes[state] and words:find '[ %d]' == nil and base and #words > 0 then
      words = base:gsub('^%a+%d*', state, 1):gsub('^%a+ (%a)', '%1')
   end
   local special = ({ ref = 0, null = 3 })[words]
   local how = words:match '^(%a+)' or ''
   local plain = dtypes[words:match '^%w+'] and words or base
   if how == 'leaf' or how == 'sum' then plain = words:match '^%a+ (.+)' or base end
   plain = plain:gsub('^leaf ', ''):gsub('^sum ', '')
   local dtype, sizes = plain:match '^%w+', {}
   for n in plain:gsub('^%w+', ''):gmatch '%d+' do sizes[#sizes + 1] = tonumber(n) end
   local t = full(dtype, sizes, special or 1)
   if how == 'leaf' or how == 'sum' then C.tide_set_needs_grad(t, true) end
   if how == 'sum' then t = derived('tide_sum', t, 0, nil, false) end
   if how == 'gone' then C.tide_tensor_drop(t) end
   if how == 'turned' and #sizes > 1 then t = derived('tide_transpose', t, 0, #sizes - 1) end
   if how == 'wide' then
      local shape = ffi.new('int64_t[8]', sizes)
      t = derived('tide_expand', full(dtype, {}, 1), #sizes, shape)
   end
   return t
end

local makers = {
   ctx = function() return ctx end,
   backward = function()
      local box = box_of 'backward'
      return made(C.tide_backward_begin(box, tensor 'sum f32 4', nil, false), box, 'a walk')
   end,
   comm = function()
      local box = box_of 'comm'
      return made(C.tide_comm_join(box, ctx, nil, 0), box, 'a communicator')
   end,
   group = function()
      local box = box_of 'group'
      return made(C.tide_group_new(box, 2, nil, nil, 0), box, 'a group')
   end,
   json = function()
      local box = box_of 'json'
      return made(C.tide_json_parse(box, ctx, '[1]', 3, 0, 0, nil), box, 'JSON')
   end,
   blob = function()
      local box = box_of 'blob'
      return made(C.tide_path_read(box, ctx, path, 0), box, 'a blob')
   end,
   lock = function()
      local box = box_of 'lock'
      return made(C.tide_path_lock(box, ctx, path .. '.lock'), box, 'a lock')
   end,
   file = function()
      local box = box_of 'file'
      return made(C.tide_file_open(box, ctx, path), box, 'a file')
   end,
}
function makers.device_event()
   local box = box_of 'device_event'
   return made(C.tide_device_event_record(box, ctx, 1), box, 'an event of a device')
end
function makers.tokenizer()
   local box, ends = box_of 'tokenizer', kept(ffi.new('int64_t[4]', { 1, 2, 3, 4 }))
   return made(C.tide_tokenizer_new(box, ctx, C.TIDE_TOKENIZER_BPE, 0, -1, 4, 'abcd', ends, nil),
      box, 'a tokenizer')
end
function makers.work()
   local box = box_of 'work'
   return made(C.tide_comm_barrier(box, release(makers.comm(), 'comm')), box, 'a work')
end
function makers.saving()
   local box, names = box_of 'saving', kept(ffi.new('const char *[1]', { 'x' }))
   local list = kept(ffi.new('tide_tensor *[1]', tensor 'f32 4'))
   return made(C.tide_file_save_async(box, ctx, path .. '.saving', 1, names, list, 0, nil, nil),
      box, 'a saving')
end

local function object(kind)
   if kind == 'tensor' then return tensor 'f32 4,4' end
   local o = makers[kind]()
   return kind == 'ctx' and o or release(o, kind)
end

local function write_file()
   local names = ffi.new('const char *[1]', { 'x' })
   local list = ffi.new('tide_tensor *[1]', tensor 'f32 4')
   os.remove(path)
   if C.tide_file_save(ctx, path, 1, names, list, 0, nil, nil) < 0 then error 'file_save' end
end

-- ---- structs of options ------------------------------------------------------------------------

local header = read('core/include/tide/tide_abi.h'):gsub('/%*.-%*/', ' ')

-- The members of a struct: { { type =, name = } }.
local function members(name)
   local list = {}
   local body = header:match('typedef struct ' .. name .. ' (%b{})')
   for type, names in body:sub(2, -2):gmatch '%s*([%w_]+)%s+([^;]+);' do
      for n in names:gmatch '[^,]+' do
         if not n:find '[%[%(]' then
            type = type:match '^%S+' .. (n:find '%*' and ' *' or '')
            list[#list + 1] = { name = n:match '[%w_]+', type = type }
         end
      end
   end
   return list
end

local function struct(name)
   local s = kept(ffi.new(name))
   if name == 'tide_opts' then C.tide_opts_init(s) else C[name .. '_init'](s) end
   return s
end

-- ---- arguments ---------------------------------------------------------------------------------

local function words_of(f, arg)
   local row = good[f.name:sub(6)] or {}
   local words = row[arg.name]
   return type(words) == 'string' and words or 'f32 4,4'
end

local function list_of(kind, words, base)
   local list = ffi.new(('tide_%s *[4]'):format(kind))
   for i = 0, 3 do list[i] = tensor(words, base) end
   return kept(list)
end

local function fill(type, value)
   local array = kept(ffi.new(type .. '[64]'))
   for i = 0, 63 do array[i] = value end
   return array
end

local function good_number(f, arg)
   local row = good[f.name:sub(6)] or {}
   if row[arg.name] ~= nil then return row[arg.name] end
   if arg.type == 'bool' then return false end
   if arg.name == 'device' then return 1 end
   if arg.name == 'eps' then return 1e-5 end
   if arg.name == 'step' or arg.name == 'nout' or arg.name == 'nmsg' then return 1 end
   return arg.name:find '^n' and 1 or 0
end

local function struct_name(arg)
   return arg.type:match '(tide_[%w_]+_attrs)' or arg.type:match '(tide_%w*_?opts)'
end

local bytes = ffi.new 'char[65536]'

-- Functions that read their out-parameter first: null makes an object, else it is that one.
local takes_box = { tide_device_event_record = true }

local function good_value(f, arg)
   local row = good[f.name:sub(6)] or {}
   if arg.object == 'tensor' then return tensor(words_of(f, arg)) end
   if arg.object then return object(arg.object) end
   if arg.list then return list_of(arg.list, words_of(f, arg)) end
   if arg.out then
      local box = kept(ffi.new(('tide_%s *[4]'):format(arg.out)))
      if takes_box[f.name] then return box end
      for i = 0, 3 do box[i] = ffi.cast(('tide_%s *'):format(arg.out), 64) end
      return box
   end
   if arg.type:find '^const' and struct_name(arg) then return struct(struct_name(arg)) end
   if arg.type:find '^const char %*const %*' then
      return kept(ffi.new('const char *[4]', { 'a', 'b', 'c', 'd' }))
   end
   if arg.type:find '^const char %*' then return row[arg.name] or path end
   if arg.name == 'order' then return kept(ffi.new('int32_t[64]', { 1, 0 })) end
   if arg.name == 'dims' then return kept(ffi.new('int32_t[64]', { 0, 1 })) end
   if arg.type == 'const int64_t *' then return fill('int64_t', row[arg.name] or 4) end
   if arg.type:find 'int64_t %*' or arg.type:find 'double %*' then
      return ffi.cast(arg.type, bytes)
   end
   if arg.type:find '%*' then return ffi.cast('void *', bytes) end
   if arg.type == 'tide_give' then return ffi.new 'tide_give' end
   return good_number(f, arg)
end

-- What to try as an argument: { text, function that makes it } one after another.
local function numbers(list, out, make)
   for _, v in ipairs(list) do
      out[#out + 1] = { tostring(v), function() return make and make(v) or v end }
   end
end

local function has_list(f)
   for _, a in ipairs(f.args) do if a.list or a.type:find '%*const %*' then return true end end
end

local function number_list(f, arg)
   if arg.type == 'double' then return hostile.double end
   if arg.type == 'int' then
      local is_count = (arg.name == 'nin' or arg.name == 'nout')
      return is_count and hostile.count or hostile.int
   end
   if arg.type == 'int64_t' then
      return arg.name:find '^n' and (has_list(f) or f.name:find '_bytes$') and hostile.count
         or hostile.long
   end
   if arg.type == 'size_t' and not f.name:find 'path_' and f.name ~= 'tide_json_parse'
      and f.name ~= 'tide_hash' and f.name ~= 'tide_tensor_format' then
      return { 0, 1, 63, 65, 4096 }
   end
   return {}
end

local function struct_trials(arg, out)
   local name = struct_name(arg)
   out[1] = { 'null', function() return nil end }
   out[2] = { 'zeros', function() return kept(ffi.new(name)) end }
   for _, m in ipairs(members(name)) do
      local list = m.type == 'double' and hostile.double
         or m.type == 'tide_tensor *' and hostile.tensor
         or m.type:find '^u?int%d+_t$' and hostile.int
         or m.type == 'char *' and { 'no such', '=', ('x'):rep(5000), 'check=99' } or {}
      for _, v in ipairs(list) do
         out[#out + 1] = { ('%s = %s'):format(m.name, tostring(v):sub(1, 20)), function()
            local s = struct(name)
            s[m.name] = m.type == 'tide_tensor *' and tensor(v, 'f32 4,4')
               or m.type == 'char *' and kept(ffi.new('char[?]', #v + 1, v)) or v
            return s
         end }
      end
   end
end

local function trials(f, arg)
   local out, tries = {}, (good[f.name:sub(6)] or {}).tries
   if tries and tries[arg.name] then
      local type = arg.type:match '^const (int%d%d_t) %*'
      if type then out[1] = { 'null', function() return nil end } end
      numbers(tries[arg.name], out, type and function(v) return fill(type, v) end)
   elseif arg.object == 'tensor' then
      numbers(hostile.tensor, out, function(v) return v == 'other' and other_tensor
         or tensor(v, words_of(f, arg)) end)
   elseif arg.list then
      numbers(hostile.tensor, out, function(v)
         local list = list_of('tensor', words_of(f, arg))
         list[0] = v == 'other' and other_tensor or tensor(v, words_of(f, arg))
         return list
      end)
      out[#out + 1] = { 'the same twice', function()
         local list = list_of('tensor', words_of(f, arg))
         list[1] = list[0]
         return list
      end }
   elseif arg.object or arg.out then
      return out
   elseif arg.type:find '^const' and struct_name(arg) then
      struct_trials(arg, out)
   elseif arg.type:find '^const char %*const %*' then
      out[1] = { 'null', function() return nil end }
      out[2] = { 'of null', function() return kept(ffi.new 'const char *[4]') end }
   elseif arg.type:find '^const char %*' then
      for _, v in ipairs(hostile.text) do
         out[#out + 1] = { tostring(v):sub(1, 20), function() return v or nil end }
      end
      out[#out + 1] = { 'a folder', function() return folder end }
   elseif arg.type:find '^const int%d%d_t %*' then
      out[1] = { 'null', function() return nil end }
      local type = arg.type:match 'int%d%d_t'
      numbers(hostile.shape, out, function(v)
         return fill(type, type == 'int32_t' and tonumber(v) or v)
      end)
   elseif arg.type == 'const void *' and f.name ~= 'tide_hash' then
      out[1] = { 'null', function() return nil end }
   elseif arg.type == 'bool' then
      numbers({ true }, out)
   elseif not arg.type:find '%*' then
      numbers(number_list(f, arg), out)
   end
   return out
end

-- ---- calls -------------------------------------------------------------------------------------

local ncall, nwrong, nfailed = 0, 0, 0
local function complain(...)
   nwrong = nwrong + 1
   print('WRONG ' .. table.concat({ ... }, ' '))
end

-- Leaves a failure of another function, to be replaced. Returns its name.
local function mark(f)
   local other = f.name == 'tide_sync' and 'set_nthread' or 'sync'
   for _, c in ipairs { ctx, other_ctx, false } do C['tide_' .. other](c or nil, -77) end
   return other
end

-- Statuses whose message names what was wrong with an argument.
local about_argument = { [C.TIDE_E_ARG] = true, [C.TIDE_E_SHAPE] = true, [C.TIDE_E_DTYPE] = true }

-- By its name, that of a struct's member, its number, its shape, or, of an op in place, its role.
local function names_argument(f, message)
   for _, words in ipairs { '%[[%d, ]*%]', 'target', 'source', 'index %d' } do
      if message:find(words) then return true end
   end
   for _, a in ipairs(f.args) do
      if message:find('%f[%w_]' .. a.name .. 's?%f[^%w_]') then return true end
      if a.object == 'tensor' or a.list then
         if message:find 'argument %d' or message:find 'tensor' then return true end
      end
      if struct_name(a) and message:find 'attrs' then return true end
      for _, m in ipairs(struct_name(a) and members(struct_name(a)) or {}) do
         if message:find('%f[%w_]' .. m.name:gsub('_.*', '')) then return true end
      end
   end
   return false
end

local function has_ctx(f)
   for _, a in ipairs(f.args) do
      if a.object and a.object ~= 'group' or a.list then return true end
   end
   return false
end

-- marked: the name of the failure that was there before.
local function check_record(f, what, rc, marked)
   local record = C.tide_error(has_ctx(f) and ctx or nil)
   for _, c in ipairs { other_ctx, false } do
      if ffi.string(record.op) == marked then record = C.tide_error(c or nil) end
   end
   local op, message = ffi.string(record.op), ffi.string(record.message)
   nfailed = nfailed + 1
   if op == marked then complain(what, 'no record of', rc)
   elseif record.code ~= rc then complain(what, 'returned', rc, 'recorded', record.code)
   elseif f.name:sub(6, 5 + #op) ~= op and f.name:sub(11, 10 + #op) ~= op
      and not (op == 'alloc' and rc == C.TIDE_E_NOMEM) then
      complain(what, 'is recorded as', op, message)
   elseif about_argument[rc] and not names_argument(f, message) then
      complain(what, 'names no argument:', message)
   end
end

local function check_outs(f, args, what, rc)
   for i, a in ipairs(f.args) do
      if a.out and not (a.name == 'outs' and what:find 'nout: [-%d]') then
         local poison = ffi.cast('void *', 64)
         if args[i] ~= nil then
            local o = args[i][0]
            if o == poison then
               if rc < 0 then complain(what, a.name, 'is not null after', rc)
               elseif rc == 0 then complain(what, a.name, 'was not set') end
            elseif o ~= nil then
               if rc < 0 then complain(what, a.name, 'is set after', rc)
               elseif a.out ~= 'ctx' then release(o, a.out) else C.tide_ctx_release(o) end
            end
         end
      end
   end
end

local verbose = arg and arg[2]

local function call(f, at, what, make)
   local args = {}
   for i, a in ipairs(f.args) do args[i] = i ~= at and good_value(f, a) end
   if at then args[at] = make() end
   local marked = mark(f)
   ncall = ncall + 1
   io.write('> ', what, '\n')
   local ok, rc = pcall(C[f.name], unpack(args, 1, #f.args))
   if not ok then complain(what, 'cannot be called:', tostring(rc)) return end
   if f.returns ~= 'int' then return 0 end
   if verbose then print(what, rc, ffi.string(C.tide_error(has_ctx(f) and ctx or nil).message)) end
   check_outs(f, args, what, rc)
   if rc < 0 and not answers[f.name] then
      check_record(f, what, rc, marked)
   end
   return rc
end

local function finish()
   for i = #keep, 1, -1 do
      local o = keep[i]
      keep[i] = nil
      local kind = tostring(ffi.typeof(o)):match 'struct tide_([%w_]+) %*>'
      if kind and kind ~= 'ctx' and ffi.cast('intptr_t', o) > 4096 then
         ffi.gc(o, nil)
         C['tide_' .. kind .. '_release'](o)
      end
   end
end

-- Functions that need what this machine lacks, or a state that a single call does not have.
local needs = { tide_pin_memory = true, tide_graph_begin = true, tide_comm_nccl = true,
   tide_backward_take = true, tide_backward_input = true, tide_backward_give = true,
   tide_tensor_refilled = true, tide_path_list = true,
   tide_scope_pop = true, tide_path_mkdir = true, tide_comm_pause = true,
   tide_comm_resume = true }

local function open_ctx()
   local box, opts = ffi.new 'tide_ctx *[1]', ffi.new 'tide_opts'
   C.tide_opts_init(opts)
   opts.params, opts.nthread = 'memory=256m', 1
   if C.tide_ctx_new(box, opts, nil, 0) < 0 then error 'no context' end
   return box[0]
end

local function uses_files(f)
   for _, a in ipairs(f.args) do
      if a.object == 'file' or a.object == 'blob' or a.name == 'path' or a.name == 'from' then
         return true
      end
   end
end

local function try_all(f)
   ctx = open_ctx()
   local files = uses_files(f)
   if files then write_file() end
   local rc = call(f, nil, f.name .. ' with good arguments')
   finish()
   if rc and rc < 0 and not needs[f.name] and not f.name:find '^tide_file' then
      complain(f.name, 'fails with good arguments:', ffi.string(C.tide_error(ctx).message))
   end
   for at, a in ipairs(f.args) do
      for _, t in ipairs(trials(f, a)) do
         if not (a.name == 'data' and t[1] == 'null' and f.name:find 'bytes$' == nil) then
            if files then write_file() end
            call(f, at, ('%s %s: %s'):format(f.name, a.name, t[1]), t[2])
            finish()
         end
      end
   end
   C.tide_ctx_release(ctx)
end

io.stdout:setvbuf 'no'
other_ctx = open_ctx()
ctx = other_ctx
other_tensor = ffi.gc(full('f32', { 4, 4 }, 1), nil)
keep = {}
local only = arg and arg[1]
for _, f in ipairs(prototypes.list()) do
   local graph = f.args[1] and f.args[1].object == 'graph'
   if not skipped[f.name] and not graph and not f.name:find '_release' and not f.name:find '_init$'
      and (not only or only == "" or f.name:find(only)) then
      try_all(f)
   end
end
os.execute("rm -r '" .. folder .. "'")
print(('%d calls, %d failures, %d wrong'):format(ncall, nfailed, nwrong))
os.exit(nwrong == 0 and 0 or 1, false)
