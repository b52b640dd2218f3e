-- Pictures of the command line (generate --image), for models with a vision tower.

local err = require 'tide.util.err'

local picture = {}

-- Rows for util.args.
picture.rows = {
   { 'image', nil, 'picture (JPEG, PNG or WebP) before the prompt, or in the first message; may be '
     .. 'repeated', type = 'string', list = true },
}

-- Returns the files of --image.
function picture.files(opt)
   return type(opt.image) == 'table' and opt.image or { opt.image }
end

-- Returns the processor of images of the model's folder, or nil where the folder or the model has
-- none; with --image that is an error.
function picture.processor(tide, opt, model)
   local dir = tide.data.image.find(opt.from)
   if model.image_fields and dir then return tide.data.image.processor(dir, model) end
   if not opt.image then return nil end
   if not model.image_fields then
      err.usage('generate', '--image: the model of %s takes texts alone', opt.from)
   end
   err.usage('generate', '--image: %s has no preprocessor_config.json; take that of the published '
      .. 'model', opt.from)
end

-- Returns a message of a text behind pictures, a list of files.
function picture.message(files, words)
   if #files == 0 then return words end
   local parts = {}
   for i, path in ipairs(files) do parts[i] = { type = 'image', image = path } end
   parts[#parts + 1] = { type = 'text', text = words }
   return parts
end

-- Returns the ids of a prompt with the pictures of --image, and what the model gets beside them.
-- Pictures whose placeholders are not in the ids go before them.
function picture.prompt(tide, opt, model, ids)
   local files, c, has = picture.files(opt), model.config, false
   if #files == 0 then return ids end
   for _, id in ipairs(ids) do has = has or id == c.image_token_id end
   local all = {}
   for _ = 1, has and 0 or #files do
      for _, name in ipairs { 'vision_start_token_id', 'image_token_id', 'vision_end_token_id' } do
         all[#all + 1] = c[name]
      end
   end
   for _, id in ipairs(ids) do all[#all + 1] = id end
   local processor = picture.processor(tide, opt, model)
   local pictures = tide.data.vision.read(processor, { images = files }, { device = opt.device })
   return tide.data.vision.expand(processor, c, all, pictures), tide.data.vision.fields(pictures)
end

return picture
