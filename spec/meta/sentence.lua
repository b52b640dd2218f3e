-- Sentences of Markdown text, for the spec that holds the guides to what they promise.
--
-- Code blocks and comments are left out. A sentence ends at ".", "!" or "?" before a capital letter
-- or an opening mark, at the end of its paragraph or list item, or with its row of a table.

local sentence = {}

-- Words by which a sentence promises something. Rows of tables, which map names to names, promise
-- by the first list alone.
local strong = { 'never', 'always', 'every', 'nothing' }
local weak = { 'no', 'the same', 'bit for bit' }

-- The words of a text alone, in lower case, with one space between: line breaks, marks and
-- punctuation make no difference.
function sentence.plain(text)
   return (text:lower():gsub("'", ''):gsub('[^%w]+', ' '):gsub('^ ', ''):gsub(' $', ''))
end

local function has(text, words)
   for _, word in ipairs(words) do
      if text:find(' ' .. word .. ' ', 1, true) then return true end
   end
   return false
end

-- Whether a sentence promises something; code in it does not count.
function sentence.promises(text, is_row)
   local plain = ' ' .. sentence.plain((text:gsub('`[^`]*`', ' x '))) .. ' '
   return has(plain, strong) or not is_row and has(plain, weak)
end

-- Calls add(text) for each sentence of a paragraph.
local function split(paragraph, add)
   local from, at = 1, 1
   while true do
      local stop, next_ = paragraph:match('[%.!%?][%)%*"]*()%s+()[%u`%*"%(%[]', at)
      if not stop then break end
      add(paragraph:sub(from, stop - 1))
      from, at = next_, next_
   end
   add(paragraph:sub(from))
end

local function is_item(line) return line:find '^%s*[%-%*] ' or line:find '^%s*%d+%. ' end

-- Reads lines one by one; `lines` collects a paragraph until it ends.
local Reader = {}
Reader.__index = Reader

function Reader:flush()
   local text = table.concat(self.lines, ' '):gsub('%s+', ' '):gsub('^ ', ''):gsub(' $', '')
   self.lines = {}
   if text == '' then return end
   local function add(s)
      self.list[#self.list + 1] = { text = s, section = self.section, is_row = self.is_row }
   end
   if self.is_row then add(text) else split(text, add) end
   self.is_row = false
end

-- Whether a line belongs to code: between fences, or indented behind an empty line.
function Reader:is_code(line)
   if line:find '^%s*```' then
      self:flush()
      self.fenced = not self.fenced
      return true
   end
   if self.fenced then return true end
   return line:find '^    ' and #self.lines == 0
end

function Reader:read(line)
   if self:is_code(line) or line:find '^%s*<!%-%-' then return end
   local heading = line:match '^#+%s+(.*)$'
   if heading then
      self:flush()
      self.section = heading
   elseif line:find '^%s*$' then
      self:flush()
   elseif line:find '^%s*|' then
      self:flush()
      self.lines, self.is_row = { (line:gsub('|', ' ')) }, true
      self:flush()
   else
      if is_item(line) then self:flush() end
      self.lines[#self.lines + 1] = line
   end
end

-- The sentences of a Markdown text in order: { text, section, is_row }.
function sentence.list(text)
   local reader = setmetatable({ list = {}, lines = {}, section = '' }, Reader)
   for line in (text .. '\n'):gmatch '(.-)\n' do reader:read(line) end
   reader:flush()
   return reader.list
end

return sentence
