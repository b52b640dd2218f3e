-- TensorBoard event files: the figures of steps as scalars.
--
-- A file is a list of records: length (8 bytes), its masked CRC-32C, the bytes of an Event message
-- (protobuf), their masked CRC-32C. The first names the version of the format. Pure Lua.

local bit = require 'bit'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local little = require('tide.util.little').write
local signature = require 'tide.util.signature'

local events = {}

local Events = {}
Events.__index = Events

-- ---- bytes -------------------------------------------------------------------------------------

local function make_table()
   local list = {}
   for i = 0, 255 do
      local c = i
      for _ = 1, 8 do
         local odd = bit.band(c, 1) == 1
         c = bit.rshift(c, 1)
         if odd then c = bit.bxor(c, 0x82f63b78) end
      end
      list[i] = c
   end
   return list
end

local crc_table = make_table()

-- Returns the CRC-32C (Castagnoli) of a text, in [0, 2^32).
function events.crc32c(text)
   local c = bit.bnot(0)
   for i = 1, #text do
      c = bit.bxor(crc_table[bit.band(bit.bxor(c, text:byte(i)), 255)], bit.rshift(c, 8))
   end
   return bit.bnot(c) % 2 ^ 32
end

-- Returns a checksum as the format keeps it: rotated by 15 bits, plus a constant.
local function masked(text)
   local c = events.crc32c(text)
   return little((math.floor(c / 2 ^ 15) + c % 2 ^ 15 * 2 ^ 17 + 0xa282ead8) % 2 ^ 32, 4)
end

-- Returns sign, exponent and fraction of a number in a binary format, whole numbers. bits: of the
-- fraction, which may be 2 ^ bits where it was rounded up: added to the exponent it carries.
local function parts(v, bits, bias)
   local sign = (v < 0 or 1 / v < 0) and 1 or 0
   v = math.abs(v)
   if v ~= v then return 0, 2 * bias + 1, 2 ^ (bits - 1) end
   local m, e = math.frexp(v)
   e = e - 1 + bias
   if v == 0 or e < -bits then return sign, 0, 0 end
   local one = 2 ^ bits
   local f = e < 1 and m * 2 ^ (bits + e) or (2 * m - 1) * one
   f = f - f % 1 + ((f % 1 > 0.5 or f % 1 == 0.5 and f % 2 > 1) and 1 or 0)  -- half to even
   if e < 1 then return sign, 0, f end
   if v == math.huge or e > 2 * bias then return sign, 2 * bias + 1, 0 end
   return sign, e, f
end

-- Returns the bytes of a number as an f32.
function events.f32(v)
   local s, e, f = parts(v, 23, 127)
   return little(s * 2 ^ 31 + e * 2 ^ 23 + f, 4)
end

-- Returns the bytes of a number as an f64.
function events.f64(v)
   local s, e, f = parts(v, 52, 1023)
   return little(f % 2 ^ 32, 4) .. little(s * 2 ^ 31 + e * 2 ^ 20 + math.floor(f / 2 ^ 32), 4)
end

-- ---- messages ----------------------------------------------------------------------------------

local function varint(v)
   local list = {}
   repeat
      local low = v % 128
      v = math.floor(v / 128)
      list[#list + 1] = string.char(v > 0 and low + 128 or low)
   until v == 0
   return table.concat(list)
end

-- Returns a field of bytes: its number, as a tag, and their length before them.
local function bytes(field, text) return string.char(field * 8 + 2) .. varint(#text) .. text end

-- Returns an Event: wall_time = 1, step = 2; more: its other field.
local function event(time, step, more)
   return '\9' .. events.f64(time) .. '\16' .. varint(step) .. more
end

-- Returns the record of an Event.
local function framed(text)
   local length = little(#text, 8)
   return length .. masked(length) .. text .. masked(text)
end

local prefix = { loss = 'train/', val_loss = 'val/' }
local names = { val_loss = 'loss' }
local left_out = { step = true, time = true, last = true, more = true }

-- Returns the Event of a step: a Value { tag = 1, simple_value = 2 } for each figure, by name.
local function step_event(record)
   local keys, values = {}, {}
   local function add(t)
      for k, v in each(t) do
         if type(v) == 'number' and not left_out[k] then keys[#keys + 1] = { k, v } end
      end
   end
   add(record)
   add(record.more or {})
   table.sort(keys, function(a, b) return a[1] < b[1] end)
   for i, pair in ipairs(keys) do
      local tag = (prefix[pair[1]] or 'train/') .. (names[pair[1]] or pair[1])
      values[i] = bytes(1, bytes(1, tag) .. '\21' .. events.f32(pair[2]))
   end
   return event(record.time or 0, record.step, bytes(5, table.concat(values)))
end

-- ---- the file ----------------------------------------------------------------------------------

-- Begins an event file in a folder. E_IO. time: of its first record, in seconds.
function events.new(dir, time)
   local path = fs.join(dir, 'events.out.tfevents.0.tide')
   local file, why = io.open(path, 'wb')
   if not file then err.raise('E_IO', 'train.events.new', 'cannot write %s', why) end
   file:setvbuf 'no'
   file:write(framed(event(time, 0, bytes(3, 'brain.Event:2'))))
   return setmetatable({ file = file, path = path }, Events)
end

-- Adds the figures of a step (see train.metric). True, or nil and the system's reason.
function Events:add(record)
   local ok, why = self.file:write(framed(step_event(record)))
   if not ok then return nil, why end
   return true
end

-- Closes the file; idempotent.
function Events:close()
   if self.file then self.file:close() end
   self.file = nil
end

signature.doors('train.events', Events, { add = 'record: table' })
return signature.doors('train.events', events, {
   new = 'dir: string; time: number', crc32c = 'text: string' })
