-- A child process in lock step: one line asked, one line answered.
--
-- The question goes through the child's standard input (popen). The answer goes through a named
-- pipe, which is unlinked as soon as both ends are open. The standard library is enough.

local child = {}

local Child = {}
Child.__index = Child

function child.quote(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- Returns the standard output of a shell command.
function child.output(command)
   local pipe = assert(io.popen(command))
   local text = pipe:read '*a'
   pipe:close()
   return text
end

-- The child's side: answers each line of standard input, `VERB REST`, with verbs[VERB](REST).
function child.serve(verbs)
   for line in io.lines() do
      local verb, rest = line:match '^(%S+)%s*(.*)$'
      local ok, answer = pcall(verbs[verb] or error, rest)
      if not ok then answer = 'error ' .. tostring(answer):gsub('\n', ' ') end
      io.stdout:write(answer, '\n')
      io.stdout:flush()
   end
end

-- Starts a shell command; env is a table of variables to set. Its standard error is ours.
function child.start(command, env)
   local path = os.tmpname()
   os.remove(path)
   assert(os.execute('mkfifo ' .. child.quote(path)) == 0, 'cannot make a named pipe at ' .. path)
   local words = {}
   for name, value in pairs(env or {}) do words[#words + 1] = name .. '=' .. child.quote(value) end
   table.sort(words)
   local to = assert(io.popen(('exec env %s %s > %s'):format(table.concat(words, ' '), command,
      child.quote(path)), 'w'))
   local from = assert(io.open(path, 'r'))
   os.remove(path)
   return setmetatable({ to = to, from = from, command = command }, Child)
end

-- The answer to a line, or nil and what went wrong.
function Child:try(line)
   self.to:write(line, '\n')
   self.to:flush()
   local answer = self.from:read '*l'
   if not answer then return nil, 'ended without an answer' end
   if answer:find '^error' then return nil, answer:sub(7) end
   return answer
end

function Child:ask(line)
   local answer, why = self:try(line)
   if not answer then error(('%s: %s: %s'):format(self.command, line, why), 0) end
   return answer
end

-- The answer as numbers.
function Child:numbers(line)
   local list = {}
   for word in self:ask(line):gmatch '%S+' do list[#list + 1] = tonumber(word) end
   return list
end

-- Ends the child and waits for it.
function Child:close()
   self.to:close()
   self.from:close()
end

return child
