-- Reads what the launcher passed to this Lua state, for code that continues after a restart.
--
-- `tide run --max-restarts K` runs a recipe again, in new Lua states, when a rank has failed. Such
-- a run is one job: its checkpoints carry the job's name, so a second attempt resumes from LATEST
-- if and only if an attempt of the same job wrote it.

local fs = require 'tide.util.fs'

local launch = {}

local function host()
   local h = package.loaded['tide.host']
   return type(h) == 'table' and h or {}
end

-- Returns the job's name for checkpoints; nil when it is not restarted.
function launch.job() return host().job end

-- Returns how often the job has been started again.
function launch.restarts() return host().restart or 0 end

-- Returns the folder of a run to resume: `out`, if this is another attempt of the job that wrote
-- the newest checkpoint there; else nil.
function launch.resume_from(out)
   if launch.restarts() == 0 or not out or not fs.exists(fs.join(out, 'LATEST')) then return nil end
   local op = 'comm.launch'
   local name = fs.read(op, fs.join(out, 'LATEST')):gsub('%s+$', '')
   local path = fs.join(fs.join(out, name), 'state.json')
   if not fs.exists(path) then return nil end
   return fs.read_json(op, path).job == launch.job() and out or nil
end

-- Notes the first SIGINT or SIGTERM, which `signal` returns, until `unwatch`. Under a host it does
-- nothing: the host has handlers of its own, which interrupt the context.
function launch.watch()
   if type(package.loaded['tide.host']) ~= 'table' then require('tide.ffi.signal').watch() end
end

-- Returns the number of the signal that was noted, or nil.
function launch.signal()
   local noted = package.loaded['tide.ffi.signal']
   return type(noted) == 'table' and noted.seen() or nil
end

-- Ends what watch began.
function launch.unwatch()
   local noted = package.loaded['tide.ffi.signal']
   if type(noted) == 'table' then noted.unwatch() end
end

-- Returns the name that the launcher of processes gives this job, the same on all ranks; nil
-- without a launcher.
function launch.job_of_launcher(get)
   get = get or os.getenv
   local here = require('tide.comm.env').detect(get)
   if not here or here.size == 1 then return nil end
   for _, name in ipairs { 'PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid', 'PMI_JOBID' } do
      if get(name) then return get(name) end
   end
   local job, step = get 'SLURM_JOB_ID', get 'SLURM_STEP_ID'
   return job and ('%s.%s'):format(job, step or '') or 'job'
end

-- Returns "rank size local_size" for the program `tide`, or nil for one process.
function launch.describe()
   local here = require('tide.comm.env').detect()
   if not here or here.size == 1 then return nil end
   return ('%d %d %d'):format(here.rank, here.size, here.local_size or here.size)
end

return launch
