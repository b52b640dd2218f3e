-- The read-eval-print loop behind `tide repl`.
--
-- A session is a value: an environment, a reader, a writer. Expressions print their values,
-- statements run; unfinished input asks for more; locals of a chunk stay as globals of the
-- session. Input from a pipe works the same without prompts. Errors print and the loop goes on:
-- besides the training loop this is the place where they are caught.

local complete = require 'tide.repl.complete'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local help = require 'tide.repl.help'
local pack = require 'tide.ffi.pack'
local pretty = require 'tide.util.pretty'

local repl = {}

local Session = {}
Session.__index = Session

-- The session environment: globals of the state, with names assigned here kept apart.
local function new_env(extra)
   local env = {}
   for k, v in each(extra or {}) do env[k] = v end
   local names = setmetatable(env, { __index = _G })
   names._G = env
   return env
end

-- opts: env (extra names), write(text), fail(text) for errors.
function repl.session(opts)
   opts = err.options('repl.session', opts, { 'env', 'write', 'fail' })
   if type(opts.env) ~= 'nil' then err.type('repl.session', 'env', opts.env, 'table') end
   return setmetatable({
      env = new_env(opts.env), pending = nil, errors = 0, count = 0,
      write = opts.write or function(s) io.stdout:write(s) end,
      fail = opts.fail or function(s)
         io.stdout:flush()                    -- what came before stands before, also in a pipe
         io.stderr:write(s)
      end,
   }, Session)
end

local function is_incomplete(message)
   return message:find("'<eof>'", 1, true) ~= nil or message:find('unfinished', 1, true) ~= nil
end

-- Names of the locals of the chunk that calls this become names of the session.
local function keeper(env)
   return function()
      local i = 1
      while true do
         local name, value = debug.getlocal(2, i)
         if not name then return end
         if not name:match '^%(' then env[name] = value end
         i = i + 1
      end
   end
end

local chunk_name = '=input'

-- The chunk as an expression, else as statements that keep their locals, else as it stands.
-- Returns the function, or nil and the message of the syntax error.
local function compile(source)
   local fn = loadstring('return ' .. source, chunk_name)
   if fn then return fn end
   fn = loadstring('local __keep = ... ' .. source .. '\n;__keep()', chunk_name)
   if fn then return fn, nil, true end
   return loadstring(source, chunk_name)
end

local function show(value)
   if type(value) == 'table' then return pretty.format(value) end
   if type(value) == 'string' then return pretty.format(value) end
   return tostring(value)
end

-- Writes an error, and counts it.
function Session:report(problem)
   self.errors = self.errors + 1
   self.fail(err.text(problem):gsub('\n*$', '') .. '\n')
end

