-- The folder of a run: lists, publishes and removes its checkpoints, and names the newest.
--
--    step-00000040          a published checkpoint: complete, with a manifest
--    LATEST                 the name of the newest one
--    .staging-step-00000041 a checkpoint that is being written
--    .old-step-00000041     the earlier one of that step while the new one takes its place
--    .gone-step-00000010    a checkpoint that is being removed
--    aside-1                a run folder too: checkpoints after the one that was resumed
--    .lock, metrics.jsonl, loss.svg
--
-- Every change is one rename, so a process that is killed leaves complete checkpoints. `repair`
-- ends what it left half done. A symbolic link is removed as a link; its target is never touched.
-- A folder that the user has put into a checkpoint moves to kept-step-N when the checkpoint goes.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'

local folder = {}

local is_step = '^step%-%d+$'

-- Returns the name of the checkpoint of a step.
function folder.name(step) return ('step-%08d'):format(step) end

-- Splits 'runs/a/step-00000040' into 'runs/a' and 'step-00000040'; nil for other paths.
local function split(path)
   local plain = path:gsub('/+$', '')
   local name = plain:match '[^/]*$'
   if not name:match(is_step) then return nil end
   local out = plain:sub(1, -#name - 1):gsub('(.)/+$', '%1')
   return out == '' and '.' or out, name
end

local function has_manifest(path) return fs.exists(fs.join(path, 'manifest.json')) end

-- Returns the names of the published checkpoints below `out`, oldest first.
function folder.list(op, out)
   local list = {}
   if not fs.is_dir(out) then return list end
   for _, name in ipairs(fs.list(op, out)) do
      if name:match(is_step) and has_manifest(fs.join(out, name)) then list[#list + 1] = name end
   end
   return list
end

-- Returns the text of LATEST, or nil without it.
function folder.latest(op, out)
   local path = fs.join(out, 'LATEST')
   if not fs.exists(path) then return nil end
   return (fs.read(op, path):gsub('%s+$', ''))
end

-- Returns the step of the newest checkpoint below `out`, by LATEST or, without it, by name; else
-- nil.
function folder.step_in(op, out)
   local list = folder.list(op, out)
   local name = folder.latest(op, out) or list[#list]
   return name and tonumber(name:match '^step%-(%d+)$' or 0) or nil
end

-- Returns where the checkpoint `name` of `out` lies now, or nil. A process that was killed between
-- the two renames of `publish` has left it under its other name.
local function place_of(out, name)
   for _, prefix in ipairs { '', '.old-' } do
      local path = fs.join(out, prefix .. name)
      if has_manifest(path) then return path end
   end
end

local function listed(op, out)
   local list = folder.list(op, out)
   for i, name in ipairs(list) do list[i] = fs.join(out, name) end
   return #list > 0 and ('; there are ' .. table.concat(list, ', ', math.max(1, #list - 4))) or ''
end

-- Raises the error of a folder without a checkpoint.
local function find_failed(op, where)
   local out = split(where)
   if not fs.is_dir(where) then
      err.raise('E_IO', op, 'no checkpoint in %s: there is no such folder%s', where,
         out and listed(op, out) or '')
   elseif #folder.list(op, where) > 0 then
      err.raise('E_IO', op, 'no checkpoint in %s by itself: LATEST is not there; name one '
         .. '(--resume-from)%s', where, listed(op, where))
   end
   err.raise('E_IO', op, 'no checkpoint in %s (neither manifest.json nor LATEST)', where)
end

-- Returns the folder of the checkpoint that `where` means: itself, or a run's newest by
-- LATEST.
function folder.find(op, where)
   local out, name = split(where)
   if has_manifest(where) then return where end
   if out then return place_of(out, name) or find_failed(op, where) end
   name = folder.latest(op, where) or find_failed(op, where)
   err.raise_if(not name:match(is_step), 'E_FORMAT', op, '%s/LATEST does not name a checkpoint: '
      .. '%s%s', where, err.show(name), listed(op, where))
   return place_of(where, name) or err.raise('E_FORMAT', op,
      '%s/LATEST names %s, which has no manifest.json%s', where, name,
      folder.older(op, fs.join(where, name)))
end

-- Returns what to do about a damaged checkpoint, for the end of the message: to resume from the one
-- before it, else from another of its run, else to start over. '' for one that is in no run.
function folder.older(op, path)
   local out, name = split((path:gsub('%.old%-', '')))
   if not out then return '' end
   local before, other
   for _, item in ipairs(folder.list(op, out)) do
      if item < name then before = item end
      if item ~= name then other = item end
   end
   if not other then
      return '; its run has no other checkpoint: restore this one from a copy, or start over '
         .. '(overwrite = true, or --overwrite)'
   end
   local place = fs.join(out, before or other)
   return ('; %s is %s (resume = %q, or --resume-from %s)'):format(
      before and 'the checkpoint before it' or 'a later checkpoint of its run', place, place, place)
end

-- ---- writing -----------------------------------------------------------------------------------

-- Returns a new folder for what the user has put into the checkpoint that was at `path`.
local function new_kept(op, out, path)
   local name, n = 'kept-' .. path:match 'step%-%d+$', 1
   local kept = fs.join(out, name)
   while fs.is_present(kept) do
      n = n + 1
      kept = fs.join(out, ('%s-%d'):format(name, n))
   end
   fs.mkdirs(op, kept)
   return kept
end

-- Removes a folder of a checkpoint, which no longer has its name. Folders inside that hold
-- something are the user's, since tide writes files alone: they move to kept-step-N.
local function remove(op, out, path)
   local io_, kept = fs.io(), nil
   for _, name in ipairs(not io_.is_link(path) and fs.is_dir(path) and fs.list(op, path) or {}) do
      local inner = fs.join(path, name)
      if fs.is_dir(inner) and not io_.is_link(inner) and #fs.list(op, inner) > 0 then
         kept = kept or new_kept(op, out, path)
         io_.rename(inner, fs.join(kept, name))
      end
   end
   fs.remove_dir(op, path)
end

-- Removes a checkpoint so that a killed process leaves no part of it under its name.
local function discard(op, out, name)
   local path, gone = fs.join(out, name), fs.join(out, '.gone-' .. name:gsub('^%.', ''))
   if not fs.is_present(path) then return end
   remove(op, out, gone)
   fs.io().rename(path, gone)
   remove(op, out, gone)
end

-- Ends what a killed process has left half done: a checkpoint whose new version did not take its
-- place is put back, and what was being removed goes.
function folder.repair(op, out)
   if not fs.is_dir(out) then return end
   for _, name in ipairs(fs.list(op, out)) do
      local path, final = fs.join(out, name), name:match '^%.old%-(step%-%d+)$'
      if final and has_manifest(path) and not fs.is_present(fs.join(out, final)) then
         fs.io().rename(path, fs.join(out, final))
      elseif final or name:match '^%.gone%-.*step%-%d+$' then
         remove(op, out, path)
      end
   end
end

-- Refuses to write a run into a checkpoint.
function folder.check_out(op, out)
   if not has_manifest(out) then return end
   local run = split(out)
   err.raise('E_ARG', op, "argument 'out': %s is a checkpoint; give the folder of a run%s", out,
      run and ', which is ' .. run .. ' here' or '')
end

-- Returns an empty folder to write the checkpoint `name` into.
function folder.stage(op, out, name)
   local staged = fs.join(out, '.staging-' .. name)
   folder.check_out(op, out)
   fs.mkdirs(op, out)
   folder.repair(op, out)
   fs.remove_dir(op, staged)
   fs.mkdirs(op, staged)
   return staged
end

-- Renames the staged folder to its name and points LATEST at it. An earlier checkpoint of the same
-- step is moved aside for the time of one rename.
function folder.publish(op, out, staged, name)
   local final, old = fs.join(out, name), fs.join(out, '.old-' .. name)
   remove(op, out, old)
   local again = fs.take_place(op, staged, final, old)
   fs.io().fsync_dir(out)
   fs.write(op, fs.join(out, 'LATEST'), name .. '\n')
   if again then discard(op, out, '.old-' .. name) end
   return final
end

-- Removes the oldest checkpoints beyond `keep`, never the one that LATEST names, nor that of the
-- step `spare`, which is counted apart.
function folder.retain(op, out, keep, spare)
   local list, latest = {}, folder.latest(op, out)
   for _, name in ipairs(folder.list(op, out)) do
      if not spare or name ~= folder.name(spare) or name == latest then list[#list + 1] = name end
   end
   for i = 1, #list - keep do
      if list[i] ~= latest then discard(op, out, list[i]) end
   end
end

-- Removes what a run has left in `out`: LATEST first, checkpoints, metrics, plot. Others stay.
function folder.clear(op, out)
   if not fs.is_dir(out) then return end
   fs.io().remove(fs.join(out, 'LATEST'))
   for _, name in ipairs(fs.list(op, out)) do
      if name:match(is_step) then
         discard(op, out, name)
      elseif name:match '^%.%a+%-.*step%-%d+$' then
         remove(op, out, fs.join(out, name))
      elseif name == 'metrics.jsonl' or name == 'loss.svg' then
         fs.io().remove(fs.join(out, name))
      end
   end
end

-- ---- resuming from an earlier checkpoint -------------------------------------------------------

-- Moves a checkpoint to another folder. A link may be relative to the folder that it is in.
local function move(path, to)
   local io_ = fs.io()
   if not io_.is_link(path) then return io_.rename(path, to) end
   io_.symlink(fs.resolve(path), to)
   io_.remove(path)
end

-- Prepares the run in `out` to resume from `step`: moves its later checkpoints, with a copy of the
-- metrics, into a run folder of their own. Returns that folder; nil if there are no later ones, or
-- if `step` is what LATEST names. After a kill in between, the next call completes it.
function folder.set_aside(op, out, step)
   local later, aside = {}, fs.join(out, '.aside')
   for _, name in ipairs(folder.list(op, out)) do
      if tonumber(name:match '%d+') > step then later[#later + 1] = name end
   end
   local begun = fs.is_dir(aside)
   if not begun and (#later == 0 or folder.latest(op, out) == folder.name(step)) then return nil end
   local metrics, copy = fs.join(out, 'metrics.jsonl'), fs.join(aside, 'metrics.jsonl')
   fs.mkdirs(op, aside)
   if fs.exists(metrics) and not fs.exists(copy) then fs.write(op, copy, fs.read(op, metrics)) end
   fs.write(op, fs.join(out, 'LATEST'), folder.name(step) .. '\n')
   for _, name in ipairs(later) do move(fs.join(out, name), fs.join(aside, name)) end
   later = folder.list(op, aside)
   if #later == 0 then
      fs.remove_dir(op, aside)
      return nil
   end
   fs.write(op, fs.join(aside, 'LATEST'), later[#later] .. '\n')
   local n = 1
   while fs.is_present(fs.join(out, 'aside-' .. n)) do n = n + 1 end
   local final = fs.join(out, 'aside-' .. n)
   fs.io().rename(aside, final)
   return final
end

-- Returns whether `path`, a checkpoint, belongs to the run in `out`.
function folder.is_of(path, out)
   local run = split((path:gsub('%.old%-', '')))
   return run ~= nil and fs.resolve(run) == fs.resolve(out)
end

-- ---- one run at a time -------------------------------------------------------------------------

-- Files that a run replaces; the new one is written beside the old.
local written = { LATEST = true, ['loss.svg'] = true, ['metrics.jsonl'] = true }

-- Removes what a run that was killed has left. The lock is held, so no other run writes here.
local function sweep(op, out)
   folder.repair(op, out)
   for _, name in ipairs(fs.list(op, out)) do
      local path = fs.join(out, name)
      if name:match '^%.staging%-step%-%d+$' then
         remove(op, out, path)
      elseif written[name:match '^(.-)%.tmp%-' or ''] then
         fs.io().remove(path)
      end
   end
end

local function lock_here(op, out)
   folder.check_out(op, out)
   fs.mkdirs(op, out)
   local lock = fs.io().lock(fs.join(out, '.lock'))
   err.raise_if(not lock, 'E_ARG', op, "argument 'out': %s is in use by another run; wait for its "
      .. 'end, or choose another folder', out)
   sweep(op, out)
   return lock
end

local none = {}
none.__index = none
function none.release() end

-- Makes `out` and keeps other runs out of it until release() of the result, or the end of the
-- process; then removes what a killed run has left there. Rank 0 of comm decides, all agree.
function folder.lock(op, out, comm)
   local lock, problem = setmetatable({}, none), false
   if comm.rank == 0 then
      local ok, result = pcall(lock_here, op, out)
      if ok then
         lock = result
      else
         local e = err.of(result) or { message = tostring(result) }
         problem = { code = e.code or 'E_HOST', message = e.message }
      end
   end
   if comm.size > 1 then problem = comm:broadcast_object(problem, 0) end
   if problem then err.raise(problem.code, op, '%s', problem.message) end
   return lock
end

-- Refuses to write a new run over one that `out` holds. resume: the checkpoint that the new run
-- resumes, or nil.
function folder.check_free(op, out, resume)
   local step = folder.step_in(op, out)
   if not step or resume and folder.is_of(folder.find(op, resume), out) then return end
   err.raise('E_ARG', op, "argument 'out': %s holds a run at step %d; give resume = %q to go on, "
      .. 'overwrite = true to replace it, or another folder', out, step, out)
end

return folder
