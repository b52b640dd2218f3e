-- Random choices that can be made again. A generator of cases draws whole numbers and the object
-- keeps a record of them; the same record makes the same case, and a smaller record a smaller case.
-- So cases need no code of their own to be shrunk: shrink.lua works on the record.
--
-- A generator puts the simplest value first: int gives lo, pick the first entry and chance false
-- where the record has 0 or ends.

local choice = {}

local Choice = {}
Choice.__index = Choice

-- A generator of numbers in [0, 1) from a text: two multiplicative congruential generators of
-- L'Ecuyer (1988), combined. All products stay below 2^53.
function choice.stream(text)
   local a, b = 1, 1
   for i = 1, #text do
      a = (a * 40014 + text:byte(i)) % 2147483562 + 1
      b = (b * 40692 + text:byte(i) * 7) % 2147483398 + 1
   end
   local function next_()
      a, b = (40014 * a) % 2147483563, (40692 * b) % 2147483399
      return (a - b) % 2147483562 / 2147483562
   end
   for _ = 1, 8 do next_() end
   return next_
end

-- Choices drawn by chance: a function of the words.
function choice.drawn(...)
   local words = { ... }
   for i, w in ipairs(words) do words[i] = tostring(w) end
   return setmetatable({ record = {}, next = choice.stream(table.concat(words, '/')) }, Choice)
end

-- The choices of a record. Numbers too large for their place are the largest there; those that are
-- missing are 0.
function choice.taken(record)
   return setmetatable({ record = {}, given = record }, Choice)
end

-- One of 0 .. n - 1, `shape` makes it of a number in [0, 1).
local function take(self, n, shape)
   local at = #self.record + 1
   local v
   if self.given then
      v = math.min(self.given[at] or 0, n - 1)
   else
      v = math.min(shape(self.next()), n - 1)
   end
   self.record[at] = v
   return v
end

-- A whole number from lo to hi, each as likely.
function Choice:int(lo, hi)
   return lo + take(self, hi - lo + 1, function(u) return math.floor(u * (hi - lo + 1)) end)
end

-- A whole number from lo to hi, small ones more often.
function Choice:few(lo, hi)
   return lo + take(self, hi - lo + 1, function(u) return math.floor(u * u * (hi - lo + 1)) end)
end

-- An entry of a list.
function Choice:pick(list) return list[self:int(1, #list)] end

-- True with probability p.
function Choice:chance(p)
   return take(self, 2, function(u) return u < p and 1 or 0 end) == 1
end

return choice
