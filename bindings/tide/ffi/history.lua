-- The history of a prompt in a file: one entry a line, written as it is made. A line end within an
-- entry is written as \n, a backslash as two.

local history = {}

local most = 2000

local function escape(text) return (text:gsub('\\', '\\\\'):gsub('\n', '\\n')) end

local function unescape(line)
   return (line:gsub('\\(.)', function(c) return c == 'n' and '\n' or c end))
end

-- A file of libedit begins with this line, and has blanks as \040.
local old_mark = '_HiStOrY_V2_'

local function read_lines(path)
   local f, list, old = io.open(path, 'rb'), {}, false
   if not f then return list, old end
   local text = f:read '*a' or ''                      -- nil: a folder
   for line in text:gmatch '[^\n]+' do
      if line == old_mark then old = true
      else
         list[#list + 1] = old and line:gsub('\\(%d%d%d)', function(octal)
            return string.char(tonumber(octal, 8) % 256)
         end) or unescape(line)
      end
   end
   f:close()
   return list, old
end

-- Replaces a file by these entries. The old file stays where the new one cannot be written.
local function write_lines(path, list)
   local lines = {}
   for i, text in ipairs(list) do lines[i] = escape(text) .. '\n' end
   local io_ = require 'tide.ffi.io'
   pcall(io_.write_file_atomic, io_.resolve(path) or path, table.concat(lines))  -- a link stays
end

local History = {}
History.__index = History

-- Opens the history of a file; path nil: lines of this prompt alone. A file that cannot be read or
-- written keeps nothing.
function history.open(path)
   local self = setmetatable({ path = path, list = {} }, History)
   if not path then return self end
   local list, old = read_lines(path)
   for i = math.max(1, #list - most + 1), #list do self.list[#self.list + 1] = list[i] end
   if old or #list > 2 * most then write_lines(path, self.list) end
   return self
end

-- Adds an entry, unless it repeats the last one, and appends it to the file.
function History:add(text)
   if not text:match '%S' or text == self.list[#self.list] then return end
   self.list[#self.list + 1] = text
   local f = self.path and io.open(self.path, 'ab')
   if not f then return end
   f:write(escape(text), '\n')
   f:close()
end

-- Returns the entry before position i that `fits`, and its position; nil without one.
function History:before(i, fits)
   for k = math.min(i, #self.list + 1) - 1, 1, -1 do
      if fits(self.list[k]) then return self.list[k], k end
   end
end

-- Returns the entry after position i that `fits`.
function History:after(i, fits)
   for k = i + 1, #self.list do
      if fits(self.list[k]) then return self.list[k], k end
   end
end

return history
