-- Arguments with which each public function succeeds, for hostile_program.lua, which then spoils
-- one at a time.
--
-- By function and argument. Tensors: 'dtype sizes' ('f32 4,4' is the default), filled with 0 or
-- 0.5; 'leaf' before it: needs a gradient; 'sum' before it: a recorded sum. Others: the value.

local grid, heads, index = 'f32 4,4', 'f32 1,4,2,4', 'i32 1,4,2'
local rows, scalar = 'f32 4', 'f32'
local lse = 'f32 1,2,4'

local norm = { weight = rows, bias = rows }
local linear = { bias = rows }
local cu = { cu = 'i64 3', size = 1, ntoken = 0, dtype = 4 }
local step = { n = 1, g_scale = scalar, rates = 'f64 2', found_inf = scalar }
local step8 = { n = 1, g_scale = scalar, rates = 'f64 2', found_inf = scalar, m = 'u8 4,4',
   v = 'u8 4,4', m_scale = 'f32 1', v_scale = 'f32 1' }
local picks = { index = 'i64 2', src = 'f32 2,4' }

-- Sizes of arrays of the caller (`tries`): the values that a function can tell from right ones.
local long_min, long_max = -0x7fffffffffffffffLL - 1, 0x7fffffffffffffffLL
local sizes = { long_min, -1LL, 0LL, 1LL, 2LL ^ 40, long_max }
local few = { long_min, -1LL, 0LL, 1LL, 2LL }

