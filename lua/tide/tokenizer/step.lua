-- The normalizers and pre-tokenizers of tokenizer.json as steps of core/text: a table of functions
-- by type. Each appends to a list; an unknown type raises E_UNSUPPORTED with its name.

local err = require 'tide.util.err'
local field = require 'tide.tokenizer.field'
local pattern = require 'tide.tokenizer.pattern'
local visible = require 'tide.tokenizer.visible'

local step = { normalizer = {}, pre_tokenizer = {} }

local op = 'tokenizer.load'

local function add(list, kind, mode, what, with)
   list[#list + 1] = { kind = kind, mode = mode, what = what, with = with }
end

local behaviors = { Isolated = true, Removed = true, MergedWithPrevious = true,
   MergedWithNext = true, Contiguous = true }

local function split(list, what, mode, invert)
   err.raise_if(not behaviors[mode], 'E_UNSUPPORTED', op, "pre_tokenizer.behavior '%s' is not "
      .. 'supported', mode)
   add(list, 'split', { [mode] = true, invert = invert or nil }, what)
end

-- Returns the pattern of a field `pattern`: { String = }, { Regex = } or a text.
local function pattern_of(p)
   if type(p) == 'string' then return pattern.literal(p) end
   if type(p) == 'table' and type(p.String) == 'string' then return pattern.literal(p.String) end
   if type(p) == 'table' and type(p.Regex) == 'string' then return pattern.translate(p.Regex) end
   err.raise('E_FORMAT', op, 'a pattern is neither String nor Regex')
end

-- Appends the steps of a node and those of its list, if it is a Sequence.
local function walk(list, node, group, parts)
   if not field.is_node(group, node) then return end
   field.node(group, node)
   if node.type == 'Sequence' then
      for _, child in ipairs(node[parts] or {}) do walk(list, child, group, parts) end
      return
   end
   local fn = step[group][node.type]
   err.raise_if(not fn, 'E_UNSUPPORTED', op, "%s '%s' is not supported", group, tostring(node.type))
   fn(list, node)
end

-- Returns the list of steps of the field normalizer.
function step.normal(node)
   local list = {}
   walk(list, node, 'normalizer', 'normalizers')
   return list
end

-- Returns the list of steps of the field pre_tokenizer.
function step.words(node)
   local list = {}
   walk(list, node, 'pre_tokenizer', 'pretokenizers')
   return list
end

-- ---- normalizers -----------------------------------------------------------------------------

local normal = step.normalizer

for _, form in ipairs { 'NFC', 'NFD', 'NFKC', 'NFKD' } do
   normal[form] = function(list) add(list, 'unicode', { [form] = true }) end
end
function normal.Lowercase(list) add(list, 'lower') end
function normal.StripAccents(list) add(list, 'replace', nil, '\\p{M}+', '') end
function normal.Prepend(list, node) add(list, 'prepend', nil, nil, node.prepend) end
function normal.ByteLevel(list) add(list, 'bytes') end

function normal.Replace(list, node)
   add(list, 'replace', nil, pattern_of(node.pattern), node.content)
end

function normal.Strip(list, node)
   if node.strip_left then add(list, 'replace', nil, '\\A' .. pattern.space .. '+', '') end
   if node.strip_right then add(list, 'replace', nil, pattern.space .. '+\\z', '') end
end

function normal.Nmt(list)
   add(list, 'replace', nil, '[\\x{1}-\\x{8}\\x{b}\\x{e}-\\x{1f}\\x{7f}\\x{8f}\\x{9f}]+', '')
   add(list, 'replace', nil,
      '[\\x{9}\\x{a}\\x{c}\\x{d}\\x{1680}\\x{200b}-\\x{200f}\\x{2028}\\x{2029}\\x{2581}\\x{feff}'
      .. '\\x{fffd}]', ' ')
end

function normal.Precompiled(list, node)
   local map = type(node.precompiled_charsmap) == 'string'
      and visible.base64(node.precompiled_charsmap)
   if not map then err.raise('E_FORMAT', op, 'precompiled_charsmap is not base64') end
   if #map > 0 then add(list, 'charsmap', nil, nil, map) end
end

local ideographs = '[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{20000}-\\x{2A6DF}'
   .. '\\x{2A700}-\\x{2B73F}'
   .. '\\x{2B740}-\\x{2B81F}\\x{2B920}-\\x{2CEAF}\\x{F900}-\\x{FAFF}\\x{2F800}-\\x{2FA1F}]'

function normal.BertNormalizer(list, node)
   if node.clean_text ~= false then
      add(list, 'replace', nil, '(?:[\\x{0}\\x{FFFD}]|(?![\\t\\n\\r])[\\p{Cc}\\p{Cf}\\p{Co}])+', '')
      add(list, 'replace', nil, pattern.space, ' ')
   end
   if node.handle_chinese_chars ~= false then
      add(list, 'replace', { surround = true }, ideographs, ' ')
   end
   local strip = node.strip_accents
   if type(strip) ~= 'boolean' then strip = node.lowercase end
   if strip then
      add(list, 'unicode', { NFD = true })
      add(list, 'replace', nil, '\\p{Mn}+', '')
   end
   if node.lowercase then add(list, 'lower') end
end

-- ---- pre-tokenizers --------------------------------------------------------------------------

local words = step.pre_tokenizer

function words.Split(list, node)
   split(list, pattern_of(node.pattern), node.behavior, node.invert == true)
end

function words.ByteLevel(list, node)
   if node.add_prefix_space then add(list, 'prepend', { unless = true }, nil, ' ') end
   if node.use_regex ~= false then split(list, pattern.translate(pattern.gpt2), 'Isolated') end
   add(list, 'bytes')
end

-- Returns 'first', 'always' or 'never' from the field prepend_scheme, or an older field.
function step.scheme(node)
   local scheme = node.prepend_scheme
   if scheme == 'first' or scheme == 'always' or scheme == 'never' then return scheme end
   err.raise_if(scheme, 'E_UNSUPPORTED', op, "prepend_scheme '%s' is not supported", scheme)
   return node.add_prefix_space == false and 'never' or 'always'
end

function words.Metaspace(list, node)
   local mark, scheme = node.replacement or '▁', step.scheme(node)
   add(list, 'replace', nil, ' ', mark)
   if scheme ~= 'never' then
      add(list, 'prepend', { unless = true, first = scheme == 'first' }, nil, mark)
   end
   if node.split ~= false then split(list, pattern.literal(mark), 'MergedWithNext') end
end

function words.WhitespaceSplit(list) split(list, pattern.space .. '+', 'Removed') end
function words.Whitespace(list)
   split(list, ('[%s]+|[^%s%s]+'):format(pattern.word, pattern.word, pattern.space), 'Removed',
      true)
end
function words.Punctuation(list, node)
   split(list, pattern.punctuation, node.behavior or 'Isolated')
end
function words.BertPreTokenizer(list)
   words.WhitespaceSplit(list)
   split(list, pattern.punctuation, 'Isolated')
end
function words.Digits(list, node)
   split(list, node.individual_digits and '\\p{N}' or '\\p{N}+', 'Isolated')
end
function words.FixedLength(list, node)
   local n = err.integer(op, 'pre_tokenizer.length', node.length or 5, 1, 65535)
   split(list, ('(?s).{1,%d}'):format(n), 'Isolated')
end
function words.CharDelimiterSplit(list, node)
   split(list, pattern.literal(node.delimiter), 'Removed')
end

return step
