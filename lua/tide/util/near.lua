-- The nearest of a list of names: the binding's, under the name that the library uses.

return require 'tide.near'
