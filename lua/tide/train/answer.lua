-- One answer while it is generated: its ids and text, and when it ends.
--
-- Text that may be the beginning of a stop string is held back until it is known, so what is
-- passed on is never taken back.

local answer = {}

local Answer = {}
Answer.__index = Answer

-- Starts an answer to a list of ids. o: stops (a set of ids), stop_strings (a list), tokenizer,
-- on_token, on_text; row: its number, which both callbacks get.
function answer.new(prompt, o, row)
   local self = setmetatable({ ids = {}, all = {}, seen = {}, said = {}, held = '', parts = {},
      o = o, row = row, stream = o.tokenizer and o.tokenizer:stream() }, Answer)
   for i, id in ipairs(prompt) do self.all[i], self.seen[id] = id, (self.seen[id] or 0) + 1 end
   return self
end

local function emit(self, text)
   if text == '' then return end
   self.parts[#self.parts + 1] = text
   if self.o.on_text then self.o.on_text(text, self.row) end
end

-- Returns the byte at which the first stop string begins in a text, or nil.
local function first_stop(text, stops)
   local first
   for _, stop in ipairs(stops) do
      local at = text:find(stop, 1, true)
      if at and (not first or at < first) then first = at end
   end
   return first
end

-- Returns how many bytes at the end of a text may begin a stop string.
local function held_bytes(text, stops)
   local most = 0
   for _, stop in ipairs(stops) do
      for n = math.min(#stop - 1, #text), most + 1, -1 do
         if text:sub(-n) == stop:sub(1, n) then
            most = n
            break
         end
      end
   end
   return most
end

-- Takes in text of the stream; returns whether a stop string is in it.
local function add_text(self, text)
   local stops = self.o.stop_strings
   text = self.held .. text
   local at = first_stop(text, stops)
   if at then
      self.held = ''
      emit(self, text:sub(1, at - 1))
      return true
   end
   local n = held_bytes(text, stops)
   self.held = text:sub(#text - n + 1)
   emit(self, text:sub(1, #text - n))
   return false
end

-- Takes in an id; ends the answer at a stop id, which is not part of it, and after a stop string.
function Answer:add(id)
   if self.o.stops[id] then
      self.reason = 'stop'
      return
   end
   self.ids[#self.ids + 1], self.all[#self.all + 1] = id, id
   self.seen[id], self.said[id] = (self.seen[id] or 0) + 1, (self.said[id] or 0) + 1
   if self.o.on_token and self.o.on_token(id, self.row) == 'stop' then self.reason = 'callback' end
   if self.stream and add_text(self, self.stream:push(id)) then self.reason = 'stop_string' end
end

-- Ends the answer. Returns { ids, text, reason }: text where there is a tokenizer; reason 'stop'
-- (an id), 'stop_string', 'callback' (on_token) or 'length'.
function Answer:finish()
   if self.stream and self.reason ~= 'stop_string' then
      local stopped = add_text(self, self.stream:finish())
      if stopped then self.reason = 'stop_string' else emit(self, self.held) end
   end
   return { ids = self.ids, text = self.stream and table.concat(self.parts) or nil,
      reason = self.reason or 'length' }
end

return answer
