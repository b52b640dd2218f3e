-- Random cases against oracles: starts workers, keeps time, shrinks what fails and prints it as a
-- program. A domain (spec/deep/domain) is a table
--
--    make(choices)   a case of these choices (choice.lua), as plain data; calls nothing of tide
--    check(case)     nil if tide does what the oracle says, else what is wrong as text; and a word
--                    on what the case was (counted in the summary). Raising is a failure.
--    limit           seconds after which a case hangs (60), on an idle machine
--    idle            words of `check` that mean that nothing was compared, as a set
--    trait(case)     a word on what a failing case has, so that failures that read alike and have
--                    different causes are told apart once they are shrunk (optional)
--
-- driver.run(name, opts) -> report { cases, failures = { { kind, text, case, program } }, words }
-- opts: seed, seconds, cases (at most), first (1), say (print).

local choice = require 'spec.deep.fuzz.choice'
local files = require 'spec.support.files'
local kind_of = require 'spec.deep.fuzz.kind'
local shrink = require 'spec.deep.fuzz.shrink'
local values = require 'spec.deep.fuzz.values'

local driver = {}

-- A worker is stopped this often, so that its memory and what it holds go back.
local turn = 20
-- Seconds that one failure may be shrunk for, and that a try may take; how many that read alike are
-- shrunk.
local patience, trial, alike = 60 * values.slowness, 15 * values.slowness, 4

-- Seconds after which a case of the domain hangs.
local function limit_of(domain) return (domain.limit or 60) * values.slowness end

local function now() return require('tide').clock() end

-- Calls each(line) for what a worker prints. Returns its exit status and the end of its errors.
local function worker(words, limit, each)
   local log = os.tmpname()
   local pipe = assert(io.popen(('OMP_WAIT_POLICY=passive timeout -k 5 %d %s '
      .. 'spec/deep/fuzz/worker.lua %s 2>%s; echo "@status $?"'):format(math.ceil(limit),
      os.getenv 'TIDE_LUAJIT' or 'luajit', words, log)))
   local status = 255
   for line in pipe:lines() do
      local rc = line:match '^@status (%d+)$'
      if rc then status = tonumber(rc) else each(line) end
   end
   pipe:close()
   local text = files.read(log)
   os.remove(log)
   return status, text:sub(-1500)
end

local function ending(status, limit, stderr)
   if status == 124 or status == 137 then
      return ('hang: the case ran past %d s\n%s'):format(limit, stderr)
   end
   return ('crash: the process ended with status %d\n%s'):format(status, stderr)
end

-- The verdict on one case in a worker of its own: nil, or what is wrong.
local function judge(name, case, limit)
   local path, verdict, done = os.tmpname(), nil, false
   files.write(path, 'return ' .. values.literal(case) .. '\n')
   local status, stderr = worker(name .. ' @' .. path, limit, function(line)
      local bad = line:match '^@bad (.*)$'
      if bad then verdict = loadstring('return ' .. bad)() end
      done = done or line == '@done'
   end)
   os.remove(path)
   if not done then return ending(status, limit, stderr) end
   return verdict
end

-- The record that one worker shrinks to, trying all in its own process; the record itself if that
-- ends it.
local function shrunk_inside(name, record, kind)
   local path, best = os.tmpname(), record
   files.write(path, ('return %s, %q\n'):format(values.literal(record), kind))
   worker(('%s =%s %d'):format(name, path, patience), patience + trial, function(line)
      local text = line:match '^@best (.*)$'
      if text then best = loadstring('return ' .. text)() end
   end)
   os.remove(path)
   return best
end

-- The smallest case found that fails as `text` says, and its text. Of what does not fail again:
-- the case itself and false.
local function reduced(domain, name, record, text)
   local kind, stop = kind_of(text), now() + patience
   local ends = text:find '^hang' or text:find '^crash'
   local limit = ends and trial or math.min(limit_of(domain), 4 * trial)
   local best
   local function try(candidate)
      local c = choice.taken(candidate)
      local ok, case = pcall(domain.make, c)
      if not ok then return nil end
      local verdict = judge(name, case, limit)
      if not verdict or kind_of(verdict) ~= kind then return nil end
      best = { case = case, text = verdict }
      return c.record
   end
   local again = try(record) or try(record) or try(record)
   if not again then return domain.make(choice.taken(record)), text, false end
   if not ends then
      try(shrunk_inside(name, again, kind))
   else
      shrink(again, function(candidate)
         local before = best
         local took = try(candidate)
         if not took then best = before end
         return took
      end, function() return now() < stop end)
   end
   return best.case, best.text, true
end

local function program_of(name, case, from)
   return ('-- %s\n-- In the root of the tree: luajit THIS_FILE\n'
      .. "package.path = './?.lua;' .. package.path\nrequire 'spec.support.helper'\n"
      .. "local case = %s\nprint(require('spec.deep.domain.%s').check(case) or 'agrees')\n")
      :format(from, values.literal(case), name)
end

