-- A session of a prompt: an environment in which lines run.
--
-- Expressions print their values, statements run; unfinished input asks for more; locals of a chunk
-- stay as globals of the session. Errors print and the session continues: besides the training loop
-- this is the only place that catches them.

local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local help = require 'tide.repl.help'
local hint = require 'tide.repl.hint'
local Input = require 'tide.repl.input'
local pack = require 'tide.ffi.pack'
local show = require 'tide.repl.show'

local session = {}

local Session = {}
Session.__index = Session

-- Returns the session environment: globals of the state, with names assigned here kept apart.
local function new_env(extra)
   local env = copy(extra or {})
   local names = setmetatable(env, { __index = _G })
   names._G = env
   return env
end

-- Writes the output of a session.
function session.write(text) io.stdout:write(text) end

-- Writes an error after the earlier output, also in a pipe.
function session.fail(text)
   io.stdout:flush()
   io.stderr:write(text)
end

-- Begins a session. opts: env (extra names), write(text), fail(text) for errors.
function session.new(opts)
   opts = err.options('repl.session', opts, { 'env', 'write', 'fail' })
   if type(opts.env) ~= 'nil' then err.type('repl.session', 'env', opts.env, 'table') end
   return setmetatable({
      env = new_env(opts.env), pending = nil, errors = 0,
      write = opts.write or session.write, fail = opts.fail or session.fail,
   }, Session)
end

-- Returns whether more lines may complete a source: not where a quoted string has no end.
local function is_incomplete(source, message)
   local unfinished = message:find 'unfinished string'
   return message:find "near '<eof>'" ~= nil
      and (not unfinished or source:find '\\$' ~= nil)
end

-- Returns its arguments. An expression runs as its argument, so that the line stays on the stack,
-- where errors look for it.
local function pass(...) return ... end

-- Returns a function that makes the locals of its calling chunk names of the session and returns
-- pass.
local function keeper(env)
   return function()
      local i = 1
      while true do
         local name, value = debug.getlocal(2, i)
         if not name then return pass end
         if not name:match '^%(' then env[name] = value end
         i = i + 1
      end
   end
end

local chunk_name = '=input'

-- Returns fn, switched to the interpreter so that Ctrl-C stops its loops; functions that it calls
-- are compiled as usual.
local function interpreted(fn)
   jit.off(fn, true)
   return fn
end

local most_semicolons = 20 -- that an expression at the end of a line may contain

-- Compiles a line that ends with an expression after a semicolon, as in "x = 1; x", so that its
-- value is that of the line; nil for other lines. Lua alone would wait for the rest of a statement.
local function with_value(source)
   local seen = 0
   for at = #source, 1, -1 do
      if seen > most_semicolons then return nil end
      if source:byte(at) == 59 then
         seen = seen + 1
         local fn = loadstring(('local __keep = ... %s return __keep()(%s\n)'):format(
            source:sub(1, at), source:sub(at + 1)), chunk_name)
         if fn then return fn end
      end
   end
end

