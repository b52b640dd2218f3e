---@meta
-- Written by `make reference`; see lua/tide/repl/reference.lua.

tide = { Tensor = {} }
---@class tide.Tensor

function tide.Tensor:abs() end
function tide.Tensor:add(y, alpha) end
function tide.Tensor:add_(src, alpha) end
function tide.Tensor:add_rms_norm(residual, weight, eps, offset) end
function tide.Tensor:addmm_(a, b) end
function tide.Tensor:all(dim, keepdim) end
function tide.Tensor:amax(dim, keepdim) end
function tide.Tensor:amin(dim, keepdim) end
function tide.Tensor:any(dim, keepdim) end
function tide.Tensor:argmax(dim, keepdim) end
function tide.Tensor:argmin(dim, keepdim) end
function tide.Tensor:at(...) end
function tide.Tensor:attention(k, v, opts) end
function tide.Tensor:attention_backward(q, k, v, out, lse, opts) end
function tide.Tensor:attention_merge_(lse, part, part_lse) end
function tide.Tensor:attention_rows(k_index, opts) end
function tide.Tensor:attention_tiles() end
function tide.Tensor:backward(grad, opts) end
function tide.Tensor:bf16() end
function tide.Tensor:cast(dtype) end
function tide.Tensor:chunk(n, dim) end
function tide.Tensor:clamp(lo, hi) end
function tide.Tensor:clone() end
function tide.Tensor:contiguous() end
function tide.Tensor:copy_(src) end
function tide.Tensor:cos() end
function tide.Tensor:cross_entropy(targets, opts) end
function tide.Tensor:cumsum(dim) end
function tide.Tensor:detach() end
function tide.Tensor:div(y) end
function tide.Tensor:double() end
function tide.Tensor:drop_bytes() end
function tide.Tensor:drop_grad() end
function tide.Tensor:dropout(p) end
function tide.Tensor:eq(y) end
function tide.Tensor:equal(y) end
function tide.Tensor:erf() end
function tide.Tensor:exp() end
function tide.Tensor:expand(a, b, c, d, e, f, g, h, more) end
function tide.Tensor:fill_(value) end
function tide.Tensor:flatten(d1, d2) end
function tide.Tensor:float() end
function tide.Tensor:floor() end
function tide.Tensor:full_like(value, opts) end
function tide.Tensor:gather(dim, index) end
function tide.Tensor:ge(y) end
function tide.Tensor:gelu() end
function tide.Tensor:gelu_tanh() end
function tide.Tensor:grouped_addmm_(a, b, offsets) end
function tide.Tensor:gt(y) end
function tide.Tensor:half() end
function tide.Tensor:index_add(dim, index, src) end
function tide.Tensor:index_select(dim, index) end
function tide.Tensor:is_contiguous() end
function tide.Tensor:is_gone() end
function tide.Tensor:is_pinned() end
function tide.Tensor:isfinite() end
function tide.Tensor:item() end
function tide.Tensor:layer_norm(weight, bias, eps) end
function tide.Tensor:le(y) end
function tide.Tensor:linear_cross_entropy(w, bias, targets, opts) end
function tide.Tensor:log() end
function tide.Tensor:log_softmax(dim) end
function tide.Tensor:logical_and(y) end
function tide.Tensor:logical_not() end
function tide.Tensor:logical_or(y) end
function tide.Tensor:logsumexp(dim, keepdim) end
function tide.Tensor:long() end
function tide.Tensor:lt(y) end
function tide.Tensor:masked_fill(mask, value) end
function tide.Tensor:matmul(b) end
function tide.Tensor:maximum(y) end
function tide.Tensor:mean(dim, keepdim) end
function tide.Tensor:minimum(y) end
function tide.Tensor:mul(y) end
function tide.Tensor:mul_(factor) end
function tide.Tensor:narrow(dim, first, n) end
function tide.Tensor:ne(y) end
function tide.Tensor:neg() end
function tide.Tensor:norm(dim, keepdim) end
function tide.Tensor:normal_(mean, std, opts) end
function tide.Tensor:numel() end
function tide.Tensor:ones_like(opts) end
function tide.Tensor:pad(before, after, value) end
function tide.Tensor:permute(a, b, c, d, e, f, g, h) end
function tide.Tensor:pin_memory() end
function tide.Tensor:pow(y) end
function tide.Tensor:prod(dim, keepdim) end
function tide.Tensor:quantize_nf4() end
function tide.Tensor:reciprocal() end
function tide.Tensor:refilled() end
function tide.Tensor:release() end
function tide.Tensor:relu() end
function tide.Tensor:repeat_interleave(n, dim) end
function tide.Tensor:requires_grad_(on) end
function tide.Tensor:reshape(a, b, c, d, e, f, g, h, more) end
function tide.Tensor:restore_bytes() end
function tide.Tensor:rms_norm(weight, eps, offset) end
function tide.Tensor:roll(shift, dim) end
function tide.Tensor:rope(positions, inv_freq, opts) end
function tide.Tensor:rsqrt() end
function tide.Tensor:same_storage(y) end
function tide.Tensor:scatter_add(dim, index, src) end
function tide.Tensor:select(dim, i) end
function tide.Tensor:set_grad(grad) end
function tide.Tensor:set_grad_dtype(dtype) end
function tide.Tensor:sigmoid() end
function tide.Tensor:sign() end
function tide.Tensor:silu() end
function tide.Tensor:sin() end
function tide.Tensor:size(dim) end
function tide.Tensor:slice(dim, first, last, step) end
function tide.Tensor:softmax(dim) end
function tide.Tensor:softplus() end
function tide.Tensor:split(sizes, dim) end
function tide.Tensor:sqrt() end
function tide.Tensor:square() end
function tide.Tensor:squeeze(dim) end
function tide.Tensor:stride(dim) end
function tide.Tensor:sub(y, alpha) end
function tide.Tensor:sum(dim, keepdim) end
function tide.Tensor:swiglu(up) end
function tide.Tensor:t() end
function tide.Tensor:tanh() end
function tide.Tensor:to(what, opts) end
function tide.Tensor:to_string_bytes() end
function tide.Tensor:tolist() end
function tide.Tensor:tostring() end
function tide.Tensor:transpose(dim0, dim1) end
function tide.Tensor:tril(diagonal) end
function tide.Tensor:triu(diagonal) end
function tide.Tensor:trunc_normal_(mean, std, lo, hi, opts) end
function tide.Tensor:uniform_(lo, hi, opts) end
function tide.Tensor:unsqueeze(dim) end
function tide.Tensor:version() end
function tide.Tensor:view(a, b, c, d, e, f, g, h, more) end
function tide.Tensor:zero_() end
function tide.Tensor:zero_grad() end
function tide.Tensor:zeros_like(opts) end
tide.chat = {}
---@param model table
---@param opts? { tokenizer: table, template: table, messages?: table, variables?: table, stop?: any }
function tide.chat.conversation(model, opts) end
function tide.chat.find(path, name, model) end
tide.chat.folder = {}
function tide.chat.folder.load(dir, name) end
function tide.chat.folder.templates(dir) end
---@param text? string
function tide.chat.say(text, opts) end
---@param text? string
function tide.chat.system(text) end
tide.chat.template = {}
function tide.chat.template.float(v) end
function tide.chat.template.load(dir, name) end
function tide.chat.template.new(text, variables, bounds) end
tide.comm = {}
---@param comm tide.Comm
function tide.comm.any(comm, flag) end
function tide.comm.close() end
function tide.comm.comm_of(op, comm) end
function tide.comm.gpus(comm, opts) end
function tide.comm.group(nrank, opts) end
---@param opts? { timeout?: any, ctx?: any, transport?: 'self' | 'local' | 'mpi', check?: any, library?: any }
function tide.comm.init(opts) end
function tide.comm.nccl(over, opts) end
---@param comm tide.Comm
---@param fn function
function tide.comm.on_first(comm, op, fn) end
---@param comm tide.Comm
function tide.comm.set_world(comm) end
function tide.comm.shutdown() end
function tide.comm.simulate(n, rank, host_size) end
function tide.comm.solo() end
---@param opts? { comm: table, sections?: string[], steps?: integer, ratio?: number, clock?: function }
function tide.comm.straggler(opts) end
---@param comm tide.Comm
---@param numbers table
function tide.comm.sum(comm, numbers) end
---@param comm tide.Comm
---@param fn function
function tide.comm.together(comm, op, fn) end
function tide.comm.world() end
tide.cuda = {}
function tide.cuda.captured(fn, opts) end
function tide.cuda.device_count() end
function tide.cuda.event() end
function tide.cuda.get_attention_kernel() end
function tide.cuda.get_float32_matmul_precision() end
function tide.cuda.graph(fn, opts) end
function tide.cuda.is_available() end
function tide.cuda.range(name, fn, ...) end
function tide.cuda.range_modules(model) end
function tide.cuda.range_ops(on) end
function tide.cuda.set_attention_kernel(name) end
function tide.cuda.set_float32_matmul_precision(name) end
function tide.cuda.synchronize() end
tide.data = {}
tide.data.batch = {}
---@param source tide.Source
---@param starts table
---@param seq integer
function tide.data.batch.make(source, starts, seq, device) end
---@param starts table
---@param n integer
function tide.data.batch.split(starts, n) end
---@param source table
---@param seq integer
---@param limit integer
function tide.data.batch.windows(source, seq, limit) end
tide.data.bytes = {}
---@param ids integer[]
function tide.data.bytes.decode(ids) end
---@param text string
function tide.data.bytes.encode(text) end
---@param n integer
function tide.data.bytes.id(n) end
---@param text string
function tide.data.bytes.ids(text) end
function tide.data.bytes.stream() end
tide.data.chat = {}
---@param paths string|string[]
---@param opts? { tokenizer: table, template?: table, train_on?: string[], format?: string, skip_bad?: boolean, val?: number }
function tide.data.chat.load(paths, opts) end
tide.data.choices = {}
---@param path string
---@param opts? { skip_bad?: boolean }
function tide.data.choices.load(path, opts) end
---@param t table
function tide.data.choices.read(t) end
tide.data.entropy = {}
---@param texts string[]
function tide.data.entropy.order2(texts) end
tide.data.jsonl = {}
function tide.data.jsonl.each(path, fn) end
tide.data.megatron = {}
---@param ids table
function tide.data.megatron.add(ids) end
---@param path string
function tide.data.megatron.open(path) end
---@param path string
---@param opts? { width?: integer }
function tide.data.megatron.writer(path, opts) end
tide.data.mixture = {}
---@param opts? { parts: table[], seq: integer, batch: integer, seed?: integer, size?: integer, rank?: integer, val_cu?: table, cp?: integer }
function tide.data.mixture.new(opts) end
---@param state table
function tide.data.mixture.restore(state) end
tide.data.packed = {}
---@param is_val? boolean
function tide.data.packed.all(is_val) end
---@param source tide.Source
---@param eos integer
function tide.data.packed.boundaries(source, eos) end
---@param limit integer
function tide.data.packed.held_out(limit) end
---@param source tide.Source
---@param rows table
---@param seq integer
---@param opts? { pad?: integer, device?: string }
function tide.data.packed.make(source, rows, seq, opts) end
---@param opts? { cu: table, val_cu?: table, seq: integer, batch: integer, seed?: integer, size?: integer, rank?: integer, cp?: integer, fit?: 'next' | 'best' | 'alone', long?: 'split' | 'cut' | 'refuse', together?: integer, source?: tide.Source, val_source?: tide.Source }
function tide.data.packed.new(opts) end
---@param state table
function tide.data.packed.restore(state) end
tide.data.preference = {}
---@param paths string|string[]
---@param opts? { tokenizer: table, template?: table, train_on?: string[], skip_bad?: boolean, val?: number }
function tide.data.preference.load(paths, opts) end
---@param opts? { cu: table, val_cu?: table, seq: integer, batch: integer, seed?: integer, size?: integer, rank?: integer, cp?: integer, fit?: 'next' | 'best' | 'alone', long?: 'split' | 'cut' | 'refuse', together?: integer, source?: tide.Source, val_source?: tide.Source }
function tide.data.preference.sampler(opts) end
tide.data.record = {}
---@param t table
---@param form? 'messages' | 'sharegpt' | 'alpaca' | 'completion' | 'text'
function tide.data.record.read(t, form) end
tide.data.sampler = {}
---@param opts? { count: integer, seq: integer, batch: integer, seed?: integer, size?: integer, rank?: integer }
function tide.data.sampler.new(opts) end
---@param n integer
---@param seed integer
---@param epoch integer
function tide.data.sampler.permutation(n, seed, epoch) end
---@param state table
function tide.data.sampler.restore(state) end
---@param place integer
function tide.data.sampler.start_of(place) end
tide.data.survey = {}
function tide.data.survey.check(op, name, source, size) end
function tide.data.survey.largest(source) end
tide.data.text = {}
function tide.data.text.files(path) end
---@param paths string|table
---@param opts? { val?: number, width?: integer, binary?: boolean, tokenizer?: table, cache?: string }
function tide.data.text.load(paths, opts) end
tide.data.tokens = {}
---@param source tide.Source
---@param fn function
function tide.data.tokens.each_piece(source, fn) end
---@param path string
---@param opts? { width?: integer }
function tide.data.tokens.file(path, opts) end
---@param source tide.Source
function tide.data.tokens.fingerprint(source) end
---@param sources tide.Source[]
function tide.data.tokens.join(sources) end
---@param text string
---@param width integer
---@param mask? string
function tide.data.tokens.memory(text, width, mask) end
---@param source tide.Source
---@param first integer
---@param count integer
function tide.data.tokens.slice(source, first, count) end
tide.debug = {}
tide.debug.gradcheck = {}
---@param fn function
---@param inputs table
---@param opts? { h?: number, atol?: number, rtol?: number, directions?: integer, limit?: integer }
function tide.debug.gradcheck.check(fn, inputs, opts) end
tide.debug.jit = {}
---@param fn function
function tide.debug.jit.run(fn, ...) end
---@param report table
function tide.debug.jit.text(report) end
tide.debug.leak = {}
---@param ctx table
---@param fn function
function tide.debug.leak.measure(ctx, fn, ...) end
tide.debug.nan = {}
---@param t tide.Tensor
function tide.debug.nan.is_finite(t) end
---@param model tide.Module
function tide.debug.nan.parameters(model) end
---@param model tide.Module
function tide.debug.nan.watch(model) end
tide.debug.trace = {}
function tide.debug.trace.compare(docs) end
---@param folder string
function tide.debug.trace.dump(folder, comms) end
function tide.debug.trace.folder() end
---@param folder string
function tide.debug.trace.merge(folder, docs) end
---@param folder string
function tide.debug.trace.read(folder) end
---@param worst? integer
function tide.debug.trace.report(docs, worst) end
function tide.debug.trace.show(folder) end
tide.grad = {}
function tide.grad.func(def) end
tide.json = {}
function tide.json.array(list) end
function tide.json.decode(text, opts) end
function tide.json.encode(value, opts) end
function tide.json.float(v) end
function tide.json.is_array(t) end
function tide.json.keys(object) end
tide.model = {}
---@class tide.model.bamba
tide.model.bamba = {}
function tide.model.bamba.new(config, opts) end
tide.model.bamba.form = {}
function tide.model.bamba.form.block(c, mixer, norm, opts) end
function tide.model.bamba:is(value, cls) end
function tide.model.bamba:publish(c) end
---@param where string
---@param dir string
---@param opts? { max_shard?: number|string, dtype?: 'f32' | 'f64' | 'bf16' | 'f16', overwrite?: boolean, tokenizer?: string }
function tide.model.export(where, dir, opts) end
tide.model.family = {}
---@param model tide.Module
function tide.model.family.config(model) end
---@param model tide.Module
function tide.model.family.of(model) end
---@param run table
---@param dir string
function tide.model.fill(run, dir) end
---@class tide.model.gemma2
tide.model.gemma2 = {}
function tide.model.gemma2.new(config, opts) end
tide.model.gemma2.family = {}
---@class tide.model.gemma2.family.Block
tide.model.gemma2.family.Block = {}
function tide.model.gemma2.family.Block.new(parts) end
function tide.model.gemma2.family.Block:forward(x, at) end
function tide.model.gemma2.family.embed_scale(c) end
function tide.model.gemma2.family.layer(c, i, mixer, mlp) end
function tide.model.gemma2.family.where(op, opts, before) end
---@class tide.model.gemma3
tide.model.gemma3 = {}
function tide.model.gemma3.new(config, opts) end
tide.model.gemma3.family = {}
function tide.model.gemma3.family.complete(c) end
function tide.model.gemma3.family.layer(c, i, mixer, mlp) end
function tide.model.generation(model) end
---@class tide.model.gpt2
tide.model.gpt2 = {}
function tide.model.gpt2.new(config, opts) end
tide.model.gpt2.family = {}
function tide.model.gpt2.family.rename(name) end
tide.model.gpt2.form = {}
---@class tide.model.gpt2.form.Norm
tide.model.gpt2.form.Norm = {}
---@param dim integer
---@param opts? { eps?: number, bias?: boolean, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.model.gpt2.form.Norm.new(dim, opts) end
function tide.model.gpt2.form.Norm:detail() end
function tide.model.gpt2.form.Norm:forward(x, residual) end
function tide.model.gpt2.form.block(c, mixer, norm, opts) end
function tide.model.gpt2.form.dropout(c) end
function tide.model.gpt2:publish(c, transposed) end
function tide.model.gpt2:stored() end
---@class tide.model.granite
tide.model.granite = {}
function tide.model.granite.new(config, opts) end
tide.model.granite.family = {}
function tide.model.granite.family.embed_scale(c) end
function tide.model.granite.family.layer(c, _, mixer) end
function tide.model.granite.family.out_scale(c) end
function tide.model.granite.family.residual(c) end
---@class tide.model.hybrid
tide.model.hybrid = {}
function tide.model.hybrid.new(config, opts) end
function tide.model.hybrid:publish(c) end
---@class tide.model.llama
tide.model.llama = {}
function tide.model.llama.new(config, opts) end
function tide.model.llama:embedding() end
function tide.model.llama:flops_per_token(seq) end
function tide.model.llama:hidden(ids_BT, opts) end
---@param dir string
---@param opts? { mesh?: table, plan?: table, dtype?: 'auto' | 'f32' | 'bf16' | 'f64', device?: 'cpu' | 'ref' | 'cuda' | 'null', fp8?: boolean, quantise?: 'nf4', verbose?: boolean, make?: function }
function tide.model.load(dir, opts) end
---@param what table
---@param dir string
function tide.model.load_adapter(what, dir) end
---@class tide.model.mamba2
tide.model.mamba2 = {}
function tide.model.mamba2.new(config, opts) end
function tide.model.mamba2:publish(c) end
---@class tide.model.ministral
tide.model.ministral = {}
function tide.model.ministral.new(config, opts) end
tide.model.ministral.family = {}
function tide.model.ministral.family.layer(c, i, mixer) end
---@class tide.model.mistral
tide.model.mistral = {}
function tide.model.mistral.new(config, opts) end
---@class tide.model.olmo2
tide.model.olmo2 = {}
function tide.model.olmo2.new(config, opts) end
tide.model.olmo2.family = {}
---@class tide.model.olmo2.family.Block
tide.model.olmo2.family.Block = {}
function tide.model.olmo2.family.Block.new(parts) end
function tide.model.olmo2.family.Block:forward(x, at) end
function tide.model.olmo2.family.layer(c, _, mixer) end
---@class tide.model.phi3
tide.model.phi3 = {}
function tide.model.phi3.new(config, opts) end
tide.model.phi3.family = {}
function tide.model.phi3.family.layer(_, _, mixer, mlp) end
---@class tide.model.qwen2
tide.model.qwen2 = {}
function tide.model.qwen2.new(config, opts) end
tide.model.qwen2.family = {}
function tide.model.qwen2.family.complete(c) end
function tide.model.qwen2.family.complete_for(op) end
function tide.model.qwen2.family.has_window(c, i) end
function tide.model.qwen2.family.layer(c, i, mixer) end
---@class tide.model.qwen3
tide.model.qwen3 = {}
function tide.model.qwen3.new(config, opts) end
tide.model.qwen3.family = {}
function tide.model.qwen3.family.complete(c) end
function tide.model.qwen3.family.layer(c, i, mixer) end
---@param model table
---@param dir string
---@param opts? { max_shard?: number|string, dtype?: 'f32' | 'f64' | 'bf16' | 'f16', overwrite?: boolean, tokenizer?: string }
function tide.model.save(model, dir, opts) end
---@param what table|string
---@param dir string
---@param opts? { base?: string, dtype?: 'f32' | 'f64' | 'bf16' | 'f16' }
function tide.model.save_adapter(what, dir, opts) end
---@class tide.model.smollm3
tide.model.smollm3 = {}
function tide.model.smollm3.new(config, opts) end
tide.model.smollm3.family = {}
function tide.model.smollm3.family.layer(c, i, mixer) end
function tide.model.smollm3.family.where(op, opts, before) end
---@class tide.model.vision
tide.model.vision = {}
function tide.model.vision.new(config, opts) end
---@param patches tide.Tensor
---@param at? { sizes: any, index?: any }
function tide.model.vision:forward(patches, at) end
tide.nn = {}
---@class tide.nn.Attention
tide.nn.Attention = {}
---@param opts? { dim: integer, heads: integer, kv_heads?: integer, head_dim?: integer, bias?: boolean, out_bias?: boolean, rope?: table, causal?: boolean, window?: any, softcap?: number, scale?: number, std?: number, out_std?: number, fused?: boolean, qk_norm?: table, qk_norm_whole?: boolean, dropout?: number, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.Attention.new(opts) end
function tide.nn.Attention:attend(q_BTHD, k_BTKD, v_BTKD, options) end
function tide.nn.Attention:detail() end
function tide.nn.Attention:forward(x_BTC, at) end
function tide.nn.Attention:inner(q, k, v, options) end
function tide.nn.Attention:project(x_BTC) end
function tide.nn.Attention:told(at, q_start, device, n) end
function tide.nn.Attention:tp(_, on) end
function tide.nn.Attention:tp_plan() end
---@class tide.nn.Block
tide.nn.Block = {}
---@param parts? { norm1: tide.Module, mixer: tide.Module, norm2?: tide.Module, mlp?: tide.Module, dropout?: tide.Module, scale?: number, names?: table }
function tide.nn.Block.new(parts) end
function tide.nn.Block:forward(x, at) end
function tide.nn.Block:part(name) end
---@param channels integer
---@param taps integer
---@param opts? { bias?: boolean, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.Conv1d(channels, taps, opts) end
---@class tide.nn.Dropout
tide.nn.Dropout = {}
---@param p number
function tide.nn.Dropout.new(p) end
function tide.nn.Dropout:detail() end
function tide.nn.Dropout:forward(x) end
---@class tide.nn.Embedding
tide.nn.Embedding = {}
---@param nvocab integer
---@param dim integer
---@param opts? { std?: number, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.Embedding.new(nvocab, dim, opts) end
function tide.nn.Embedding:as_output(x) end
function tide.nn.Embedding:detail() end
function tide.nn.Embedding:forward(ids) end
function tide.nn.Embedding:tp(style, on) end
---@class tide.nn.GatedRMSNorm
tide.nn.GatedRMSNorm = {}
---@param dim integer
---@param opts? { eps?: number, group?: integer, gate_last?: boolean, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.GatedRMSNorm.new(dim, opts) end
function tide.nn.GatedRMSNorm:detail() end
function tide.nn.GatedRMSNorm:forward(x, z) end
---@class tide.nn.Linear
tide.nn.Linear = {}
---@param nin integer
---@param nout integer
---@param opts? { bias?: boolean, std?: number, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.Linear.new(nin, nout, opts) end
function tide.nn.Linear:detail() end
function tide.nn.Linear:forward(x) end
function tide.nn.Linear:product(x, weight, bias) end
function tide.nn.Linear:product_nf4(x) end
function tide.nn.Linear:tp(style, on) end
---@class tide.nn.MLP
tide.nn.MLP = {}
---@param opts? { dim: integer, hidden: integer, act?: 'swiglu' | 'geglu_tanh' | 'gelu' | 'gelu_tanh' | 'relu' | 'relu2' | 'silu', bias?: boolean, std?: number, out_std?: number, fused?: boolean, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.MLP.new(opts) end
function tide.nn.MLP:activated(x) end
function tide.nn.MLP:detail() end
function tide.nn.MLP:forward(x) end
function tide.nn.MLP:project(x) end
function tide.nn.MLP:tp(_, on) end
function tide.nn.MLP:tp_plan() end
---@class tide.nn.Mamba2
tide.nn.Mamba2 = {}
---@param opts? { dim: integer, state?: integer, conv?: integer, expand?: number, heads?: integer, head_dim?: integer, groups?: integer, chunk?: integer, bias?: boolean, conv_bias?: boolean, norm_eps?: number, gate_last?: boolean, per_channel_D?: boolean, A_range?: table, dt_range?: table, dt_floor?: number, dt_limit?: table, std?: number, out_std?: number, recurrence_dtype?: 'f32' | 'f64' | 'bf16' | 'f16', dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.Mamba2.new(opts) end
---@param opts table
function tide.nn.Mamba2:convolve(xBC, opts) end
function tide.nn.Mamba2:detail() end
function tide.nn.Mamba2:filter() end
function tide.nn.Mamba2:forward(x_BTM, at) end
---@param projected_BTP tide.Tensor
---@param at table
function tide.nn.Mamba2:inner(projected_BTP, at) end
function tide.nn.Mamba2:rates() end
---@param xBC tide.Tensor
---@param dt_BTH tide.Tensor
---@param opts table
function tide.nn.Mamba2:recur(xBC, dt_BTH, opts) end
function tide.nn.Mamba2:scan(x, dt, A, B, Cs, opts) end
function tide.nn.Mamba2:tp(_, on) end
function tide.nn.Mamba2:tp_plan() end
---@class tide.nn.Module
tide.nn.Module = {}
function tide.nn.Module.new() end
---@param fn function
function tide.nn.Module:apply(fn) end
---@param fn function
function tide.nn.Module:as_call(fn, ...) end
function tide.nn.Module:buffer(name, t, opts) end
function tide.nn.Module:check_holds(op) end
function tide.nn.Module:child(name, module) end
function tide.nn.Module:eval() end
function tide.nn.Module:forward() end
---@param path string
function tide.nn.Module:get(path) end
function tide.nn.Module:has_hooks() end
function tide.nn.Module:hook_backward(fn, opts) end
function tide.nn.Module:hook_backward_pre(fn, opts) end
function tide.nn.Module:hook_post(fn, opts) end
function tide.nn.Module:hook_pre(fn, opts) end
---@param seed integer
function tide.nn.Module:init_weights(seed) end
function tide.nn.Module:inner(opts, extra) end
function tide.nn.Module:load_state_dict(state, opts) end
function tide.nn.Module:made() end
function tide.nn.Module:materialise(device, seed, opts) end
function tide.nn.Module:named_buffers() end
function tide.nn.Module:named_modules() end
function tide.nn.Module:named_parameters() end
function tide.nn.Module:num_parameters() end
function tide.nn.Module:options(op, opts, known) end
function tide.nn.Module:param(name, shape, spec, opts) end
function tide.nn.Module:parameters() end
function tide.nn.Module:ready(opts) end
function tide.nn.Module:requires_grad_(on) end
function tide.nn.Module:state_dict() end
function tide.nn.Module:to(target) end
function tide.nn.Module:tp() end
function tide.nn.Module:tp_plan() end
---@param on? boolean
function tide.nn.Module:train(on) end
function tide.nn.Module:walk(fn) end
function tide.nn.Module:wrap(name, fn, opts) end
function tide.nn.Module:wraps(of) end
function tide.nn.Module:zero_grad() end
---@class tide.nn.RMSNorm
tide.nn.RMSNorm = {}
---@param dim integer
---@param opts? { eps?: number, offset?: number, dtype?: string, device?: string, init?: boolean, seed?: integer, fp8?: boolean }
function tide.nn.RMSNorm.new(dim, opts) end
function tide.nn.RMSNorm:detail() end
function tide.nn.RMSNorm:forward(x, residual) end
---@class tide.nn.Stack
tide.nn.Stack = {}
function tide.nn.Stack.new(blocks, names) end
---@param i integer
function tide.nn.Stack:at(i) end
function tide.nn.Stack:child(name, block) end
function tide.nn.Stack:count() end
function tide.nn.Stack:forward(x, at) end
---@param first integer
---@param last integer
function tide.nn.Stack:slice(first, last) end
tide.nn.context = {}
function tide.nn.context.check_shift(op, c) end
function tide.nn.context.for_layer(op, layer, at) end
function tide.nn.context.of(op, opts, ids) end
tide.nn.distil = {}
---@param x tide.Tensor
---@param w tide.Tensor
---@param labels tide.Tensor
---@param teacher table
---@param opts? { count?: number, ignore?: integer, cap?: number, alpha?: number, temperature?: number, kind?: 'forward' | 'reverse', chunk?: integer }
function tide.nn.distil.loss(x, w, labels, teacher, opts) end
---@param opts? { teacher?: tide.Module, sharded?: tide.Sharded, alpha?: number, temperature?: number, kind?: 'forward' | 'reverse', chunk?: integer }
function tide.nn.distil.objective(opts) end
---@param comm tide.Comm
---@param which? 'train' | 'val'
function tide.nn.distil.take(comm, which) end
---@param x tide.Tensor
---@param w tide.Tensor
---@param k integer
---@param opts? { cap?: number, chunk?: integer }
function tide.nn.distil.top(x, w, k, opts) end
tide.nn.logprob = {}
---@param x tide.Tensor
---@param w tide.Tensor
---@param labels tide.Tensor
---@param opts? { ignore?: integer, chunk?: integer, cap?: number }
function tide.nn.logprob.of_labels(x, w, labels, opts) end
tide.nn.lora = {}
---@param model tide.Module
---@param opts? { rank?: integer, alpha?: number, targets?: string|string[], dropout?: number, rslora?: boolean, dora?: boolean, seed?: integer }
function tide.nn.lora.attach(model, opts) end
---@param model tide.Module
function tide.nn.lora.layers(model) end
---@param model tide.Module
function tide.nn.lora.merge(model) end
---@param model tide.Module
function tide.nn.lora.remove(model) end
---@param model tide.Module
function tide.nn.lora.unmerge(model) end
---@param model tide.Module
---@param fn function
function tide.nn.lora.without(model, fn) end
tide.nn.loss = {}
---@param labels tide.Tensor
function tide.nn.loss.count(labels, ignore) end
function tide.nn.loss.linear(x, w_VC, labels, opts) end
function tide.nn.loss.of_logits(logits, labels, opts) end
function tide.nn.loss.options(op, opts) end
function tide.nn.loss.per_count(fn, x, labels, opts, op) end
---@param ids tide.Tensor
function tide.nn.loss.shift(ids, ignore) end
tide.nn.nf4 = {}
---@param model tide.Module
function tide.nn.nf4.dequantise_(model) end
---@param model tide.Module
function tide.nn.nf4.quantise_(model) end
tide.nn.preference = {}
---@param model tide.Module
---@param batch table
---@param opts? table
function tide.nn.preference.answers(model, batch, opts) end
---@param values tide.Tensor
---@param answers tide.Tensor
---@param n integer
function tide.nn.preference.by_answer(values, answers, n) end
---@param chosen tide.Tensor
---@param rejected tide.Tensor
---@param ref_chosen tide.Tensor
---@param ref_rejected tide.Tensor
---@param opts? { count?: number, beta?: number, label_smoothing?: number, kind?: 'sigmoid' | 'ipo' }
function tide.nn.preference.dpo(chosen, rejected, ref_chosen, ref_rejected, opts) end
---@param opts? { beta?: number, label_smoothing?: number, kind?: 'sigmoid' | 'ipo' }
function tide.nn.preference.objective(opts) end
---@param comm tide.Comm
---@param which? 'train' | 'val'
function tide.nn.preference.take(comm, which) end
tide.nn.rope = {}
function tide.nn.rope.check_scaling(op, s) end
function tide.nn.rope.frequencies(dim, theta, s, length) end
---@param opts? { dim: integer, theta?: number, scaling?: table, interleaved?: boolean }
function tide.nn.rope.new(opts) end
tide.nn.weight = {}
function tide.nn.weight.fill(t, spec, opts) end
function tide.nn.weight.spec(op, name, spec) end
tide.nn.window = {}
function tide.nn.window.check(op, name, w) end
function tide.nn.window.of_tokens(op, name, n) end
tide.optim = {}
---@class tide.optim.Adafactor
tide.optim.Adafactor = {}
---@param opts? { lr?: number|function, beta2_decay?: number, eps1?: number, eps2?: number, d?: number, weight_decay?: number, groups?: table, decay_vectors?: boolean }
function tide.optim.Adafactor.new(params, opts) end
function tide.optim.Adafactor:is_whole() end
---@param entry table
function tide.optim.Adafactor:new_state(entry) end
function tide.optim.Adafactor:state_bytes(dtype, entry) end
function tide.optim.Adafactor:update_whole(p, u) end
---@class tide.optim.AdamW
tide.optim.AdamW = {}
---@param opts? { lr?: number|function, beta1?: number, beta2?: number, eps?: number, weight_decay?: number, groups?: table, decay_vectors?: boolean }
function tide.optim.AdamW.new(params, opts) end
---@class tide.optim.AdamW8bit
tide.optim.AdamW8bit = {}
---@param opts? { lr?: number|function, beta1?: number, beta2?: number, eps?: number, weight_decay?: number, min_size?: integer, wide?: string, groups?: table, decay_vectors?: boolean }
function tide.optim.AdamW8bit.new(params, opts) end
---@param entry table
function tide.optim.AdamW8bit:new_state(entry) end
---@param state table
---@param field string
function tide.optim.AdamW8bit:read_field(state, field) end
function tide.optim.AdamW8bit:state_bytes(dtype, entry) end
---@param group table
---@param bucket table
---@param lr number
---@param opts table
function tide.optim.AdamW8bit:update(group, bucket, lr, opts) end
---@param state table
---@param field string
---@param t tide.Tensor
function tide.optim.AdamW8bit:write_field(state, field, t) end
---@param group table
---@param bucket table
---@param lr number
---@param opts table
function tide.optim.AdamW:update(group, bucket, lr, opts) end
---@class tide.optim.Lion
tide.optim.Lion = {}
---@param opts? { lr?: number|function, beta1?: number, beta2?: number, weight_decay?: number, groups?: table, decay_vectors?: boolean }
function tide.optim.Lion.new(params, opts) end
function tide.optim.Lion:state_bytes(dtype) end
function tide.optim.Lion:update_parameter(weight, grad, state, group, lr) end
---@class tide.optim.Muon
tide.optim.Muon = {}
---@param opts? { lr?: number|function, momentum?: number, nesterov?: boolean, ns_steps?: integer, adjust?: 'original' | 'match_rms_adamw', weight_decay?: number, adamw?: string, adamw_lr?: number, beta1?: number, beta2?: number, eps?: number, groups?: table, decay_vectors?: boolean }
function tide.optim.Muon.new(params, opts) end
function tide.optim.Muon:is_whole(name, shape) end
---@param entry table
function tide.optim.Muon:new_state(entry) end
function tide.optim.Muon:orthogonal(x, steps) end
function tide.optim.Muon:state_bytes(dtype, entry) end
---@param group table
---@param bucket table
---@param lr number
---@param opts table
function tide.optim.Muon:update(group, bucket, lr, opts) end
function tide.optim.Muon:update_whole(p, u) end
---@class tide.optim.Optimizer
tide.optim.Optimizer = {}
function tide.optim.Optimizer.new(op, params, defaults, opts) end
---@param dtype string
---@param count number
function tide.optim.Optimizer:bytes_of(dtype, count) end
function tide.optim.Optimizer:column(states, field) end
function tide.optim.Optimizer:entries() end
function tide.optim.Optimizer:grads() end
---@param tensors table
---@param meta table
function tide.optim.Optimizer:load_state_dict(tensors, meta) end
function tide.optim.Optimizer:master(param) end
---@param entry table
function tide.optim.Optimizer:new_state(entry) end
function tide.optim.Optimizer:next_lr() end
---@param state table
---@param field string
function tide.optim.Optimizer:read_field(state, field) end
---@param g tide.Tensor
---@param dtype string
---@param opts table
function tide.optim.Optimizer:scaled(g, dtype, opts) end
function tide.optim.Optimizer:state_dict() end
function tide.optim.Optimizer:step(opts) end
function tide.optim.Optimizer:take_back() end
---@param group table
---@param bucket table
---@param lr number
---@param opts table
function tide.optim.Optimizer:update(group, bucket, lr, opts) end
---@param state table
---@param field string
---@param t tide.Tensor
function tide.optim.Optimizer:write_field(state, field, t) end
function tide.optim.Optimizer:zero_grad() end
function tide.optim.Optimizer:zeros_like(param) end
---@class tide.optim.SGD
tide.optim.SGD = {}
---@param opts? { lr?: number|function, momentum?: number, dampening?: number, weight_decay?: number, nesterov?: boolean, groups?: table, decay_vectors?: boolean }
function tide.optim.SGD.new(params, opts) end
---@param entry table
function tide.optim.SGD:new_state(entry) end
---@param group table
---@param bucket table
---@param lr number
---@param opts table
function tide.optim.SGD:update(group, bucket, lr, opts) end
---@class tide.optim.Whole
tide.optim.Whole = {}
function tide.optim.Whole.new(op, params, defaults, opts) end
function tide.optim.Whole:add_piece_(p, weight, whole, alpha) end
function tide.optim.Whole:gather(p, t, dtype, device) end
tide.optim.clip = {}
---@param max_norm number
function tide.optim.clip.by_norm(grads, max_norm) end
tide.optim.schedule = {}
---@param opts? { lr: number, warmup?: integer }
function tide.optim.schedule.constant(opts) end
---@param opts? { lr: number, steps: integer, warmup?: integer, min_lr?: number }
function tide.optim.schedule.cosine(opts) end
---@param opts? { lr: number, steps: integer, warmup?: integer, min_lr?: number }
function tide.optim.schedule.linear(opts) end
---@param name 'cosine' | 'linear' | 'wsd' | 'constant'
---@param opts table
function tide.optim.schedule.make(name, opts) end
---@param opts? { lr: number, steps: integer, warmup?: integer, min_lr?: number, decay?: integer }
function tide.optim.schedule.wsd(opts) end
tide.parallel = {}
tide.parallel.DTensor = {}
function tide.parallel.DTensor.full_tensor() end
function tide.parallel.DTensor.offset() end
function tide.parallel.DTensor.plan(placements) end
function tide.parallel.DTensor.redistribute(placements) end
function tide.parallel.DTensor.to_local() end
---@param op? 'sum' | 'mean' | 'min' | 'max' | 'prod'
function tide.parallel.Partial(op) end
function tide.parallel.Replicate() end
---@param dim integer
function tide.parallel.Shard(dim) end
---@class tide.parallel.Sharded
tide.parallel.Sharded = {}
function tide.parallel.Sharded.new(model, opts) end
function tide.parallel.Sharded:all_units() end
function tide.parallel.Sharded:check_finished(name) end
function tide.parallel.Sharded:check_whole(name, module) end
function tide.parallel.Sharded:close() end
function tide.parallel.Sharded:finish() end
function tide.parallel.Sharded:full_state_dict() end
function tide.parallel.Sharded:gradient_divisor() end
function tide.parallel.Sharded:named_parameters() end
function tide.parallel.Sharded:no_sync(fn, ...) end
function tide.parallel.Sharded:norm_groups() end
function tide.parallel.Sharded:price(opts) end
function tide.parallel.Sharded:release() end
function tide.parallel.Sharded:reset() end
function tide.parallel.Sharded:set_requires_gradient_sync(on) end
function tide.parallel.Sharded:state_dict() end
function tide.parallel.Sharded:updated() end
function tide.parallel.Sharded:zero_grad() end
function tide.parallel.apply_fsdp_sharding_recursively(module, mesh, mp_policy, offload_policy) end
tide.parallel.clip = {}
function tide.parallel.clip.clip_grad_norm_(source, max_norm, opts) end
function tide.parallel.clip.norm(source, norm_type, comm) end
tide.parallel.cp = {}
tide.parallel.cp.Context = {}
function tide.parallel.cp.Context.check_agreed(op, comm, what, kind) end
---@param n integer
function tide.parallel.cp.Context.groups(device, n) end
---@param n integer
---@param mask table
function tide.parallel.cp.Context.hops(n, at, mask) end
---@param device? string
---@param first? integer
---@param n? integer
function tide.parallel.cp.Context.joined(device, first, n) end
---@param device string
---@param first? integer
---@param n? integer
function tide.parallel.cp.Context.joined_tiles(device, first, n) end
---@param rank integer
---@param device? string
function tide.parallel.cp.Context.k_index(rank, device) end
function tide.parallel.cp.Context.pairs(device) end
function tide.parallel.cp.Context.positions(device) end
function tide.parallel.cp.Context.q_index(device) end
---@param device string
function tide.parallel.cp.Context.q_tiles(device) end
function tide.parallel.cp.Context.run(fn, ...) end
function tide.parallel.cp.Context.tokens() end
---@param model tide.Module
---@param axis? tide.Comm
---@param opts? { method?: 'ring' | 'allgather' | 'a2a' | 'a2a+p2p', layout?: 'zigzag' | 'contiguous' | 'document' | 'balanced', a2a?: any, window?: any, sliding_window?: any, layers?: table, mamba?: any }
function tide.parallel.cp.attach(model, axis, opts) end
---@param model tide.Module
function tide.parallel.cp.attach_context_parallel_hooks(model) end
function tide.parallel.cp.attach_cp_sdpa_hooks(model, mesh, opts) end
---@param opts? { axis: any, method?: any, a2a?: any, near?: any, far?: any }
function tide.parallel.cp.attention(opts) end
function tide.parallel.cp.axis_of(op, mesh, name) end
---@param batch table
function tide.parallel.cp.build_position_ids(batch) end
---@param opts? { map?: table, axis?: any, method?: any, inner?: any, outer?: any, window?: any, causal?: boolean, index?: any, pairs?: any }
function tide.parallel.cp.context(opts) end
---@param opts? { pad_multiple?: integer, method?: any, fields?: table }
function tide.parallel.cp.contiguous_batch(opts) end
---@param buffers tide.Tensor[]
---@param dims integer[]
---@param no_restore? table
---@param rotate_method? 'allgather' | 'alltoall' | 'ring' | 'a2a' | 'a2a+p2p'
---@param opts? { kind?: any, fills?: table, window?: any, causal?: boolean, index?: any, inner?: any, outer?: any, cu?: any, cu_real?: any, cu_slot?: any }
function tide.parallel.cp.create_context_parallel_ctx(axis, buffers, dims, no_restore, rotate_method, opts) end
function tide.parallel.cp.document_index_of(mask) end
---@param tensors tide.Tensor[]
---@param dim integer
function tide.parallel.cp.gather_cp_seq(where, tensors, dim, orig_len) end
function tide.parallel.cp.get_train_context(opts, ...) end
---@param batch table
---@param opts? { loss_mask?: any, padding_token_id?: integer, use_te?: any, num_chunks?: any, seq_lens_padding_value?: any, fields?: table, kind?: any, multiple?: any, tp?: any, block?: any, mask?: any, method?: any, inner?: any, outer?: any, window?: any, causal?: any }
function tide.parallel.cp.make_cp_batch_and_ctx(mesh, batch, opts) end
---@param opts? { padding_token_id?: integer, num_chunks?: integer, seq_lens_padding_value?: integer, qkv_format?: 'thd', method?: any, fields?: table }
function tide.parallel.cp.make_cp_batch_for_te(axis, batch, opts) end
---@param ids tide.Tensor
---@param positions? tide.Tensor
function tide.parallel.cp.make_target_cp_ctx(axis, ids, positions) end
tide.parallel.cp.region = {}
---@param fn function
function tide.parallel.cp.region.run(fn, ...) end
---@param model tide.Module
---@param opts? { positions?: any, collect?: string[] }
function tide.parallel.cp.run_target_cp_forward_and_gather(model, axis, ids, opts) end
function tide.parallel.cp.self_check(model, probe, opts) end
---@param opts? { padding_token_id?: integer, num_chunks?: integer, seq_lens_padding_value?: integer, qkv_format?: 'thd', method?: any, fields?: table }
function tide.parallel.cp.shard_thd_chunk(axis, batch, opts) end
---@param H integer
---@param K integer
---@param W integer
function tide.parallel.cp.split_heads(H, K, W) end
tide.parallel.cp_map = {}
function tide.parallel.cp_map.check_slots(op, real, slot) end
function tide.parallel.cp_map.cu(op, name, v) end
---@param costs table
---@param n integer
function tide.parallel.cp_map.deal(costs, n, ranks) end
---@param a integer
---@param b integer
function tide.parallel.cp_map.lcm(a, b) end
---@param o? { size?: integer, halves?: integer, tp?: integer, block?: integer, multiple?: integer }
function tide.parallel.cp_map.multiple(o) end
---@param opts? { kind?: 'contiguous' | 'zigzag' | 'document' | 'balanced' | 'custom', axis?: any, size?: integer, rank?: integer, length?: integer, cu?: table, cu_real?: table, cu_slot?: table, pad?: boolean, tp?: integer, block?: integer, multiple?: integer, index?: any, mask?: any, blocks?: integer }
function tide.parallel.cp_map.new(opts) end
---@param g integer
function tide.parallel.cp_map.place(g) end
---@param rank integer
---@param i integer
function tide.parallel.cp_map.position(rank, i) end
tide.parallel.cp_need = {}
---@param seg table
---@param slice integer
function tide.parallel.cp_need.check(seg, slice) end
---@param size integer
function tide.parallel.cp_need.plan(ids, size, window) end
function tide.parallel.cp_need.segments(ids, first, n, window) end
function tide.parallel.destroy_dist_connection() end
function tide.parallel.distribute(t, mesh, placements, opts) end
function tide.parallel.from_local(part, mesh, placements, shape) end
tide.parallel.fsdp = {}
---@param model tide.Module
---@param ranks? tide.Comm
---@param opts? { strategy?: 'no_shard' | 'optim' | 'optim_grads' | 'optim_grads_params', units?: any, reshard_after_forward?: boolean|integer, mp_policy?: table, forward_prefetch?: integer, backward_prefetch?: integer, sync_each_backward?: boolean, device?: any, seed?: integer, keep_fp8_transpose_cache_when_using_custom_fsdp?: any, overlap_grad_reduce?: boolean, overlap_param_gather?: boolean, disable_bucketing?: boolean, check_for_nan_in_grad?: boolean, fsdp_double_buffer?: boolean, nccl_ub?: boolean, average_in_collective?: boolean, calculate_per_token_loss?: boolean, grad_reduce_in_fp32?: boolean, preserve_fp32_weights?: boolean, cpu_offload?: boolean, pin_memory?: boolean, init?: boolean }
function tide.parallel.fsdp.fully_shard(model, ranks, opts) end
function tide.parallel.fsdp.layer_units(module) end
---@param model tide.Module
---@param opts? { tp_shard_plan?: any, mp_policy?: table, activation_checkpointing?: any, activation_checkpointing_scope?: any, dp_mesh_name?: any, cp_mesh_name?: any, tp_mesh_name?: any, dp_cp_mesh_name?: string, cp?: table, reshard_after_forward?: any, sync_each_backward?: any, device?: any, seed?: any, param_dtype?: any, offload_policy?: table, sequence_parallel?: boolean, cpu_offload?: boolean }
function tide.parallel.fsdp2_strategy_parallelize(model, mesh, opts) end
function tide.parallel.get_hf_tp_shard_plan(model) end
function tide.parallel.import_class_from_path(path) end
function tide.parallel.import_classes_from_paths(paths, opts) end
tide.parallel.layout = {}
---@param n integer
---@param parts integer
function tide.parallel.layout.balanced(n, parts) end
function tide.parallel.layout.box(module, field) end
function tide.parallel.layout.boxes(module, field) end
---@param module tide.Module
function tide.parallel.layout.gathered(module, grads) end
function tide.parallel.layout.get(module, field) end
---@param spec? { axis: table, placement: table, shape: integer[], counts?: table, blocks?: integer }
function tide.parallel.layout.new(spec) end
---@param module table
---@param field string
function tide.parallel.layout.set(module, field, spec) end
function tide.parallel.layout.shape(module, field) end
---@param x tide.Tensor
---@param w tide.Tensor
---@param targets tide.Tensor
---@param counts table
---@param opts? { ignore_index?: integer, label_smoothing?: number, z_loss?: number }
function tide.parallel.linear_cross_entropy(x, w, targets, axis, counts, opts) end
tide.parallel.mamba_cp = {}
---@class tide.parallel.mamba_cp.MambaContextParallel
tide.parallel.mamba_cp.MambaContextParallel = {}
---@param cp_group tide.Comm
---@param num_heads integer
---@param head_dim integer
---@param n_groups integer
---@param d_state integer
function tide.parallel.mamba_cp.MambaContextParallel.new(cp_group, num_heads, head_dim, n_groups, d_state, mixer) end
function tide.parallel.mamba_cp.MambaContextParallel:get_A_log(p) end
function tide.parallel.mamba_cp.MambaContextParallel:get_D(p) end
function tide.parallel.mamba_cp.MambaContextParallel:get_conv1d_bias() end
function tide.parallel.mamba_cp.MambaContextParallel:get_conv1d_weight() end
function tide.parallel.mamba_cp.MambaContextParallel:get_dt_bias(p) end
function tide.parallel.mamba_cp.MambaContextParallel:post_conv_ssm(y, cu) end
function tide.parallel.mamba_cp.MambaContextParallel:pre_conv_ssm(projected, cu) end
function tide.parallel.mamba_cp.MambaContextParallel:repeat_group_state(s) end
function tide.parallel.mamba_cp.MambaContextParallel:slice_conv_param(p) end
function tide.parallel.mamba_cp.MambaContextParallel:slice_vector_param(p) end
---@param x tide.Tensor
function tide.parallel.mamba_cp.all_to_all(x, comm) end
---@param x tide.Tensor
function tide.parallel.mamba_cp.all_to_all_cp2hp(x, comm, batch_size) end
---@param x tide.Tensor
function tide.parallel.mamba_cp.all_to_all_hp2cp(x, comm, batch_size) end
function tide.parallel.mamba_cp.attach(...) end
---@param cu_local table
---@param W integer
---@param rows integer
function tide.parallel.mamba_cp.deinterleave_index(cu_local, W, rows) end
---@param x tide.Tensor
---@param cu_local table
---@param W integer
function tide.parallel.mamba_cp.deinterleave_packed_seqs(x, cu_local, W) end
function tide.parallel.mamba_cp.explain(...) end
---@param cu table
---@param W integer
function tide.parallel.mamba_cp.pre_index(cu, W) end
function tide.parallel.mamba_cp.price(...) end
---@param x tide.Tensor
---@param W integer
function tide.parallel.mamba_cp.redo_attention_load_balancing(x, W, cu) end
---@param W integer
function tide.parallel.mamba_cp.redo_order(W) end
---@param x tide.Tensor
---@param cu_local table
---@param W integer
function tide.parallel.mamba_cp.reinterleave_packed_seqs(x, cu_local, W) end
---@param x tide.Tensor
---@param order integer[]
function tide.parallel.mamba_cp.reorder_chunks(x, order, cu) end
---@param heads integer
---@param groups integer
---@param size integer
function tide.parallel.mamba_cp.split_heads(heads, groups, size) end
---@param x tide.Tensor
---@param W integer
function tide.parallel.mamba_cp.undo_attention_load_balancing(x, W, cu) end
---@param W integer
function tide.parallel.mamba_cp.undo_order(W) end
---@param model tide.Module
---@param o? { tp_shard_plan?: any, mp_policy?: table, activation_checkpointing?: any, activation_checkpointing_scope?: any, dp_mesh_name?: any, cp_mesh_name?: any, tp_mesh_name?: any, dp_cp_mesh_name?: string, cp?: table, reshard_after_forward?: any, sync_each_backward?: any, device?: any, seed?: any, grad_reduce_in_fp32?: boolean, preserve_fp32_weights?: boolean, overlap_grad_reduce?: boolean, overlap_param_gather?: boolean, check_for_nan_in_grad?: boolean, average_in_collective?: boolean, disable_bucketing?: boolean, calculate_per_token_loss?: boolean, keep_fp8_transpose_cache_when_using_custom_fsdp?: boolean, nccl_ub?: boolean, fsdp_double_buffer?: boolean, optimizer?: function, megatron_fsdp_unit_modules?: any, data_parallel_sharding_strategy?: any, init_megatron_fsdp_with_meta_device?: boolean }
function tide.parallel.megatron_fsdp_strategy_parallelize(model, mesh, o) end
tide.parallel.mesh = {}
tide.parallel.mesh.Axis = {}
function tide.parallel.mesh.Axis.ranks() end
tide.parallel.mesh.Mesh = {}
function tide.parallel.mesh.Mesh.axis(name) end
function tide.parallel.mesh.Mesh.close() end
function tide.parallel.mesh.Mesh.comm_of(name) end
function tide.parallel.mesh.Mesh.coord(rank) end
---@param ep integer
function tide.parallel.mesh.Mesh.expert(ep) end
function tide.parallel.mesh.Mesh.find(name) end
function tide.parallel.mesh.Mesh.flatten(names, name) end
function tide.parallel.mesh.Mesh.fsdp_mesh() end
---@param at table
function tide.parallel.mesh.Mesh.rank_of(at) end
function tide.parallel.mesh.Mesh.size(name) end
---@param names table
function tide.parallel.mesh.Mesh.sub(names) end
function tide.parallel.mesh.Mesh.unflatten(name, axes) end
---@param opts? { comm?: table, host_size?: integer }
function tide.parallel.mesh.new(axes, opts) end
---@param n integer
function tide.parallel.mesh.sizes(axes, n) end
tide.parallel.multimodal = {}
---@param x tide.Tensor
function tide.parallel.multimodal.gather_along_second_dim(x, axis) end
---@param x tide.Tensor
---@param global_pad integer
function tide.parallel.multimodal.gather_from_context_parallel_ranks(x, global_pad, axis) end
---@param x tide.Tensor
---@param opts? { merge?: integer }
function tide.parallel.multimodal.gather_from_context_parallel_ranks_dynamic_res(x, what, axis, opts) end
---@param tokens tide.Tensor
---@param img_seq_len integer
---@param padding_needed integer
---@param cp_size? integer
---@param use_packed_sequence? boolean
function tide.parallel.multimodal.get_packed_seq_params(tokens, img_seq_len, padding_needed, cp_size, use_packed_sequence) end
---@param seq_len integer
---@param opts? { cp_size?: integer, tp_size?: integer, has_sp?: boolean, decoder_tp_comm_overlap?: boolean, decoder_seq_len?: integer, fp8_enabled?: boolean, fp8_recipe?: 'delayed' | 'tensorwise' | 'blockwise' | 'mxfp8', rule?: 'all' | 'first' }
function tide.parallel.multimodal.get_padding(seq_len, opts) end
---@param x tide.Tensor
function tide.parallel.multimodal.reduce_scatter_along_second_dim(x, axis) end
---@param x tide.Tensor
function tide.parallel.multimodal.split_to_context_parallel_ranks(x, axis, pad_value) end
---@param x tide.Tensor
---@param sizes table
---@param cu table
---@param opts? { axis?: any, patch_dim: integer, num_frames?: table, temporal_patch_size?: integer, fp8_enabled?: boolean, fp8_recipe?: 'delayed' | 'tensorwise' | 'blockwise' | 'mxfp8', partition?: 'balanced' | 'compatible', alpha?: number }
function tide.parallel.multimodal.split_to_context_parallel_ranks_dynamic_res(x, sizes, cu, opts) end
---@param model tide.Module
---@param o? { tp_shard_plan?: any, mp_policy?: table, activation_checkpointing?: any, activation_checkpointing_scope?: any, dp_mesh_name?: any, cp_mesh_name?: any, tp_mesh_name?: any, dp_cp_mesh_name?: string, cp?: table, reshard_after_forward?: any, sync_each_backward?: any, device?: any, seed?: any, grad_reduce_in_fp32?: boolean, preserve_fp32_weights?: boolean, overlap_grad_reduce?: boolean, overlap_param_gather?: boolean, check_for_nan_in_grad?: boolean, average_in_collective?: boolean, disable_bucketing?: boolean, calculate_per_token_loss?: boolean, keep_fp8_transpose_cache_when_using_custom_fsdp?: boolean, nccl_ub?: boolean, fsdp_double_buffer?: boolean, optimizer?: function, nvfsdp_unit_modules?: any, data_parallel_sharding_strategy?: any, init_nvfsdp_with_meta_device?: boolean }
function tide.parallel.nvfsdp_strategy_parallelize(model, mesh, o) end
tide.parallel.op = {}
function tide.parallel.op.all_gather(x, comm, dim) end
function tide.parallel.op.all_gather_v(x, comm, dim, counts) end
function tide.parallel.op.all_reduce(x, comm, reduce) end
function tide.parallel.op.all_to_all(x, comm, cut, join, cut_counts, join_counts) end
function tide.parallel.op.all_to_all_v(x, comm, in_counts, out_counts, dim) end
function tide.parallel.op.broadcast(x, comm, root) end
function tide.parallel.op.copy_to(x, comm) end
function tide.parallel.op.counts(n, comm) end
function tide.parallel.op.gather_from(x, comm, dim, counts) end
function tide.parallel.op.reduce(x, comm, root, reduce) end
function tide.parallel.op.reduce_from(x, comm, reduce) end
function tide.parallel.op.reduce_scatter(x, comm, dim, reduce) end
function tide.parallel.op.reduce_scatter_v(x, comm, dim, counts, reduce) end
function tide.parallel.op.scatter_to(x, comm, dim, counts) end
function tide.parallel.op.shift(x, comm, by) end
tide.parallel.pack = {}
---@param lengths integer[]
---@param size integer
---@param max_bins? integer
function tide.parallel.pack.best_fit(lengths, size, max_bins) end
---@param length integer
---@param most integer
function tide.parallel.pack.cp_degree(length, most) end
---@param lengths integer[]
---@param opts? { size: integer, dp: integer, cp?: integer }
function tide.parallel.pack.dp_balanced(lengths, opts) end
---@param lengths integer[]
---@param opts? { ranks: integer, most: integer, linear?: number }
function tide.parallel.pack.dynamic_cp(lengths, opts) end
---@param samples table[]
---@param opts? { size: integer, cp?: integer, padding_token_id?: integer, drop_long?: boolean, max_packs?: integer }
function tide.parallel.pack.greedy(samples, opts) end
---@param lengths integer[]
---@param size integer
---@param max_bins? integer
function tide.parallel.pack.knapsack(lengths, size, max_bins) end
---@param samples table[]
---@param opts? { size: integer, cp?: integer, padding_token_id?: integer, drop_long?: boolean, max_packs?: integer, fit?: 'emptiest' | 'best' }
function tide.parallel.pack.neat(samples, opts) end
---@param model tide.Module
---@param opts? { gather_logits?: boolean, async_tp?: boolean }
function tide.parallel.parallelize_module(model, axis, plan, opts) end
tide.parallel.placement = {}
function tide.parallel.placement.is(p) end
---@param counts table
function tide.parallel.placement.is_even(counts) end
---@param shape integer[]
function tide.parallel.placement.local_shape(shape, placements, mesh, rank) end
function tide.parallel.placement.normalise(op, given, mesh, ndim) end
---@param size integer
---@param n integer
---@param rank integer
function tide.parallel.placement.piece(size, n, rank) end
---@param size integer
---@param n integer
function tide.parallel.placement.pieces(size, n) end
function tide.parallel.placement.plan(...) end
---@param shape integer[]
function tide.parallel.placement.route(shape, dtype, mesh, from, to, rank) end
---@param bandwidth number
---@param latency? number
function tide.parallel.placement.seconds(bandwidth, latency) end
---@param list table
---@param mesh tide.Mesh
function tide.parallel.placement.text(list, mesh) end
tide.parallel.plan = {}
---@class tide.parallel.plan.Plan
tide.parallel.plan.Plan = {}
function tide.parallel.plan.Plan.new(model, mesh, opts) end
function tide.parallel.plan.Plan:axes_text() end
function tide.parallel.plan.Plan:data() end
---@param opts? { device?: string, seed?: integer, init?: boolean }
function tide.parallel.plan.Plan:materialise(opts) end
---@param opts? { batch?: integer, seq?: integer, accum?: integer, rank?: integer, device?: 'cpu' | 'ref' | 'cuda', host_size?: any, state_bytes?: number|function, forward?: any }
function tide.parallel.plan.Plan:price(opts) end
function tide.parallel.plan.Plan:to_table() end
---@param t table
function tide.parallel.plan.from_table(t, model) end
---@param name string
---@param section? { apply: function, before?: string }
function tide.parallel.plan.register(name, section) end
function tide.parallel.plan.unregister(name) end
---@param run table
---@param fn function
function tide.parallel.plan.whole(run, fn) end
tide.parallel.recompute = {}
---@param model tide.Module
---@param opts? { scope?: any }
function tide.parallel.recompute.apply(model, policy, opts) end
---@param model tide.Module
function tide.parallel.recompute.report(model) end
function tide.parallel.recompute.scope(v) end
---@param model tide.Module
---@param opts? { gather_logits?: boolean, async_tp?: boolean, plan?: any, sequence_parallel?: boolean, declared?: boolean }
function tide.parallel.tensor_parallel(model, axis, opts) end
tide.parallel.thd = {}
---@param rows table[]
---@param opts? { seq_lens_padding_value?: integer, padding_token_id?: integer, causal?: boolean }
function tide.parallel.thd.collate(rows, opts) end
---@param cu_real table
---@param cu_slot table
---@param n integer
function tide.parallel.thd.padding_mask(cu_real, cu_slot, n) end
---@param batch table
---@param opts? { seq_lens_padding_value?: integer, padding_token_id?: integer, causal?: boolean }
function tide.parallel.thd.process_input_for_thd(batch, opts) end
---@param fields table
function tide.parallel.thd.sanitize(fields, mask, fill) end
function tide.parallel.thd.sequence_index(cu, n) end
---@param batch table
---@param num_chunks? integer
---@param opts? { seq_lens_padding_value?: integer, padding_token_id?: integer, causal?: boolean }
function tide.parallel.thd.split_batch_into_thd_chunks(batch, num_chunks, opts) end
---@param x tide.Tensor
---@param stream table
---@param B integer
function tide.parallel.thd.to_rows(x, stream, B) end
tide.parallel.tp_plans = {}
function tide.parallel.tp_plans.body(model) end
function tide.parallel.tp_plans.class_plan(model) end
function tide.parallel.tp_plans.custom(plan) end
function tide.parallel.tp_plans.decoder(model) end
function tide.parallel.tp_plans.plan_for(model, opts) end
function tide.parallel.tp_plans.register(cls, fn) end
function tide.parallel.tp_plans.with_sequence(plan, model) end
function tide.parallel.translate_to_parallel_style(name) end
---@param fn function
---@param path? string
---@param opts? { layerwise?: boolean }
function tide.parallel.unshard_fsdp2_model(model, fn, path, opts) end
tide.parallel.vision_split = {}
---@param num_frames integer[]
---@param T integer
---@param parts integer
---@param costs? number[]
function tide.parallel.vision_split.balanced(num_frames, T, parts, costs) end
---@param num_frames integer[]
---@param lb integer
---@param ub integer
function tide.parallel.vision_split.clip(num_frames, lb, ub) end
---@param num_frames integer[]
---@param T integer
---@param parts integer
function tide.parallel.vision_split.compatible(num_frames, T, parts) end
---@param n integer
---@param parts integer
function tide.parallel.vision_split.even(n, parts) end
---@param patches number
---@param alpha? number
function tide.parallel.vision_split.frame_cost(patches, alpha) end
---@param rows integer
---@param rows_per_frame integer
---@param least_rows integer
function tide.parallel.vision_split.pad_frames(rows, rows_per_frame, least_rows) end
---@param costs number[]
---@param parts integer
function tide.parallel.vision_split.partition(costs, parts) end
---@param num_frames integer[]
---@param T integer
---@param parts integer
function tide.parallel.vision_split.points(num_frames, T, parts) end
---@param costs number[]
---@param parts integer
function tide.parallel.vision_split.proportional(costs, parts) end
---@param num_frames integer[]
---@param T integer
function tide.parallel.vision_split.units(num_frames, T) end
tide.repl = {}
function tide.repl.run(opts) end
function tide.repl.session(opts) end
function tide.abs(x) end
function tide.add(x, y, alpha) end
function tide.add_(x, src, alpha) end
function tide.add_rms_norm(x, residual, weight, eps, offset) end
function tide.addmm_(x, a, b) end
function tide.affine(x, mul, add) end
function tide.all(x, dim, keepdim) end
function tide.amax(x, dim, keepdim) end
function tide.amin(x, dim, keepdim) end
function tide.any(x, dim, keepdim) end
function tide.arange(start, stop, step, opts) end
function tide.argmax(x, dim, keepdim) end
function tide.argmin(x, dim, keepdim) end
function tide.attention(q, k, v, opts) end
function tide.attention_backward(dout, q, k, v, out, lse, opts) end
function tide.attention_merge_(out, lse, part, part_lse) end
function tide.attention_rows(q_index, k_index, opts) end
function tide.attention_tiles(index) end
function tide.backward(root, grad, opts) end
function tide.build_info() end
function tide.cast(x, dtype) end
function tide.cat(list, dim) end
function tide.checkpoint(fn, ...) end
function tide.chunk(x, n, dim) end
function tide.clamp(x, lo, hi) end
function tide.clock() end
function tide.clone(x) end
function tide.contiguous(x) end
function tide.conv1d(x, w, bias, opts) end
function tide.conv1d_step(x, w, bias, state, opts) end
function tide.copy_(x, src) end
function tide.cos(x) end
function tide.cross_entropy(logits, targets, opts) end
function tide.cumsum(x, dim) end
function tide.default() end
function tide.dequantize_nf4(codes, scale, n) end
function tide.dequantize_nf4_part(codes, scale, rows, cols, first, stride) end
function tide.div(x, y) end
function tide.document_index(cu, ntoken) end
function tide.dropout(x, p) end
function tide.dtype_size(dtype, op) end
function tide.embedding(weight, ids) end
function tide.empty(shape, opts) end
function tide.enable_grad(fn, ...) end
function tide.eq(x, y) end
function tide.erf(x) end
function tide.error_of(caught) end
function tide.exp(x) end
function tide.expand(x, a, b, c, d, e, f, g, h, more) end
function tide.eye(n, opts) end
function tide.fill_(x, value) end
function tide.flatten(x, d1, d2) end
function tide.floor(x) end
function tide.foreach_add_(dsts, srcs, alpha) end
function tide.foreach_copy_(dsts, srcs) end
function tide.from_string(bytes, shape, opts) end
function tide.full(shape, value, opts) end
function tide.full_like(x, value, opts) end
function tide.gated_rms_norm(x, z, weight, opts) end
function tide.gather(x, dim, index) end
function tide.ge(x, y) end
function tide.gelu(x) end
function tide.gelu_tanh(x) end
function tide.grouped_addmm_(x, a, b, offsets) end
function tide.grouped_linear(x, w, offsets) end
function tide.gt(x, y) end
function tide.index_add(x, dim, index, src) end
function tide.index_select(x, dim, index) end
function tide.interrupted() end
function tide.inverse_index(index) end
function tide.is_error(value) end
function tide.is_grad_enabled() end
function tide.is_tensor(x) end
function tide.isfinite(x) end
function tide.layer_norm(x, weight, bias, eps) end
function tide.le(x, y) end
function tide.linear(x, w, bias) end
function tide.linear_act(x, w, bias, activation) end
function tide.linear_cross_entropy(x, w, bias, targets, opts) end
function tide.linear_fp8(x, w, bias) end
function tide.linear_nf4(x, codes, scale, n, bias) end
function tide.linear_nf4_part(x, codes, scale, bias, n, first, stride) end
function tide.log(x) end
function tide.log_softmax(x, dim) end
function tide.logical_and(x, y) end
function tide.logical_not(x) end
function tide.logical_or(x, y) end
function tide.logsumexp(x, dim, keepdim) end
function tide.lt(x, y) end
function tide.masked_fill(x, mask, value) end
function tide.matmul(a, b) end
function tide.maximum(x, y) end
function tide.mean(x, dim, keepdim) end
function tide.minimum(x, y) end
function tide.mul(x, y) end
function tide.mul_(x, factor) end
function tide.narrow(x, dim, first, n) end
function tide.ne(x, y) end
function tide.neg(x) end
function tide.no_grad(fn, ...) end
function tide.norm(x, dim, keepdim) end
function tide.normal_(x, mean, std, opts) end
function tide.one_hot(ids, n, opts) end
function tide.ones(shape, opts) end
function tide.ones_like(x, opts) end
function tide.open(opts) end
function tide.pad(x, before, after, value) end
function tide.param(name, value) end
function tide.params() end
function tide.permute(x, a, b, c, d, e, f, g, h) end
function tide.pow(x, y) end
function tide.prod(x, dim, keepdim) end
function tide.quantize_nf4(x) end
function tide.rand(shape, opts) end
function tide.randn(shape, opts) end
function tide.reciprocal(x) end
function tide.relu(x) end
function tide.repeat_interleave(x, n, dim) end
function tide.reshape(x, a, b, c, d, e, f, g, h, more) end
function tide.rms_norm(x, weight, eps, offset) end
function tide.rng_state() end
function tide.roll(x, shift, dim) end
function tide.rope(x, positions, inv_freq, opts) end
function tide.rsqrt(x) end
function tide.run_index(runs, dtype) end
function tide.scatter_add(x, dim, index, src) end
function tide.scope(fn, ...) end
function tide.seed(n) end
function tide.select(x, dim, i) end
function tide.sequence_index(cu, ntoken) end
function tide.set_default(ctx) end
function tide.set_error_form(form) end
function tide.set_nthread(n) end
function tide.set_rng_state(state) end
function tide.sigmoid(x) end
function tide.sign(x) end
function tide.silu(x) end
function tide.sin(x) end
function tide.slice(x, dim, first, last, step) end
function tide.slot_index(cu_slot, cu_real, ntoken) end
function tide.softmax(x, dim) end
function tide.softplus(x) end
function tide.split(x, sizes, dim) end
function tide.sqrt(x) end
function tide.square(x) end
function tide.squeeze(x, dim) end
function tide.ssd_step(x, dt, A, B, Cs, state, opts) end
function tide.stack(list, dim) end
function tide.stats() end
function tide.sub(x, y, alpha) end
function tide.sum(x, dim, keepdim) end
function tide.swiglu(gate, up) end
function tide.t(x) end
function tide.tanh(x) end
function tide.tell_gone(owner, fn) end
function tide.tensor(list, opts) end
function tide.to_device(x, device, non_blocking) end
function tide.transpose(x, dim0, dim1) end
function tide.tril(x, diagonal) end
function tide.triu(x, diagonal) end
function tide.trunc_normal_(x, mean, std, lo, hi, opts) end
function tide.uniform_(x, lo, hi, opts) end
function tide.unsqueeze(x, dim) end
function tide.where(cond, a, b) end
function tide.zero_(x) end
function tide.zeros(shape, opts) end
function tide.zeros_like(x, opts) end
function tide.zigzag_index(cu, size, rank, dtype) end
function tide.zigzag_places(cu, size, dtype) end
tide.tokenizer = {}
---@param text string
---@param opts? { add_special_tokens?: any, special?: any, offsets?: any, invalid?: 'error' | 'replace', width?: integer }
function tide.tokenizer.encode(text, opts) end
---@param texts string[]
---@param opts? { threads?: integer, add_special_tokens?: any, special?: any, offsets?: any, invalid?: 'error' | 'replace', width?: integer }
function tide.tokenizer.encode_batch(texts, opts) end
---@param path string
function tide.tokenizer.find(path) end
---@param name string
function tide.tokenizer.id(name) end
---@param path string
function tide.tokenizer.load(path) end
tide.train = {}
tide.train.checkpoint = {}
---@param out string
function tide.train.checkpoint.clear(out) end
---@param to string
---@param opts? { dtype?: string }
function tide.train.checkpoint.consolidate(where, to, opts) end
---@param where string
function tide.train.checkpoint.find(where) end
---@param out string
function tide.train.checkpoint.list(out) end
---@param opts? { device?: string, model_only?: boolean, lazy?: boolean }
function tide.train.checkpoint.load(where, opts) end
---@param out string
function tide.train.checkpoint.lock(out, comm) end
---@param step integer
function tide.train.checkpoint.name(step) end
function tide.train.checkpoint.recipe(where) end
---@param out string
---@param opts? { keep?: integer, spare?: integer, comm?: tide.Comm }
function tide.train.checkpoint.save(out, saved, opts) end
---@param out string
---@param opts? { keep?: integer, spare?: integer, comm?: tide.Comm }
function tide.train.checkpoint.save_async(out, saved, opts) end
---@param out string
function tide.train.checkpoint.step_in(out) end
---@param path string
function tide.train.checkpoint.tensors(path, device) end
---@param folder string
function tide.train.checkpoint.verify(folder, sizes_only) end
tide.train.evaluate = {}
---@param model tide.Module
---@param tok table
---@param items table
---@param opts? { delimiter?: string, seq: integer, batch?: integer, sharded?: tide.Sharded, device?: string }
function tide.train.evaluate.choices(model, tok, items, opts) end
---@param tok table
---@param context string
---@param continuation string
---@param opts? { config?: table }
function tide.train.evaluate.pair(tok, context, continuation, opts) end
---@param model tide.Module
---@param tok table
---@param text string
---@param opts? { seq: integer, batch?: integer, sharded?: tide.Sharded, device?: string }
function tide.train.evaluate.perplexity(model, tok, text, opts) end
---@param tok table
---@param config? table
function tide.train.evaluate.prefix(tok, config) end
tide.train.events = {}
---@param record table
function tide.train.events.add(record) end
---@param text string
function tide.train.events.crc32c(text) end
---@param dir string
---@param time number
function tide.train.events.new(dir, time) end
---@param dir string
function tide.train.identity(dir) end
tide.train.job = {}
function tide.train.job.main(recipe, ...) end
---@param opts? { steps: integer, model: table, optim: tide.Optimizer, train: tide.Source, val?: tide.Source, sampler: table, accum?: integer, clip?: number, out?: string, val_windows?: integer, keep?: integer, keep_best?: boolean, on_nonfinite?: 'stop' | 'skip', max_skips?: integer, comm?: tide.Comm, ctx?: any, device?: string, recipe?: any, resume?: string, overwrite?: boolean, progress?: any, log_every?: integer, title?: string, tensorboard?: boolean, lock?: any, parallel?: tide.Sharded, async_save?: boolean, captured?: boolean, loss?: any, on_evaluate?: function, on_save?: function, val_every?: integer, save_every?: integer, on_step?: function }
function tide.train.loop(opts) end
tide.train.metric = {}
---@param record table
function tide.train.metric.add(record) end
---@param n integer
function tide.train.metric.average(n) end
function tide.train.metric.is_own(name) end
function tide.train.metric.line(record) end
---@param opts? { out?: string, tensorboard?: boolean, step?: integer }
function tide.train.metric.new(opts) end
---@param line string
function tide.train.metric.parse(line) end
tide.train.progress = {}
---@param step number
function tide.train.progress.eta(step) end
---@param steps integer
function tide.train.progress.expect(steps) end
---@param r table
function tide.train.progress.fields(r) end
---@param opts? { steps?: integer, start?: integer, every?: integer, tty?: boolean, columns?: integer, sink?: function, clock?: function, quiet?: boolean }
function tide.train.progress.new(opts) end
---@param fmt string
function tide.train.progress.note(fmt, ...) end
---@param r table
function tide.train.progress.update(r) end
tide.train.reference = {}
---@param run table
---@param sampler table
---@param corpus table
---@param opts? { batch?: integer, device?: string }
function tide.train.reference.compute(run, sampler, corpus, opts) end
---@param opts? { model: table, optim: tide.Optimizer, train: tide.Source, val?: tide.Source, sampler: table, accum?: integer, clip?: number, out?: string, val_windows?: integer, keep?: integer, keep_best?: boolean, on_nonfinite?: 'stop' | 'skip', max_skips?: integer, comm?: tide.Comm, ctx?: any, device?: string, recipe?: any, resume?: string, overwrite?: boolean, progress?: any, log_every?: integer, title?: string, tensorboard?: boolean, lock?: any, parallel?: tide.Sharded, async_save?: boolean, captured?: boolean, loss?: any, on_evaluate?: function, on_save?: function, steps?: integer }
function tide.train.run(opts) end
tide.train.sample = {}
---@param model tide.Module
---@param prompts table
---@param opts? { temperature?: number, top_k?: integer, top_p?: number, min_p?: number, repetition_penalty?: number, presence_penalty?: number, frequency_penalty?: number, tokens?: integer, seed?: integer, stop?: any, stop_strings?: string[], tokenizer?: table, device?: string, context?: integer, on_token?: function, on_text?: function }
function tide.train.sample.batch(model, prompts, opts) end
---@param model tide.Module
---@param prompt string|integer[]
---@param opts? { temperature?: number, top_k?: integer, top_p?: number, min_p?: number, repetition_penalty?: number, presence_penalty?: number, frequency_penalty?: number, tokens?: integer, seed?: integer, stop?: any, stop_strings?: string[], tokenizer?: table, device?: string, context?: integer, on_token?: function, on_text?: function, cache?: table }
function tide.train.sample.generate(model, prompt, opts) end
---@param logits table
---@param u number
---@param opts? { temperature?: number, top_k?: integer, top_p?: number, min_p?: number, repetition_penalty?: number, presence_penalty?: number, frequency_penalty?: number, tokens?: integer, seed?: integer, stop?: any, stop_strings?: string[], tokenizer?: table, device?: string, context?: integer, on_token?: function, on_text?: function }
function tide.train.sample.pick(logits, u, opts) end
tide.train.score = {}
---@param opts? { device?: string, comm?: tide.Comm, make?: function }
function tide.train.score.load(where, opts) end
---@param model tide.Module
---@param requests table
---@param opts? { seq: integer, batch?: integer, sharded?: tide.Sharded, device?: string }
function tide.train.score.loglikelihood(model, requests, opts) end
---@param model tide.Module
---@param ids integer[]
---@param opts? { seq: integer, batch?: integer, sharded?: tide.Sharded, device?: string }
function tide.train.score.logprob(model, ids, opts) end
---@param ids integer[]
---@param seq integer
function tide.train.score.windows(ids, seq) end
tide.train.state = {}
---@param run table
function tide.train.state.collect(run) end
---@param run table
---@param saved table
function tide.train.state.restore(run, saved) end
---@param sharded tide.Sharded
---@param saved table
function tide.train.state.restore_model(sharded, saved) end
---@param sharded tide.Sharded
---@param wants? function
function tide.train.state.weights(sharded, wants) end
tide.train.step = {}
---@param starts table
---@param batch number
---@param make function
function tide.train.step.evaluate(starts, batch, make) end
---@param opts? { model: table, optim: tide.Optimizer, clip?: number, comm?: tide.Comm, loss?: any, loss_options?: any, parallel?: tide.Sharded, captured?: boolean }
function tide.train.step.new(opts) end
tide.train.teacher = {}
---@param path string
---@param sampler table
---@param corpus table
---@param opts? { k?: integer, teacher?: string, vocab: integer }
function tide.train.teacher.load(path, sampler, corpus, opts) end
---@param path string
---@param top table
function tide.train.teacher.save(path, top) end
---@param run table
---@param sampler table
---@param corpus table
---@param opts? { k?: integer, batch?: integer, device?: string, teacher?: string, chunk?: integer }
function tide.train.teacher.top(run, sampler, corpus, opts) end
---@param sampler table
---@param corpus table
---@param top table
function tide.train.teacher.use(sampler, corpus, top) end
tide.update = {}
function tide.update.adamw8_(lists, attrs) end
function tide.update.adamw_(lists, attrs) end
function tide.update.clip_factor(norm, max_norm) end
function tide.update.dequantize8(codes, scale, is_signed) end
function tide.update.norm(list, p, squared) end
function tide.update.quantize8(x, is_signed) end
function tide.update.scale_all_(list, factor) end
function tide.update.sgd_(lists, attrs) end
tide.util = {}
tide.util.args = {}
---@param t table
function tide.util.args.check(t) end
---@param program string
---@param text string
---@param n integer
---@param least? integer
function tide.util.args.ids(program, text, n, least) end
function tide.util.args.main(fn, ...) end
---@param program string
---@param rows table[]
function tide.util.args.new(program, rows) end
function tide.util.args.parse(program, rows, argv, base) end
tide.util.err = {}
function tide.util.err.add_root(source) end
function tide.util.err.arg(op, name, expected, got) end
function tide.util.err.arg_if(failed, op, name, expected, got) end
function tide.util.err.choice(op, name, v, list) end
function tide.util.err.func(op, name, v) end
function tide.util.err.integer(op, name, v, lo, hi) end
function tide.util.err.integers(op, name, list, lo) end
function tide.util.err.is_count(v) end
function tide.util.err.is_missing_module(e, module) end
function tide.util.err.new(code, op, message) end
function tide.util.err.number(op, name, v, lo, hi) end
function tide.util.err.options(op, opts, known) end
function tide.util.err.people(codes, fn, ...) end
function tide.util.err.raise(code, op, fmt, ...) end
function tide.util.err.raise_if(failed, code, op, fmt, ...) end
function tide.util.err.same(v, word) end
function tide.util.err.show(v) end
function tide.util.err.show_cdata(v) end
function tide.util.err.text(e) end
function tide.util.err.throw(e) end
function tide.util.err.type(op, name, v, kind) end
function tide.util.err.usage(op, fmt, ...) end
function tide.util.err.usage_if(failed, op, fmt, ...) end
function tide.util.err.where() end
tide.util.fs = {}
function tide.util.fs.absolute(path) end
function tide.util.fs.exists(path) end
function tide.util.fs.hash(op, path) end
function tide.util.fs.io() end
function tide.util.fs.is_dir(path) end
function tide.util.fs.is_present(path) end
function tide.util.fs.join(a, b) end
function tide.util.fs.json_text(value) end
function tide.util.fs.list(op, path) end
function tide.util.fs.mkdirs(op, path) end
function tide.util.fs.read(op, path) end
function tide.util.fs.read_json(op, path) end
function tide.util.fs.remove_dir(op, path) end
function tide.util.fs.resolve(path) end
function tide.util.fs.size(path) end
function tide.util.fs.use(primitives) end
function tide.util.fs.write(op, path, text) end
function tide.util.fs.write_json(op, path, value) end
tide.util.hash = {}
function tide.util.hash.fnv32(text) end
function tide.util.hash.mix(...) end
function tide.util.hash.scramble(h) end
function tide.util.hash.stream(text) end
tide.util.log = {}
---@param opts? { level?: 'error' | 'warn' | 'info' | 'debug', rank?: any, size?: any, sink?: any }
function tide.util.log.new(opts) end
---@param fmt string
function tide.util.log.once(fmt, ...) end
tide.util.near = {}
function tide.util.near.best(name, list, also) end
function tide.util.near.distance(a, b) end
function tide.util.near.hint(name, list, spell, also) end
tide.util.plot = {}
---@param series table[]
---@param opts? { title?: any, xlabel?: any, ylabel?: any, logx?: boolean, logy?: boolean, columns?: integer, rows?: integer }
function tide.util.plot.svg(series, opts) end
---@param series table[]
---@param opts? { title?: any, xlabel?: any, ylabel?: any, logx?: boolean, logy?: boolean, columns?: integer, rows?: integer }
function tide.util.plot.text(series, opts) end
---@param lo number
---@param hi number
---@param n integer
function tide.util.plot.ticks(lo, hi, n) end
tide.util.pretty = {}
---@param opts? { depth?: integer, entries?: integer, width?: integer }
function tide.util.pretty.format(v, opts) end
function tide.util.pretty.sorted_keys(t) end
tide.util.signature = {}
function tide.util.signature.all() end
function tide.util.signature.check(op, name, v, text, known) end
function tide.util.signature.doors(op, owner, given) end
function tide.util.signature.fields(name) end
function tide.util.signature.kind(name, text, test, annotation) end
function tide.util.signature.of(fn) end
function tide.util.signature.options(given) end
function tide.util.signature.reader(name, text, read, annotation) end
function tide.util.signature.record(name, text, given) end
function tide.util.signature.rows(given) end
function tide.util.signature.type_text(row) end
tide.util.strict = {}
function tide.util.strict.off(env) end
function tide.util.strict.on(env) end
tide.util.timer = {}
function tide.util.timer.new(clock) end
function tide.util.timer.rate(half) end
tide.util.units = {}
function tide.util.units.bytes(v) end
function tide.util.units.count(v) end
function tide.util.units.duration(seconds) end
