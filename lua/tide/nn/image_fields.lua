-- The fields of a batch or call that hold images and videos, as published models name them. Every
-- rank of a context axis has all of them, and their sizes differ from batch to batch.

local image_fields = { list = { 'pixel_values', 'image_grid_thw', 'pixel_values_videos',
   'video_grid_thw', 'second_per_grid_ts' } }

image_fields.is = {}
for _, name in ipairs(image_fields.list) do image_fields.is[name] = true end

return image_fields
