-- Keys and values of earlier tokens, kept for generation: an append copies the new ones alone.
--
-- A cache is a table of one layer. k and v [B, T, K, D] are views of `room`, buffers that are
-- longer than T and grow by half; there, the tokens of a head lie one after the other. Tables that
-- share a room (copies of a cache, as a search over several continuations makes them) may each
-- append: the first writes after its views. The views of the others no longer end the room, so they
-- move to rooms of their own. So does a cache whose k or v the caller replaced.
--
-- A layer with a window keeps the tokens that later queries see, and some more: when a room is
-- full, the last of them move to a new one. `dropped` counts the tokens dropped before k and v,
-- `left` is the distance to the farthest key that a query sees.

local tide = require 'tide'
local err = require 'tide.util.err'
local private = require 'tide.util.private'

local kv_cache = {}

local least = 256                      -- tokens that a new room has left
local reserve = 64                     -- tokens beyond the window, for answers that are taken back

-- Refuses anything but a cache that is empty, or that a call of a layer has filled.
function kv_cache.check(op, cache)
   err.type(op, 'at.cache', cache, 'table')
   local k, v = cache.k, cache.v
   if k == nil and v == nil or tide.is_tensor(k) and tide.is_tensor(v) then return end
   err.arg_text(op, 'at.cache', 'tensors k and v (as a call left them) or neither',
      ('k = %s, v = %s'):format(err.show(k), err.show(v)))
end

-- Returns whether new [B, n, K, D] can be appended to old in place.
local function is_plain(old, new)
   if tide.is_grad_enabled() and (old.requires_grad or new.requires_grad) then return false end
   if old.dtype ~= new.dtype or old.device ~= new.device then return false end
   for _, dim in ipairs { 1, 3, 4 } do
      if old:size(dim) ~= new:size(dim) then return false end
   end
   return true
end

-- Returns how many tokens a cache holds at least, if there are as many.
local function wanted(cache) return cache.left and cache.left + reserve or math.huge end

-- Returns the free room, in tokens, that a buffer for n tokens gets in addition.
local function spare(n) return math.max(least, math.floor(n / 2)) end

-- Returns a copy of old in a buffer with room for more tokens.
local function spacious(old, more)
   local B, T, K, D = unpack(old.shape)
   local room = T + more + spare(T)
   local whole = tide.empty({ B, K, room, D }, { dtype = old.dtype, device = old.device })
   local buffer = private.replace(whole, whole:permute(1, 3, 2, 4))
   local begin = buffer:narrow(2, 1, T)
   begin:copy_(old)
   private.spend(begin)
   return private.keep(buffer)
end

local function append(buffer, T, new)
   local place = buffer:narrow(2, T + 1, new:size(2))
   place:copy_(new)
   private.spend(place, new)
   return buffer:narrow(2, 1, T + new:size(2))
end

-- Returns whether the cache holds more tokens than it should.
local function is_long(cache)
   local n = wanted(cache)
   return cache.k:size(2) > n + spare(n)
end

-- Calls make(t) for the keys and for the values of the tokens that the cache is to keep, and counts
-- the others as dropped. Returns the results.
local function of_kept(cache, make)
   local T, n = cache.k:size(2), wanted(cache)
   if T <= n then return make(cache.k), make(cache.v) end
   local k, v = cache.k:narrow(2, T - n + 1, n), cache.v:narrow(2, T - n + 1, n)
   cache.dropped = (cache.dropped or 0) + T - n
   local a, b = make(k), make(v)
   private.spend(k, v)
   return a, b
end

-- Returns whether the cache can append n tokens where it is.
local function has_room(cache, n)
   local room, T = cache.room, cache.k:size(2)
   return room and rawequal(cache.k, room.last_k) and rawequal(cache.v, room.last_v)
      and T + n <= room.k:size(2) and not is_long(cache)
end

-- Appends k and v to a cache that has tokens, without gradients; returns all.
local function append_plain(cache, k, v)
   local n, T = k:size(2), math.min(cache.k:size(2), wanted(cache))
   if has_room(cache, n) then
      T = cache.k:size(2)
   else
      local a, b = of_kept(cache, function(t) return spacious(t, n) end)
      cache.room = { k = a, v = b }
   end
   local room = cache.room
   k, v = append(room.k, T, k), append(room.v, T, v)
   room.last_k, room.last_v = k, v
   return k, v
end

-- Begins a cache with k and v, of which it keeps copies of the last where they are more than it
-- needs.
local function begin(cache, k, v)
   cache.k, cache.v = k, v
   if is_long(cache) and is_plain(k, k) and is_plain(v, v) then
      cache.k, cache.v = of_kept(cache, tide.clone)
   end
   private.keep(cache.k, cache.v)
   return k, v, 0
end

-- Appends k and v [B, n, K, D] to the cache and gives them up. window: { left, right } of the
-- layer, or nil. Returns the keys and values for the new queries, and the place of the first of
-- these among them.
function kv_cache.extend(cache, k, v, window)
   local left = window and window[1]
   cache.left = left and left >= 0 and left or nil
   if not cache.k then return begin(cache, k, v) end
   local n = k:size(2)
   if is_plain(cache.k, k) and is_plain(cache.v, v) then
      k, v = append_plain(cache, k, v)
   else
      k = private.replace(k, tide.cat({ cache.k, k }, 2))
      v = private.replace(v, tide.cat({ cache.v, v }, 2))
      cache.room = nil
   end
   cache.k, cache.v = private.keep(k, v)
   return k, v, k:size(2) - n
end

-- Returns whether a cache can go back to its first n tokens: later queries find the keys that they
-- see.
function kv_cache.can_shorten(cache, n)
   local dropped = cache.dropped or 0
   return dropped == 0 or n - cache.left >= dropped
end

-- Goes back to the first n tokens.
function kv_cache.shorten(cache, n)
   n = n - (cache.dropped or 0)
   if not cache.k or cache.k:size(2) <= n then return end
   cache.k, cache.v = cache.k:narrow(2, 1, n):contiguous(), cache.v:narrow(2, 1, n):contiguous()
end

return kv_cache
