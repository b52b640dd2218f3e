-- Records on a module how it is distributed over ranks, for the rest of the library.
--
--    tp       what tensor parallelism cut it over, { axis, comm, sequence, .. }: every module of
--             the model; sequence: whether the tokens between layers are cut, too. There cut(x)
--             gives a rank's part of x [B, T, ..], and copy(x) gives x, alike on all ranks, for
--             work on parts, whose gradients it adds up
--    cp       the handle of parallel.cp.attach: the model
--    pp       the stage of parallel.pipeline_parallel: the model and its body
--    sharded  what parallel.fully_shard returned: the model that it was given
--    inside   the same: every module of that model
--    rows     on how many rows of data a module ran since the last step (Module:note_rows)
--
-- The parts of `parallel` record what they did. Steps, optimisers, states and plans read it here
-- and need none of these parts.

local err = require 'tide.util.err'

local spread = {}

local whole = {}

-- Returns the fields above, nil where nothing was done; to be read alone. v: a module, or any
-- value.
function spread.of(v) return type(v) == 'table' and rawget(v, '_spread') or whole end

-- Sets one of them; nil takes it away.
function spread.set(module, field, value)
   local notes = rawget(module, '_spread') or {}
   notes[field] = value
   module._spread = next(notes) ~= nil and notes or nil
end

-- Returns a function that says whether this rank has the module at a path of the whole model: a
-- stage of a pipeline has some of them.
function spread.has(model)
   if not spread.of(model).pp then return function() return true end end
   local here = {}
   model:walk(function(_, path) here[path] = true end)
   return function(path) return here[path] == true end
end

-- Returns the set of the modules that ran on no rows since forget_rows: those that noted it and all
-- inside.
function spread.idle(model)
   local idle = {}
   model:walk(function(m)
      if spread.of(m).rows == 0 then m:walk(function(inner) idle[inner] = true end) end
   end)
   return idle
end

-- Begins a step: no module of the model has run.
function spread.forget_rows(model)
   model:walk(function(m)
      if spread.of(m).rows then spread.set(m, 'rows', nil) end
   end)
end

local said = {
   { 'inside', 'is sharded already' }, { 'tp', 'is cut over ranks already' },
   { 'cp', 'is attached to a context axis already' }, { 'pp', 'is cut into stages already' },
}

-- Refuses a model of which a module is spread in one of these ways (default: any). hint: what to
-- do.
function spread.check_whole(op, model, hint, ways)
   model:walk(function(m, path)
      for _, row in ipairs(said) do
         if spread.of(m)[row[1]] and (not ways or ways[row[1]]) then
            err.raise('E_STATE', op, '%s %s; %s',
               path == '' and 'the model' or ("the module '%s'"):format(path), row[2], hint)
         end
      end
   end)
end

-- Refuses a model that is cut over ranks: what this rank would write are parts of its weights, some
-- of its blocks, or some of its experts.
function spread.check_uncut(op, model)
   local of = spread.of(model)
   local ep = of.sharded and of.sharded.ep
   local n = of.tp and of.tp.axis.size or of.pp and of.pp.size or ep and ep.size
   err.raise_if(n, 'E_STATE', op, 'the model is cut over %d ranks, and this one has %s; give what '
      .. "fully_shard(model, mesh) returned, which writes them whole (strategy = 'no_shard' cuts "
      .. 'no further)', n, of.tp and 'parts of its weights' or of.pp and 'some of its blocks'
      or 'some of its experts')
end

return spread