local function traceback(e)
   if type(e) ~= 'string' or err.of(e) then return e end
   local text = debug.traceback(e, 2)
   local kept = {}
   for line in text:gmatch '[^\n]+' do
      if line:find('[C]: in function \'xpcall\'', 1, true) then break end
      kept[#kept + 1] = line
   end
   return #kept > 3 and table.concat(kept, '\n') or e
end

-- Runs a compiled line in the session's environment and shows what it returns. keeps: fn is
-- given a function that keeps locals; silent: nothing is shown.
function Session:execute(fn, keeps, silent)
   err.type('repl.session.execute', 'fn', fn, 'function')
   setfenv(fn, self.env)
   local keep = keeps and keeper(self.env) or nil
   local r = pack(xpcall(function() return fn(keep) end, traceback))
   self.env.__keep = nil
   if not r[1] then
      self:report(r[2])
      return
   end
   if r.n > 1 then self.env._ = r[2] end
   if silent then return end
   for i = 2, r.n do
      local ok, text = pcall(show, r[i])
      if ok then self.write(text .. '\n') else self:report(text) end
   end
end

-- The value of a dotted name in the session, or of a name of tide or of a tensor method.
local function lookup(self, name)
   local value = self.env
   for part in name:gmatch '[^%.:]+' do
      local ok, inner = pcall(function() return value[part] end)
      value = ok and inner or nil
      if value == nil then break end
   end
   if value == nil and self.env.tide and name:match '^[%w_]+$' then
      local ok, inner = pcall(function() return self.env.tide[name] end)
      value = ok and inner or nil
      if value == nil then
         local found, op = pcall(require, 'tide.ffi.op')
         value = found and op[name] or nil
      end
   end
   return value
end

local function help_line(self, name)
   if name == 'help' and self.env.help == nil then name = '' end
   self.write(help.text(name, name ~= '' and lookup(self, name) or nil) .. '\n')
end

local words = { help = true, exit = true, quit = true }

-- A line that is one of these words is a command, unless the session has a value of that name.
local function command(self, line)
   local word = line:match '^%s*(%a+)%s*;?%s*$' or line:match '^%s*(%a+)%s*%(%s*%)%s*$'
   if not words[word] or self.env[word] ~= nil then return false end
   if word == 'help' then help_line(self, '') else self.ended = true end
   return true
end

-- Takes one line. Returns true if more lines are needed to complete the input. After `exit` or
-- `quit` the field `ended` is true.
function Session:feed(line)
   err.type('repl.session.feed', 'line', line, 'string')
   if not self.pending then
      if command(self, line) then return false end
      local name = line:match '^%s*%?%s*([%w_%.:]*)%s*$'
         or line:match '^%s*([%w_%.:]+)%s*%?%s*$'
         or self.env.help == nil and line:match '^%s*help%s*%(%s*([%w_%.:]+)%s*%)%s*$'
      if name then
         help_line(self, name)
         return false
      end
      line = line:gsub('^%s*=', '')
      if not line:match '%S' then return false end
   end
   local source = self.pending and self.pending .. '\n' .. line or line
   local fn, message, keeps = compile(source)
   if not fn and is_incomplete(message) then
      self.pending = source
      return true
   end
   self.pending = nil
   if not fn then
      self:report(message)
      return false
   end
   self.count = self.count + 1
   self:execute(fn, keeps, source:match ';%s*$' ~= nil)
   return false
end

-- Forgets unfinished input.
function Session:drop() self.pending = nil end

-- End of input: what is unfinished is an error.
function Session:finish()
   if not self.pending then return end
   local _, message = compile(self.pending)
   self.pending = nil
   self:report(message)
end

local function from_pipe(session)
   for line in io.lines() do
      session:feed(line)
      io.stdout:flush()
      if session.ended then break end
   end
   session:finish()
   return session.errors > 0 and 1 or 0
end

local function clear_interrupt(session)
   local tide = session.env.tide
   if tide and tide.default then tide.default():interrupted() end
end

local function from_terminal(session, read)
   session.write(('tide %s (? for help)\n'):format(session.version or ''))
   local more = false
   while true do
      local line, why = read(more and '   .. ' or 'tide> ')
      if line then
         more = session:feed(line)
         if session.ended then return 0 end
         clear_interrupt(session)
      elseif why == 'interrupt' then
         session:drop()
         clear_interrupt(session)
         session.write '\n'
         more = false
      else
         session.write '\n'
         return 0
      end
   end
end

local function history_path()
   local home = os.getenv 'HOME'
   return home and home .. '/.tide_history' or nil
end

local function plain_read(prompt)
   io.stdout:write(prompt)
   io.stdout:flush()
   return io.read()
end

-- Runs a session on standard input until it ends; returns the exit status. opts: as repl.session.
function repl.run(opts)
   opts = opts or {}
   local tide = require 'tide'
   local extra = { tide = tide }
   for k, v in each(opts.env or {}) do extra[k] = v end
   local session = repl.session { env = extra, write = opts.write, fail = opts.fail }
   session.version = type(tide.version) == 'function' and tide.version() or tide.version
   local edit = require 'tide.ffi.edit'
   if not edit.isatty(0) then return from_pipe(session) end
   local editor = edit.open {
      history = history_path(),
      complete = function(text, line) return complete.matches(session.env, text, line) end,
   }
   local status = from_terminal(session, editor
      and function(prompt) return editor:read(prompt) end or plain_read)
   if editor then editor:close() end
   return status
end

return repl
