-- The read-eval-print loop behind `tide repl`: lines from a terminal or a pipe go to a session
-- (repl/session.lua) of this state, or of each of several ranks (repl/ranks.lua).

local complete = require 'tide.repl.complete'
local each = require 'tide.util.each'
local session = require 'tide.repl.session'

local repl = { session = session.new }

local function from_pipe(target)
   for line in io.lines() do
      target:feed(line)
      io.stdout:flush()
      if target.ended then break end
   end
   target:finish()
   return target.status or target.errors > 0 and 1 or 0
end

local function from_terminal(target, read)
   target.write(('tide %s (? for help)\n'):format(target.version or ''))
   local more = false
   while true do
      local line, why = read(more and '   .. ' or 'tide> ')
      if line then
         more = target:feed(line)
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

local function plain_read(prompt)
   io.stdout:write(prompt)
   io.stdout:flush()
   return io.read()
end

-- The session of this state, with tide in its environment.
local function one(opts)
   local tide = require 'tide'
   local extra = { tide = tide }
   for k, v in each(opts.env or {}) do extra[k] = v end
   local target = session.new { env = extra, write = opts.write, fail = opts.fail }
   target.version = tide.version
   function target.complete(text, line) return complete.matches(target.env, text, line) end
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
   if not edit.isatty(0) then return from_pipe(target) end
   local editor = edit.open { history = history_path(), complete = target.complete }
   local status = from_terminal(target, editor
      and function(prompt) return editor:read(prompt) end or plain_read)
   if editor then editor:close() end
   return status
end

return repl
