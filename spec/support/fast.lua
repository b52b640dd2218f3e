-- The fast device that op specs compare with the reference: cpu, or what TIDE_SPEC_DEVICE names.
-- spec/cuda/emulated_*_spec.lua run the op specs with cuda, and so does a machine with a GPU.

return os.getenv 'TIDE_SPEC_DEVICE' or 'cpu'
