-- Whatever is given to a public function of the library is either used or refused with a tide
-- error; nothing else is raised, and nothing crashes. (What tensors do: spec/ffi/misuse_spec.lua.)
--
-- The functions are found by walking what `require 'tide'` reaches, and the methods
-- of the objects it makes; their arguments by the names of the parameters (`good`). One argument or
-- option at a time is replaced by an odd value. The options of a function are those that it asks
-- err.options about.

local ffi = require 'ffi'
local tide = require 'tide'
local err = require 'tide.util.err'

pcall(ffi.cdef, 'typedef struct misuse_foreign { int x; } misuse_foreign;')

-- Not called: what ends the process, reads the terminal, changes the globals or what other specs
-- stand on; err, whose functions raise what they are given, and signature, which declares.
local skipped = {
   ['util.args.main'] = true, ['train.job.main'] = true, ['repl.run'] = true,
   ['util.strict.on'] = true, ['util.strict.off'] = true, ['util.fs.use'] = true,
   ['util.err'] = true, ['util.signature'] = true, set_default = true, ['comm.shutdown'] = true,
}

-- ---- values ----------------------------------------------------------------------------------

-- A path below a device: never made, never there.
local nowhere = '/dev/null/nowhere'

local gone = tide.ones { 2, 3 }
gone:release()

local function odd_values()
   return {
      { 'nil', nil }, { 'number', 2.5 }, { 'minus', -1 }, { 'NaN', 0 / 0 }, { 'integer', 3 },
      { 'string', nowhere }, { 'true', true }, { 'false', false }, { 'table', {} },
      { 'list', { 'a' } }, { 'nested', { { true } } }, { 'map', { x = true } },
      { 'function', function() end }, { 'tensor', tide.ones { 2, 3 } }, { 'gone', gone },
      { 'foreign', ffi.new 'misuse_foreign' }, { 'int64', -5LL },
      { 'null', ffi.cast('tide_tensor *', nil) },
   }
end

local function llama(opts)
   return tide.model.llama({ vocab_size = 11, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 8,
      tie_word_embeddings = true }, opts)
end

local function ids() return tide.zeros({ 1, 4 }, { dtype = 'i64' }) end
local function source() return tide.data.tokens.memory(('\1\0'):rep(64), 2) end
local function comm() return tide.comm.solo() end
local function mesh() return tide.parallel.mesh({ dp = 1 }, { comm = comm() }) end
local function axis() return mesh():axis 'dp' end
local function map() return tide.parallel.cp_map.new { kind = 'contiguous', length = 4 } end

-- A value that a parameter or option of this name may have.
local good = {
   op = function() return 'spec' end, name = function() return 'spec' end,
   comm = comm, mesh = mesh, axis = axis, map = map, source = source, ids = ids, labels = ids,
   model = function() return llama() end, module = function() return llama() end,
   optim = function() return tide.optim.SGD(tide.nn.Linear(2, 2)) end,
   config = function() return llama({ device = 'null' }).config end,
   x = function() return tide.ones { 1, 4, 2 } end, t = function() return tide.ones { 2, 2 } end,
   fn = function() return function(...) return ... end end,
   opts = function() return {} end, dim = function() return 2 end, n = function() return 4 end,
   size = function() return 1 end, rank = function() return 0 end, seq = function() return 4 end,
   shape = function() return { 2, 2 } end, list = function() return {} end,
   path = function() return nowhere end, folder = function() return nowhere end,
   out = function() return nowhere end, where = function() return nowhere end,
   batch = function() return { ids = ids(), labels = ids() } end,
   cu = function() return { 0, 2, 4 } end, text = function() return 'text' end,
   run = function()
      local model = llama()
      return { model = model, optim = tide.optim.SGD(model), step = 0 }
   end,
   saved = function()
      local model = llama()
      return tide.train.state.collect { model = model, optim = tide.optim.SGD(model), step = 0 }
   end,
}

-- ---- calls -----------------------------------------------------------------------------------

