-- A call that must raise: refused(code, words, fn, ...).
--
-- code is the status ('E_SHAPE'); words a text, or a list of texts, that the error must say,
-- function name and argument included. Returns the error object.

local tide = require 'tide'

return function(code, words, fn, ...)
   local ok, err = pcall(fn, ...)
   if ok then error('refused: nothing was raised, expected ' .. code, 2) end
   local library = type(err) == 'table' and err.code and err.op    -- raised by lua/tide
   if not tide.is_error(err) and not library then
      error('refused: not an error of tide: ' .. tostring(err), 2)
   end
   local text = tostring(err)
   if err.code ~= code then error(('refused: expected %s, got %s'):format(code, text), 2) end
   for _, word in ipairs(type(words) == 'table' and words or { words }) do
      if not text:find(word, 1, true) then
         error(("refused: '%s' is not in: %s"):format(word, text), 2)
      end
   end
   return err
end
