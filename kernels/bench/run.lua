-- The benchmark driver: runs tide and PyTorch in turn and prints ratios and shares of the limit.
--
--    luajit kernels/bench/run.lua [NAME|all ...] [--threads 1,2] [--rounds N] [--python PATH]
--                                 [--build DIR] [--out FILE] [--no-peer] [--cpu] [--short]
--                                 [--scaling] [--list]
--    luajit kernels/bench/run.lua [NAME|all ...] --device cuda [--peaks TFLOPS,GBS] [--no-compile]
--                                 [--small] [--once] (cuda/main.lua)
--
-- NAME is a row of cases.lua or a part of its name. Each side is a fresh child process a row, so
-- that peak memory is its own; both get the same inputs and must agree on what they compute before
-- anything is timed. Without a Python that has torch only our side and the limits are shown.
-- --short: three rounds a row, two threads only where nothing else is said, no rows marked `long`.
-- --scaling: ours with two threads (or as many as --threads says) against ours with one.

local folder = arg[0]:match '^(.*/)[^/]*$' or './'
local root = folder .. '../../'
package.path = root .. '?.lua;' .. package.path

local cases = require 'kernels.bench.cases'
local cuda = require 'kernels.bench.cuda.main'
local one = require 'kernels.bench.row'
local report = require 'kernels.bench.report'

local usage = 'usage: luajit kernels/bench/run.lua [NAME|all ...] [--threads 1,2] [--rounds N] '
   .. '[--python PATH] [--build DIR] [--out FILE] [--no-peer] [--cpu] [--short] '
   .. '[--scaling] [--list]\n'
   .. '       luajit kernels/bench/run.lua [NAME|all ...] --device cuda [--peaks TFLOPS,GBS] '
   .. '[--no-compile] [--small] [--once] [--build DIR] [--out FILE] [--no-peer] [--list]'

local function die(...)
   io.stderr:write('bench: ', (...):format(select(2, ...)), '\n')
   os.exit(2)
end

-- ---- options -----------------------------------------------------------------------------------

local valued = { threads = true, rounds = true, python = true, build = true, out = true,
   device = true, peaks = true, ['peer-device'] = true }
local flags = { ['no-peer'] = true, list = true, help = true, cpu = true, short = true,
   scaling = true, ['no-compile'] = true, small = true, once = true }

