-- Scratch folders of the specs: made before, removed after, also when the test fails.

local tmp = {}

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

function tmp.mkdir(path) assert(os.execute('mkdir -p ' .. quote(path)) == 0) end

-- Runs fn(dir) with an empty folder. Returns what fn returns.
function tmp.with(fn)
   local dir = os.tmpname()
   os.remove(dir)
   tmp.mkdir(dir)
   local r = { pcall(fn, dir) }
   os.execute('rm -rf ' .. quote(dir))
   if not r[1] then error(r[2], 0) end
   return unpack(r, 2, table.maxn(r))
end

return tmp
