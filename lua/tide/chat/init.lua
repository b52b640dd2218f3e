-- Chat templates, each part loaded at first use.

return require 'tide.util.lazy' ('chat', { template = 'template', folder = 'folder',
   load = { 'folder', 'load' }, find = { 'folder', 'find' },
   conversation = { 'tide.train.conversation', 'new' } })
