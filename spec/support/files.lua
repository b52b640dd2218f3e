-- Files as specs read and write them: whole, byte by byte, and an error if that fails.

local files = {}

function files.read(path)
   local f = assert(io.open(path, 'rb'))
   local text = f:read '*a'
   f:close()
   return text
end

function files.write(path, text)
   local f = assert(io.open(path, 'wb'))
   f:write(text)
   f:close()
end

-- The lines that a command prints.
function files.lines_of(command)
   local pipe = assert(io.popen(command))
   local list = {}
   for line in pipe:lines() do list[#list + 1] = line end
   pipe:close()
   return list
end

return files
