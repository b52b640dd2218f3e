-- Line editing at a terminal: several lines, UTF-8, history, completion.
--
-- Keys are Emacs's: arrows, Home, End, Ctrl-A E B F K U W Y T D L, Alt-B F D, Ctrl-R (searches
-- earlier lines), Tab, Alt-Enter (a line end). Up and Down move between the lines of the text, then
-- through the history.

local history = require 'tide.ffi.history'
local keys = require 'tide.ffi.keys'
local line = require 'tide.ffi.line'
local terminal = require 'tide.ffi.terminal'
local utf8 = require 'tide.utf8'

local edit = { isatty = terminal.isatty, launcher_isatty = terminal.launcher_isatty,
   columns = terminal.columns, width = terminal.width }

local Editor = {}
Editor.__index = Editor

-- ---- drawing ---------------------------------------------------------------------------------

-- Returns the columns of a character: 0 for combining marks, 2 for East Asian and picture
-- characters.
local function width(c)
   local code = utf8.code(c)
   if code >= 0x300 and code < 0x370 or code >= 0x200b and code < 0x2010 then return 0 end
   local wide = code >= 0x1100 and code < 0x1160 or code >= 0x2e80 and code < 0xa4d0
      or code >= 0xac00 and code < 0xd7a4 or code >= 0xf900 and code < 0xfb00
      or code >= 0xfe30 and code < 0xfe70 or code >= 0xff00 and code < 0xff61
      or code >= 0x1f300 and code < 0x1fb00
   return wide and 2 or 1
end

