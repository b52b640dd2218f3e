-- Names of other libraries and what replaces them here: one list for all messages about unknown
-- names.

local instead = {
   sort = 'x:topk(x:size(dim), dim) gives values and positions, the largest first; with a third '
      .. 'argument true the smallest first',
   max = 'x:amax(dim), x:argmax(dim), and tide.maximum of two tensors',
   min = 'x:amin(dim), x:argmin(dim), and tide.minimum of two tensors',
   mm = 'tide.matmul', bmm = 'tide.matmul', einsum = 'tide.matmul, x:permute and x:reshape',
   manual_seed = 'tide.seed', save = 'tide.train.checkpoint',
   load = 'tide.train.checkpoint',
   var = '(x - x:mean(dim, true)):square():sum(dim) / (n - 1)',
   std = '((x - x:mean(dim, true)):square():sum(dim) / (n - 1)):sqrt()',
   randint = "(tide.rand { n } * high):floor():to 'i64'",
   linspace = 'tide.arange(n) * ((last - first) / (n - 1)) + first',
   cuda = "x:to('cuda')", cpu = "x:to('cpu')", numpy = 'x:tolist()', T = 'x:t()',
   half = "x:to('f16')", double = "x:to('f64')", type = 'x.dtype',
   help = 'help and ?name at the prompt of tide repl',
   set = 'tide.no_grad with x:select(..):fill_(value) or x:copy_(y)',
   float32 = "dtype = 'f32'", float64 = "dtype = 'f64'", float16 = "dtype = 'f16'",
   int64 = "dtype = 'i64'", int32 = "dtype = 'i32'",
   bfloat16 = "x:to('bf16')", int = "x:to('i32')", unbind = 'x:select(dim, i)',
}
instead.argsort = instead.sort

return instead
