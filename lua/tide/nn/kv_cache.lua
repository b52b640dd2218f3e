-- Keys and values of earlier tokens, kept for generation: an append copies the new ones alone.
--
-- A cache is a table of one layer. k and v [B, T, K, D] are views of `room`, buffers that are
-- longer than T and grow by half; there, the tokens of a head lie one after the other. Tables that
-- share a room (copies of a cache, as a search over several continuations makes them) may each
-- append: the first writes behind its views, and the others, whose views are no longer the room's
-- last, move to rooms of their own. So does a cache whose k or v the caller replaced.

local tide = require 'tide'
local private = require 'tide.util.private'

local kv_cache = {}

local least = 256                      -- tokens that a new room has left

-- Whether new [B, n, K, D] can be appended to old in place.
local function is_plain(old, new)
   if tide.is_grad_enabled() and (old.requires_grad or new.requires_grad) then return false end
   if old.dtype ~= new.dtype or old.device ~= new.device then return false end
   for _, dim in ipairs { 1, 3, 4 } do
      if old:size(dim) ~= new:size(dim) then return false end
   end
   return true
end

-- A buffer for old with tokens to spare, old in it.
local function spacious(old, more)
   local B, T, K, D = unpack(old.shape)
   local room = T + more + math.max(least, math.floor(T / 2))
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

-- Appends k and v [B, n, K, D] to the cache and gives them up; returns all keys and values.
function kv_cache.extend(cache, k, v)
   if cache.k and is_plain(cache.k, k) and is_plain(cache.v, v) then
      local T, n, room = cache.k:size(2), k:size(2), cache.room
      if not room or not rawequal(cache.k, room.last_k) or not rawequal(cache.v, room.last_v)
         or room.k:size(2) < T + n then
         room = { k = spacious(cache.k, n), v = spacious(cache.v, n) }
      end
      k, v = append(room.k, T, k), append(room.v, T, v)
      cache.room, room.last_k, room.last_v = room, k, v
   elseif cache.k then
      k = private.replace(k, tide.cat({ cache.k, k }, 2))
      v = private.replace(v, tide.cat({ cache.v, v }, 2))
      cache.room = nil
   end
   cache.k, cache.v = private.keep(k, v)
   return k, v
end

return kv_cache
