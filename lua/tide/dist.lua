-- tide.dist, the 0.1 name of tide.comm, which still works.
return require 'tide.comm'
