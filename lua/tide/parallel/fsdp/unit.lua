-- One unit: buckets that are gathered, dropped and reduced together.
--
-- A bucket holds parameters of one dtype, all trained or all frozen, all shared among the same
-- ranks, so a unit has one collective a bucket. schedule.lua decides when; this file only calls the
-- buckets.

local by_key = require 'tide.util.by_key'
local class = require 'tide.class'
local err = require 'tide.util.err'
local Bucket = require 'tide.parallel.fsdp.bucket'

local Unit = class 'FsdpUnit'

-- Returns entries grouped by (dtype, trained or not, over which ranks), in order of their first
-- entry.
local function split(entries)
   local list, at = by_key()
   for _, e in ipairs(entries) do
      local key = { e.dtype, e.requires_grad and 'trained' or 'frozen', e.over }
      table.insert(at(table.concat(key, ' ')), e)
   end
   return list
end

-- Makes a unit. desc: name, modules, is_last. bucket_opts(entry): options of an entry's bucket.
function Unit:init(desc, entries, bucket_opts)
   self.name, self.modules, self.is_last = desc.name, desc.modules, desc.is_last
   self.entries, self.buckets, self.numel = entries, {}, 0
   for i, list in ipairs(split(entries)) do
      self.buckets[i] = Bucket(list, bucket_opts(list[1]))
      self.numel = self.numel + self.buckets[i].layout.total
   end
   self.reshard_after_forward, self.calls, self.holds = false, 0, 0
end

-- Returns whether all parameters of the unit are gathered.
function Unit:is_present()
   for _, b in ipairs(self.buckets) do
      if b.state ~= 'present' then return false end
   end
   return true
end

-- Returns whether the unit holds, or is about to hold, gathered bytes that it will free.
function Unit:is_live()
   for _, b in ipairs(self.buckets) do
      if b.full and not b.is_whole and b.state ~= 'absent' then return true end
   end
   return false
end

-- What each bucket does for itself; see Bucket.
for _, name in ipairs { 'gather', 'wait', 'accumulate', 'drain', 'zero_grad', 'reset' } do
   Unit[name] = function(self, ...)
      for _, b in ipairs(self.buckets) do b[name](b, ...) end
   end
end

-- Reshards all buckets. It does nothing while a call needs the unit whole.
function Unit:reshard(keep)
   if self.holds > 0 then return end
   for _, b in ipairs(self.buckets) do b:reshard(keep) end
end

-- Reshards without keeping what was written into gathered parameters.
function Unit:forget_writes()
   if self.holds > 0 then return end
   for _, b in ipairs(self.buckets) do
      if b:is_written() and b.apart then b:expire() else b:reshard(false) end
   end
end

-- Raises while a call needs the unit whole.
function Unit:check_free()
   err.raise_if(self.holds > 0, 'E_STATE', 'parallel.fsdp.updated', 'the shards change while '
      .. 'parameters are whole; step and load outside unshard_fsdp2_model')
end

-- Drops what was gathered, which is out of date where the shards have changed.
function Unit:expire()
   self:check_free()
   for _, b in ipairs(self.buckets) do b:expire() end
end

-- Reduces the gradients. Returns the name of a parameter whose gradient is not finite, or nil.
function Unit:reduce(opts)
   local bad
   for _, b in ipairs(self.buckets) do bad = b:reduce(opts) or bad end
   return bad
end

return Unit
