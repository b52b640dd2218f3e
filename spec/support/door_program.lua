-- Calls every public function with one handle that it must refuse, all others good, and writes what
-- went wrong. A program of its own, since a missing check ends the process: door_spec.lua runs it.
--
-- Wrong handles: null; released; of another kind; of another context where the call has objects
-- beside it.

local ffi = require 'ffi'
require 'tide'
local C = require('tide.ffi.lib').C
local prototypes = require 'spec.support.prototypes'

-- Handles that may be null: absent is a meaning there.
local optional = {
   tide_ctx_release = 'ctx', tide_error = 'ctx',
   tide_linear = 'bias', tide_linear_act = 'bias', tide_linear_fp8 = 'bias',
   tide_linear_fp8_scaled = 'bias', tide_linear_lora = 'bias',
   tide_linear_joined = 'biases biases[]', tide_linear_fp8_joined = 'biases biases[]',
   tide_linear_nf4 = 'bias', tide_linear_nf4_part = 'bias',
   tide_layer_norm = 'weight bias', tide_rms_norm = 'weight', tide_add_rms_norm = 'weight',
   tide_gated_rms_norm = 'weight', tide_conv1d = 'bias', tide_linear_cross_entropy = 'bias',
   tide_rng_place = 'place', tide_set_grad = 'grad', tide_backward_begin = 'grad',
   tide_backward_give = 'grad', tide_backward_run = 'grad', tide_adamw_ = 'master[] g_scale rates '
      .. 'found_inf', tide_adamw8_ = 'master[] g_scale rates found_inf',
   tide_sgd_ = 'buf[] master[] g_scale rates found_inf',
   tide_comm_join = 'group', tide_comm_gather = 'out', tide_comm_scatter = 'in',
   tide_comm_send_recv = 'outs ins',
}
-- Functions that read their out-parameter first: null makes an object, else it is that one.
local takes_box = { tide_device_event_record = true }
-- Functions that take tensors of any context.
local any_context = { tide_tensor_same_storage = true }

local function is_optional(f, arg)
   local names = (' ' .. (optional[f.name] or '') .. ' '):gsub('%[%]', '')
   return f.name:find '_release$' or names:find(' ' .. arg.name .. ' ', 1, true) ~= nil
end

local function may_hold_null(f, arg)
   return (' ' .. (optional[f.name] or '') .. ' '):find(' ' .. arg.name .. '[] ', 1, true) ~= nil
end

local function made(rc, box)
   if rc < 0 then error('cannot make an object: ' .. rc) end
   return box[0]
end

local path = os.tmpname()

-- A living object of each kind on a new context.
local function objects()
   local ctx = made(0, (function()
      local box = ffi.new 'tide_ctx *[1]'
      C.tide_ctx_new(box, nil, nil, 0)
      return box
   end)())
   local o = { ctx = ctx }
   local function make(kind, fn, ...)
      local box = ffi.new(('tide_%s *[1]'):format(kind))
      o[kind] = made(C[fn](box, ...), box)
      return o[kind]
   end
   local one = ffi.new('int64_t[1]', 1)
   local x = make('tensor', 'tide_full', ctx, C.TIDE_DEV_CPU, C.TIDE_F32, 1, one, 1)
   local sum = make('tensor', 'tide_full', ctx, C.TIDE_DEV_CPU, C.TIDE_F32, 0, nil, 1)
   C.tide_set_needs_grad(sum, true)
   make('backward', 'tide_backward_begin', sum, nil, false)
   o.tensor = x
   local comm = make('comm', 'tide_comm_join', ctx, nil, 0)
   make('work', 'tide_comm_barrier', comm)
   local box = ffi.new('tide_tensor *[1]', x)
   make('group', 'tide_group_new', 1, nil, nil, 0)
   make('json', 'tide_json_parse', ctx, '1', 1, 0, 0, nil)
   local names = ffi.new('const char *[1]', { 'x' })
   if C.tide_file_save(ctx, path, 1, names, box, 0, nil, nil) < 0 then error 'file_save' end
   make('file', 'tide_file_open', ctx, path)
   make('blob', 'tide_path_read', ctx, path, 0)
   make('tokenizer', 'tide_tokenizer_new', ctx, C.TIDE_TOKENIZER_BPE, 0, -1, 1, 'x', one, nil)
   make('device_event', 'tide_device_event_record', ctx, C.TIDE_DEV_CPU)
   make('lock', 'tide_path_lock', ctx, path .. (tostring(ctx):match '%w+$') .. '.lock')
   make('saving', 'tide_file_save_async', ctx, path .. '.2', 1, names, box, 0, nil, nil)
   return o
end

local good, elsewhere, released = objects(), objects(), objects()
for kind, object in pairs(released) do
   if kind ~= 'ctx' and kind ~= 'group' then C['tide_' .. kind .. '_release'](object) end
end

local bytes = ffi.new 'char[65536]'
local text, shape = ffi.new('char[256]', path), ffi.new('int64_t[64]')
for i = 0, 63 do shape[i] = 1 end

-- A handle of another kind.
local function other(kind)
   return ffi.cast('void *', kind == 'tensor' and good.comm or good.tensor)
