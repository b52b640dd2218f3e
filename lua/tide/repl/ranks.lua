-- A prompt over several ranks.
--
-- The host (bindings/cli/board.c) carries texts between this state, which reads the lines, and one
-- state a rank, each in its thread, or in its process. A text is plain data: to a rank a request,
-- { kind, text, .. }; from it 'out' (what a line prints while it runs) or 'done' (its result).
-- Between two lines every rank has paused (tide_group_pause, tide_comm_pause): a collective that
-- not all ranks enter fails, and works again on the next line. Processes take part in every line,
-- also those that do not run it ('idle').

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local merge = require 'tide.repl.merge'
local plain = require 'tide.ffi.plain'
local session = require 'tide.repl.session'

local ranks = {}

-- ---- on a rank -------------------------------------------------------------------------------

-- Returns an object in place of io.stdout or io.stderr that passes its output to `write`.
local function proxy(write)
   local f = setmetatable({}, { __tostring = function() return 'file (of a rank)' end })
   function f:write(...)
      for i = 1, select('#', ...) do
         local v = select(i, ...)
         if type(v) ~= 'string' and type(v) ~= 'number' then
            error(("bad argument #%d to 'write' (string expected, got %s)"):format(i, type(v)), 2)
         end
         write(tostring(v))
      end
      return self
   end
   function f:flush() return self end
   function f:setvbuf() return true end
   function f:close() return true end
   return f
end

-- Sends what this state prints to `write`.
local function redirect(write)
   for _, name in ipairs { 'stdout', 'stderr' } do rawset(io, name, proxy(write)) end
   rawset(io, 'write', function(...) return io.stdout:write(...) end)
   _G.print = function(...)
      local t = { ... }
      for i = 1, select('#', ...) do t[i] = tostring(t[i]) end
      write(table.concat(t, '\t', 1, select('#', ...)) .. '\n')
   end
end

-- Clears the record of what ranks have compared: after a failure it may differ between ranks.
local function forget_agreements()
   for _, comm in ipairs(require('tide.ffi.dist').open()) do rawset(comm, '_agreed', nil) end
end

