-- Starts the tide program under mpirun on this machine, for specs.

local M = {}

local build = os.getenv 'TIDE_BUILD' or 'build'
M.program = build .. '/tide'

-- Loopback and shared memory only; more ranks than processors welcome.
M.mpirun = 'mpirun --allow-run-as-root --oversubscribe --quiet --mca btl self,vader '
   .. '--mca oob_tcp_if_include lo'

-- Output (both streams), exit status and seconds of a command that may take `limit` seconds (300):
-- the end of a job that hangs, not a measure; a busy machine may need most of it.
function M.shell(command, limit)
   local pipe = assert(io.popen(('s=$(date +%%s%%N); timeout -k 5 %d %s 2>&1; '
      .. 'echo "status=$? $(( ($(date +%%s%%N) - s) / 1000000 ))"'):format(limit or 300, command)))
   local text = pipe:read '*a'
   pipe:close()
   local body, status, ms = text:match '^(.*)status=(%d+) (%d+)%s*$'
   return body, tonumber(status), tonumber(ms) / 1000
end

-- nil if jobs can be started, else why not.
function M.missing()
   local out, status = M.shell(M.mpirun .. ' -np 2 true')
   if status ~= 0 then return 'mpirun does not start jobs here: ' .. out:sub(1, 200) end
   out, status = M.shell("env -u OMPI_COMM_WORLD_SIZE " .. M.program
      .. ' run spec/comm/mpi_case.lua probe')
   return status ~= 0 and 'MPI cannot be opened: ' .. out:sub(1, 200) or nil
end

-- it(text, fn) for cases that need such jobs: pending, with the reason, where they cannot run.
function M.cases(it, pending)
   local missing = M.missing()
   return function(text, fn)
      if missing then pending(text .. ' (' .. missing .. ')') else it(text, fn) end
   end
end

-- `tide run SCRIPT WORDS` on n processes.
function M.job(n, words, limit)
   return M.shell(('%s -np %d %s run %s'):format(M.mpirun, n, M.program, words), limit)
end

M.script = 'spec/comm/mpi_case.lua '

-- What it prints on n processes, for a case that ends well.
function M.ok(n, words)
   local out, status = M.job(n, M.script .. words)
   assert(status == 0, out)
   return out
end

-- The same job on n threads.
function M.threads(n, words, limit)
   return M.shell(('%s run -n %d %s'):format(M.program, n, words), limit)
end

-- How often a plain text occurs.
function M.count(out, text)
   local n, at = 0, 1
   while true do
      local first, last = out:find(text, at, true)
      if not first then return n end
      n, at = n + 1, last + 1
   end
end

return M
