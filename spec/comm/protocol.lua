-- How ranks meet (core/comm/local/local.c) as a state machine, and a search of all its states.
--
-- n ranks make the same number of calls, each in a few atomic steps (the names of `step` below). At
-- every state any rank may move next, and at every state a failure may close the entry barrier: a
-- rank leaves between two calls, a timeout expires at the entry, or another thread aborts. After a
-- call that failed a rank makes the next one, as the helper thread does with calls that are queued.
-- The search visits every state once and reports these defects, each with the steps that lead to
-- it:
--
--   'deadlock'         a rank waits and no step is left
--   'foreign payload'  a rank takes from a page what another call left there
--   'gone operands'    a rank uses operands or the description of a rank that has returned
--   'false mismatch'   ranks that made equal calls find them different
--
-- model.fault nil is the code. The others are faults that the search must find:
--
--   'write first'      a rank that has found the entry closed makes its next call all the same, as
--                      the code once did
--   'failure first'    a rank that gives up believes a failure that is set already, without asking
--                      whether its entry has passed, as the code once did
--   'close always'     a rank that gives up closes the entry and goes, even if it has passed
--   'one page'         the payloads of all calls lie on one page
--   'no exit'          ranks that use each other's operands return without meeting

local ffi = require 'ffi'

local protocol = {}

-- Kinds of calls. small: the payload is on the page, no exit barrier. large: ranks use each other's
-- operands until the exit. split: two exits.
protocol.SMALL, protocol.OTHER, protocol.LARGE, protocol.SPLIT = 1, 2, 3, 4

local IDLE, POST, ANNOUNCE, ARRIVE, ENTRY, GIVE_UP, COMPARE, MOVE, LAND, EXIT, DONE =
   0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- Bytes of a state: five that ranks share, then ten a rank.
local CLOSED, COUNT, PASSED, XCOUNT, XPASSED, SHARED, SLOT = 0, 1, 2, 3, 4, 5, 10
local PC, CALL, PEER, EXITS, XWAIT, TAG, PAYLOAD, STOPPED = 0, 1, 2, 3, 4, 5, 7, 9 -- 5, 7: pages

local step = {}

-- s: the state, to be changed; at: of the rank's bytes. Each returns nil, true if the rank must
-- wait, or the defect, after which it goes on as the code does.

local function fail_call(s, at) s[at + PC], s[at + STOPPED] = IDLE, 1 end

step[IDLE] = function(m, s, at)
   if s[at + CALL] == m.ncall then
      s[at + PC] = DONE
      return
   end
   s[at + CALL] = s[at + CALL] + 1
   if s[at + STOPPED] == 0 or m.fault == 'write first' then s[at + PC] = POST end
end

-- The page of a call's payload.
local function page_of(m, call) return PAYLOAD + (m.fault == 'one page' and 0 or call % 2) end

step[POST] = function(m, s, at)
   s[at + page_of(m, s[at + CALL])] = s[at + CALL]
   s[at + PC] = ANNOUNCE
end

step[ANNOUNCE] = function(m, s, at, rank)
   local call = s[at + CALL]
   s[at + TAG + call % 2] = 8 * call + m.program[rank][call]
   s[at + PC] = ARRIVE
end

step[ARRIVE] = function(m, s, at)
   if s[CLOSED] == 1 then return fail_call(s, at) end
   s[COUNT] = s[COUNT] + 1
   s[at + PC] = ENTRY
   if s[COUNT] == m.nrank then s[COUNT], s[PASSED] = 0, s[PASSED] + 1 end
end

step[ENTRY] = function(_, s, at)
   if s[PASSED] >= s[at + CALL] then
      s[at + PC], s[at + PEER], s[at + EXITS] = COMPARE, 0, 0
   elseif s[CLOSED] == 1 then
      fail_call(s, at)
   else
      return true
   end
end

-- A rank whose wait has ended (event.expire). It asks whether the entry has passed meanwhile only
-- now, in one step with closing it.
step[GIVE_UP] = function(m, s, at)
   local passed = s[PASSED] >= s[at + CALL] and m.fault ~= 'close always'
   if passed and not (m.fault == 'failure first' and s[CLOSED] == 1) then
      s[at + PC] = ENTRY
   else
      s[CLOSED] = 1
      fail_call(s, at)
   end
end

local function is_inside(s, peer, call)
   local pc = s[peer + PC]
   return s[peer + CALL] == call and pc >= ENTRY and pc <= EXIT
end

-- One rank a step, as loads are not one.
step[COMPARE] = function(m, s, at, rank)
   local call, peer = s[at + CALL], s[at + PEER]
   if s[SHARED + SLOT * peer + TAG + call % 2] ~= 8 * call + m.program[rank][call] then
      s[CLOSED], s[at + PC], s[at + EXITS] = 1, LAND, 1
      if not m.differs[call] then return 'false mismatch' end
      for other = 0, m.nrank - 1 do -- the message lists the calls of all
         if not is_inside(s, SHARED + SLOT * other, call) then return 'gone operands' end
      end
      return nil
   end
   s[at + PEER] = peer + 1
   if s[at + PEER] < m.nrank then return end
   s[at + PC], s[at + PEER] = MOVE, 0
end

