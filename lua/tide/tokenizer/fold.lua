-- What case folding of several characters would change in a pattern for Oniguruma.
--
-- There (?i:ss) also matches one "ß", (?i:ß) also matches "ss", and (?i:[[^b]]) matches "b", as
-- the fold of "B". PCRE2 folds one character to one. Patterns with such parts are refused.

local err = require 'tide.util.err'
local utf8 = require 'tide.utf8'

local fold = {}

-- Code points whose fold has several characters, as ranges, and what may be the second character
-- of a fold behind a letter (marks, iota, the small letters of Armenian).
local single = { { 0xDF }, { 0x130 }, { 0x149 }, { 0x1F0 }, { 0x390 }, { 0x3B0 }, { 0x587 },
   { 0x1E96, 0x1E9A }, { 0x1E9E }, { 0x1F50 }, { 0x1F52 }, { 0x1F54 }, { 0x1F56 },
   { 0x1F80, 0x1FAF }, { 0x1FB2, 0x1FB4 }, { 0x1FB6, 0x1FB7 }, { 0x1FBC }, { 0x1FC2, 0x1FC4 },
   { 0x1FC6, 0x1FC7 }, { 0x1FCC }, { 0x1FD2, 0x1FD3 }, { 0x1FD6, 0x1FD7 }, { 0x1FE2, 0x1FE4 },
   { 0x1FE6, 0x1FE7 }, { 0x1FF2, 0x1FF4 }, { 0x1FF6, 0x1FF7 }, { 0x1FFC }, { 0xFB00, 0xFB06 },
   { 0xFB13, 0xFB17 } }
local second = { { 0x2BE }, { 0x300, 0x345 }, { 0x3B9 }, { 0x399 }, { 0x535, 0x587 } }
local pairs_ = { ss = true, ff = true, fi = true, fl = true, st = true, ['ʼn'] = true }

local function is_in(list, c)
   local code = utf8.code(c)
   for _, range in ipairs(list) do
      if code >= range[1] and code <= (range[2] or range[1]) then return true end
   end
   return false
end

local function refuse(text, part)
   err.raise('E_UNSUPPORTED', 'tokenizer.load', "the pattern %s: '%s' where case does not count "
      .. 'stands for several characters, or for the case of others, which is not supported; '
      .. 'count case there, or name the characters one by one', text, part)
end

-- Refuses a character c of a pattern where case does not count. before: the character before it in
-- the pattern, or nil.
function fold.check(text, c, before)
   if is_in(single, c) then refuse(text, c) end
   if before and (pairs_[(before .. c):lower()] or is_in(second, c)) then
      refuse(text, before .. c)
   end
end

-- Refuses a negated set in a set where case does not count.
function fold.check_nested(text, at)
   if text:find('^%[%^', at) then refuse(text, text:match('^%[%^[^%]]*%]?', at)) end
end

return fold
