-- The CUDA benchmark (run.lua --device cuda): times by events of the device, PyTorch's beside them,
-- and the share of what the chip allows.
--
-- A row's floor is the longer of its operations at the chip's bf16 peak and its bytes at the peak
-- of its memory; its share is floor / time. Of a training step the share is the MFU. Each side is
-- one child process for all rows, and they take turns, so that the GPU serves one at a time.

local child = require 'kernels.bench.child'
local report = require 'kernels.bench.report'
local rows_of = require 'kernels.bench.cuda.rows'
local stats = require 'kernels.bench.stats'

local M = {}

-- Dense bf16 TFLOPS and GB/s of chips, as NVIDIA states them; the first pattern that fits.
local peaks = {
   { 'H200', 989, 4800 }, { 'H100 NVL', 835, 3900 }, { 'H100 PCIe', 756, 2000 },
   { 'H100', 989, 3350 }, { 'GH200', 989, 4000 }, { 'B200', 2250, 8000 },
   { 'A100.*80GB', 312, 2039 }, { 'A100', 312, 1555 }, { 'L40S', 362, 864 }, { 'L4', 121, 300 },
   { 'RTX 4090', 165, 1008 }, { 'RTX 5090', 210, 1792 },
}

-- The chip's name, TFLOPS and GB/s, from --peaks TFLOPS,GBS or from the table; nil, nil: unknown.
local function chip(opt)
   local name = child.output 'nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null'
      :match '[^\n]+' or 'unknown GPU'
   if opt.peaks then
      local tf, gb = opt.peaks:match '^([%d.]+),([%d.]+)$'
      if not tf then error("--peaks: expected TFLOPS,GBS, got '" .. opt.peaks .. "'", 0) end
      return name, tonumber(tf), tonumber(gb)
   end
   for _, row in ipairs(peaks) do
      if name:find(row[1]) then return name, row[2], row[3] end
   end
   return name
end

-- ---- the two sides -----------------------------------------------------------------------------

