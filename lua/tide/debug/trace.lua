-- The trace of a run: what every rank did, in one file for viewers, and a reader that says where
-- the ranks diverged and which ranks they waited for.
--
--    tide run --trace runs/t -n 4 recipe.lua     -- every rank leaves runs/t/rank000.json, ...
--    tide trace runs/t                           -- merges them into runs/t/trace.json, reports
--
-- A rank's file is a Chrome trace (spans of ops and collectives) with one field more,
-- the ring of the last collectives of each of its communicators. A communicator is known on all of
-- its ranks by its `id`: the call of split that made it. So the calls of different ranks can be
-- laid side by side, by number, and compared: a call that differs, a call that one rank never
-- made, and which rank arrived last. Ranks of one host share a clock; times of other hosts are
-- shifted so that collectives end at the same time, which they do.

local agree = require 'tide.comm.agree'
local by_key = require 'tide.util.by_key'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local signature = require 'tide.util.signature'
local straggler = require 'tide.comm.straggler'
local sorted_keys = require('tide.util.pretty').sorted_keys

local trace = {}

local function read_first_line(path)
   local f = io.open(path)
   local text = f and f:read '*l'
   if f then f:close() end
   return text
end

-- ---- writing ---------------------------------------------------------------------------------

local function calls_of(comm)
   local list = {}
   for i, h in ipairs(comm:history()) do
      list[i] = { seq = h.seq, op = h.op, reduce = h.reduce, dtype = h.dtype, root = h.root,
         count = h.count, begin = h.begin, finish = h.finish, status = h.status, site = h.site,
         async = h.async }
   end
   return list
end

-- Returns a name of this run, the same on all ranks: the launcher's name for its job, if it has
-- one.
local function run_id()
   local launch, id = require 'tide.comm.launch', os.getenv 'TIDE_TRACE_RUN'
   return ('%s/%d'):format(launch.job_of_launcher() or id or '?', launch.restarts())
end

-- Returns the communicators that ranks of this run share. Simulated ones (a plan is rehearsed on
-- them) are left out. Only the first of several with one id is kept: the others belong to this rank
-- alone, and all of those are called 'world'.
local function shared(comms)
   local list, seen = {}, {}
   for _, comm in ipairs(comms) do
      if comm.transport ~= 'sim' and not seen[comm.id] then
         list[#list + 1], seen[comm.id] = comm, true
      end
   end
   return list
end

-- Writes this rank's file into a folder. comms: list of communicators (default: all that this state
-- has open). Returns its path.
function trace.dump(folder, comms)
   local op = 'debug.trace.dump'
   local json = require('tide').json
   comms = comms or require('tide.ffi.dist').open()
   for i, comm in ipairs(err.type(op, 'comms', comms, 'table')) do
      err.arg_if(type(comm) ~= 'table' or type(comm.history) ~= 'function', op,
         ('comms[%d]'):format(i), 'a communicator', comm)
   end
   comms = shared(comms)
   local first, list = comms[1], {}
   local host = package.loaded['tide.host'] or {}
   local rank = first and first.rank or host.rank or 0
   for i, comm in ipairs(comms) do
      list[i] = { id = comm.id, name = comm.name, rank = comm.rank, size = comm.size,
                  calls = json.array(calls_of(comm)) }
   end
   fs.mkdirs(op, folder)
   local path = fs.join(folder, ('rank%03d.json'):format(rank))
   require('tide').default():trace_dump(path)
   local whole = fs.read_json(op, path)
   for _, e in ipairs(whole.traceEvents) do e.pid = rank end
   fs.write_json(op, path, {
      run = run_id(), rank = rank, size = first and first.size or 1, comms = json.array(list),
      clock = read_first_line '/proc/sys/kernel/random/boot_id' or '?',
      traceEvents = json.array(whole.traceEvents),
   })
   return path
end

-- Returns the folder of `tide run --trace`, or nil.
function trace.folder()
   local v = os.getenv 'TIDE_TRACE_DIR'
   return v ~= '' and v or nil
end

-- ---- reading ---------------------------------------------------------------------------------

local count = 'integer >= 0'
signature.record('trace_call', 'a table', { 'seq: ' .. count, 'op: string', 'count: ' .. count,
   'begin: number', 'finish: number', 'status: string', 'site: string', 'reduce: string?',
   'dtype: string?', 'root: integer? >= 0' })
signature.record('trace_comm', 'a table', { 'id: string', 'name: string', 'calls: trace_call[]',
   'size: integer? >= 0' })
signature.record('trace_event', 'a table', { 'ts: number?' })
signature.record('trace_rank', 'what debug.trace.read returned', {
   'rank: integer in [0, 1048575]', 'size: integer? in [0, 1048576]', 'run: string?',
   'clock: string?', 'comms: trace_comm[]', 'traceEvents: trace_event[]' })