end

local wrong = {
   null = function() return nil end,
   released = function(kind) return released[kind] end,
   ['of another kind'] = function(kind) return other(kind) end,
   ['of another context'] = function(kind) return elsewhere[kind] end,
}

local keep = {}                             -- arrays of one call

local poison = ffi.cast('void *', 64)

local function value(f, arg)
   if arg.object then return good[arg.object] end
   if arg.list then
      keep[#keep + 1] = ffi.new(('tide_%s *[4]'):format(arg.list), good[arg.list])
      return keep[#keep]
   end
   if arg.out then
      local box = ffi.new(('tide_%s *[4]'):format(arg.out))
      if not takes_box[f.name] then box[0] = ffi.cast(('tide_%s *'):format(arg.out), poison) end
      keep[#keep + 1] = box
      return box
   end
   if arg.type:find 'tide_%w+_attrs' or arg.type:find 'tide_%w+_opts' then return nil end
   if arg.type:find '^const char %*const %*' then return ffi.new('const char *[4]', { text }) end
   if arg.type:find '^const char %*' then return text end
   if arg.type:find 'int64_t %*' then return shape end
   if arg.type:find '%*' then return ffi.cast('void *', bytes) end
   if arg.type == 'bool' then return false end
   if arg.type == 'tide_give' then return ffi.new 'tide_give' end
   return arg.name == 'device' and C.TIDE_DEV_CPU or arg.name:find '^n' and 1 or 0
end

local nwrong, ncall = 0, 0
local function complain(...)
   nwrong = nwrong + 1
   print(table.concat({ ... }, ' '))
end

local refusal = { int = -1, int64_t = -1, double = -1, bool = false }

-- Calls f with `handle` as (or in) argument `at` and looks at what it answers.
local function try(f, at, handle, what)
   local args, arg = {}, f.args[at]
   keep = {}
   for i = 1, #f.args do args[i] = value(f, f.args[i]) end
   if arg.object then
      args[at] = handle == nil and nil or ffi.cast(('tide_%s *'):format(arg.object), handle)
   else
      args[at][0] = handle == nil and nil or ffi.cast(('tide_%s *'):format(arg.list), handle)
   end
   ncall = ncall + 1
   io.write('> ', f.name, ' ', arg.name, ' ', what, '\n')
   local before = ffi.string(C.tide_error(good.ctx).message)
   local got = C[f.name](unpack(args, 1, #f.args))
   if f.name:find '_release$' or f.returns == 'void' then return end
   for i, a in ipairs(f.args) do
      if a.out and args[i][0] == poison then
         complain('WRONG', f.name, arg.name, what, 'leaves', a.name, 'as it was')
      end
   end
   if f.returns:find '%*' then
      if f.name ~= 'tide_error' and got ~= nil
         and not (f.name == 'tide_tensor_ctx' and what == 'released') then
         complain('WRONG', f.name, arg.name, what, 'not null')
      end
   elseif tonumber(got) ~= refusal[f.returns] then
      complain('WRONG', f.name, arg.name, what, 'returned', tostring(got))
   end
   if f.name == 'tide_error' or f.name == 'tide_tensor_ctx' then return end
   local name, seen = f.name:sub(6), false
   for _, ctx in ipairs { good.ctx, released.ctx, elsewhere.ctx, 0 } do
      local record = C.tide_error(ctx ~= 0 and ctx or nil)
      local op = record.op ~= nil and ffi.string(record.op)
      if (op == name or 'comm_' .. tostring(op) == name) and record.code == C.TIDE_E_ARG then
         seen = true
      end
   end
   if not seen then
      complain('WRONG', f.name, arg.name, what, 'left no record;', before, '->',
         ffi.string(C.tide_error(good.ctx).message))
   end
end

local function has_context(f, at)
   for i, arg in ipairs(f.args) do
      if i ~= at and (arg.list or arg.object and arg.object ~= 'group')
         and not is_optional(f, arg) then return true end
   end
   return false
end

local function applies(f, at, what)
   local arg = f.args[at]
   local kind = arg.object or arg.list
   if what == 'null' then
      if arg.object then return not is_optional(f, arg) end
      return not is_optional(f, arg) and not may_hold_null(f, arg)
   end
   -- The memory of a context and of a group goes with them.
   if what == 'released' then return kind ~= 'ctx' and kind ~= 'group' and kind ~= 'graph' end
   if what == 'of another context' then
      return kind ~= 'ctx' and kind ~= 'group' and kind ~= 'graph' and not any_context[f.name]
         and has_context(f, at)
   end
   return true
end

io.stdout:setvbuf 'no'
local only = arg and arg[1]
for _, f in ipairs(prototypes.list()) do
   for at, a in ipairs(f.args) do
      if (a.object or a.list) and (not only or f.name:find(only)) then
         for _, what in ipairs { 'null', 'released', 'of another kind', 'of another context' } do
            if applies(f, at, what) then try(f, at, wrong[what](a.object or a.list), what) end
         end
      end
   end
end
print(('%d calls, %d wrong'):format(ncall, nwrong))
os.exit(nwrong == 0 and 0 or 1, false)
