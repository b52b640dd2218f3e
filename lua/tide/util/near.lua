-- The nearest of a list of names (tide/near.lua of the binding), under the library's name.

return require 'tide.near'