-- Reads the ranks' files in a folder, all of one run, in the order of ranks.
function trace.read(folder)
   local op, list, file_of = 'debug.trace.read', {}, {}
   for _, name in ipairs(fs.list(op, folder)) do
      if name:find '^rank%d+%.json$' then
         local path = fs.join(folder, name)
         local doc = fs.read_json(op, path)
         local wrong = signature.wrong(doc, 'trace_rank')
         if wrong then
            err.raise('E_FORMAT', op, "'%s' is not a rank's trace: %s", path, wrong)
         elseif file_of[doc.rank] then
            err.raise('E_FORMAT', op, "'%s' and '%s' are both of rank %d", file_of[doc.rank], name,
               doc.rank)
         end
         file_of[doc.rank] = name
         list[#list + 1] = doc
      end
   end
   err.raise_if(#list == 0, 'E_IO', op, "'%s' has no rank*.json; write them with tide run --trace",
      folder)
   table.sort(list, function(a, b) return a.rank < b.rank end)
   local first = list[1]
   for _, doc in ipairs(list) do         -- files of different runs cannot be laid side by side
      err.raise_if(doc.run ~= first.run or doc.size ~= first.size, 'E_FORMAT', op,
         "'%s' and '%s' in '%s' belong to different runs; remove the files of one run, and use one "
            .. 'folder for each run', file_of[first.rank], file_of[doc.rank], folder)
   end
   return list
end

-- Returns the communicators of all ranks by id: { name, rows = { { rank, calls by seq, last } } }.
local function communicators(docs)
   local order, entry = by_key(function(c) return { name = c.name, size = c.size, rows = {} } end)
   for _, doc in ipairs(docs) do
      for _, comm in ipairs(doc.comms) do
         local c = entry(comm.id, comm)
         local row = { rank = doc.rank, doc = doc, calls = {} }
         for _, call in ipairs(comm.calls) do
            row.last = math.max(row.last or call.seq, call.seq)
            row.calls[call.seq] = call
         end
         c.rows[#c.rows + 1] = row
      end
   end
   return order
end

-- Adds to each document `shift`: seconds to subtract from its times.
local function align(docs, comms)
   local base = docs[1]
   for _, doc in ipairs(docs) do
      local gaps = {}
      for _, c in ipairs(doc.clock ~= base.clock and comms or {}) do
         local a, b
         for _, row in ipairs(c.rows) do
            if row.doc == base then a = row elseif row.doc == doc then b = row end
         end
         for seq, call in each(a and b and a.calls or {}) do
            local other = b.calls[seq]
            if other and call.status == 'OK' and other.status == 'OK' then
               gaps[#gaps + 1] = other.finish - call.finish
            end
         end
      end
      doc.shift = #gaps > 0 and straggler.median(gaps) or 0
   end
end

local function text_of(call)
   local parts = { call.reduce, call.dtype, call.dtype and ('%d elements'):format(call.count),
                   call.root and ('root %d'):format(call.root) }
   local list = {}
   for i = 1, 4 do if parts[i] then list[#list + 1] = parts[i] end end
   return ('%s(%s)'):format(call.op, table.concat(list, ', '))
end

-- Returns what must agree; counts of the _v forms and of pairs may differ.
local function key_of(call)
   local free = call.op:find '_v$' or call.op == 'send_recv'
   return table.concat({ call.op, tostring(call.reduce), tostring(call.root),
      call.op == 'send_recv' and '' or tostring(call.dtype), free and '' or call.count }, ' ')
end

local function at(call) return call.site ~= '' and call.site or '?' end

-- Returns how call seq differs between ranks, { kind = 'differs', seq, calls = { { ranks, call } }
-- }, or nil.
local function difference(c, seq)
   local groups, group_of = by_key(function(call) return { ranks = {}, call = call } end)
   for _, row in ipairs(c.rows) do
      local call = row.calls[seq]
      if call then table.insert(group_of(key_of(call), call).ranks, row.rank) end
   end
   return #groups > 1 and { kind = 'differs', comm = c.name, seq = seq, calls = groups } or nil
end

-- Returns the ranks that never made call seq, which another did.
local function absence(c, seq)
   local here, list
   for _, row in ipairs(c.rows) do here = here or row.calls[seq] end
   for _, row in ipairs(c.rows) do
      if here and (row.last or 0) < seq then
         list = list or {}
         list[#list + 1] = { rank = row.rank, last = row.last and row.calls[row.last] }
      end
   end
   return list and { kind = 'missing', comm = c.name, seq = seq, call = here, ranks = list } or nil
end

-- Returns the rank that arrived last, and how long after the one before; nil unless all arrived.
local function lateness(c, seq)
   local times, late, call = {}, nil, nil
   for _, row in ipairs(c.rows) do
      local here = row.calls[seq]
      if not here then return nil end
      local t = here.begin - row.doc.shift
      if not late or t > late.t then late, call = { t = t, rank = row.rank }, here end
      times[#times + 1] = t
   end
   if #times < 2 then return nil end
   table.sort(times)
   return { kind = 'late', comm = c.name, seq = seq, call = call, rank = late.rank,
            seconds = times[#times] - times[#times - 1] }
end

-- Returns findings over all communicators: { parted = list (first difference or absence of each),
-- late = list (longest first), waits = { [rank] = { count, seconds } } }.
function trace.compare(docs)
   local comms = communicators(docs)
   align(docs, comms)
   local parted, late, waits = {}, {}, {}
   for _, c in ipairs(comms) do
      local made = {}                          -- the numbers of all its calls
      for _, row in ipairs(c.rows) do copy(row.calls, made) end
      for _, seq in ipairs(sorted_keys(made)) do
         local bad = difference(c, seq) or absence(c, seq)
         if bad then
            parted[#parted + 1] = bad
            break
         end
         local l = lateness(c, seq)
         if l then
            late[#late + 1] = l
            local w = waits[l.rank] or { count = 0, seconds = 0 }
            w.count, w.seconds = w.count + 1, w.seconds + l.seconds
            waits[l.rank] = w
         end
      end
   end
   table.sort(late, function(a, b) return a.seconds > b.seconds end)
   return { parted = parted, late = late, waits = waits }
end

local function seconds(s)
   return s >= 1 and ('%.1f s'):format(s) or s >= 1e-3 and ('%.1f ms'):format(s * 1e3)
      or ('%.0f us'):format(s * 1e6)
end

local function say_parted(f, add)
   if f.kind == 'differs' then
      add("the ranks part at #%d on '%s':", f.seq, f.comm)
      for _, g in ipairs(f.calls) do
         add('  %s: %s at %s', agree.ranks_text(g.ranks), text_of(g.call), at(g.call))
      end
      return
   end
   for _, r in ipairs(f.ranks) do
      add("rank %d never arrived at #%d %s on '%s' (%s); %s", r.rank, f.seq, text_of(f.call),
         f.comm, at(f.call), r.last and ('its last call there was #%d %s at %s'):format(r.last.seq,
            text_of(r.last), at(r.last)) or 'it made no call there')
   end
end

local function absent_ranks(docs)
   local there, list = {}, {}
   for _, doc in ipairs(docs) do there[doc.rank] = true end
   for r = 0, (docs[1].size or 1) - 1 do
      if not there[r] then list[#list + 1] = r end
   end
   return list
end

-- Returns the findings as text. worst: how many late arrivals to list (3).
function trace.report(docs, worst)
   local found, lines = trace.compare(docs), {}
   local function add(fmt, ...) lines[#lines + 1] = fmt:format(...) end
   for _, f in ipairs(found.parted) do say_parted(f, add) end
   local absent = absent_ranks(docs)
   if #absent > 0 then
      add('%s left no file here: killed, or of a run under mpirun that another rank ended',
         agree.ranks_text(absent))
   end
   for i = 1, math.min(worst, #found.late) do
      local l = found.late[i]
      add('rank %d arrived %s after the others at %s #%d (%s)', l.rank, seconds(l.seconds),
         l.call.op, l.seq, at(l.call))
   end
   local slow
   for rank, w in each(found.waits) do
      if not slow or w.seconds > found.waits[slow].seconds then slow = rank end
   end
   if slow then
      local w = found.waits[slow]
      add('rank %d was last in %d of %d collectives; the others waited %s for it', slow,
         w.count, #found.late, seconds(w.seconds))
   end
   return lines
end

-- Writes all ranks' spans as one Chrome trace, a process a rank. Returns its path.
function trace.merge(folder, docs)
   docs = docs or trace.read(folder)
   align(docs, communicators(docs))
   local events = require('tide').json.array {}
   for _, doc in ipairs(docs) do
      events[#events + 1] = { ph = 'M', name = 'process_name', pid = doc.rank,
                              args = { name = ('rank %d'):format(doc.rank) } }
      for _, e in ipairs(doc.traceEvents) do
         if e.ts then e.ts = e.ts - doc.shift * 1e6 end
         events[#events + 1] = e
      end
   end
   local path = fs.join(folder, 'trace.json')
   fs.write_json('debug.trace.merge', path, { traceEvents = events })
   return path
end

-- Merges the files of a folder and returns the report as text, for `tide trace FOLDER`.
function trace.show(folder)
   local docs = trace.read(folder)
   local lines = trace.report(docs)
   lines[#lines + 1] = ('%d rank%s in %s'):format(#docs, #docs == 1 and '' or 's',
      trace.merge(folder, docs))
   return table.concat(lines, '\n') .. '\n'
end

-- Runs `tide trace FOLDER`.
function trace.command(folder)
   err.people({ 'E_IO', 'E_FORMAT', 'E_ARG' }, function() io.stdout:write(trace.show(folder)) end)
end

local some = 'docs: trace_rank[]; '
   .. "where #docs > 0 -- argument 'docs': expected at least one, got none"
return signature.doors('debug.trace', trace, {
   dump = 'folder: string', read = 'folder: string', command = 'folder: string', compare = some,
   report = some .. '; worst: integer >= 0 = 3', merge = 'folder: string; docs: trace_rank[]?',
})
