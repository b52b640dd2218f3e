-- One row of the benchmark: two fresh children, the same inputs, agreement, then timing.
--
-- Invariant: nothing is timed before both sides have computed the same numbers from the same
-- inputs within the row's tolerance; a row that disagrees is reported as wrong, not as fast.

local ffi = require 'ffi'
local child = require 'kernels.bench.child'
local stats = require 'kernels.bench.stats'
local timing = require 'kernels.bench.timing'

local M = {}

-- Filled by configure: build folder, root and folder of the sources, python, limit (a child).
local env = {}

-- The first Python that can import torch, or nil.
function M.find_python(wanted)
   for _, python in ipairs(wanted and { wanted } or { 'python3', 'python' }) do
      local probe = child.quote(python) .. ' -c "import torch" 2>/dev/null && echo yes'
      if child.output(probe):find 'yes' then return python end
   end
end

-- Whether the Python has the module that the peer of a row needs beside torch.
local function has_peer(row)
   if not env.python then return false end
   if not row.needs then return true end
   return child.output(('%s -c "import %s" 2>/dev/null && echo yes'):format(child.quote(env.python),
      row.needs)):find 'yes' ~= nil
end

-- Takes root and folder of the sources, luajit, library (path of libtide.so), python or nil, and
-- starts the calibration child of the build folder.
function M.configure(t)
   for k, v in pairs(t) do env[k] = v end
   env.limit = child.start(child.quote(env.build .. '/bench/calibrate'))
end

-- Both sides get huge pages where the system grants them on request, and freed memory is kept.
local tuned = {
   GLIBC_TUNABLES = 'glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=8589934592:'
      .. 'glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=268435456',
}

