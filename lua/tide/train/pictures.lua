-- The pictures of a prompt, and which of them an earlier prompt had.
--
-- A picture is known by its grid and by a checksum of its patches, so no patches are kept.

local fs = require 'tide.util.fs'
local vision = require 'tide.data.vision'

local pictures = {}

-- Returns the pictures of a prompt (a list of ids) in the order of their tokens: those of the
-- model's _pictures with `mark`, a text that other numbers do not have. inputs: what the model gets
-- beside the ids; nil without pictures.
function pictures.of(model, ids, inputs)
   local list = inputs and model:_pictures(ids, inputs) or {}
   for _, p in ipairs(list) do
      p.mark = table.concat({ p.kind, table.concat(p.grid, ' '), tostring(p.seconds),
         p.patches.dtype, fs.io().checksum(p.patches) }, ' ')
   end
   return list
end

-- Returns what `shared` needs to know of pictures later.
function pictures.known(list)
   local out = {}
   for i, p in ipairs(list) do out[i] = { mark = p.mark } end
   return out
end

-- Returns how many of n equal ids of two prompts stand for equal things: fewer where a picture of
-- them differs or is cut. known: of the earlier prompt; list: the pictures of the later one.
function pictures.shared(known, list, n)
   for i, p in ipairs(list) do
      local is_known = known[i] and known[i].mark == p.mark and p.last <= n
      if p.first <= n and not is_known then return p.first - 1 end
   end
   return n
end

-- Returns the fields of a call that has only the pictures behind the first n tokens.
function pictures.behind(list, n)
   local rest = { images = {}, videos = {} }
   for _, p in ipairs(list) do
      if p.first > n then table.insert(rest[p.kind .. 's'], p) end
   end
   return vision.fields(rest)
end

-- Returns the fields of a call that say where pictures lie.
function pictures.places(inputs)
   return { image_grid_thw = inputs.image_grid_thw, video_grid_thw = inputs.video_grid_thw,
      second_per_grid_ts = inputs.second_per_grid_ts }
end

return pictures
