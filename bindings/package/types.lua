-- Writes the type annotations for editors: tide run types.lua FILE.

local fs = require 'tide.util.fs'

local path = arg[1]
fs.mkdirs('types.lua', path:match '^(.*)/')
fs.write('types.lua', path, require('tide.repl.reference').types())
