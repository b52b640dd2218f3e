-- Properties and classes of characters in patterns of published files, as PCRE2 writes them within
-- brackets.
--
-- The files are written for Oniguruma (Ruby) or, tiktoken's and tekken.json, for Rust. In PCRE2
-- 10.42 \w, \s, \h, \v, [:alpha:] and its like have other characters, and \p{Han} is the property
-- Script_Extensions.

local err = require 'tide.util.err'

local property = {}

local space = '\\p{White_Space}'
local word = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}'
local seen = '\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}'

property.space = space
-- \w of Rust, which has joiners. Oniguruma's has the numbers of Latin-1 in their place, but only
-- outside of brackets.
property.rust_word = word .. '\\x{200C}\\x{200D}'
property.ruby_word = word .. '\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}'

-- Classes [:name:] and \p{name} of Oniguruma.
local classes = {
   alnum = '\\p{Alphabetic}\\p{Nd}', alpha = '\\p{Alphabetic}', ascii = '\\x{0}-\\x{7F}',
   blank = '\\p{Zs}\\t', cntrl = '\\p{Cc}', digit = '\\p{Nd}', graph = seen,
   lower = '\\p{Lowercase}',
   print = seen .. '\\p{Zs}', punct = '\\p{P}\\p{S}', space = space, upper = '\\p{Uppercase}',
   word = word, xdigit = '0-9A-Fa-f',
}

local categories = { letter = 'L', mark = 'M', number = 'N', other = 'C', punct = 'P',
   punctuation = 'P', separator = 'Z', symbol = 'S' }

-- Properties with values yes and no, and categories of more than two letters. All other names are
-- scripts.
local plain = {}
for name in ([[any xan xps xsp xuc xwd ahex ascii asciihexdigit alphabetic bidic bidicontrol bidim
   bidimirrored ci caseignorable cased cwcf changeswhencasefolded cwcm changeswhencasemapped cwkcf
   changeswhennfkccasefolded cwl changeswhenlowercased cwt changeswhentitlecased cwu
   changeswhenuppercased dash di defaultignorablecodepoint dep deprecated dia diacritic ebase
   emojimodifierbase ecomp emojicomponent emod emojimodifier emoji epres emojipresentation ext
   extender extpict extendedpictographic grbase graphemebase grext graphemeextend grlink
   graphemelink hex hexdigit idc idcontinue ids idstart idsb idsbinaryoperator idst
   idstrinaryoperator ideo ideographic joinc joincontrol loe logicalorderexception lowercase math
   nchar noncharactercodepoint patsyn patternsyntax patws patternwhitespace qmark quotationmark
   radical ri regionalindicator sd softdotted sterm sentenceterminal term terminalpunctuation uideo
   unifiedideograph uppercase vs variationselector wspace whitespace xidc xidcontinue xids
   xidstart]]):gmatch '%a+' do plain[name] = true end

-- Returns the items of a class [:name:] for brackets. text: the class as the pattern writes it.
function property.class(name, text, rust)
   err.raise_if(rust or not classes[name], 'E_UNSUPPORTED', 'tokenizer.load', 'pattern: %s is not '
      .. 'supported', text)
   return classes[name]
end

-- Returns the items of \p{name} for brackets.
function property.named(name, rust)
   local key = name:gsub('[%s_%-]', ''):lower()
   local class, category = not rust and classes[key], categories[key]
   if class and not category then return class end
   local is_plain = #key < 3 or plain[key] or key:find '[=:&]'
   return ('\\p{%s%s}'):format(is_plain and '' or not category and 'sc:' or '', category or name)
end

-- Returns the character of a text at `at`, or its byte where it is not UTF-8; '' after the end.
function property.char(text, at)
   return text:match('^[%z\1-\127\194-\244][\128-\191]*', at) or text:sub(at, at)
end

-- Returns the name in \p{name} or \P{^name}, whether its characters are those that do not have it,
-- and the place after the brace. at: of the letter. Returns nil without a brace.
function property.braced(text, at)
   local kind, caret, name = text:match('^([pP]){(%^?)([^}]*)}', at)
   if not name then return nil end
   return name, (caret == '^') ~= (kind == 'P'), at + #caret + #name + 3
end

-- Returns the items of an escape such as \s for brackets, and whether the characters are those that
-- it does not have; nil of an escape that PCRE2 reads alike. place: 'in' brackets or 'out'.
function property.escape(c, place, rust)
   local lower = c:lower()
   if c == 'v' then return '\\x{B}', false end
   if lower == 's' then return space, c == 'S' end
   if lower == 'h' then return classes.xdigit, c == 'H' end
   if lower ~= 'w' then return nil end
   return rust and property.rust_word or place == 'out' and property.ruby_word or word, c == 'W'
end

-- Returns the pattern of one character of items, or of one that is not in them.
function property.set(items, negated)
   local name = items:match '^\\p({[^}]*})$'
   if name then return (negated and '\\P' or '\\p') .. name end
   return ('[%s%s]'):format(negated and '^' or '', items)
end

return property
