-- Templates whose placeholder for an image is text of its own before tokens are made: Gemma 3's
-- processor writes \n\n<start_of_image>, the tokens of the image and <end_of_image>\n\n where a
-- template has <start_of_image>.

local image_text = {}

-- Returns a text in which each `mark` is `text`, and ranges { first, last } of its bytes, from 0,
-- moved accordingly; nil for nil. What replaces a mark counts where the mark did.
local function replaced(whole, ranges, mark, text)
   local pieces, marks, at = {}, {}, 1
   while true do
      local first, last = whole:find(mark, at, true)
      if not first then break end
      pieces[#pieces + 1], marks[#marks + 1] = whole:sub(at, first - 1), last
      pieces[#pieces + 1], at = text, last + 1
   end
   if not marks[1] then return whole, ranges end
   pieces[#pieces + 1] = whole:sub(at)
   local function moved(p)
      local n = 0
      while marks[n + 1] and marks[n + 1] <= p do n = n + 1 end
      return p + n * (#text - #mark)
   end
   local out
   for i, r in ipairs(ranges or {}) do
      out = out or {}
      out[i] = { moved(r[1]), moved(r[2]) }
   end
   return table.concat(pieces), out or ranges
end

-- Returns a template like one of tide.chat, whose texts have `text` where it writes `mark`.
function image_text.template(template, mark, text)
   local own = {}
   function own.render(_, ...)
      local whole, ranges = template:render(...)
      return replaced(whole, ranges, mark, text)
   end
   return setmetatable(own, { __index = template })
end

-- Returns the template that a model with images reads, where it has placeholders as above: the same
-- template for other models, and for a tokenizer without these tokens. of: fields image, first and
-- last, ids of tokens, and wraps_images (see model.vision_decoder).
function image_text.of(template, tokenizer, of)
   local added = tokenizer.added
   local first, image, last = added[of.first or -1], added[of.image or -1], added[of.last or -1]
   if not (template and of.wraps_images and first and image and last) then return template end
   return image_text.template(template, first, '\n\n' .. first .. image .. last .. '\n\n')
end

-- Returns the ids of the tokens of images of a model, as image_text.of and data.image_parts take
-- them.
function image_text.ids(model)
   local c = model.config or {}
   return { image = c.image_token_id, video = c.video_token_id, first = c.vision_start_token_id,
      last = c.vision_end_token_id, wraps_images = model.wraps_images }
end

return image_text
