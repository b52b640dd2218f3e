-- Translates patterns of published files to PCRE2.
--
-- The files are written for Oniguruma (Ruby), where \s is the property White_Space and \w has
-- letters, marks, digits, connectors and, outside of brackets, the numbers of Latin-1; in PCRE2
-- 10.42 both differ in a few characters. ^ and $ match at every line. Types of pre-tokenizers have
-- the \w of Rust, with joiners in place of the numbers.

local pattern = {}

pattern.space = '\\p{White_Space}'
local word = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}'
pattern.word = word .. '\\x{200C}\\x{200D}'
local ruby_word = word .. '\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}'
-- ASCII characters in Unicode's symbol categories, and all punctuation.
pattern.punctuation = '[\\p{P}$+<=>^`|~]'
-- The pattern of GPT-2.
pattern.gpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

-- Returns a pattern that matches this text literally.
function pattern.literal(text)
   return (text:gsub('[%^%$%(%)%%%.%[%]%*%+%-%?{}|\\#]', '\\%0'))
end

local outside = { ['\\s'] = pattern.space, ['\\S'] = '\\P{White_Space}',
   ['\\w'] = '[' .. ruby_word .. ']', ['\\W'] = '[^' .. ruby_word .. ']' }
local inside = { ['\\s'] = pattern.space, ['\\S'] = '\\P{White_Space}', ['\\w'] = word }

-- Returns a pattern translated to PCRE2.
function pattern.translate(text)
   local out, depth, anchors, at = {}, 0, false, 1
   while at <= #text do
      local c = text:sub(at, at)
      if c == '\\' then
         c = text:sub(at, at + 1)
         out[#out + 1] = (depth > 0 and inside or outside)[c] or c
      else
         if c == '[' and (depth == 0 or text:sub(at + 1, at + 1) == ':') then depth = depth + 1
         elseif c == ']' and depth > 0 then depth = depth - 1 end
         anchors = anchors or depth == 0 and (c == '^' or c == '$')
         out[#out + 1] = c
      end
      at = at + #c
   end
   return (anchors and '(?m)' or '') .. table.concat(out)
end

return pattern
