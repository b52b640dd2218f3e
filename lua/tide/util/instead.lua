-- Names of other libraries by namespace, and what to use in their place. Those of tensors and of
-- tide.NAME are in tide.ffi.instead.

local each = require 'tide.util.each'

local stack = 'nn.Stack { a, b }'
local as_method = 'a method of tensors: x:%s()'

local instead = {
   nn = {
      Sequential = stack, ModuleList = stack, ModuleDict = 'fields of a module: self.name = module',
      Parameter = 'self:param(name, shape, initialiser, opts) in the init of a module',
      MultiheadAttention = 'nn.Attention', TransformerEncoderLayer = 'nn.Block',
      CrossEntropyLoss = 'model:loss(ids, labels), nn.loss, or tide.cross_entropy',
      MSELoss = '(x - y):square():mean()', functional = 'functions of tide and methods of tensors',
      init = "initialisers: { 'normal', std = s }; see nn.weight",
      utils = 'parallel.clip_grad_norm_ or the option clip of train.step',
   },
   parallel = {
      DDP = 'train.step with comm', DistributedDataParallel = 'train.step with comm',
      FSDP = 'parallel.fully_shard', FullyShardedDataParallel = 'parallel.fully_shard',
      init_device_mesh = 'parallel.mesh', DeviceMesh = 'parallel.mesh',
      checkpoint = 'parallel.recompute',
   },
   comm = {
      get_rank = 'comm.world().rank', get_world_size = 'comm.world().size',
      init_process_group = 'comm.init', destroy_process_group = 'comm.close',
      new_group = 'comm.world():split(color)',
   },
   Module = {
      cuda = "m:to 'cuda'", cpu = "m:to 'cpu'", half = "m:to 'f16'", float = "m:to 'f32'",
      double = "m:to 'f64'", bfloat16 = "m:to 'bf16'", register_forward_hook = 'm:hook_post(fn)',
      register_forward_pre_hook = 'm:hook_pre(fn)', children = 'm:named_modules()',
      register_full_backward_hook = 'm:hook_backward(fn)', add_module = 'self.name = module',
      register_buffer = 'self:buffer(name, t, { persistent = .. })', modules = 'm:named_modules()',
      register_parameter = 'self:param(name, shape, initialiser, opts)',
   },
}

for name, method in each { ReLU = 'relu', GELU = 'gelu', SiLU = 'silu', Sigmoid = 'sigmoid',
   Tanh = 'tanh', Softmax = 'softmax' } do
   instead.nn[name] = as_method:format(method)
end
for _, name in ipairs { 'all_reduce', 'all_gather', 'reduce_scatter', 'broadcast', 'barrier',
   'all_to_all', 'send_recv' } do
   instead.comm[name] = ('a method of communicators: comm.world():%s(..)'):format(name)
end

return instead