step[MOVE] = function(m, s, at, rank)
   local call = s[at + CALL]
   local peer, kind = SHARED + SLOT * s[at + PEER], m.program[rank][call]
   local small = kind == protocol.SMALL or kind == protocol.OTHER
   local defect = small and s[peer + page_of(m, call)] ~= call and 'foreign payload'
      or not small and not is_inside(s, peer, call) and 'gone operands' or nil
   s[at + PEER] = s[at + PEER] + 1
   if s[at + PEER] == m.nrank then
      s[at + PEER] = 0
      s[at + EXITS] = s[at + EXITS] + (kind == protocol.SPLIT and s[at + EXITS] == 0 and 2 or 1)
      s[at + PC] = (small or m.fault == 'no exit') and IDLE or LAND
   end
   return defect
end

step[LAND] = function(m, s, at)
   s[XCOUNT] = s[XCOUNT] + 1
   s[at + XWAIT] = s[XPASSED]
   s[at + PC] = EXIT
   if s[XCOUNT] == m.nrank then s[XCOUNT], s[XPASSED] = 0, s[XPASSED] + 1 end
end

-- EXITS 2: the first of a split's, after which the ranks' operands are looked at again.
step[EXIT] = function(_, s, at)
   if s[XPASSED] == s[at + XWAIT] then return true end
   s[at + PC] = s[at + EXITS] == 2 and MOVE or IDLE
   s[at + XWAIT] = 0
end

-- What else may happen at any time; each returns true where it may not.
local event = {}

function event.leave(_, s, at)
   if s[at + PC] ~= IDLE then return true end
   s[CLOSED], s[at + PC] = 1, DONE
end

function event.expire(_, s, at)
   if s[at + PC] ~= ENTRY or s[CLOSED] == 1 or s[PASSED] >= s[at + CALL] then return true end
   s[at + PC] = GIVE_UP
end

function event.abort(_, s)
   if s[CLOSED] == 1 then return true end
   s[CLOSED] = 1
end

local function prepare(model)
   local m = { nrank = #model.program, ncall = #model.program[1], program = {}, differs = {},
      fault = model.fault, size = SHARED + SLOT * #model.program }
   for r, calls in ipairs(model.program) do
      m.program[r - 1] = calls
      for k, kind in ipairs(calls) do
         m.differs[k] = m.differs[k] or kind ~= model.program[1][k]
      end
   end
   return m
end

local name = {
   [IDLE] = 'waits between calls', [POST] = 'has begun',
   [ANNOUNCE] = 'has left its payload', [ARRIVE] = 'has announced', [ENTRY] = 'is at the entry',
   [COMPARE] = 'compares', [MOVE] = 'moves data', [LAND] = 'has moved its data',
   [EXIT] = 'is at the exit', [DONE] = 'has ended',
}

-- One line for every state on the way to key: what each rank does, and whether the entry is closed.
local function path_to(m, from, key)
   local lines = {}
   while key do
      local words = {}
      for rank = 0, m.nrank - 1 do
         local at = SHARED + SLOT * rank
         words[#words + 1] = ('%d: #%d %s'):format(rank, key:byte(at + CALL + 1),
            name[key:byte(at + PC + 1)])
      end
      table.insert(lines, 1, table.concat(words, ', ')
         .. (key:byte(CLOSED + 1) == 1 and ', closed' or ''))
      key = from[key]
   end
   return table.concat(lines, '\n')
end

local Search = {}
Search.__index = Search

-- Whether fn(model, state, at, rank) moves on from key; the state that it makes is visited later.
function Search:try(key, fn, at, rank)
   ffi.copy(self.buf, key, self.m.size)
   local what = fn(self.m, self.buf, at, rank)
   if what == true then return false end
   local made = ffi.string(self.buf, self.m.size)
   if self.from[made] == nil then
      self.from[made], self.states = key, self.states + 1
      self.stack[#self.stack + 1] = made
   end
   if what and not self.defects[what] then self.defects[what] = path_to(self.m, self.from, made) end
   return true
end

-- Tries everything that may happen in the state.
function Search:visit(key)
   local moved, done = false, 0
   for rank = 0, self.m.nrank - 1 do
      local at = SHARED + SLOT * rank
      local pc = key:byte(at + PC + 1)
      if pc == DONE then
         done = done + 1
      else
         moved = self:try(key, step[pc], at, rank) or moved
         if self:try(key, event.leave, at) or self:try(key, event.expire, at) then moved = true end
      end
   end
   if done == self.m.nrank then return end
   self:try(key, event.abort)
   if not moved and not self.defects.deadlock then
      self.defects.deadlock = path_to(self.m, self.from, key)
   end
end

-- Searches all states of model { program = a list of kinds for each rank, fault }. Returns their
-- number and the table of defects: for each the steps to it.
function protocol.search(model)
   local m = prepare(model)
   local buf = ffi.new('uint8_t[?]', m.size)
   local first = ffi.string(buf, m.size)
   local search = setmetatable({ m = m, buf = buf, from = { [first] = false }, stack = { first },
      states = 1, defects = {} }, Search)
   while #search.stack > 0 do search:visit(table.remove(search.stack)) end
   return search.states, search.defects
end

-- All lists of n of the kinds.
function protocol.lists(kinds, n)
   local out = { {} }
   for _ = 1, n do
      local longer = {}
      for _, list in ipairs(out) do
         for _, kind in ipairs(kinds) do
            local copy = { unpack(list) }
            copy[#copy + 1] = kind
            longer[#longer + 1] = copy
         end
      end
      out = longer
   end
   return out
end

return protocol
