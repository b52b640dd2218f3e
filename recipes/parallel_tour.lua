-- A tour of parallel training: one small model, trained by hand in six ways, with equal losses.
--
--    tide run -n 2 recipes/parallel_tour.lua
--    tide run -n 4 recipes/parallel_tour.lua --part tp
--
-- Each part runs the same loop on 1, 2 or 4 ranks: loss, backward, exchange between ranks, update.
-- Its text says what a rank holds of the model, the batch and the sequence.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local order = { 'alone', 'hooks', 'dp', 'fsdp', 'tp', 'cp' }

local function tour(opt)
   local tide = require 'tide'
   local comm = tide.comm.world()
   if 4 % comm.size ~= 0 then
      require('tide.util.err').usage('parallel_tour', '1, 2 or 4 ranks, got %d', comm.size)
   end
   local rows, seq = 4, 32
   local count = rows * seq                       -- labels of a step over all ranks

   local function new_model(opts)
      return tide.model.llama({ vocab_size = 258, hidden_size = 32, num_hidden_layers = 2,
         num_attention_heads = 4, max_position_embeddings = seq }, opts or { seed = 1 })
   end

   -- Rows first to last of the text, as ids and the labels one further on.
   local text = ('The quick brown fox jumps over the lazy dog. '):rep(20)
   local source = tide.data.tokens.memory(tide.data.bytes:encode(text, { width = 2 }), 2)
   local function batch(first, last)
      local starts = {}
      for r = first, last do starts[#starts + 1] = (r - 1) * seq end
      return tide.data.batch.make(source, starts, seq)
   end

   -- Five steps by hand. exchange(): what the ranks do between backward and update. alike: all
   -- ranks see the whole loss, in place of a share of it.
   local function train(name, what, o)
      local optim, losses = tide.optim.AdamW(o.sharded or o.model, { lr = 1e-2 }), {}
      for i = 1, 5 do
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

   -- The loss is divided by the labels of all ranks, so gradients are sums.
   local function add_up(optim)
      if comm.size > 1 then comm:all_reduce(optim:grads()) end
   end

   local share = rows / comm.size
   local whole, mine = batch(1, rows), batch(comm.rank * share + 1, (comm.rank + 1) * share)
   local parts = {}

   function parts.alone()
      train('alone', 'everything on each rank',
         { model = new_model(), batch = whole, alike = true })
   end

   function parts.hooks()
      local model, seen = new_model(), 0
      local handle = model.model.layers:at(1):hook_post(function() seen = seen + 1 end)
      train('hooks', 'a hook watches the first layer',
         { model = model, batch = whole, alike = true })
      handle:remove()
      if comm.rank == 0 then print(('       the hook was called %d times'):format(seen)) end
   end

   function parts.dp()
      train('dp', 'the model whole, a share of the rows',
         { model = new_model(), batch = mine, exchange = add_up })
   end

   function parts.fsdp()
      local model = new_model { device = 'null' }            -- no bytes until it is sharded
      local sharded = tide.parallel.fully_shard(model, { seed = 1 })
      train('fsdp', 'a share of each parameter, and of the rows', { model = model, batch = mine,
         sharded = sharded, exchange = function() sharded:finish() end })
   end

   function parts.tp()
      local mesh = tide.parallel.mesh { tp = comm.size }     -- layers exchange activations
      local model = tide.parallel.tensor_parallel(new_model(), mesh:axis 'tp')
      train('tp', 'a share of each matrix, all rows',
         { model = model, batch = whole, alike = true })
   end

   function parts.cp()
      local mesh, model = tide.parallel.mesh { cp = comm.size }, new_model()
      local handle = tide.parallel.cp.attach(model, mesh:axis 'cp')
      train('cp', 'the model whole, a share of each sequence', { model = model, batch = whole,
         cut = function(b) return handle:cut(b) end, exchange = add_up })
   end

   for _, name in ipairs(order) do
      if opt.part == 'all' or opt.part == name then parts[name]() end
   end
end

args.main(function(...)
   local opt = args.parse('parallel_tour: one model, trained over ranks by hand', {
      { 'part', 'all', 'part to run', choices = { 'all', unpack(order) } } }, { ... })
   if opt then tour(opt) end
end, ...)