return {
   tokenizer_new = { unk = -1, n = 1, ends = 1, tries = { n = { long_min, -1LL, 0LL, 1LL, 2LL,
      2LL ^ 40, long_max }, ends = { long_min, -1LL, 0LL, 1LL } } },
   tokenizer_affix = { prefix = '##', suffix = '</w>' },
   tokenizer_merges = { n = 0, tries = { n = { long_min, -1LL, 0LL, 1LL, 2LL ^ 40, long_max } } },
   tokenizer_add = { nbytes = 1, tries = { nbytes = sizes } },
   tokenizer_step = { kind = 2, what = '', tries = { nwhat = few, nwith = few } },
   tokenizer_encode = { tries = { nbytes = sizes } },
   tokenizer_encode_batch = { sizes = 1, tries = { n = few, sizes = sizes } },
   image_rgb = { x = 'u8 2,2,4' }, image_orient = { x = 'u8 2,2,3', orientation = 1 },
   image_resize = { x = 'u8 2,2,3', rows = 2, columns = 2, filter = 1 },
   image_patches = { to = 'f32 4,1176', x = 'u8 28,28,3' },
   add_rms_norm = norm, layer_norm = norm, rms_norm = norm, gated_rms_norm = norm,
   linear = linear, linear_act = linear, linear_fp8 = linear, linear_fp8_scaled = linear,
   linear_lora = { bias = rows, a = 'f32 2,4', b = 'f32 4,2', scale = 0.5 },
   linear_joined = { biases = rows, n = 1, tries = { n = few } },
   linear_fp8_joined = { biases = rows, n = 1, tries = { n = few } },
   rope_joined = { xs = heads, positions = 'i64 1,4', inv_freq = 'f32 2', n = 1,
      tries = { n = few } },
   group_rows = { ids = 'i64 3', groups = 2 },
   grouped_linear = { w = 'f32 2,4,4', offsets = 'i64 3' },
   grouped_linear_nf4 = { codes = 'u8 2,9', scale = 'f32 2,2', offsets = 'i64 3', n = 4, first = 0,
      stride = 4 },
   grouped_addmm_ = { dst = 'f32 2,4,4', offsets = 'i64 3' },
   linear_nf4 = { codes = 'u8 9', scale = 'f32 2', bias = rows, n = 4 },
   dequantize_nf4 = { codes = 'u8 9', scale = 'f32 2', n = 16 },
   linear_nf4_part = { codes = 'u8 9', scale = 'f32 2', bias = rows, n = 4, first = 0, stride = 4 },
   dequantize_nf4_part = { codes = 'u8 9', scale = 'f32 2', rows = 4, cols = 4, first = 0,
      stride = 4 },
   linear_cross_entropy = { bias = rows, targets = 'i64 4' },
   cross_entropy = { targets = 'i64 4' },
   where = { cond = 'bool 4,4' },
   rope = { x = heads, positions = 'i64 1,4', inv_freq = 'f32 2' },
   attention = { q = heads, k = heads, v = heads },
   attention_merge_ = { out = heads, lse = lse, part = heads, part_lse = lse },
   attention_backward = { dout = heads, q = heads, k = heads, v = heads, out = heads, lse = lse },
   attention_sinks_backward = { dout = heads, out = heads, lse = lse, sinks = 'f32 2' },
   swiglu_clamped = { limit = 1, alpha = 1 },
   attention_rows = { q_index = index, k_index = index }, attention_tiles = { index = index },
   document_index = cu, zigzag_index = cu, zigzag_places = cu, sequence_index = cu,
   slot_index = { cu_slot = 'i64 3', cu_real = 'i64 3' },
   run_index = { runs = 'i64 2,2', dtype = 4 },
   inverse_index = { index = 'i64 1' },
   conv1d = { x = 'f32 1,4,3', weight = 'f32 3,2', bias = 'f32 3' },
   ssd_scan = { x = heads, dt = 'f32 1,4,2', A = 'f32 2', B = 'f32 1,4,1,4', C = 'f32 1,4,1,4' },
   gated_delta = { q = heads, k = heads, v = heads, g = 'f32 1,4,2', beta = 'f32 1,4,2' },
   rng_place = { place = 'i64 3' },
   gather = { index = 'i64 4,4' }, scatter_add = { index = 'i64 4,4' },
   index_select = picks, index_add = picks,
   embedding = { ids = 'i64 3' },
   one_hot = { ids = 'i64 3', nclass = 4, dtype = 0 },
   adamw_ = step, adamw8_ = step8, sgd_ = step,
   dequantize8 = { codes = 'u8 4,4', scale = 'f32 1' },
   clip_factor = { norm = scalar, max_norm = 1 }, scale_all_ = { factor = scalar },
   set_grad = { t = 'leaf ' .. grid },
   backward_begin = { root = 'sum ' .. grid, grad = scalar },
   backward_run = { root = 'sum ' .. grid, grad = scalar },
   item = { t = scalar }, squeeze = { x = 'f32 1,4' },
   cast = { dtype = 4 },
   clamp = { lo = 0, hi = 1 }, uniform_ = { lo = 0, hi = 1 },
   trunc_normal_ = { lo = -1, hi = 1, std = 1 },
   dropout = { p = 0.5 }, norm = { p = 2 },
   slice = { start = 0, stop = 2, step = 1 }, arange = { n = 4, step = 1 },
   transpose = { dim0 = 0, dim1 = 1 }, permute = { ndim = 2 },
   empty = { ndim = 2 }, full = { ndim = 2 }, reshape = { ndim = 2 }, expand = { ndim = 2 },
   from_bytes = { ndim = 2, nbytes = 64 }, from_memory = { ndim = 2, nbytes = 64 },
   to_bytes = { nbytes = 64 }, to_doubles = { n = 16 },
   pad = { ndim = 2 }, sum = { ndim = 2 }, mean = { ndim = 2 }, prod = { ndim = 2 },
   amax = { ndim = 2 }, amin = { ndim = 2 }, any = { ndim = 2 }, all = { ndim = 2 },
   param_set = { name = 'trace', value = '0' }, param_get = { name = 'trace' },
   trace_span = { cat = 'user' }, to_device = { device = 1 }, to_device_async = { device = 1 },
   set_nthread = { n = 1 }, json_parse = { text = '[1]', nbytes = 3, limit = 0, flags = 0 },
   group_new = { nrank = 2 }, comm_simulate = { nrank = 2, rank = 0, host_size = 1 },
   comm_set_timeout = { seconds = 1 },
   comm_reduce_scatter_v = { counts = 16 }, comm_all_gather_v = { counts = 16 },
   comm_all_to_all_v = { in_counts = 16, out_counts = 16 },
   file_find = { name = 'x' }, host_function = { nin = 1, nout = 1 },
}
