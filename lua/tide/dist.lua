-- Another name of tide.comm, for programs that were written before the module had it.
return require 'tide.comm'
