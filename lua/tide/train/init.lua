-- The training loop and its parts, each loaded at first use.

return require 'tide.util.lazy' ('train', {
   step = 'step', loop = { 'loop', 'run' }, run = { 'run', 'new' }, metric = 'metric',
   progress = 'progress', checkpoint = 'checkpoint', state = 'state', sample = 'sample',
   score = 'score', job = 'job', context = 'context',
   evaluate = 'evaluate', reference = 'reference', teacher = 'teacher',
   identity = { 'identity', 'of' },
})
