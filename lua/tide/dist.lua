-- The name of tide.comm in version 0.1, which still works.
return require 'tide.comm'
