-- Checks and reports for development, each loaded at first use.

return require 'tide.util.lazy' ('debug', {
   gradcheck = 'gradcheck', nan = 'nan', jit = 'jit', leak = 'leak', trace = 'trace',
})
