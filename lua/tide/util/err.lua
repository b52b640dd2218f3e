-- Errors and checks of arguments: tide/error.lua under the name that the library uses. An error's
-- place is never in a file of the library.

local errors = require 'tide.error'

errors.add_root((debug.getinfo(1, 'S').source:gsub('util/[^/]*$', '')))

return errors