-- Runs a line between resume and pause. Returns what it shows, and its error.
local function turn(self, request)
   local shown, failed = {}, {}
   self.session.env.tide.default():interrupted() -- of a Ctrl-C between two lines
   self.session.write = function(text) shown[#shown + 1] = text end
   self.session.fail = function(text) failed[#failed + 1] = text end
   self.turns.resume()
   if request.whole then forget_agreements() end
   if request.kind == 'line' then
      self.session:feed(request.text)
      self.session:finish()
   end
   local ok, why = pcall(self.turns.pause)
   if not ok then failed[#failed + 1] = tostring(why) .. '\n' end
   return { kind = 'done', shown = table.concat(shown), failed = table.concat(failed) }
end

local function answer(self, request)
   if request.kind ~= 'complete' then return turn(self, request) end
   local complete = require 'tide.repl.complete'
   local ok, list, word = pcall(complete.matches, self.session.env, request.text)
   return { kind = 'done', list = ok and list or nil, word = ok and word or nil }
end

-- Returns how rank `rank` of a host's ranks pauses and resumes.
local function turns_of(host, rank)
   local group = not host.board.processes and require('tide.ffi.dist').group_at(host.group)
   local world = not group and require('tide.comm').world()
   return {
      pause = function() if group then group:pause(rank) else world:pause() end end,
      resume = function() if group then group:resume(rank) else world:resume() end end,
   }
end

-- Runs on each rank: takes requests from the board until the prompt ends.
function ranks.serve()
   local host = package.loaded['tide.host']
   local board, tide = host.board, require 'tide'
   local function give(reply) board.give(plain.encode(reply, 'repl')) end
   redirect(function(text) give { kind = 'out', text = text } end)
   local self = { turns = turns_of(host, board.rank),
      session = session.new { env = { tide = tide, rank = board.rank, size = board.size } } }
   self.turns.pause()
   give { kind = 'done', version = tide.version }
   for text in board.take do give(answer(self, plain.decode(text))) end
end

-- Connects the processes of a launcher to that of rank 0; each calls it before its rank starts.
-- MPI starts here, in the main thread.
function ranks.meet()
   local board, comm = package.loaded['tide.host'].board, require 'tide.comm'
   local here, world = require('tide.comm.env').detect(), comm.world()
   local address = board.rank == 0 and board.listen(here.local_size == here.size) or nil
   address = world:broadcast_object(address)
   if board.rank == 0 then board.accept() else board.connect(address) end
   comm.close()
end

-- ---- at the prompt ---------------------------------------------------------------------------

local Many = {}
Many.__index = Many

-- Collects the replies of the ranks in `asked`, by rank, until each is done. nil if the ranks have
-- ended. on(rank, text): their output meanwhile; idle(): called now and then.
local function collect(self, asked, on, idle)
   local replies, left = {}, #asked
   while left > 0 do
      local rank, text = self.board.next(0.1)
      if not rank and text == 'ended' then
         self.ended = true
         return nil
      end
      local reply = rank and plain.decode(text)
      if reply and reply.kind == 'out' then on(rank, reply.text)
      elseif reply then
         replies[rank], left = reply, left - 1
         on(rank, nil)
      end
      if idle then idle() end
   end
   return replies
end

local function post(self, asked, request)
   local text = plain.encode(request, 'repl')
   for _, rank in ipairs(asked) do self.board.post(rank, text) end
end

-- Runs a line on the ranks asked. Returns all replies by rank.
local function play(self, asked, text, stream)
   local is_asked, idle = {}, {}
   for _, rank in ipairs(asked) do is_asked[rank] = true end
   for _, rank in ipairs(self.board.processes and self.all or {}) do
      if not is_asked[rank] then idle[#idle + 1] = rank end
   end
   local whole = #asked == self.board.size
   post(self, idle, { kind = 'idle' })
   post(self, asked, { kind = 'line', text = text, whole = whole })
   return collect(self, #idle > 0 and self.all or asked, function(rank, part)
      if part then stream:add(rank, part) elseif is_asked[rank] then stream:finish(rank) end
   end, function() stream:flush() end)
end

-- Runs a line on the ranks asked, and shows what they say.
local function run(self, asked, text)
   local replies = play(self, asked, text, merge.stream(asked, self.write, self.board.now))
   if not replies then return end
   local shown, failed, errors = {}, {}, false
   for _, rank in ipairs(asked) do shown[rank] = replies[rank].shown end
   for rank, reply in each(replies) do
      failed[rank] = reply.failed
      errors = errors or reply.failed ~= ''
   end
   self.write(merge.text(shown, asked))
   if errors then
      self.errors = self.errors + 1
      self.fail(merge.text(failed, asked))
   end
end

-- Returns the ranks of a text "0,2-3" in ascending order, or nil and what is wrong with the text.
local function ranks_of(text, size)
   local chosen, list = {}, {}
   for part in (text .. ','):gmatch '([^,]*),' do
      local first, last = part:match '^(%d+)%-?(%d*)$'
      if not first or (part:find '%-' and last == '') then return nil, "expected %0 or %0,2-3" end
      last = tonumber(last ~= '' and last or first)
      if last >= size or tonumber(first) > last then
         return nil, ('the ranks are 0 to %d'):format(size - 1)
      end
      for rank = tonumber(first), last do chosen[rank] = true end
   end
   for rank = 0, size - 1 do if chosen[rank] then list[#list + 1] = rank end end
   return list
end

local function fail(self, text)
   self.errors = self.errors + 1
   self.fail(text .. '\n')
   return false
end

-- Returns the ranks that a first line names and the rest of it; all ranks without a name.
local function address(self, line)
   local text, rest = line:match '^%s*%%([%d,%-]+)%s+(.*)$'
   if not text then return self.all, line end
   local asked, why = ranks_of(text, self.board.size)
   if not asked then return nil, ('%%%s: %s'):format(text, why) end
   return asked, rest
end

local words = { exit = true, quit = true, ['exit()'] = true, ['quit()'] = true }

-- Feeds a line to the ranks that it names, as Session:feed does. `exit` and `quit` end the prompt.
function Many:feed(line)
   err.type('repl.ranks.feed', 'line', line, 'string')
   if self.ended then return false end
   local asked, source = self.asked, line
   if not self.pending then
      if words[line:match '^%s*(.-)[%s;]*$'] then
         self.ended = true
         return false
      end
      asked, source = address(self, line)
      if not asked then return fail(self, source) end
      if not source:match '%S' then return false end
   end
   if self.pending or not session.is_command(source) then
      local fn, problem
      if not self.pending then source = source:gsub('^%s*=', '') end
      self.asked = asked
      source, fn, problem = session.take(self, source)
      if not source then return true end
      if not fn then return fail(self, problem) end
   end
   run(self, asked, source)
   return false
end

-- Forgets unfinished input.
function Many:drop() self.pending = nil end

-- Ends the input; an unfinished statement is an error.
function Many:finish()
   if not self.pending then return end
   local source = self.pending:text()
   self.pending = nil
   if session.parse(source) then return run(self, self.asked, source) end
   fail(self, "input: unfinished at the end of the input")
end

-- Returns a session on the ranks of a host's board. opts: write(text), fail(text).
function ranks.session(board, opts)
   opts = err.options('repl.ranks.session', opts, { 'env', 'write', 'fail' })
   local self = setmetatable({ board = board, all = {}, errors = 0,
      write = opts.write or session.write, fail = opts.fail or session.fail }, Many)
   for rank = 0, board.size - 1 do self.all[rank + 1] = rank end
   local first = collect(self, self.all, function() end)
   self.version = first and ('%s, %d ranks'):format(first[0].version, board.size)
   function self.complete(before)
      post(self, { 0 }, { kind = 'complete', text = before })
      local replies = collect(self, { 0 }, function() end)
      if replies then return replies[0].list, replies[0].word end
   end
   return self
end

return ranks
