-- Where the image of a part of a message is: the spellings that chats have for it.
--
--    { type = 'image', image = PATH }             also path, url; type image_url or input_image
--    { type = 'image_url', image_url = { url = PATH } }
--    { type = 'image', base64 = TEXT }            the bytes of a file
--
-- PATH may be a URL of a file, or of data in base64. A source is a path or { bytes = } of a file.

local fs = require 'tide.util.fs'
local visible = require 'tide.tokenizer.visible'

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
   if not fs.is_null(v.base64) then
      return type(v.base64) == 'string' and 'data:;base64,' .. v.base64 or v.base64, '.base64'
   end
   for _, key in ipairs(keys) do
      if not fs.is_null(v[key]) then
         local found, field = source._given(v[key], true)
         return found, '.' .. key .. field
      end
   end
   return is_inner and v or nil, ''
end

-- Returns the bytes of a text in base64, in lines or one, with padding or without; nil of another
-- text.
local function bytes_of(text)
   text = text:gsub('%s', ''):gsub('=+$', '')
   return visible.base64(text .. ('='):rep(-#text % 4))
end

-- Returns the source that a text names, a relative path below dir (nil: the current folder); or nil
-- and the reason.
function source._of(text, dir)
   local scheme = text:match '^(%a[%w+.-]*)://' or text:match '^([Dd][Aa][Tt][Aa]):'
      or text:match '^(file):'
   if scheme == 'file' then
      text = text:gsub('^file://localhost/', 'file:/'):gsub('^file:/*', '/')
      text = text:gsub('%%(%x%x)', function(x)
         return string.char(tonumber(x, 16))
      end)
   elseif scheme and scheme:lower() == 'data' then
      local base64 = text:match '^[^,]*;base64,(.*)$'
      local bytes = base64 and bytes_of(base64)
      if bytes then return { bytes = bytes } end
      return nil, base64 and 'its base64 has other characters' or 'data: is read in base64 alone'
   elseif scheme then
      return nil, scheme .. ': is not read; save the image as a file'
   end
   return (text:sub(1, 1) == '/' or not dir) and text or fs.join(dir, text)
end

-- Returns a text as errors show it: the beginning of a long one.
function source._shown(text) return #text > 40 and text:sub(1, 40) .. '..' or text end

return source