-- Compiles a chunk as an expression, else as statements that keep their locals, else unchanged.
-- Returns the function and its argument ('pass', 'keep' or ''); or nil and the message of the
-- syntax error, or true if more lines are needed to complete it.
function session.parse(source)
   err.type('repl.session.parse', 'source', source, 'string')
   local fn, as_value = loadstring('return ' .. source, chunk_name)
   if fn then
      local call = 'local __pass = ... return __pass(' .. source
      local passed = loadstring(call .. ')', chunk_name) or loadstring(call .. '\n)', chunk_name)
      return interpreted(passed or fn), passed and 'pass' or ''
   end
   fn = loadstring('local __keep = ... ' .. source .. '\n;__keep()', chunk_name)
   if fn then return interpreted(fn), 'keep' end
   local message
   fn, message = loadstring(source, chunk_name)
   if fn then return interpreted(fn), '' end
   fn = with_value(source)
   if fn then return interpreted(fn), 'keep' end
   if is_incomplete(source, message) or is_incomplete(source, as_value) then return nil, true end
   return nil, hint.syntax(source, message)
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
      if line:find 'tide/repl/session%.lua' then break end
      kept[#kept + 1] = line
   end
   return #kept > 4 and table.concat(kept, '\n') or e
end

-- Calls fn, an xpcall, as a line that Ctrl-C stops, where the host of the state knows of it.
local function as_line(fn)
   local host = package.loaded['tide.host']
   if type(host) == 'table' and host.line then return host.line(fn) end
   return fn()
end

-- Clears an interrupt that has stopped no op.
local function clear_interrupt(env)
   local tide = env.tide
   if tide and tide.default then tide.default():interrupted() end
end

-- Runs fn(gift) as a line of the prompt, and returns what xpcall returns. No tail calls: a
-- traceback ends at this file, and an error that a hook raises again is raised here.
local function run_line(fn, gift)
   return pack(as_line(function()
      local ran = pack(xpcall(function()
         local r = pack(fn(gift))
         return unpack(r, 1, r.n)
      end, traceback))
      return unpack(ran, 1, ran.n)
   end))
end

-- Runs a compiled line in the session's environment and shows what it returns. given: as parse
-- returns it; source: its text; a semicolon at its end: nothing is shown. Returns whether it ran to
-- its end.
function Session:execute(fn, given, source)
   err.type('repl.session.execute', 'fn', fn, 'function')
   err.type('repl.session.execute', 'source', source, 'string')
   setfenv(fn, self.env)
   clear_interrupt(self.env)                -- Ctrl-C before the line stops nothing of it
   local r = run_line(fn, given == 'keep' and keeper(self.env) or given == 'pass' and pass or nil)
   self.env.__keep = nil
   clear_interrupt(self.env)
   if not r[1] then
      self:report(type(r[2]) == 'string' and hint.error(r[2], source, self.env) or r[2])
      return false
   end
   if r.n > 1 then self.env._ = r[2] end
   if source:match ';%s*$' then return true end
   for i = 2, r.n do
      local ok, text = pcall(show.text, r[i])
      if ok then self.write(text .. '\n') else self:report(text) end
   end
   return true
end

-- Returns the value of an expression in the session; raises if it does not compile or fails.
function Session:_value(source)
   local fn, given = session.parse(source)
   if not fn then err.raise('E_ARG', 'input', '%s', given == true and 'unfinished' or given) end
   setfenv(fn, self.env)
   local r = run_line(fn, given == 'pass' and pass or nil)
   clear_interrupt(self.env)
   if not r[1] then error(r[2], 0) end
   return r[2]
end

-- Returns the value of a dotted name in the session, or of a name of tide or of a tensor method; or
-- nil, and the names among which it is missing.
local function lookup(self, name)
   local value, place = help.value_of(self.env, name)
   if value ~= nil then return value end
   local names = help.names(type(place) == 'table' and place or {})
   if self.env.tide and (name:match '^[%w_]+$' or type(place) == 'cdata') then
      local op = require 'tide.ffi.op'
      for _, source in ipairs { self.env.tide, op } do
         if type(place) ~= 'cdata' then value = value or help.value_of(source, name) end
         for _, k in ipairs(help.names(source)) do names[#names + 1] = k end
      end
   end
   return value, names
end

local function help_line(self, name)
   if name == 'help' and self.env.help == nil then name = '' end
   if name:match '^:%a+$' then
      return self.write(require('tide.repl.command').about(name) .. '\n')
   end
   self.write((name == '' and help.text '' or help.text(name, lookup(self, name))) .. '\n')
end

local words = { help = true, exit = true, quit = true }

-- Runs a line that is one of these words, unless the session has a value of that name. Returns
-- whether it did.
local function command(self, line)
   local word = line:match '^%s*(%a+)%s*;?%s*$' or line:match '^%s*(%a+)%s*%(%s*%)%s*$'
   if not words[word] or self.env[word] ~= nil then return false end
   if word == 'help' then help_line(self, '') else self.ended = true end
   return true
end

-- Returns the name that a line asks help on: ?name, name?, help(name); nil for other lines.
local function asked_name(line, env)
   return line:match '^%s*%?%s*([%w_%.:]*)%s*$' or line:match '^%s*([%w_%.:]+)%s*%?%s*$'
      or (not env or env.help == nil) and line:match '^%s*help%s*%(%s*([%w_%.:]+)%s*%)%s*$' or nil
end

-- Returns whether a line is not Lua: help, or a command of repl/command.lua.
function session.is_command(line)
   err.type('repl.session.is_command', 'line', line, 'string')
   return line:find '^%s*:%a' ~= nil or asked_name(line) ~= nil
end

-- Runs a line that begins with a colon.
local function run_command(self, line)
   local ok, problem = pcall(require('tide.repl.command').run, self, line)
   if not ok then self:report((err.text(problem):gsub('^[^\n]-tide%.(:%a+: )', '%1'))) end
end

-- Adds a line to the unfinished input of a prompt, in its field `pending`, and compiles it if it is
-- due. Returns its text and what parse returns; nil if more lines are needed.
function session.take(self, line)
   local input = self.pending or Input()
   input:add(line)
   self.pending = input
   if not input:is_due() then return nil end
   local source = input:text()
   local fn, given = session.parse(source)
   if given == true then return nil end
   self.pending = nil
   return source, fn, given
end

-- Takes one line. Returns true if more lines are needed to complete the input. After `exit` or
-- `quit` the field `ended` is true.
function Session:feed(line)
   err.type('repl.session.feed', 'line', line, 'string')
   if not self.pending then
      if command(self, line) then return false end
      if line:find '^%s*:%a' then
         run_command(self, line)
         return false
      end
      local name = asked_name(line, self.env)
      if name then
         help_line(self, name)
         return false
      end
      line = line:gsub('^%s*=', '')
      if not line:match '%S' then return false end
   end
   local source, fn, given = session.take(self, line)
   if not source then return true end
   if not fn then
      self:report(given)
      return false
   end
   self:execute(fn, given, source)
   return false
end

-- Forgets unfinished input.
function Session:drop() self.pending = nil end

-- Ends the input: runs what was not due yet. An unfinished statement is an error.
function Session:finish()
   if not self.pending then return end
   local source = self.pending:text()
   local fn, given = session.parse(source)
   self.pending = nil
   if fn then
      self:execute(fn, given, source)
   else
      self:report(given == true and select(2, loadstring(source, chunk_name)) or given)
   end
end

return session