-- A call gives its result or raises a tide error.
local found = {}
local function try(name, how, fn, ...)
   local ok, e = pcall(fn, ...)
   if ok or tide.is_error(e) and e.op ~= nil and e.message ~= nil then return end
   local text = tostring(e):gsub('\n.*', '')
   local key = name .. ': ' .. text
   if not found[key] then
      found[key] = true
      found[#found + 1] = ('%s(%s): %s'):format(name, how, text)
   end
end

-- Names of the parameters of a function, without self.
local function parameters(fn, is_method)
   local list, info = {}, debug.getinfo(fn, 'u')
   for i = is_method and 2 or 1, info.nparams do list[#list + 1] = debug.getlocal(fn, i) end
   if info.isvararg then
      for _ = 1, 2 do list[#list + 1] = '...' end
   end
   return list
end

-- A model that costs less than a llama, and of which sharding refuses the same.
local function small() return tide.nn.Stack { tide.nn.MLP { dim = 2, hidden = 2 } } end

-- Returns a good value of a parameter of the function at a path, or nil.
local function value_of(path, name)
   local make = name == 'model' and path:find '^parallel%..*fsdp' and small or good[name]
   if make then return make() end
   return nil
end

-- Options that fn asks err.options about when it is called with these values.
local function options_of(fn, values, n)
   local asked, before = {}, err.options
   err.options = function(op, opts, known)
      if opts == values[n] then
         for _, k in ipairs(known) do asked[#asked + 1] = k end
      end
      return before(op, opts, known)
   end
   pcall(fn, unpack(values, 1, n))
   err.options = before
   return asked
end

-- Methods of models that read alone: one model serves all calls of each, and must be as it was.
local reads = { rope_index = true, feature_rows = true, priced = true, placed = true,
   hidden = true, loss = true, label_logprobs = true }

-- Returns what a call may change of a model, as a text.
local function state_of(model)
   local list = { tostring(model.training) }
   for _, e in ipairs(model:named_parameters()) do
      list[#list + 1] = ('%s %s %.17g %s'):format(e.name, e.param.dtype, e.param:sum():item(),
         tostring(e.param.requires_grad))
   end
   for _, b in ipairs(model:named_buffers()) do list[#list + 1] = b.name end
   return table.concat(list, '\n')
end

-- Calls fn(make) where make returns one model each time. Notes a call that has changed it.
local function with_one(name, make, fn)
   local model = make()
   local before = state_of(model)
   fn(function() return model end)
   if state_of(model) ~= before then found[#found + 1] = name .. ' changes its model' end
end

-- fn(values...) with each argument in turn made odd, and each option.
local function misuse(name, fn, names, self)
   local shift = self ~= nil and 1 or 0
   local function call(how, values, n)
      if self ~= nil then return try(name, how, fn, self(), unpack(values, 1, n)) end
      return try(name, how, fn, unpack(values, 1, n))
   end
   local function goods()
      local values = {}
      for i, p in ipairs(names) do values[i] = value_of(name, p) end
      return values
   end
   for i, p in ipairs(names) do
      if p ~= 'op' then
         for _, odd in ipairs(odd_values()) do
            local values = goods()
            values[i] = odd[2]
            call(('%s = %s'):format(p, odd[1]), values, #names)
         end
      end
   end
   for i, p in ipairs(names) do
      local values = goods()
      values[i] = {}
      local all = { unpack(values, 1, #names) }
      if shift == 1 then
         all = { self(), unpack(values, 1, #names) }
      end
      for _, option in ipairs(options_of(fn, all, i + shift)) do
         for _, odd in ipairs(odd_values()) do
            local opts = {}
            values = goods()
            if type(values[i]) == 'table' then
               for k, v in pairs(values[i]) do opts[k] = v end
            end
            opts[option] = odd[2]
            values[i] = opts
            call(('%s.%s = %s'):format(p, option, odd[1]), values, #names)
         end
      end
   end
end

-- ---- the functions ---------------------------------------------------------------------------

local function is_class(t) return rawget(t, 'class_name') ~= nil end

-- Names of a table of functions, those that are loaded late included.
local function names_of(t)
   local names, seen, mt = {}, {}, getmetatable(t)
   local function add(from)
      for k in pairs(from) do
         if type(k) == 'string' and k:sub(1, 1) ~= '_' and not seen[k] then
            seen[k] = true
            names[#names + 1] = k
         end
      end
   end
   add(t)
   if type(mt) == 'table' and type(mt.entries) == 'table' then add(mt.entries) end
   table.sort(names)
   return names
end

local list, visited = {}, {}

local function walk(t, path)
   if visited[t] or skipped[path] then return end
   visited[t] = true
   if is_class(t) then
      if type(t.new) == 'function' and type(t.init) == 'function' then
         list[#list + 1] = { path, t.new, parameters(t.init, true) }
      end
      return
   end
   for _, k in ipairs(names_of(t)) do
      local here, v = path == '' and k or path .. '.' .. k, t[k]
      if type(v) == 'table' then
         walk(v, here)
      elseif type(v) == 'function' and not visited[v] and not skipped[here] then
         visited[v] = true
         list[#list + 1] = { here, v, parameters(v) }
      end
   end
end

-- The ops are in spec/ffi/misuse_spec.lua.
for _, fn in pairs(require 'tide.ffi.op') do visited[fn] = true end
walk(tide, '')

-- ---- the methods -----------------------------------------------------------------------------

-- One of each kind of object that the library hands out.
local objects = {
   ['nn.Linear'] = function() return tide.nn.Linear(2, 2) end,
   ['nn.Embedding'] = function() return tide.nn.Embedding(3, 2) end,
   ['nn.RMSNorm'] = function() return tide.nn.RMSNorm(2) end,
   ['nn.LayerNorm'] = function() return tide.nn.LayerNorm(2) end,
   ['nn.Attention'] = function() return tide.nn.Attention { dim = 4, heads = 2 } end,
   ['nn.MLP'] = function() return tide.nn.MLP { dim = 2, hidden = 2 } end,
   ['nn.Dropout'] = function() return tide.nn.Dropout(0.5) end,
   ['nn.Mamba2'] = function() return tide.nn.Mamba2 { dim = 4, head_dim = 4, state = 2 } end,
   ['nn.Stack'] = function() return tide.nn.Stack { tide.nn.Linear(2, 2) } end,
   ['nn.rope'] = function() return tide.nn.rope.new { dim = 4 } end,
   ['model.llama'] = llama,
   ['model.qwen2_5_vl'] = function()
      return tide.model.qwen2_5_vl { vocab_size = 11, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, intermediate_size = 6, image_token_id = 9, video_token_id = 10,
         vision_config = { depth = 1, hidden_size = 8, num_heads = 1, intermediate_size = 6,
            patch_size = 2, window_size = 4, fullatt_block_indexes = { 0 } } }
   end,
   ['model.qwen3_vl'] = function()
      return tide.model.qwen3_vl { vocab_size = 11, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, head_dim = 4, intermediate_size = 6, image_token_id = 9,
         video_token_id = 10, vision_config = { depth = 1, hidden_size = 8, num_heads = 1,
            intermediate_size = 6, patch_size = 2, deepstack_visual_indexes = { 0 } } }
   end,
   ['model.gemma3_vl'] = function()
      return tide.model.gemma3_vl { vocab_size = 11, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4, intermediate_size = 6,
         image_token_id = 9, mm_tokens_per_image = 1, vision_config = { num_hidden_layers = 1,
            hidden_size = 8, num_attention_heads = 1, intermediate_size = 6, image_size = 4,
            patch_size = 2 } }
   end,
   ['model.hybrid'] = function()
      return tide.model.hybrid { vocab_size = 11, hidden_size = 8, hybrid_override_pattern = 'M*-',
         num_attention_heads = 2, mamba_head_dim = 8, ssm_state_size = 2 }
   end,
   ['optim.AdamW'] = function() return tide.optim.AdamW(tide.nn.Linear(2, 2)) end,
   ['data.tokens'] = source,
   ['data.sampler'] = function()
      return tide.data.sampler.new { count = 64, seq = 4, batch = 2 }
   end,
   ['data.packed'] = function()
      return tide.data.packed.new { cu = { 0, 8, 64 }, val_cu = { 0, 8 }, seq = 4, batch = 2 }
   end,
   ['parallel.mesh'] = mesh, ['parallel.axis'] = axis, ['parallel.cp_map'] = map,
   ['parallel.context'] = function() return tide.parallel.cp.context { map = map() } end,
   ['parallel.region'] = function() return (tide.parallel.cp.make_target_cp_ctx(axis(), ids())) end,
   ['parallel.cp.attach'] = function()
      return tide.parallel.cp.attach(llama(), axis())
   end,
   ['parallel.dtensor'] = function()
      return tide.parallel.distribute(tide.ones { 4, 2 }, mesh(), { tide.parallel.Shard(1) })
   end,
   ['parallel.plan'] = function() return tide.parallel.plan(llama, { dp = 1 }, {}) end,
   ['parallel.sharded'] = function()
      return tide.parallel.fully_shard(tide.nn.Linear(2, 2), comm())
   end,
   ['parallel.style'] = function()
      return tide.parallel.translate_to_parallel_style 'colwise'
   end,
   ['train.step'] = function()
      local model = llama()
      return tide.train.step.new { model = model, optim = tide.optim.SGD(model), comm = comm() }
   end,
   ['train.metric'] = function() return tide.train.metric.new {} end,
   ['train.progress'] = function()
      return tide.train.progress.new { steps = 4, sink = function() end, tty = false }
   end,
   ['comm.straggler'] = function()
      return require('tide.comm.straggler').new { comm = comm() }
   end,
   ['util.log'] = function() return tide.util.log.new { sink = function() end } end,
   ['util.timer'] = function() return tide.util.timer.new() end,
   ['util.args'] = function() return tide.util.args.new('spec', { { 'steps', 3, 'how many' } }) end,
   ['repl.session'] = function()
      return tide.repl.session { write = function() end, fail = function() end }
   end,
}

-- Called with the object first, but no methods; and tp, which tensor parallelism asks.
local static = { new = true, init = true, is = true, options = true, inner = true, read = true,
   tp = true }

local methods = {}
for _, path in ipairs(names_of(objects)) do
   local make = objects[path]
   local seen, t = {}, getmetatable(make())
   t = type(t) == 'table' and t.__index or nil
   while type(t) == 'table' do
      for k, fn in pairs(t) do
         if type(k) == 'string' and k:sub(1, 1) ~= '_' and type(fn) == 'function'
            and not seen[k] and not static[k] and not visited[fn] then
            seen[k], visited[fn] = true, true
            methods[#methods + 1] = { path .. ':' .. k, fn, parameters(fn, true), make }
         end
      end
      local mt = getmetatable(t)
      t = type(mt) == 'table' and mt.__index ~= t and mt.__index or nil
   end
end
table.sort(methods, function(a, b) return a[1] < b[1] end)

-- ---- the specs -------------------------------------------------------------------------------

local function first_word(path) return path:match '^%w+' end

describe('misuse of the library', function()
   local nthread = tide.default():nthread()
   local groups, order = {}, {}
   for _, rows in ipairs { list, methods } do
      for _, row in ipairs(rows) do
         local name = first_word(row[1])
         if not groups[name] then
            groups[name] = {}
            order[#order + 1] = name
         end
         table.insert(groups[name], row)
      end
   end

   after_each(function()
      tide.default():set_nthread(nthread)
      tide.default():seed(0)
   end)

   it('is looked for in all of it', function()
      assert.is_true(#list > 250, #list)
      assert.is_true(#methods > 120, #methods)
   end)

   for _, name in ipairs(order) do
      it('is refused with its name: ' .. name, function()
         found = {}
         for _, row in ipairs(groups[name]) do
            local path, fn, names, make = row[1], row[2], row[3], row[4]
            if make and reads[path:match '^model%..*:(.*)$'] then
               with_one(path, make, function(one) misuse(path, fn, names, one) end)
            else
               misuse(path, fn, names, make)
            end
         end
         assert.equal(0, #found, table.concat(found, '\n'))
      end)
   end
end)
