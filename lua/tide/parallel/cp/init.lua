-- Context parallelism: one sequence over several ranks, and the objects that describe it.
--
--    local context, batch = cp.make_cp_batch_and_ctx(mesh, { input_ids = ids, labels = labels })
--    context:run(function(c) ... attention calls look at c ... end)
--
-- Attention gets all that it needs as an argument, the context, and nothing is process-global: the
-- plan of the layout (cp_map), the communicator, the method, and, as data, which document and
-- position each token of each rank has. Masks and layouts are then one
-- rule on (document, position) pairs; see tide.attention.
--
-- The context itself is in context.lua, batches in batch.lua, models in train.lua.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local lazy = require 'tide.util.lazy'
local context_ = require 'tide.parallel.cp.context'

local cp = {
   methods = context_.methods, Context = context_.Context, context = context_.new,
   null = context_.null,
}

-- Returns the axis of a mesh that is called `name`, an axis itself, or nil.
function cp.axis_of(op, mesh, name)
   if mesh == nil then return nil end
   if type(mesh) == 'table' and type(mesh.find) == 'function' then return mesh:find(name) end
   err.arg_if(type(mesh) ~= 'table' or type(mesh.size) ~= 'number' or type(mesh.rank) ~= 'number',
      op, 'mesh', 'a mesh, an axis, or nil', mesh)
   return name == 'cp' and mesh or nil
end

-- ---- the rest, in files of its own ------------------------------------------------------------

local entries = { self_check = 'check',
   get_train_context = { 'tide.train.context', 'get_train_context' } }
for file, names in each {
   batch = { 'build_position_ids', 'make_cp_batch_and_ctx', 'contiguous_batch',
      'document_index_of' },
   train = { 'attach' },
   ['tide.parallel.names.stream'] = { 'make_cp_batch_for_te', 'shard_thd_chunk' },
   ['tide.parallel.names.region'] = { 'create_context_parallel_ctx', 'make_target_cp_ctx',
      'gather_cp_seq' },
   ['tide.parallel.names.cp_hooks'] = { 'attach_cp_sdpa_hooks', 'attach_context_parallel_hooks',
      'run_target_cp_forward_and_gather' },
} do
   for _, name in ipairs(names) do entries[name] = { file, name } end
end

return lazy('parallel.cp', entries, cp)
