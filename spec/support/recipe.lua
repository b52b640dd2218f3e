-- Recipes as people run them: as programs, from a folder of their own, so that nothing in the tree
-- is read or written that a person made there (runs/).

local files = require 'spec.support.files'
local limit = require 'spec.support.limit'

local recipe = {}

local luajit = os.getenv 'TIDE_LUAJIT' or 'luajit'
local root = io.popen 'pwd':read '*l'

local function absolute(path) return path:sub(1, 1) == '/' and path or root .. '/' .. path end

-- The first word of a command line as a path from the root of the file system, the rest as it is;
-- quoted for the shell, since the tree may lie in a folder with a space.
function recipe.path(words)
   local name, rest = words:match '^(%S+)(.*)$'
   return '"' .. absolute(name) .. '"' .. rest
end

-- The prefix of a command, which ends it if it hangs.
recipe.timeout = 'timeout -k 5 ' .. limit(180)

recipe.program = '"' .. absolute(os.getenv 'TIDE_BUILD' or 'build') .. '/tide"'

-- Output (both streams) and exit status of a command line in an empty folder, which then goes.
function recipe.shell(command)
   local pipe = assert(io.popen(('d=$(mktemp -d) && cd "$d" && { %s; } 2>&1; s=$?; cd /; '
      .. 'rm -rf "$d"; echo "status=$s"'):format(command)))
   local text = pipe:read '*a'
   pipe:close()
   local body, status = text:match '^(.*)status=(%d+)%s*$'
   return body, tonumber(status)
end

-- `luajit recipes/WORDS`.
function recipe.luajit(words)
   return recipe.shell(('%s %s %s'):format(recipe.timeout, luajit,
      recipe.path('recipes/' .. words)))
end

-- `tide run -n N recipes/WORDS`.
function recipe.ranks(n, words)
   return recipe.shell(('%s %s run -n %d %s'):format(recipe.timeout, recipe.program, n,
      recipe.path('recipes/' .. words)))
end

-- `tide run OPTIONS FILE` with the program `code` as the file.
function recipe.source(code, options)
   local path = os.tmpname()
   files.write(path, code)
   local text, status = recipe.shell(('%s %s run %s %s'):format(recipe.timeout, recipe.program,
      options, path))
   os.remove(path)
   return text, status
end

-- The numbers called `name` (default: loss) in the metrics of a run, by step.
function recipe.losses(dir, name)
   local list = {}
   for line in files.read(dir .. '/metrics.jsonl'):gmatch '[^\n]+' do
      list[tonumber(line:match '"step":(%d+)')] =
         tonumber(line:match('"' .. (name or 'loss') .. '":([%d.e+-]+)'))
   end
   return list
end

return recipe
