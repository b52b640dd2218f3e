-- The read-eval-print loop behind `tide repl`: lines from a terminal or a pipe go to a session
-- (repl/session.lua) of this state, or of each of several ranks (repl/ranks.lua).

local complete = require 'tide.repl.complete'
local copy = require 'tide.util.copy'
local session = require 'tide.repl.session'

local repl = { session = session.new }

local prompt, more_prompt = 'tide> ', '   .. '

local function from_pipe(target)
   local line, why = io.read()
   while line and not target.ended do
      target:feed(line)
      io.stdout:flush()
      if not target.ended then line, why = io.read() end
   end
   if why then
      session.fail(('tide: repl: cannot read the standard input: %s\n'):format(why))
      return 1
   end
   target:finish()
   return target.status or target.errors > 0 and 1 or 0
end

-- Feeds a text of several lines.
local function feed(target, text)
   local more
   for line in (text .. '\n'):gmatch '(.-)\n' do
      more = target:feed(line)
      if target.ended then break end
   end
   return more
end

local function from_terminal(target, read)
   target.write(('tide %s (? for help)\n'):format(target.version or ''))
   local more = false
   while true do
      local line, why = read(more and more_prompt or prompt)
      if line then
         more = feed(target, line)
         if target.ended then return target.status or 0 end
      elseif why == 'interrupt' then
         target:drop()
         target.write '\n'
         more = false
      else
         target.write '\n'
         return 0
      end
   end
end

local function history_path()
   local home = os.getenv 'HOME'
   return home and home .. '/.tide_history' or nil
end

-- Returns whether a text needs no more lines: Enter then runs it, line by line, as it is fed.
local function is_whole(text)
   local pending
   for line in (text .. '\n'):gmatch '(.-)\n' do
      if not pending then line = line:gsub('^%s*%%[%d,%-]+%s', ''):gsub('^%s*=', '') end
      if pending or line:match '%S' and not session.is_command(line) then
         local source = pending and pending .. '\n' .. line or line
         local fn, more = session.parse(source)
         pending = not fn and more == true and source or nil
      end
   end
   return pending == nil
end

local function plain_read(text)
   io.stdout:write(text)
   io.stdout:flush()
   return io.read()
end

-- Returns the session of this state, with tide in its environment.
local function one(opts)
   local tide = require 'tide'
   local extra = copy(opts.env or {}, { tide = tide })
   local target = session.new { env = extra, write = opts.write, fail = opts.fail }
   target.version = tide.version
   function target.complete(before) return complete.matches(target.env, before) end
   return target
end

-- Runs a session on standard input until it ends; returns the exit status. opts: as repl.session.
-- A host with several ranks has left a board (bindings/cli/board.c) in package.loaded['tide.host'].
function repl.run(opts)
   opts = opts or {}
   local host = package.loaded['tide.host']
   local board = type(host) == 'table' and host.board
   local target = board and require('tide.repl.ranks').session(board, opts) or one(opts)
   local edit = require 'tide.ffi.edit'
   if not edit.isatty(0) then
      -- mpirun reads the terminal and passes whole lines on.
      local typed = board and board.processes and edit.launcher_isatty()
      return typed and from_terminal(target, plain_read) or from_pipe(target)
   end
   local editor = edit.open { history = history_path(), complete = target.complete,
      accepts = is_whole }
   local status = from_terminal(target, editor
      and function(text) return editor:read(text, more_prompt) end or plain_read)
   if editor then editor:close() end
   return status
end

return repl
