-- JSON Lines: one record a line. Errors name file and line.
--
-- A file that begins with '[' is one JSON list of records; its errors have the record's number.
-- The byte order mark of UTF-8, which some editors write, is skipped.
-- A reader of records calls `_broken` or `_wrong` for an invalid one; `_try` returns the reason.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local kind = require 'tide.data.kind'

local jsonl = {}

local op = 'data.jsonl'

-- ---- what is wrong with a record ---------------------------------------------------------------

local Problem = {}

-- Ends the reading of a record.
function jsonl._broken(fmt, ...) error(setmetatable({ text = fmt:format(...) }, Problem), 0) end

-- Returns the type of a value, in words.
local function shown(v)
   if v == nil then return 'nothing' end
   if fs.is_null(v) then return 'null' end
   if type(v) == 'string' then return ('%q'):format(#v > 40 and v:sub(1, 40) .. '..' or v) end
   if type(v) == 'table' then return fs.io().json.is_array(v) and 'a list' or 'an object' end
   return tostring(v)
end

-- Ends it because of a field with an unexpected value. text: describes it, by default its type.
function jsonl._wrong(field, expected, v, text)
   jsonl._broken('%s: expected %s, got %s', field, expected, text or shown(v))
end

-- Returns whether a value is an object or a list.
function jsonl._is_table(v) return type(v) == 'table' and v ~= fs.io().json.null end

-- Returns the result of fn(...), or nil and what is wrong with the record.
function jsonl._try(fn, ...)
   local ok, result = pcall(fn, ...)
   if ok then return result end
   if type(result) == 'table' and getmetatable(result) == Problem then return nil, result.text end
   error(result, 0)
end

-- Returns the results of fn(...); an error in it is a fault of the record, unless the memory or
-- another part of the machine failed. what: text before it.
function jsonl._guard(what, fn, ...)
   local ok, result, more = pcall(fn, ...)
   if ok then return result, more end
   if getmetatable(result) == Problem then error(result, 0) end
   jsonl._broken('%s%s', what, err.fault(result))
end

-- ---- files -------------------------------------------------------------------------------------

local mark = '\239\187\191'

-- Returns an open file, read past its byte order mark, and its first bytes; raises unless it is
-- text.
local function open(path)
   if not fs.size(path) then
      err.raise('E_IO', op, 'cannot read %s: %s', path,
         fs.exists(path) and 'it is not a regular file' or 'there is no such file')
   end
   local file, why = io.open(path, 'rb')
   if not file then err.raise('E_IO', op, 'cannot read %s', why) end
   local head = file:read(64) or ''
   local what = kind.of(head) or head:find('\0', 1, true) and 'it holds bytes of 0'
   if what then
      file:close()
      err.raise('E_FORMAT', op, '%s is no JSON Lines: %s', path, what)
   end
   local skipped = head:sub(1, #mark) == mark and #mark or 0
   file:seek('set', skipped)
   return file, head:sub(skipped + 1)
end

-- Returns a value that is a record, or nil and what is wrong with it.
local function as_record(v)
   if jsonl._is_table(v) and not fs.io().json.is_array(v) then return v end
   return nil, 'expected an object { .. }'
end

-- Returns a record, or nil and what is wrong with its text.
local function decode(text)
   local ok, value = pcall(fs.io().json.decode, text, { lossless = true, nonfinite = true })
   if ok then return as_record(value) end
   return nil, (err.fault(value):gsub('^line 1, ', ''))   -- its line in the file is in the message
end

-- Returns an iterator over the lines of a file. LuaJIT's own stops at a byte of 0 and adds the next
-- line.
local function lines(file)
   local rest, at = '', 1
   return function()
      local stop = rest:find('\n', at, true)
      while not stop do
         local more = file:read(math.max(2 ^ 16, #rest - at))       -- doubled for long lines
         if not more then break end
         local from = #rest - at + 2
         rest, at = rest:sub(at) .. more, 1
         stop = rest:find('\n', from, true)
      end
      if not stop and at > #rest then return nil end
      local line = rest:sub(at, (stop or #rest + 1) - 1)
      at = (stop or #rest) + 1
      return line
   end
end

local function each_line(file, path, fn)
   local n = 0
   for line in lines(file) do
      n = n + 1
      if line:find '%S' then
         local record, problem = decode(line)
         fn(record, ('%s, line %d'):format(path, n), problem)
      end
   end
end

-- Calls fn for the records of a list.
local function each_of_list(path, fn)
   local text = fs.read(op, path)
   if text:sub(1, #mark) == mark then text = text:sub(#mark + 1) end
   local ok, list = pcall(fs.io().json.decode, text, { lossless = true, nonfinite = true })
   if not ok then err.raise('E_FORMAT', op, '%s: %s', path, err.fault(list)) end
   for i, v in ipairs(list) do
      local record, problem = as_record(v)
      fn(record, ('%s, record %d'):format(path, i), problem)
   end
end

-- Calls fn(record, place, problem) for each record of a file in order: place is 'FILE, line N';
-- record is nil where the line is not a JSON object, and problem says why. Records keep the order
-- of their names (see json.decode, lossless). E_FORMAT: the file is not text.
function jsonl.each(path, fn)
   err.type(op, 'path', path, 'string')
   err.func(op, 'fn', fn)
   local file, head = open(path)
   local ok, problem
   if head:find '^%s*%[' then
      ok, problem = pcall(each_of_list, path, fn)
   else
      ok, problem = pcall(each_line, file, path, fn)
   end
   file:close()
   if not ok then error(problem, 0) end
end

-- Returns a list of the results of read(record, place) for the records of a file. The first broken
-- one is E_FORMAT of op; with skip_bad they are counted: bad = { count, the first ten messages }.
function jsonl._records(op_, path, skip_bad, bad, read)
   local list = {}
   jsonl.each(path, function(t, place, problem)
      local item
      if t then item, problem = jsonl._try(read, t, place) end
      if item then
         list[#list + 1] = item
         return
      end
      local message = place .. ': ' .. problem
      err.raise_if(not skip_bad, 'E_FORMAT', op_, '%s (skip_bad = true, --skip-bad, leaves such '
         .. 'records out and counts them)', message)
      bad.count = bad.count + 1
      if #bad < 10 then bad[#bad + 1] = message end
   end)
   return list
end

return jsonl