local function lua_path()
   local paths = {}
   for _, part in ipairs { 'bindings/?.lua', 'lua/?.lua', 'lua/?/init.lua' } do
      paths[#paths + 1] = env.root .. part
   end
   return table.concat(paths, ';') .. ';;'
end

local function start_ours()
   return child.start(('%s %s %s'):format(child.quote(env.luajit),
      child.quote(env.folder .. 'ours.lua'), child.quote(env.library)), { LUA_PATH = lua_path() })
end

local function start_peer(threads, stock)
   if not env.python then return nil end
   local vars = { OMP_NUM_THREADS = tostring(threads), PYTHONWARNINGS = 'ignore',
      TORCHINDUCTOR_COMPILE_THREADS = '1' }
   if not stock then
      for k, v in pairs(tuned) do vars[k] = v end
   end
   return child.start(child.quote(env.python) .. ' ' .. child.quote(env.folder .. 'peer.py'), vars)
end

local function open_line(row, threads, variant)
   local words, keys = { 'open', row.case }, {}
   for key in pairs(row.options) do keys[#keys + 1] = key end
   table.sort(keys)
   for _, key in ipairs(keys) do words[#words + 1] = key .. '=' .. row.options[key] end
   words[#words + 1] = 'threads=' .. threads
   if variant then words[#words + 1] = 'variant=' .. variant end
   return table.concat(words, ' ')
end

-- ---- one row ------------------------------------------------------------------------------------

-- Largest relative difference of two lists of numbers.
local function difference(a, b)
   if #a ~= #b then return math.huge end
   local worst = 0
   for i, x in ipairs(a) do
      local d = math.abs(x - b[i]) / math.max(math.abs(x), math.abs(b[i]), 1e-30)
      if d > worst or d ~= d then worst = d == d and d or math.huge end
   end
   return worst
end

-- Opens a side, runs it once and then its check. Memory: base is what the process held before the
-- case, ready with the inputs made, once the peak of the first run.
local function prepare(side, line, path, verb)
   local memory = { base = side:numbers('memory')[1] }
   side:ask(line)
   side:ask(verb .. ' ' .. path)
   memory.ready = side:numbers('memory')[1]
   side:ask 'run 1'
   memory.once = side:numbers('memory')[2]
   return memory, side:numbers 'check'
end

local function finish_memory(side, memory)
   memory.peak = math.max(memory.once, side:numbers('memory')[2])
   memory.above, memory.extra = memory.peak - memory.base, memory.once - memory.ready
end

-- The ways to run the peer: the row's own variants, each eager and compiled.
local function ways_of(row)
   local ways = {}
   for _, variant in ipairs(row.variants or { false }) do ways[#ways + 1] = variant end
   for i = 1, row.eager and 0 or #ways do
      ways[#ways + 1] = (ways[i] and ways[i] .. '+' or '') .. 'compiled'
   end
   return ways
end

local function close_way(it)
   if it.memory then finish_memory(it.side, it.memory) end
   it.side:close()
end

-- Runs the peer one way, until the case is compiled and warm. Returns { side, memory, numbers,
-- variant, seconds, problem }; one with a problem is closed.
local function try_way(row, threads, path, variant)
   local it = { side = start_peer(threads), variant = variant, seconds = math.huge }
   local ok, why = pcall(function()
      it.memory, it.numbers = prepare(it.side, open_line(row, threads, variant), path, 'load')
      for _ = 1, 3 do it.seconds = math.min(it.seconds, it.side:numbers('run 1')[1]) end
   end)
   if not ok then
      it.memory, it.problem, it.seconds = nil, tostring(why), math.huge
      close_way(it)
   end
   return it
end

-- The peer each way. Returns the fastest, still open, and all. Raises if none works.
local function best_peer(row, threads, path)
   local best, all = nil, {}
   for i, variant in ipairs(ways_of(row)) do
      local it = try_way(row, threads, path, variant)
      all[i] = it
      if not it.problem and best then
         close_way(it.seconds < best.seconds and best or it)
      end
      if not best and not it.problem or best and it.seconds < best.seconds then best = it end
   end
   if not best then error(all[1].problem, 0) end
   return best, all
end

-- Peak of the peer in a stock environment, eager: tuning trades memory for time, and a compiler
-- takes memory that the work does not need.
local function stock_memory(row, threads, path, variant)
   local side = start_peer(threads, true)
   variant = variant and variant:gsub('%+?compiled$', '')
   if variant == '' then variant = nil end
   local memory = prepare(side, open_line(row, threads, variant), path, 'load')
   finish_memory(side, memory)
   side:close()
   return memory
end

local function compare(row, ours, peer, result)
   local worst = difference(ours, peer)
   result.difference = worst
   if worst > row.tolerance then
      local function text(list)
         local words = {}
         for i, x in ipairs(list) do words[i] = ('%.6g'):format(x) end
         return table.concat(words, ' ')
      end
      result.problem = ('the sides disagree by %.1e: ours %s, peer %s'):format(worst, text(ours),
         text(peer))
   end
end

-- opt.rounds overrides the row's own number.
function M.run(row, threads, opt)
   local result = { name = row.name, threads = threads, row = row }
   local path = os.tmpname()
   local ours = start_ours()
   local memory, numbers = prepare(ours, open_line(row, threads), path, 'save')
   local best, all
   if has_peer(row) then
      best, all = best_peer(row, threads, path)
      compare(row, numbers, best.numbers, result)
      result.variant = best.variant or nil
      if row.memory then result.stock = stock_memory(row, threads, path, best.variant) end
   end
   os.remove(path)
   local t = timing.run {
      ours = ours, peer = best and best.side, limit = env.limit, kind = row.kind,
      threads = threads, work = row.work or 0 / 0, sample = row.sample,
      rounds = opt.rounds or row.rounds, cpu = opt.cpu,
   }
   for k, v in pairs(t) do result[k] = v end
   finish_memory(ours, memory)
   result.ours_memory = memory
   ours:close()
   if best then
      finish_memory(best.side, best.memory)
      result.peer_memory, result.variants = best.memory, {}
      best.side:close()
      for i, it in ipairs(all) do
         result.variants[i] = { name = it.variant or 'eager', memory = it.memory,
            seconds = it.seconds, problem = it.problem }
      end
   end
   return result
end

-- The row with `threads` threads and with one, in turn, both ours: ratio is what the threads gain,
-- machine what the calibration gains. The numbers must be equal to the bit.
function M.scaling(row, threads, opt)
   local result = { name = row.name, threads = threads, row = row }
   local path = os.tmpname()
   local many, one = start_ours(), start_ours()
   local _, numbers = prepare(many, open_line(row, threads), path, 'save')
   local _, alone = prepare(one, open_line(row, 1), path, 'save')
   os.remove(path)
   result.difference = difference(numbers, alone)
   if result.difference > 0 then
      result.problem = ('%d threads and one disagree by %.1e'):format(threads, result.difference)
   else
      for k, v in pairs(timing.run {
         ours = many, peer = one, limit = env.limit, kind = row.kind, threads = threads,
         peer_threads = 1, work = row.work or 0 / 0, sample = row.sample,
         rounds = opt.rounds or row.rounds,
      }) do result[k] = v end
   end
   many:close()
   one:close()
   return result
end

-- ---- rows that are programs ---------------------------------------------------------------------

ffi.cdef [[
typedef struct bench_timespec { long sec, nsec; } bench_timespec;
int clock_gettime(int clock, bench_timespec *t);
]]
local timespec = ffi.new 'bench_timespec'

local function now()
   ffi.C.clock_gettime(1, timespec)
   return tonumber(timespec.sec) + 1e-9 * tonumber(timespec.nsec)
end

local status_line = [[for l in io.lines '/proc/self/status' do
   local kb = l:match '^VmHWM:%s*(%d+)'
   if kb then print(kb) end
end]]

-- Seconds from the shell's exec to the end of a program, median of n; the shell itself is in it.
local function time_program(command, n)
   local list = {}
   for i = 1, n do
      local start = now()
      if os.execute(command) ~= 0 then error('this failed: ' .. command, 0) end
      list[i] = now() - start
   end
   return stats.median(list), stats.quantile(list, 0)
end

-- Start-up of both interpreters with their library loaded, and the memory they then hold.
function M.start(row, opt)
   local use = ("package.loaded['tide.host'] = { library = %q } require 'tide' ")
      :format(env.library)
   local lua = ('LUA_PATH=%s exec %s -e '):format(child.quote(lua_path()),
      child.quote(env.luajit))
   local result = { name = row.name, threads = 1, row = row }
   local n = opt.rounds or row.rounds
   result.ours, result.ours_best = time_program(lua .. child.quote(use), n)
   local text = child.output(lua .. child.quote(use .. status_line))
   result.ours_memory = { above = tonumber(text) * 1024 }
   if env.python then
      local import = child.quote(env.python) .. ' -c '
      result.peer, result.peer_best = time_program(import .. '"import torch"', math.min(n, 3))
      text = child.output(import .. child.quote('import torch, resource; '
         .. 'print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)'))
      result.peer_memory = { above = tonumber(text) * 1024 }
      result.ratio = result.peer / result.ours
   end
   return result
end

-- Version lines of the two sides.
function M.versions()
   local list = {}
   for _, side in ipairs { start_ours(), start_peer(1) } do
      list[#list + 1] = side:ask 'version'
      side:close()
   end
   return list
end

return M
