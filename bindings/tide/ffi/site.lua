-- The call site of a collective: the innermost frame outside the library.
--
-- Frames of the binding, of tide.comm and of tide.parallel are skipped, since users look for a line
-- of their recipe. Texts are cached by source and line: the same line gives the same string object,
-- so callers see by == that nothing has changed.

local getinfo = debug.getinfo

local M = {}

local inside, places = {}, {}              -- by source; by short source, then line

local function is_inside(source)
   local v = inside[source]
   if v == nil then
      v = false
      for _, part in ipairs { 'tide/ffi/', 'tide/comm/', 'tide/parallel/' } do
         v = v or source:find(part, 1, true) ~= nil
      end
      inside[source] = v
   end
   return v
end

-- Returns "file:line" of the frame that called a method, or ''. It skips the first three levels, so
-- call it one call below the method.
function M.place()
   for level = 4, 24 do
      local info = getinfo(level, 'Sl')
      if not info then break end
      local line = info.currentline
      if line > 0 and not is_inside(info.source) then
         local lines = places[info.short_src]
         if not lines then
            lines = {}
            places[info.short_src] = lines
         end
         local text = lines[line]
         if not text then
            text = info.short_src .. ':' .. line
            lines[line] = text
         end
         return text
      end
   end
   return ''
end

return M
