-- Random cases: an op on the CPU, on views of any layout, against the reference on contiguous
-- copies of them, with gradients.

return require('spec.deep.domain.cuda').of('cpu', 'ref')