local function show(say, failure, from)
   say(('---- %s failed%s:'):format(from, failure.again and '' or ', and not again'))
   say(failure.text)
   say '---- as a program:'
   say(failure.program)
   local folder = os.getenv 'TIDE_KEEP'
   if folder then
      local path = folder .. '/' .. from:gsub('%W+', '_') .. '.lua'
      files.write(path, failure.program)
      say('---- kept in ' .. path)
   end
end

-- The failure of this kind, with one more to its count; nil if it is the first.
local function known(report, kind)
   local failure = report.kinds[kind]
   if failure then failure.times = failure.times + 1 end
   return failure
end

-- Notes a failed case. Those that read alike are shrunk a few times, and shown where what is left
-- has another trait than the ones before.
local function fail(report, domain, name, k, text, opts)
   local kind = kind_of(text)
   local tries = report.tries[kind] or 0
   if tries >= alike or tries > 0 and not domain.trait then return known(report, kind) end
   report.tries[kind] = tries + 1
   local from = ('%s, TIDE_SEED=%s, case %d'):format(name, opts.seed, k)
   opts.say(('%s: %s'):format(from, text:match '^[^\n]*'))
   local drawn = choice.drawn(opts.seed, name, k)
   domain.make(drawn)
   local case, said, again = reduced(domain, name, drawn.record, text)
   local full = kind .. (domain.trait and again and ' [' .. domain.trait(case) .. ']' or '')
   if known(report, full) then return end
   local failure = { kind = full, text = said, case = case, again = again, times = 1,
      program = program_of(name, case, from .. ': ' .. full) }
   report.kinds[full] = failure
   report.kinds[kind] = report.kinds[kind] or failure
   table.insert(report.failures, failure)
   show(opts.say, failure, from)
end

-- One worker's turn from case k on; returns the next case.
local function run_turn(report, domain, name, k, seconds, opts)
   local limit = seconds + limit_of(domain)
   local at, done, bad = k - 1, false, {}
   local status, stderr = worker(('%s %s %d %d %d'):format(name, opts.seed, k,
      opts.cases and opts.first + opts.cases - 1 or 2^31, seconds), limit, function(line)
      local word, rest = line:match '^@(%w+) ?(.*)$'
      if word == 'case' then at = tonumber(rest)
      elseif word == 'good' then
         report.words[rest] = (report.words[rest] or 0) + 1
      elseif word == 'bad' then bad[#bad + 1] = { at, loadstring('return ' .. rest)() }
      elseif word == 'done' then done = true end
   end)
   if not done then bad[#bad + 1] = { math.max(at, k), ending(status, limit, stderr) } end
   for _, b in ipairs(bad) do fail(report, domain, name, b[1], b[2], opts) end
   return math.max(at, k) + 1
end

local function check_idle(report, domain)
   local compared, idle = 0, 0
   for word, n in pairs(report.words) do
      if (domain.idle or {})[word] then idle = idle + n else compared = compared + n end
   end
   if report.cases >= 20 and compared < report.cases / 4 and #report.failures == 0 then
      table.insert(report.failures, { kind = 'idle', times = 1, program = '', text =
         ('only %d of %d cases compared anything'):format(compared, report.cases) })
   end
   return idle
end

-- Runs cases of a domain until the time or the number is used up.
function driver.run(name, opts)
   local domain = require('spec.deep.domain.' .. name)
   local o = { seed = opts.seed, cases = opts.cases, first = opts.first or 1,
      say = opts.say or print }
   local report = { cases = 0, failures = {}, kinds = {}, tries = {},
      words = {} }
   local k, stop = o.first, now() + (opts.seconds or math.huge)
   while now() < stop and (not o.cases or k < o.first + o.cases) do
      k = run_turn(report, domain, name, k, math.max(1, math.min(turn, stop - now())), o)
   end
   report.cases = k - o.first
   check_idle(report, domain)
   return report
end

-- The report in a few lines.
function driver.summary(name, report)
   local words = {}
   for word, n in pairs(report.words) do
      words[#words + 1] = word == '' and ('%d compared'):format(n) or ('%d %s'):format(n, word)
   end
   table.sort(words)
   local lines = { ('%s: %d cases (%s), %d kinds of failure'):format(name, report.cases,
      table.concat(words, ', '), #report.failures) }
   for _, f in ipairs(report.failures) do
      lines[#lines + 1] = ('   %d x %s'):format(f.times, f.kind)
   end
   return table.concat(lines, '\n')
end

-- Names of all domains.
driver.domains = { 'ops', 'attention', 'packed', 'scan', 'delta', 'mamba', 'exchange',
   'vision', 'pictures', 'training', 'adapted', 'prices', 'fields', 'gradients', 'checkpoints',
   'joined', 'lora' }

-- What the environment asks for: TIDE_SEED (default: the time), TIDE_CASES (of each domain),
-- TIDE_MINUTES (of all domains together, 10).
function driver.asked()
   local cases = tonumber(os.getenv 'TIDE_CASES' or nil)
   local minutes = tonumber(os.getenv 'TIDE_MINUTES' or nil)
   return { seed = os.getenv 'TIDE_SEED' or tostring(os.time()), cases = cases,
      minutes = minutes or not cases and 10 or nil }
end

return driver
