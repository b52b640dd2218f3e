-- Decodes ids to text. A decoder is a list of rules on the text of one token, compiled from the
-- field `decoder` of tokenizer.json; Stream applies them and holds incomplete characters back.
--
-- A rule is a function (text, is first) -> text. Beside the rules: bytes (texts are bytes; invalid
-- UTF-8 becomes U+FFFD at the end), fallback (tokens <0xNN> are bytes; the number of rules before
-- that), fused (the decoder that made one text of all tokens), strip (a character and how many of
-- it to drop at the start of the text), join (separator between tokens), suffix (dropped from the
-- last token).

local build = require 'tide.tokenizer.build'
local err = require 'tide.util.err'
local field = require 'tide.tokenizer.field'
local step = require 'tide.tokenizer.step'
local visible = require 'tide.tokenizer.visible'

local decoder = {}

local op = 'tokenizer.load'
local replacement = '\239\191\189'

local function plain(text) return (text:gsub('%W', '%%%0')) end

-- Raises where a decoder that works on tokens has only the whole text.
local function check_tokens(d, name)
   err.raise_if(d.fused, 'E_UNSUPPORTED', op, 'decoder %s after %s', name, tostring(d.fused))
end

local kinds = {}

function kinds.ByteLevel(d)
   check_tokens(d, 'ByteLevel')
   d.bytes, d.fused = true, 'ByteLevel'
   d.rules[#d.rules + 1] = function(text) return visible.bytes(text) or text end
end

function kinds.Metaspace(d, node)
   check_tokens(d, 'Metaspace')
   local mark = plain(node.replacement or '▁')
   local drop = step.scheme(node) ~= 'never'
   d.rules[#d.rules + 1] = function(text, first)
      return (text:gsub(mark, first and drop and '' or ' '))
   end
end

-- Pairs of texts: spaces before punctuation and in English contractions.
local cleaned = { { ' .', '.' }, { ' ?', '?' }, { ' !', '!' }, { ' ,', ',' }, { " ' ", "'" },
   { " n't", "n't" }, { " 'm", "'m" }, { " do not", " don't" }, { " 's", "'s" },
   { " 've", "'ve" }, { " 're", "'re" } }

local function clean(text)
   for _, pair in ipairs(cleaned) do text = text:gsub(plain(pair[1]), plain(pair[2])) end
   return text
end

function kinds.WordPiece(d, node)
   check_tokens(d, 'WordPiece')
   local prefix, cleanup = node.prefix or '##', node.cleanup ~= false
   d.rules[#d.rules + 1] = function(text, first)
      if not first then
         text = text:sub(1, #prefix) == prefix and text:sub(#prefix + 1) or ' ' .. text
      end
      return cleanup and clean(text) or text
   end
end

function kinds.BPEDecoder(d, node)
   check_tokens(d, 'BPEDecoder')
   d.suffix = node.suffix or '</w>'
   local suffix = plain(d.suffix)
   d.rules[#d.rules + 1] = function(text) return (text:gsub(suffix, ' ')) end
end

-- Returns whether a text is one character, which no two tokens share: of bytes, one of ASCII.
local function is_char(text, bytes)
   return #text == 1 or not bytes and text:find '^[\194-\244][\128-\191]+$' ~= nil
end

function kinds.Replace(d, node)
   local from = node.pattern.String
   if type(from) ~= 'string' then err.raise('E_UNSUPPORTED', op, 'decoder Replace with a Regex') end
   if not is_char(from, d.bytes) then check_tokens(d, 'Replace of several characters') end
   from = plain(from)
   local to = plain(node.content)
   d.rules[#d.rules + 1] = function(text) return (text:gsub(from, to)) end
end

function kinds.ByteFallback(d)
   check_tokens(d, 'ByteFallback')
   d.fallback = #d.rules
end
function kinds.Fuse(d) d.fused = d.fused or 'Fuse' end

function kinds.Strip(d, node)
   if (node.stop or 0) > 0 then err.raise('E_UNSUPPORTED', op, 'decoder Strip with stop > 0') end
   if not d.fused then err.raise('E_UNSUPPORTED', op, 'decoder Strip before Fuse') end
   d.strip = { node.content, node.start or 0 }
end

function kinds.Sequence(d, node)
   for _, child in ipairs(node.decoders or {}) do decoder.add(d, child) end
end

-- Appends the rules of a node to a decoder.
function decoder.add(d, node)
   field.value('decoder', node, 'object')
   local fn = kinds[field.value('decoder.type', node.type, 'text')]
   err.raise_if(not fn, 'E_UNSUPPORTED', op, "decoder '%s' is not supported", node.type)
   fn(d, field.node('decoder', node))
end

-- Returns the decoder of a node; without a node, tokens are joined by spaces.
function decoder.compile(node)
   local d = { rules = {} }
   if field.is_node('decoder', node) then decoder.add(d, node) else d.join = ' ' end
   return d
end

-- ---- UTF-8 -----------------------------------------------------------------------------------

-- Returns the length in bytes of the incomplete or invalid character at `at`, at least 1, and
-- whether the text ends there.
local function broken(text, at)
   local lead = text:byte(at)
   if lead < 0xC2 or lead > 0xF4 then return 1, false end
   local low = lead == 0xE0 and 0xA0 or lead == 0xF0 and 0x90 or 0x80
   local high = lead == 0xED and 0x9F or lead == 0xF4 and 0x8F or 0xBF
   for k = 1, 3 do                                     -- ends at one of these: it is not whole
      local b = text:byte(at + k)
      if not b then return k, true end
      if b < low or b > high then return k, false end
      low, high = 0x80, 0xBF
   end
end

-- Replaces each maximal invalid sequence of UTF-8 by U+FFFD. keep: an incomplete character at the
-- end is not replaced but returned as second result.
function decoder.repair(text, keep)
   local out, rest = {}, ''
   while true do
      local bad = build.bad_utf8(text)
      if not bad then break end
      out[#out + 1] = text:sub(1, bad - 1)
      local n, open = broken(text, bad)
      if open and keep then
         text, rest = '', text:sub(bad)
         break
      end
      out[#out + 1] = replacement
      text = text:sub(bad + n)
   end
   out[#out + 1] = text
   return table.concat(out), rest
end

-- ---- streams ---------------------------------------------------------------------------------

local Stream = {}
Stream.__index = Stream

-- Makes a stream of a tokenizer's ids. opts: special (true: special tokens give text).
function decoder.stream(tok, opts)
   return setmetatable({ tok = tok, d = tok.description.decoder, special = opts.special,
      n = 0, pending = '', run = {}, strip = tok.description.decoder.strip and
      tok.description.decoder.strip[2] or 0 }, Stream)
end

-- Drops the characters that the decoder strips at the start of the text.
local function begin(self, text)
   if self.strip == 0 or text == '' then return text end
   local c = self.d.strip[1]
   while self.strip > 0 do
      if text == '' then return text end
      if text:sub(1, #c) ~= c then
         self.strip = 0
         return text
      end
      text, self.strip = text:sub(#c + 1), self.strip - 1
   end
   return text
end

-- Ends the run of byte tokens. Returns its text, or one U+FFFD for each byte if it is not UTF-8.
local function end_run(self)
   if #self.run == 0 then return '' end
   local text, first = table.concat(self.run), self.n == #self.run
   self.run = {}
   if build.bad_utf8(text) then text = replacement:rep(#text) end
   for i = self.d.fallback + 1, #self.d.rules do text = self.d.rules[i](text, first) end
   return text
end

-- Applies the rules to a token.
local function apply(self, text)
   local first = self.n == 0
   self.n = self.n + 1
   for _, rule in ipairs(self.d.rules) do text = rule(text, first) end
   return self.d.join and not first and self.d.join .. text or text
end

-- Takes one id and returns the text that is complete, often '' and never half a character.
function Stream:push(id)
   local tok, d = self.tok, self.d
   local name = tok:token(id)
   if not name or tok.is_special[id] and not self.special then return '' end
   local byte = d.fallback and not d.bytes and #name == 6 and name:match '^<0x(%x%x)>$'
   if byte then
      self.n = self.n + 1
      self.run[#self.run + 1] = string.char(tonumber(byte, 16))
      return ''
   end
   if d.bytes then
      local text
      text, self.pending = decoder.repair(self.pending .. apply(self, name), true)
      return begin(self, text)
   end
   local text = end_run(self) .. apply(self, name)
   return begin(self, text)
end

-- Returns the text held back, and resets the stream for reuse.
function Stream:finish()
   local text = self.d.bytes and decoder.repair(self.pending) or end_run(self)
   self.pending = ''
   return begin(self, text)
end

-- Returns whether the last of the ids that give text ends with the suffix that its text drops.
local function ends_with_suffix(tok, ids, opts)
   local suffix = tok.description.decoder.suffix
   for i = suffix and #ids or 0, 1, -1 do
      local name = tok:token(ids[i])
      if name and (opts.special or not tok.is_special[ids[i]]) then
         return name:sub(-#suffix) == suffix
      end
   end
   return false
end

-- Returns the text of a list of ids, with what the last one has of a suffix.
local function whole(tok, ids, opts)
   local out, s = {}, decoder.stream(tok, opts)
   if not s.d.bytes then
      for i, id in ipairs(ids) do out[i] = s:push(id) end
      return table.concat(out) .. s:finish()
   end
   for i, id in ipairs(ids) do
      local name = tok:token(id)
      out[i] = name and (opts.special or not tok.is_special[id]) and apply(s, name) or ''
   end
   return begin(s, (decoder.repair(table.concat(out))))
end

-- Returns the text of a list of ids.
function decoder.all(tok, ids, opts)
   local text = whole(tok, ids, opts)
   return ends_with_suffix(tok, ids, opts) and text:gsub(' $', '') or text
end

return decoder
