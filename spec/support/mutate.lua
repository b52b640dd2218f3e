-- Random changes of files: of their bytes, and of the values of a JSON text.

local tide = require 'tide'
local each = require 'tide.util.each'

local mutate = {}

-- Returns a generator of its own, random(n) in 1 .. n: the same changes on every machine.
function mutate.random(seed)
   local state = seed * 7919 + 17
   local function random(n)
      state = (state * 1103515245 + 12345) % 2 ^ 31
      return math.floor(state / 2 ^ 8) % n + 1
   end
   for _ = 1, 5 do random(9) end
   return random
end

local fragments = { '\0', '\255', '"', '{', '}', '[', ']', ',', ':', '9', '-', '\\', 'e', '\n',
   '\240\159', 'null', '{}', '[]', '99999999999', '1e400', '-1', '0', '\\uD800', '(', '*',
   '{1000}', '(?R)', '(a+)+$', '[[:', '\127', '{{', '}}', '{%', '%}', '|', ' not ', '[::-1]',
   '\255\255\255\255\255\255\255\127', '\0\0\0\0\0\0\0\128', 'true' }

local function part(text, random, most)
   local from = random(#text)
   return from, math.min(#text, from + random(most) - 1)
end

-- Changes of a text that is not empty.
local changes = {
   function(s, random)
      local at = random(#s)
      return s:sub(1, at - 1) .. string.char(random(256) - 1) .. s:sub(at + 1)
   end,
   function(s, random)
      local at = random(#s)
      return s:sub(1, at - 1) .. fragments[random(#fragments)] .. s:sub(at + 1)
   end,
   function(s, random)
      local at = random(#s + 1)
      return s:sub(1, at - 1) .. fragments[random(#fragments)] .. s:sub(at)
   end,
   function(s, random)
      local from, to = part(s, random, 200)
      return s:sub(1, from - 1) .. s:sub(to + 1)
   end,
   function(s, random)
      local from, to = part(s, random, 200)
      return s:sub(1, to) .. s:sub(from)
   end,
   function(s, random)
      local from, to = part(s, random, 60)
      local at = random(#s + 1)
      return s:sub(1, at - 1) .. s:sub(from, to) .. s:sub(at)
   end,
   function(s, random) return random(5) == 1 and s:sub(1, random(#s) - 1) or s end,
   function(s, random)
      local at, n = random(#s), random(2 ^ 15)
      return random(5) == 1 and s:sub(1, at) .. s:sub(at, at):rep(n) .. s:sub(at + 1) or s
   end,
}

-- Returns a text with one to four changes of its bytes. random: of mutate.random.
function mutate.bytes(text, random)
   for _ = 1, random(4) do
      if text == '' then return 'x' end
      text = changes[random(#changes)](text, random)
   end
   return text
end

local null = tide.json.null
local values = { -1, 0, 1, 2, 3, 0.5, 255, 256, 65536, 1e9, 2 ^ 31, 2 ^ 32, 2 ^ 53, 1e300, -1e-9,
   'x', '', '\0', '<s>', 'Infinity', '(', '(a*)*b', '[^', ('y'):rep(70000), true, false,
   null, 1 / 0, {}, { 1, 2 }, { a = 1 }, { { {} } }, { 'x', 'y' } }

-- The keys of a table in an order that is the same in each run.
local function keys(t)
   local list = {}
   for key in each(t) do list[#list + 1] = key end
   table.sort(list, function(a, b)
      return type(a) == type(b) and a < b or type(a) == 'number' and type(b) ~= 'number'
   end)
   return list
end

-- The places { table, key } of a tree of values.
local function places(tree, list)
   for _, key in ipairs(keys(tree)) do
      list[#list + 1] = { tree, key }
      if type(tree[key]) == 'table' and tree[key] ~= null then places(tree[key], list) end
   end
   return list
end

-- Returns a list without gaps as the list that it is.
local function closed(t)
   local list = {}
   for i = 1, table.maxn(t) do list[#list + 1] = t[i] end
   return tide.json.array(list)
end

-- Gives a place another value: one of `values`, that of another place, or none.
local function set(place, all, random)
   local t, key = place[1], place[2]
   local how = random(8)
   if how == 1 then t[key] = nil
   elseif how <= 3 then
      local other = all[random(#all)]
      t[key] = other[1][other[2]]
   else t[key] = values[random(#values)] end
end

-- Copies a tree without sharing, to `deep` levels: a value may have been put inside of itself.
local function copied(v, deep)
   if type(v) ~= 'table' or v == null then return v end
   if deep == 0 then return null end
   local out = {}
   for key, member in each(v) do out[key] = copied(member, deep - 1) end
   return tide.json.is_array(v) and closed(out) or out
end

-- Returns a JSON text with one to three of its values changed. random: of mutate.random.
function mutate.json(text, random)
   local tree = tide.json.decode(text, { nonfinite = true })
   for _ = 1, random(3) do
      local all = places(tree, {})
      if #all == 0 then break end
      set(all[random(#all)], all, random)
      tree = copied(tree, 12)
   end
   return tide.json.encode(tree, { nonfinite = random(2) == 1 and 'word' or 'object' })
end

return mutate
