-- Helpers without tensors, each loaded at first use.

return require 'tide.util.lazy' ('util', {
   args = 'args', err = 'err', fs = 'fs', hash = 'hash', log = 'log', near = 'near',
   plot = 'plot', pretty = 'pretty', signature = 'signature', strict = 'strict', timer = 'timer',
   units = 'units',
})
