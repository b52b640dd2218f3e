-- Programs that specs run: their output, and where those of the CUDA toolkit are.

local toolkit = {}

-- Both streams of a shell command.
function toolkit.capture(command)
   local pipe = assert(io.popen('{ ' .. command .. '; } 2>&1'))
   local text = pipe:read '*a'
   pipe:close()
   return text
end

-- The path of a program of the CUDA toolkit: $CUOBJDUMP or the like, PATH, /usr/local/cuda. Or nil.
function toolkit.tool(name)
   local found = toolkit.capture('command -v ' .. name .. ' 2>/dev/null'):match '^%S+'
   for _, path in ipairs { os.getenv(name:upper()) or '', found or '',
                           '/usr/local/cuda/bin/' .. name } do
      local file = path ~= '' and io.open(path)
      if file then
         file:close()
         return path
      end
   end
end

return toolkit
