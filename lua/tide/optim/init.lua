-- Optimisers, schedules and gradient clipping, each loaded at first use.

return require 'tide.util.lazy' ('optim', {
   Optimizer = 'optimizer', AdamW = 'adamw', AdamW8bit = 'adamw8bit', SGD = 'sgd', Lion = 'lion',
   Muon = 'muon', Adafactor = 'adafactor', Whole = 'whole', adamw = 'adamw', sgd = 'sgd',
   schedule = 'schedule', clip = 'clip',
})