-- Draws prompt and text again, from the row where the last drawing began.
local function draw(self)
   local out, columns = {}, self.columns()
   local row, column, at_row, at_column = 0, 0, nil, nil
   local function put(c)
      local w = width(c)
      if column + w > columns then
         out[#out + 1] = '\r\n'
         row, column = row + 1, 0
      end
      out[#out + 1] = c
      column = column + w
   end
   if self.row > 0 then out[1] = ('\27[%dA'):format(self.row) end
   out[#out + 1] = '\r\27[J'
   for _, c in ipairs(line.characters(self.prompt)) do put(c) end
   for i, c in ipairs(self.line.chars) do
      if i == self.line.at then at_row, at_column = row, column end
      if c == '\n' then
         out[#out + 1] = '\r\n'
         row, column = row + 1, 0
         for _, p in ipairs(line.characters(self.more)) do put(p) end
      else put(c) end
   end
   if not at_row then at_row, at_column = row, column end
   if at_column >= columns then
      if at_row == row then
         out[#out + 1] = '\r\n'
         row = row + 1
      end
      at_row, at_column = at_row + 1, 0
   end
   if row > at_row then out[#out + 1] = ('\27[%dA'):format(row - at_row) end
   out[#out + 1] = '\r' .. (at_column > 0 and ('\27[%dC'):format(at_column) or '')
   self.row, self.column = at_row, at_column
   self.write(table.concat(out))
end

-- Leaves the text and moves to the row below it.
local function leave(self)
   self.line.at = #self.line.chars + 1
   draw(self)
   self.write '\r\n'
   self.row = 0
end

-- ---- completion ------------------------------------------------------------------------------

-- Returns the text that all of the list begin with, in whole characters.
local function common(list)
   local prefix = list[1]
   for i = 2, #list do
      while list[i]:sub(1, #prefix) ~= prefix do prefix = prefix:sub(1, -2) end
   end
   return (prefix:gsub('[\192-\255][\128-\191]*$', function(c)
      local need = c:byte() >= 0xf0 and 4 or c:byte() >= 0xe0 and 3 or 2
      return #c < need and '' or c
   end))
end

-- Returns a list in columns, below the text.
local function listing(list, columns)
   local most, out = 0, {}
   for _, name in ipairs(list) do most = math.max(most, #name) end
   local per = math.max(1, math.floor(columns / (most + 2)))
   for i = 1, math.min(#list, 10 * per) do
      out[#out + 1] = list[i] .. (' '):rep(most + 2 - #list[i])
      if i % per == 0 or i == #list then out[#out + 1] = '\r\n' end
   end
   if #list > 10 * per then out[#out + 1] = ('\r\n... %d more\r\n'):format(#list - 10 * per) end
   return table.concat(out)
end

-- Completes; after a blank a Tab without completions indents.
local function complete(self)
   local before = self.line:before()
   local ok, list, word = pcall(self.complete, before)
   if not ok or not list or #list == 0 then
      if before:match '%S$' then return self.write '\7' end
      return self.line:insert '   '
   end
   local prefix = common(list)
   if #prefix > #word then
      self.line:insert(prefix:sub(#word + 1))
   elseif #list > 1 then
      leave(self)
      self.write(listing(list, self.columns()))
   end
end

-- ---- history ---------------------------------------------------------------------------------

local function recall(self, way)
   local list = self.history
   if not self.typed then
      self.typed = self.line:text()
      self.place = #list.list + 1
   end
   local typed = self.typed
   local function fits(text) return text:sub(1, #typed) == typed end
   local text, at
   if way < 0 then text, at = list:before(self.place, fits)
   else text, at = list:after(self.place, fits) end
   if not text and way > 0 then text, at = typed, #list.list + 1 end
   if text then
      self.place = at
      self.line:set(text)
   end
end

-- ---- search ----------------------------------------------------------------------------------

-- Ctrl-R: the text that is typed then is searched in the history, from its end; the line is the
-- entry that contains it. self.search: wanted (a text), place (of the entry), typed (the line
-- before) and prompt, while the search lasts.

local function show_search(self, found)
   self.prompt = ("(%s '%s') "):format(found and 'search' or 'nowhere', self.search.wanted)
end

-- Goes to the next older entry that contains the wanted text.
local function seek(self)
   local s = self.search
   local text, at = self.history:before(s.place, function(t)
      return t:find(s.wanted, 1, true) ~= nil and t ~= self.line:text()
   end)
   show_search(self, text or self.line:text():find(s.wanted, 1, true))
   if not text then return self.write '\7' end
   s.place = at
   self.line:set(text)
end

-- Begins at the end of the history with another text.
local function search_for(self, wanted)
   local s = self.search
   s.wanted, s.place = wanted, #self.history.list + 1
   self.line:set(wanted == '' and s.typed or '')
   if wanted == '' then show_search(self, true) else seek(self) end
end

local function end_search(self)
   self.prompt, self.search = self.search.prompt, nil
end

-- Actions of keys in a search; other keys end it, and act as usual.
local searching = {
   char = function(self, text)
      self.search.wanted = self.search.wanted .. text
      if self.line:text():find(self.search.wanted, 1, true) and self.search.wanted ~= text then
         return show_search(self, true)
      end
      search_for(self, self.search.wanted)
   end,
   backspace = function(self)
      search_for(self, (self.search.wanted:gsub('[%z\1-\127\192-\255][\128-\191]*$', '')))
   end,
   ['ctrl-r'] = function(self) if self.search.wanted ~= '' then seek(self) end end,
   ['ctrl-g'] = function(self)
      self.line:set(self.search.typed)
      end_search(self)
   end,
   escape = end_search,
}
searching.paste = searching.char

-- Starts a search for the text typed so far.
local function start_search(self)
   local typed = self.line:text()
   self.search = { typed = typed, prompt = self.prompt }
   search_for(self, typed)
end

-- ---- reading ---------------------------------------------------------------------------------

-- Actions of keys that do more than edit text. Each may return 'done', 'interrupt' or 'end' to end
-- the read.
local does = {}

-- Ends the read of a whole text, else begins another line.
function does.enter(self)
   local text = self.line:text()
   if self.line.at <= #self.line.chars and text:find('\n', 1, true) and not self.accepts(text) then
      return self.line:insert '\n'
   end
   if self.accepts(text) then return 'done' end
   self.line.at = #self.line.chars + 1
   self.line:insert '\n'
end

does['ctrl-c'] = function() return 'interrupt' end
does['ctrl-d'] = function(self)
   if #self.line.chars == 0 then return 'end' end
   self.line:key 'delete'
end
does['ctrl-l'] = function(self)
   self.write '\27[H\27[2J'
   self.row = 0
end
does['ctrl-z'] = function(self)
   self.cooked()
   terminal.suspend()
   self.cooked = terminal.raw()
   self.row = 0
end
does.tab = complete
does.up = function(self)
   if not self.line:vertical(-1) then recall(self, -1) end
end
does.down = function(self)
   if not self.line:vertical(1) then recall(self, 1) end
end
does['ctrl-p'] = function(self) recall(self, -1) end
does['ctrl-n'] = function(self) recall(self, 1) end
does['ctrl-r'] = start_search

local moves = { up = true, down = true, ['ctrl-p'] = true, ['ctrl-n'] = true }

-- Takes one key. Returns how the read ends, or nil.
local function press(self, name, text)
   if not moves[name] then self.typed = nil end
   if self.search and searching[name] then return searching[name](self, text) end
   if self.search then end_search(self) end
   if does[name] then return does[name](self) end
   self.line:key(name, text)
end

-- Draws a character that was typed at the end of the text, where it needs no other change.
-- Returns whether it did.
local function draw_typed(self, name, text)
   if name ~= 'char' or self.search or self.line.at <= #self.line.chars then return false end
   local w = width(text)
   if self.column + w >= self.columns() then return false end
   self.write(text)
   self.column = self.column + w
   return true
end

local function read_keys(self)
   draw(self)
   while true do
      local name, text = keys.next(self.byte)
      if not name then return 'end' end
      local how = press(self, name, text)
      if how then return how end
      if not draw_typed(self, name, text) then draw(self) end
   end
end

-- Returns a text without its last line end; nil at the end of input; nil and 'interrupt' after
-- Ctrl-C. more: the prompt of further lines.
function Editor:read(prompt, more)
   self.prompt, self.more = prompt, more or (' '):rep(#prompt)
   self.line, self.row, self.search = line.new(), 0, nil
   self.cooked = self.raw()
   self.write '\27[?2004h'
   local ok, how = pcall(read_keys, self)
   if ok and how ~= 'end' then leave(self) end
   self.write '\27[?2004l'
   self.cooked()
   if not ok then error(how, 0) end
   if how ~= 'done' then return nil, how == 'interrupt' and how or nil end
   local text = self.line:text()
   self.history:add(text)
   return text
end

-- Ends the editor; the history is in its file already.
function Editor:close() self.line = nil end

local function write_out(text)
   io.stdout:write(text)
   io.stdout:flush()
end

-- Makes a line editor. opts: history (path of a file); complete(before): full replacements of the
-- last word of the text before the place, and that word; accepts(text): whether Enter ends it
-- (default: always). byte, write, columns and raw replace the terminal. Returns nil without a
-- terminal, or with one that cannot move its cursor (TERM=dumb).
function edit.open(opts)
   local dumb = os.getenv 'TERM' == 'dumb'
   if not opts.byte and (dumb or not (edit.isatty(0) and edit.isatty(1))) then return nil end
   return setmetatable({
      history = history.open(opts.history), complete = opts.complete or function() end,
      accepts = opts.accepts or function() return true end,
      byte = opts.byte or terminal.byte, write = opts.write or write_out,
      columns = opts.columns or terminal.columns,
      raw = opts.raw or opts.byte and function() return function() end end or terminal.raw,
   }, Editor)
end

return edit
