-- A Lua program in a process of its own, for what must not take the spec with it: crashes, ends.
--
-- child(text, opts): runs text under stock luajit and returns what it wrote (both streams) and its
-- exit status, 128 + n where signal n ended it. opts: args (a string), env ("A=1 B=2"), limit
-- (seconds, 120). The program finds tide as the spec does.

local files = require 'spec.support.files'
local limit = require 'spec.support.limit'

local head = [[
local build = os.getenv 'TIDE_BUILD'
if build then
   package.loaded['tide.host'] = { library = build .. '/libtide.so',
      host_library = build .. '/libtide_host.so' }
end
]]

return function(text, opts)
   opts = opts or {}
   local path = os.tmpname()
   files.write(path, head:gsub('\n', ' ') .. text)
   local pipe = assert(io.popen(('%s timeout -s KILL %d %s %s %s 2>&1; echo "status=$?"'):format(
      opts.env or '', limit(opts.limit or 120), os.getenv 'TIDE_LUAJIT' or 'luajit', path,
      opts.args or '')))
   local out = pipe:read '*a'
   pipe:close()
   os.remove(path)
   local body, status = out:match '^(.*)status=(%d+)%s*$'
   return body, tonumber(status)
end