local function parse(words)
   local opt, names, i = {}, {}, 1
   while words[i] do
      local key = words[i]:match '^%-%-(.+)$'
      if key and flags[key] then
         opt[key] = true
      elseif key and valued[key] then
         i = i + 1
         opt[key] = words[i] or die('--%s needs a value\n%s', key, usage)
      elseif key then
         die('unknown option --%s\n%s', key, usage)
      else
         names[#names + 1] = words[i]
      end
      i = i + 1
   end
   return opt, names
end

local function threads_of(text)
   local list = {}
   for word in (text or '1,2'):gmatch '[^,]+' do
      local n = tonumber(word)
      if not n or n < 1 or n % 1 ~= 0 then die("--threads: expected 1,2, got '%s'", text) end
      list[#list + 1] = n
   end
   return list
end

local function selected(names, short)
   if #names == 0 then names = { 'all' } end
   local list = {}
   for _, row in ipairs(cases) do
      for _, name in ipairs(names) do
         if row.name:find(name, 1, true) or (name == 'all' and not (short and row.long)) then
            list[#list + 1] = row
            break
         end
      end
   end
   if #list == 0 then die("no row is called '%s' (--list shows them)", names[1]) end
   return list
end

-- ---- running ------------------------------------------------------------------------------------

local function run_one(row, threads, opt)
   if opt.scaling then return one.scaling(row, threads, opt) end
   if row.case == 'start' then return one.start(row, opt) end
   return one.run(row, threads, opt)
end

local function contains(list, v)
   for _, item in ipairs(list) do
      if item == v then return true end
   end
   return false
end

-- The thread counts of --threads that a row runs with.
local function threads_for(row, threads, opt)
   local only = row.only_threads
   if not only then return threads end
   if opt.scaling then return {} end
   return (opt.short or contains(threads, only)) and { only } or {}
end

-- Reports the rows that no thread count fits; ends the program if no row is left.
local function check_threads(rows, threads, opt)
   local left = 0
   for _, row in ipairs(rows) do
      if #threads_for(row, threads, opt) > 0 then
         left = left + 1
      else
         io.stderr:write(('bench: %s is left out: it runs with %s only\n'):format(row.name,
            row.only_threads == 1 and 'one thread' or row.only_threads .. ' threads'))
      end
   end
   if left == 0 then die('no row fits --threads %s', table.concat(threads, ',')) end
end

-- Refuses what --scaling cannot do.
local function check_scaling(threads, opt)
   for _, name in ipairs { 'cpu', 'python', 'no-peer' } do
      if opt[name] then die('--scaling compares tide with itself; leave out --%s', name) end
   end
   for _, t in ipairs(threads) do
      if t == 1 then die('--scaling compares with one thread: --threads takes 2 or more') end
   end
end

local function run_all(rows, threads, opt)
   local results = {}
   for _, row in ipairs(rows) do
      for _, t in ipairs(threads_for(row, threads, opt)) do
         local ok, r = pcall(run_one, row, t, opt)
         if not ok then
            r = { name = row.name, threads = t, row = row, problem = tostring(r) }
         end
         results[#results + 1] = r
         report.show(r, opt.scaling and 'scaling' or 'peer')
         report.write(opt.out, results)
      end
   end
   return results
end

-- The rows of device 'cuda', by their own driver.
local function main_cuda(opt, names)
   local build = opt.build or root .. 'build'
   opt.out = opt.out or build .. '/bench-cuda.json'
   return cuda.run(opt, names, {
      root = root, folder = folder, luajit = arg[-1] or 'luajit', library = build .. '/libtide.so',
      python = not opt['no-peer'] and not opt.list and one.find_python(opt.python) or nil,
   })
end

local function main(opt, names)
   if opt.device == 'cuda' then return main_cuda(opt, names) end
   if opt.device then die("--device: expected cuda (rows of the host have none), got '%s'",
      opt.device) end
   local rows = selected(names, opt.short)
   if opt.list then
      for _, row in ipairs(rows) do print(row.name) end
      return 0
   end
   opt.build, opt.rounds = opt.build or root .. 'build', tonumber(opt.rounds or opt.short and 3)
   opt.out = opt.out or opt.build .. '/bench.json'
   local threads = threads_of(opt.threads or opt.cpu and '1'
      or (opt.short or opt.scaling) and '2')
   if opt.scaling then check_scaling(threads, opt) end
   check_threads(rows, threads, opt)
   if opt.cpu and threads[#threads] ~= 1 then die('--cpu is for --threads 1') end
   local python = not opt['no-peer'] and not opt.scaling and one.find_python(opt.python) or nil
   if opt.python and not python then die('%s cannot import torch', opt.python) end
   one.configure {
      root = root, folder = folder, luajit = arg[-1] or 'luajit', build = opt.build,
      library = opt.build .. '/libtide.so', python = python,
   }
   local versions = one.versions()
   if opt.scaling then
      report.heading(versions[1], 'scaling')
   else
      report.heading(('%s against %s'):format(versions[1], versions[2]
         or 'nothing: no Python with torch was found (--python PATH)'), 'peer')
   end
   local wrong = 0
   for _, r in ipairs(run_all(rows, threads, opt)) do
      if r.problem then wrong = wrong + 1 end
   end
   return wrong == 0 and 0 or 1
end

local opt, names = parse { ... }
if opt.help then
   print(usage)
   os.exit(0)
end
os.exit(main(opt, names))
