-- Merges the output of several ranks: common lines once, the others with their ranks in front.
--
--    [r0] 1            [r0,2] ...        [r1-3] ...

local by_key = require 'tide.util.by_key'
local err = require 'tide.util.err'

local merge = {}

-- Returns ranks as text: "r0", "r0,2", "r1-3". ranks: in ascending order; runs of three or more are
-- shown as first and last.
function merge.name(ranks)
   err.type('repl.merge.name', 'ranks', ranks, 'table')
   local parts, i = {}, 1
   while i <= #ranks do
      local last = i
      while ranks[last + 1] == ranks[last] + 1 do last = last + 1 end
      if last - i < 2 then last = i end
      parts[#parts + 1] = last > i and ('%d-%d'):format(ranks[i], ranks[last]) or ranks[i]
      i = last + 1
   end
   return 'r' .. table.concat(parts, ',')
end

-- Returns the groups of ranks with the same text, in the order of their first rank: { text =, ranks
-- = }. Ranks without a text are left out.
local function grouped(texts, ranks)
   local groups, group_of = by_key(function(text) return { text = text, ranks = {} } end)
   for _, rank in ipairs(ranks) do
      local text = texts[rank]
      if text then table.insert(group_of(text, text).ranks, rank) end
   end
   return groups
end

local function lines_of(text)
   local list = {}
   for line in (text:gsub('\n$', '') .. '\n'):gmatch '(.-)\n' do list[#list + 1] = line end
   return list
end

-- Adds the lines of a group with the ranks in front, aligned to `width`.
local function add_prefixed(out, group, width)
   local prefix = ('[%s] '):format(merge.name(group.ranks))
   prefix = prefix .. (' '):rep(width - #prefix)
   for _, line in ipairs(lines_of(group.text)) do out[#out + 1] = prefix .. line end
end

-- Returns the columns of the longest prefix.
local function width_of(groups)
   local most = 0
   for _, group in ipairs(groups) do most = math.max(most, #merge.name(group.ranks) + 3) end
   return most
end

-- Returns line i of each rank, by rank.
local function line_of(rows, ranks, i)
   local texts = {}
   for _, rank in ipairs(ranks) do texts[rank] = rows[rank][i] end
   return texts
end

-- Merges texts of equally many lines: shared lines are shown once, the others for each group.
-- Returns nil if no line is shared.
local function by_line(texts, groups, ranks)
   local rows, n, shared, out = {}, nil, 0, {}
   for _, group in ipairs(groups) do
      local lines = lines_of(group.text)
      if #lines ~= (n or #lines) then return nil end
      n = #lines
      for _, rank in ipairs(group.ranks) do rows[rank] = lines end
   end
   for _, rank in ipairs(ranks) do if not texts[rank] then return nil end end
   local width = width_of(groups)
   for i = 1, n do
      local parts = grouped(line_of(rows, ranks, i), ranks)
      if #parts == 1 then
         shared = shared + 1
         out[#out + 1] = (' '):rep(width) .. parts[1].text
      else
         for _, part in ipairs(parts) do add_prefixed(out, part, width) end
      end
   end
   return shared > 0 and out or nil
end

-- Returns the merged text of ranks. texts: by rank, "" or nil if a rank printed nothing; ranks: in
-- ascending order.
function merge.text(texts, ranks)
   err.type('repl.merge.text', 'texts', texts, 'table')
   err.type('repl.merge.text', 'ranks', ranks, 'table')
   local said = {}
   for _, rank in ipairs(ranks) do said[rank] = texts[rank] ~= '' and texts[rank] or nil end
   local groups, out = grouped(said, ranks), {}
   if #groups == 0 then return '' end
   if #groups == 1 and #groups[1].ranks == #ranks then
      return groups[1].text:gsub('\n*$', '') .. '\n'
   end
   local shared = by_line(said, groups, ranks)
   if shared then return table.concat(shared, '\n') .. '\n' end
   local width = width_of(groups)
   for _, group in ipairs(groups) do add_prefixed(out, group, width) end
   return table.concat(out, '\n') .. '\n'
end

-- ---- lines that arrive one by one ------------------------------------------------------------

local Stream = {}
Stream.__index = Stream

-- Collects the output of ranks while a line runs. write(text) shows; now() is a clock in seconds. A
-- line that all ranks print is shown once, when the last rank has printed it. A line that is not
-- printed by all within `patience` seconds is shown with its ranks.
function merge.stream(ranks, write, now, patience)
   err.type('repl.merge.stream', 'ranks', ranks, 'table')
   local self = setmetatable({ ranks = ranks, write = write, now = now, rest = {}, lines = {},
      patience = patience or 0.3, over = {} }, Stream)
   for _, rank in ipairs(ranks) do self.rest[rank], self.lines[rank] = '', {} end
   return self
end

-- Shows the first lines of the ranks that have one.
local function show_heads(self)
   local texts = {}
   for _, rank in ipairs(self.ranks) do
      local head = table.remove(self.lines[rank], 1)
      texts[rank] = head and head.text .. '\n'
   end
   local groups, out = grouped(texts, self.ranks), {}
   if #groups == 1 and #groups[1].ranks == #self.ranks then return self.write(groups[1].text) end
   local width = width_of(groups)
   for _, group in ipairs(groups) do add_prefixed(out, group, width) end
   self.write(table.concat(out, '\n') .. '\n')
end

-- Returns whether lines are due: every rank that may still print has one, or one is old.
local function is_due(self)
   local some, all = false, true
   for _, rank in ipairs(self.ranks) do
      local head = self.lines[rank][1]
      if head and self.now() - head.at >= self.patience then return true end
      some = some or head ~= nil
      all = all and (head ~= nil or self.over[rank])
   end
   return some and all
end

-- Shows the lines that are due.
function Stream:flush()
   while is_due(self) do show_heads(self) end
end

-- Takes text of a rank, whole lines or parts of them.
function Stream:add(rank, text)
   local lines = self.lines[rank]
   text = self.rest[rank] .. text
   for line in text:gmatch '([^\n]*)\n' do lines[#lines + 1] = { text = line, at = self.now() } end
   self.rest[rank] = text:match '[^\n]*$'
   self:flush()
end

-- Declares that a rank prints no more.
function Stream:finish(rank)
   if self.rest[rank] ~= '' then self:add(rank, '\n') end
   self.over[rank] = true
   self:flush()
end

return merge
