-- A tour of parallel training: one small model, trained by hand in seven ways, with equal losses.
--
--    tide run -n 2 recipes/parallel_tour.lua
--    tide run -n 4 recipes/parallel_tour.lua --part tp
--
-- Each part runs the same loop on 1, 2 or 4 ranks: loss, backward, exchange between ranks, update.
-- Its text says what a rank holds of the model, the batch and the sequence.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local tide = require 'tide'

local rows, seq = 4, 32
local count = rows * seq                          -- labels of a step over all ranks
local order = { 'alone', 'hooks', 'dp', 'fsdp', 'tp', 'cp', 'pp' }

-- ---- what all parts share ----------------------------------------------------------------------

local function new_model(opts)
   return tide.model.llama({ vocab_size = 258, hidden_size = 32, num_hidden_layers = 4,
      num_attention_heads = 4, max_position_embeddings = seq }, opts or { seed = 1 })
end

-- Returns rows first to last of the text, as ids and the labels one further on.
local function batch(first, last)
   local text = ('The quick brown fox jumps over the lazy dog. '):rep(20)
   local source = tide.data.tokens.memory(tide.data.bytes:encode(text, { width = 2 }), 2)
   local starts = {}
   for r = first, last do starts[#starts + 1] = (r - 1) * seq end
   return tide.data.batch.make(source, starts, seq)
end

local function whole_batch() return batch(1, rows) end

-- Returns the rows of this rank.
local function own_batch(comm)
   local share = rows / comm.size
   return batch(comm.rank * share + 1, (comm.rank + 1) * share)
end

-- Trains eight steps by hand and prints their losses. exchange(optim): what the ranks do between
-- backward and update. alike: all ranks see the whole loss, in place of a share of it.
local function train(comm, name, what, o)
   local optim, losses = tide.optim.AdamW(o.sharded or o.model, { lr = 5e-3 }), {}
   for i = 1, 8 do
      local b = o.cut and o.cut(o.batch) or o.batch
      local loss = o.model:loss(b.ids, b.labels, { count = count, positions = b.positions,
         index = b.index, context = b.context })
      loss:backward()
      if o.exchange then o.exchange(optim) end
      optim:step()
      if o.sharded then o.sharded:zero_grad() else optim:zero_grad() end
      local value = loss:item()
      losses[i] = ('%.4f'):format(o.alike and value or tide.comm.sum(comm, { value })[1])
   end
   if comm.rank == 0 then
      print(('%-6s %-44s %s'):format(name, what, table.concat(losses, ' ')))
   end
end

-- Returns an exchange that sums gradients: the loss is divided by the labels of all ranks.
local function sum_over(comm)
   return function(optim)
      if comm.size > 1 then comm:all_reduce(optim:grads()) end
   end
end

-- ---- the parts ---------------------------------------------------------------------------------

local parts = {}

function parts.alone(comm)
   train(comm, 'alone', 'everything on each rank',
      { model = new_model(), batch = whole_batch(), alike = true })
end

function parts.hooks(comm)
   local model, seen = new_model(), 0
   local handle = model.model.layers:at(1):hook_post(function() seen = seen + 1 end)
   train(comm, 'hooks', 'a hook watches the first layer',
      { model = model, batch = whole_batch(), alike = true })
   handle:remove()
   if comm.rank == 0 then print(('       the hook was called %d times'):format(seen)) end
end

function parts.dp(comm)
   train(comm, 'dp', 'the model whole, a share of the rows',
      { model = new_model(), batch = own_batch(comm), exchange = sum_over(comm) })
end

function parts.fsdp(comm)
   local model = new_model { device = 'null' }            -- no bytes until it is sharded
   local sharded = tide.parallel.fully_shard(model, comm, { seed = 1 })
   train(comm, 'fsdp', 'a share of each parameter, and of the rows', { model = model,
      batch = own_batch(comm), sharded = sharded, exchange = function() sharded:finish() end })
end

function parts.tp(comm)
   local mesh = tide.parallel.mesh { tp = comm.size }     -- layers exchange activations
   local model = tide.parallel.tensor_parallel(new_model(), mesh:axis 'tp')
   train(comm, 'tp', 'a share of each matrix, all rows',
      { model = model, batch = whole_batch(), alike = true })
end

function parts.cp(comm)
   local mesh, model = tide.parallel.mesh { cp = comm.size }, new_model()
   local handle = tide.parallel.cp.attach(model, mesh:axis 'cp')
   train(comm, 'cp', 'the model whole, a share of each sequence', { model = model,
      batch = whole_batch(), cut = function(b) return handle:cut(b) end,
      exchange = sum_over(comm) })
end

function parts.pp(comm)
   local mesh = tide.parallel.mesh { { 'pp', comm.size }, { 'dp', 1 } }
   local model = new_model { device = 'null' }
   tide.parallel.pipeline_parallel(model, mesh:axis 'pp')  -- hidden states travel
   local sharded = tide.parallel.fully_shard(model, mesh, { strategy = 'no_shard', seed = 1 })
   train(comm, 'pp', 'a share of the layers, all rows', { model = model, batch = whole_batch(),
      sharded = sharded, exchange = function() sharded:finish() end, alike = true })
end

args.main(function(...)
   local opt = args.parse('parallel_tour: one model, trained over ranks by hand', {
      { 'part', 'all', 'part to run', choices = { 'all', unpack(order) } } }, { ... })
   if not opt then return end
   local comm = tide.comm.world()
   if 4 % comm.size ~= 0 then
      require('tide.util.err').usage('parallel_tour', '1, 2 or 4 ranks, got %d', comm.size)
   end
   for _, name in ipairs(order) do
      if opt.part == 'all' or opt.part == name then parts[name](comm) end
   end
end, ...)
