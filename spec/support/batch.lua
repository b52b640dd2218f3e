-- Many runs of one function on n ranks with a single start of the ranks, which costs each of them
-- a Lua state that loads all of tide.
--
--   local runs = batch.new(n, fn, { prepare =, finish = })
--   runs:add(key, ...)      -- when cases are declared
--   runs:get(key)           -- in a case: a list of what fn(rank, nrank, ...) returned on the ranks
--
-- get runs all that was added and has not run: busted runs the cases of a describe before it reads
-- the next one, so the runs of each describe have a start of their own. If a run fails there, each
-- case starts its own ranks, so that it fails or passes for itself; the one whose run failed fails
-- in any case.
-- prepare(dir, ...) returns the arguments of fn. finish(values, dir, ...), with the arguments of
-- fn, returns what get gives. `dir` is a folder of this run alone, removed after all runs. fn must
-- not use upvalues: require inside it.

local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local Batch = {}
Batch.__index = Batch

-- On a rank: runs fn, as bytecode, for each of a list of { key =, args =, n = }.
local function run_all(rank, nrank, code, list)
   local fn, out = assert(loadstring(code)), {}
   for i, run in ipairs(list) do
      local ok, value = pcall(fn, rank, nrank, unpack(run.args, 1, run.n))
      if not ok then error(('run %s: %s'):format(run.key, tostring(value)), 0) end
      out[i] = { value }
   end
   return out
end

-- Fills `args` of a run, or `fault`.
local function prepare(self, run, dir)
   run.dir = dir
   tmp.mkdir(run.dir)
   local function pack(...) return { key = run.key, n = select('#', ...), args = { ... } } end
   local ok, sent = true, run.given
   if self.prepare then
      ok, sent = pcall(function()
         return pack(self.prepare(run.dir, unpack(run.given.args, 1, run.given.n)))
      end)
   end
   run.sent, run.fault = ok and sent or nil, not ok and sent or nil
   return run.sent
end

-- Fills `result` of a run, or `fault`, from what the ranks returned.
local function finish(self, run, values)
   if not self.finish then
      run.result = values
      return
   end
   local ok, got = pcall(self.finish, values, run.dir, unpack(run.sent.args, 1, run.sent.n))
   run.result, run.fault = ok and got or nil, not ok and got or nil
end

-- Runs a list of runs with one start. Returns nil, or the message of the rank that failed first.
local function start(self, list)
   return tmp.with(function(dir)
      local sent, ready = {}, {}
      for i, run in ipairs(list) do
         if prepare(self, run, ('%s/%d'):format(dir, i)) then
            sent[#sent + 1], ready[#ready + 1] = run.sent, run
         end
      end
      if #sent == 0 then return nil end
      local rows = ranks.try(self.n, run_all, self.code, sent)
      if rows.first >= 0 then
         return ('rank %d: %s'):format(rows.first, rows[rows.first + 1].message)
      end
      for i, run in ipairs(ready) do
         local values = {}
         for rank, row in ipairs(rows) do values[rank] = row.values[1][i][1] end
         finish(self, run, values)
      end
      return nil
   end)
end

-- Adds a run with arguments, which are plain data without `prepare`.
function Batch:add(key, ...)
   assert(not self.of[key], key)
   local run = { key = key, given = { key = key, n = select('#', ...), args = { ... } } }
   self.of[key], self.waiting[#self.waiting + 1] = run, run
end

-- Runs what waits, with one start, or one each where a run fails.
local function start_waiting(self)
   local list = self.waiting
   self.waiting = {}
   local fault = start(self, list)
   for _, run in ipairs(list) do run.alone = fault end
end

-- Returns the result of a run, or raises its error.
function Batch:get(key)
   local run = assert(self.of[key], key)
   if not run.result and not run.fault and not run.alone then start_waiting(self) end
   if run.alone and not run.fault then
      run.fault = start(self, { run })
      if run.alone:find('run ' .. key .. ': ', 1, true) then run.fault = run.alone end
      run.alone = nil
   end
   if run.fault then error(run.fault, 0) end
   return run.result
end

local batch = {}

-- Returns runs of fn on n ranks. opts: prepare, finish.
function batch.new(n, fn, opts)
   assert(debug.getinfo(fn, 'u').nups == 0, 'fn uses upvalues')
   opts = opts or {}
   return setmetatable({ n = n, code = string.dump(fn), waiting = {}, of = {},
      prepare = opts.prepare, finish = opts.finish }, Batch)
end

return batch