local function start_ours(env)
   local paths = {}
   for _, part in ipairs { '?.lua', 'bindings/?.lua', 'lua/?.lua', 'lua/?/init.lua' } do
      paths[#paths + 1] = env.root .. part
   end
   return child.start(('%s %s %s'):format(child.quote(env.luajit),
      child.quote(env.folder .. 'cuda/ours.lua'), child.quote(env.library)),
      { LUA_PATH = table.concat(paths, ';') .. ';;' })
end

-- Starts the peer. Returns it and its version, or nil and why it is absent.
local function start_peer(opt, env)
   if opt['no-peer'] then return nil, 'no peer was asked for' end
   if not env.python then return nil, 'no Python with torch was found (--python PATH)' end
   local side = child.start(('%s %s %s'):format(child.quote(env.python),
      child.quote(env.folder .. 'cuda/peer.py'), opt['peer-device'] or 'cuda'))
   local version, why = side:try 'version'
   if version then return side, version end
   side:close()
   return nil, why
end

local function open_line(row, variant)
   local words, keys = { 'open', row.case }, {}
   for key in pairs(row.options) do keys[#keys + 1] = key end
   table.sort(keys)
   for _, key in ipairs(keys) do words[#words + 1] = key .. '=' .. row.options[key] end
   if variant then words[#words + 1] = 'variant=' .. variant end
   return table.concat(words, ' ')
end

-- Milliseconds of one run, median of five groups that take some 50 ms each; or nil and why.
local function time(side, line, opt)
   local ok, why = side:try(line)
   if not ok then return nil, why end
   if opt.once then return side:numbers('time 1')[1] end
   local one = side:numbers('time ' .. (opt.small and 1 or 3))[1]
   local n = opt.small and 1 or math.min(4096, math.max(1, math.floor(150 / math.max(one, 0.01))))
   local list = {}
   for i = 1, opt.small and 1 or 5 do list[i] = side:numbers('time ' .. n)[1] / n end
   side:ask 'close'
   return stats.median(list)
end

-- ---- one row -----------------------------------------------------------------------------------

local function measure(row, sides, opt, peak)
   local r = { name = row.name, row = row, flop = row.flop, bytes = row.bytes, tokens = row.tokens }
   r.ours, r.problem = time(sides.ours, open_line(row), opt)
   if row.options.kernel == 'wgmma' and r.problem and r.problem:find 'E_UNSUPPORTED' then
      r.elsewhere, r.problem = r.problem, nil
   end
   if sides.peer and not row.ours_only then
      for _, variant in ipairs(row.eager and { 'eager' } or { 'eager', 'compiled' }) do
         if not (variant == 'compiled' and opt['no-compile']) then
            r[variant], r[variant .. '_problem'] = time(sides.peer, open_line(row, variant), opt)
         end
      end
   end
   local best = math.min(r.eager or math.huge, r.compiled or math.huge)
   if r.ours and best < math.huge then r.ratio = best / r.ours end
   if peak.tf then
      r.floor = math.max(row.flop / peak.tf / 1e9, row.bytes / peak.gb / 1e6)
      if r.ours then r.share = r.floor / r.ours end
   end
   return r
end

local widths = { 28, 11, 9, 9, 10, 7, 11, 11, 8 }

local function put(cells)
   local words = {}
   for i, w in ipairs(widths) do
      words[i] = ('%' .. (i == 1 and '-' or '') .. w .. 's'):format(cells[i] or '')
   end
   io.stdout:write((table.concat(words, ' '):gsub('%s+$', '')), '\n')
   io.stdout:flush()
end

local function text(form, x) return x and x == x and form:format(x) or '-' end

local function milliseconds(ms)
   if not ms then return '-' end
   return ms >= 1 and ('%.2f ms'):format(ms) or ('%.1f us'):format(ms * 1e3)
end

local function show(r)
   if r.problem or r.elsewhere then
      put { r.name, r.problem and 'FAILED: ' .. r.problem or 'not on this chip: ' .. r.elsewhere }
   else
      put { r.name, milliseconds(r.ours), r.flop > 0 and ('%.0f'):format(r.flop / r.ours / 1e9)
         or '', r.bytes > 0 and ('%.0f'):format(r.bytes / r.ours / 1e6) or '',
         milliseconds(r.floor), text('%.0f%%', r.share and 100 * r.share),
         milliseconds(r.eager), milliseconds(r.compiled), text('%.2fx', r.ratio) }
   end
   for _, variant in ipairs { 'eager', 'compiled' } do
      local why = r[variant .. '_problem']
      if why then put { '  torch, ' .. variant .. ': ' .. why } end
   end
   if r.tokens and r.ours then
      put { ('  %.0f tokens/s; the share is the MFU'):format(1e3 * r.tokens / r.ours) }
   end
end

-- ---- all of it ---------------------------------------------------------------------------------

local function selected(all, names)
   if #names == 0 then names = { 'all' } end
   local list = {}
   for _, row in ipairs(all) do
      for _, name in ipairs(names) do
         if name == 'all' or row.name:find(name, 1, true) then
            list[#list + 1] = row
            break
         end
      end
   end
   return list
end

-- Runs the rows whose names hold one of `names`. env: root and folder of the sources, luajit,
-- library, python (nil: none). Returns the exit status: 1 where a row of ours failed. Without a GPU
-- one line says why, nothing is written, and the status is 0.
function M.run(opt, names, env)
   local rows = selected(rows_of(opt.small), names)
   if opt.list then
      for _, row in ipairs(rows) do print(row.name) end
      return 0
   end
   if #rows == 0 then
      io.stderr:write(("bench: no row is called '%s' (--list shows them)\n"):format(names[1]))
      return 2
   end
   local ours = start_ours(env)
   local version, why = ours:try 'version'
   if not version then
      io.stderr:write(("bench: skipped, device 'cuda' cannot be used: %s\n"):format(why))
      return 0
   end
   local name, tf, gb = chip(opt)
   local peer, about = start_peer(opt, env)
   print(('%s on %s, %s; peer: %s'):format(version, name, tf and ('%g TFLOPS, %g GB/s'):format(tf,
      gb) or 'peaks unknown (--peaks TFLOPS,GBS)', about))
   put { 'name', 'ours', 'TF/s', 'GB/s', 'floor', 'share', 'eager', 'compiled', 'torch/ours' }
   local results, failed = {}, 0
   for i, row in ipairs(rows) do
      local ok, r = pcall(measure, row, { ours = ours, peer = peer }, opt, { tf = tf, gb = gb })
      if not ok then r = { name = row.name, row = row, problem = tostring(r) } end
      if r.problem then failed = failed + 1 end
      results[i] = r
      show(r)
      report.write(opt.out, results)
   end
   ours:close()
   if peer then peer:close() end
   return failed == 0 and 0 or 1
end

return M
