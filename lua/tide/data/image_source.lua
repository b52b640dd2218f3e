-- Where the image of a part of a message is: the spellings that chats have for it.
--
--    { type = 'image', image = PATH }             also path, url; type image_url or input_image
--    { type = 'image_url', image_url = { url = PATH } }
--
-- PATH may be a URL of a file.

local fs = require 'tide.util.fs'

local source = {}

local types = { image = true, image_url = true, input_image = true }
local keys = { 'image', 'path', 'url', 'image_url' }

-- Returns whether a part of a message is an image.
function source._is_image(part) return types[part.type] or false end

-- Returns what a part gives as its image (nil: nothing), and the field that has it, such as
-- '.image_url.url'. v: the part, or an entry of a list of images, which may be the image itself.
-- is_inner: v is the value of such a field, and is returned where it is a table of other fields.
function source._given(v, is_inner)
   if type(v) ~= 'table' then return v, '' end
   for _, key in ipairs(keys) do
      if not fs.is_null(v[key]) then
         local found, field = source._given(v[key], true)
         return found, '.' .. key .. field
      end
   end
   return is_inner and v or nil, ''
end

-- Returns the path that a text names, relative ones below dir (nil: the current folder); nil and
-- the scheme where it is a URL of another kind.
function source._path(text, dir)
   local scheme = text:match '^(%a[%w+.-]*)://' or text:match '^(data):' or text:match '^(file):'
   if scheme == 'file' then
      text = text:gsub('^file://localhost/', 'file:/'):gsub('^file:/*', '/')
      text = text:gsub('%%(%x%x)', function(x)
         return string.char(tonumber(x, 16))
      end)
   elseif scheme then
      return nil, scheme
   end
   return (text:sub(1, 1) == '/' or not dir) and text or fs.join(dir, text)
end

return source
