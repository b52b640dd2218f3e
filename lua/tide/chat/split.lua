-- Parts of a text, as Python's split, rsplit and splitlines give them.

local fault = require 'tide.chat.fault'
local utf = require 'tide.chat.unicode'

local split = {}

-- Returns the words between white space; after `most` cuts the rest is the last word.
local function words(s, most)
   local out, at = {}, utf.skip_space(s, 1)
   while at <= #s do
      if #out == most then
         out[#out + 1] = s:sub(at)
         break
      end
      local stop = at
      while stop <= #s and utf.skip_space(s, stop) == stop do stop = stop + 1 end
      out[#out + 1] = s:sub(at, stop - 1)
      at = utf.skip_space(s, stop)
   end
   return out
end

local function reversed(list)
   local out = {}
   for i = #list, 1, -1 do out[#out + 1] = list[i] end
   return out
end

-- Returns the positions of sep, from the left without overlap.
local function places(s, sep)
   local list, at = {}, 1
   while true do
      local from = s:find(sep, at, true)
      if not from then return list end
      list[#list + 1], at = from, from + #sep
   end
end

local function cut(s, sep, list)
   local out, at = {}, 1
   for _, from in ipairs(list) do
      out[#out + 1], at = s:sub(at, from - 1), from + #sep
   end
   out[#out + 1] = s:sub(at)
   return out
end

local function checked(sep)
   if sep == '' then fault.raise 'empty separator' end
   return sep
end

-- Returns the parts of s between sep (nil: white space); most: cuts at most (negative: all).
function split.left(s, sep, most)
   if not sep then return words(s, most < 0 and math.huge or most) end
   local list = places(s, checked(sep))
   if most >= 0 then
      for i = #list, most + 1, -1 do list[i] = nil end
   end
   return cut(s, sep, list)
end

-- Returns the parts of s as split.left does; cuts are counted from the right.
function split.right(s, sep, most)
   if most < 0 then return split.left(s, sep, most) end
   if not sep then
      local out = {}
      for _, word in ipairs(words(table.concat(reversed(utf.chars(s))), most)) do
         out[#out + 1] = table.concat(reversed(utf.chars(word)))
      end
      return reversed(out)
   end
   local list, stop = {}, #s
   checked(sep)
   while #list < most do
      local at = stop - #sep + 1
      while at >= 1 and s:sub(at, at + #sep - 1) ~= sep do at = at - 1 end
      if at < 1 then break end
      list[#list + 1], stop = at, at - 1
   end
   return cut(s, sep, reversed(list))
end

-- Returns the byte of the next line end from `at` on, and the byte after it; or nil.
local function line_end(s, at)
   while true do
      local from = s:find('[\n\r\v\f\28\29\30\194\226]', at)
      if not from then return nil end
      local two = s:sub(from, from + 1)
      if two == '\r\n' then return from, from + 2 end
      if s:find('^%c', from) then return from, from + 1 end
      if two == '\194\133' then return from, from + 2 end
      local three = s:sub(from, from + 2)
      if three == '\226\128\168' or three == '\226\128\169' then return from, from + 3 end
      at = from + 1
   end
end

-- Returns the lines of s, with their ends if keep is true.
function split.lines(s, keep)
   local out, at = {}, 1
   while at <= #s do
      local from, stop = line_end(s, at)
      if not from then
         out[#out + 1] = s:sub(at)
         break
      end
      out[#out + 1] = s:sub(at, keep and stop - 1 or from - 1)
      at = stop
   end
   return out
end

return split
