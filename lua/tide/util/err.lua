-- Errors and checks of arguments: those of tide/error.lua under the name that the library uses;
-- the library's files join those that are never the place of an error.

local errors = require 'tide.error'

errors.add_root((debug.getinfo(1, 'S').source:gsub('util/[^/]*$', '')))

return errors
