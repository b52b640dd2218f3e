-- Pretraining of a hybrid decoder: a pattern of Mamba-2, attention, MLP and expert layers, as in
-- Nemotron-H (arXiv 2504.03624) and Nemotron 3.
--
--    tide run recipes/pretrain_hybrid.lua --data FILE|DIR --out runs/hybrid --steps 400
--    tide run -n 4 recipes/pretrain_hybrid.lua --mesh.dp_shard 2 --mesh.cp 2 --packed
--    tide run -n 2 recipes/pretrain_hybrid.lua --mesh.cp 2 --cp.mamba state --cp.method a2a
--
-- Options, outputs and messages are those of pretrain.lua, but for the model's own.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local err = require 'tide.util.err'
local job = require 'tide.train.job'
local optim = require 'recipes.support.optim'
local options = require 'recipes.support.options'
local text = require 'recipes.support.text'

local option = options.option

local rows = {
   { 'pattern', 'M-M*-M-', 'layers in order: M is Mamba-2, * attention, - an MLP, E experts' },
   option 'dim', option 'heads', option 'kv-heads',
   option('hidden', 'width of the MLP; 0: four times --dim'),
   { 'rope-theta', 0, 'base of the rotary positions in attention; 0: no positions, the Mamba-2 '
     .. 'state keeps the order', type = 'number', min = 0 },
   { 'mamba-heads', 0, 'Mamba-2 heads; 0: 2 * --dim / --mamba-head-dim', min = 0 },
   { 'mamba-head-dim', 32, 'size of a Mamba-2 head', min = 1 },
   { 'state', 64, 'state size of a Mamba-2 head', min = 1 },
   { 'groups', 1, 'groups of Mamba-2 heads that share B and C', min = 1 },
   { 'conv', 4, 'kernel size of the convolution', min = 2, max = 4 },
   { 'experts', nil, 'experts of a layer E; default: 8', type = 'integer', min = 1,
     also = { 'num-experts' } },
   { 'router-bias-rate', nil, 'step by which the correction bias of an expert moves against its '
     .. 'load, which balances the experts; 0: none; default: 0.001', type = 'number', min = 0,
     max = 1, also = { 'moe-router-bias-update-rate' } },
   { 'experts-per-token', nil, 'experts that each token uses; default: 2', type = 'integer',
     min = 1, also = { 'moe-router-topk', 'num-experts-per-tok' } },
   { 'expert-hidden', nil, 'width of an expert; default: that of the MLP', type = 'integer',
     min = 0, also = { 'moe-ffn-hidden-size' } },
   { 'shared-hidden', nil, 'width of the shared expert; default: that of an expert',
     type = 'integer', min = 0, also = { 'moe-shared-expert-intermediate-size' } },
   option('tie', 'share the weight of the embedding with the output head; transformers reads only '
     .. 'hybrids that do not'),
   { 'cp.mamba', 'auto', 'how Mamba-2 layers run under context parallelism: split by heads '
     .. '(hidden), hand the state from rank to rank (state), or whichever sends less (auto)',
     choices = { 'auto', 'hidden', 'state' } },
}

local function given(n) return n and n > 0 and n or nil end

-- Refuses options of experts for a model that has none.
local function refuse_experts(opt)
   for _, name in ipairs { 'experts', 'experts_per_token', 'expert_hidden', 'shared_hidden',
                           'router_bias_rate' } do
      err.usage_if(opt[name], 'pretrain_hybrid', '--%s is of experts, and --pattern %s has none; '
         .. 'put an E into the pattern, or leave it out', (name:gsub('_', '-')), opt.pattern)
   end
end

-- Adds the fields of the layers with experts to those of a model.
local function with_experts(c, opt)
   if not opt.pattern:find('E', 1, true) then
      refuse_experts(opt)
      return c
   end
   c.n_routed_experts, c.num_experts_per_tok = opt.experts, opt.experts_per_token
   c.moe_intermediate_size = given(opt.expert_hidden)
   c.moe_shared_expert_intermediate_size = given(opt.shared_hidden)
   return c
end

local function config(opt, vocab)
   return with_experts({
      vocab_size = vocab, hidden_size = opt.dim, hybrid_override_pattern = opt.pattern,
      num_attention_heads = opt.heads, num_key_value_heads = given(opt.kv_heads),
      intermediate_size = given(opt.hidden), rope_theta = given(opt.rope_theta),
      mamba_num_heads = given(opt.mamba_heads), mamba_head_dim = opt.mamba_head_dim,
      ssm_state_size = opt.state, n_groups = opt.groups, conv_kernel = opt.conv,
      max_position_embeddings = opt.seq, tie_word_embeddings = opt.tie,
   }, opt)
end

-- What errors call the options.
local words = options.joined(options.words, {
   { 'mamba_num_heads', '--mamba-heads' }, { 'mamba_head_dim', '--mamba-head-dim' },
   { 'ssm_state_size', '--state' }, { 'n_groups', '--groups' },
   { 'hybrid_override_pattern', '--pattern' }, { 'n_routed_experts', '--experts' },
   { 'moe_intermediate_size', '--expert-hidden' },
   { 'moe_shared_expert_intermediate_size', '--shared-hidden' },
})

local function train(self, opt)
   local tide = require 'tide'

   -- The data, and a model of its vocabulary, which has no bytes yet.
   local corpus = text.corpus(self, opt)
   local model = self:check(tide.model.hybrid, config(opt, corpus.vocab_size),
      { dtype = opt.dtype, fp8 = options.fp8('pretrain_hybrid', opt), device = 'null' })

   -- How it lies over the ranks and what that costs; then it gets its bytes.
   local plan = self:check(tide.parallel.plan, model, self:mesh())
   local per_rank = text.rows(self, opt, plan:data().size)
   if opt.plan then return text.show_plan(self, opt, plan, per_rank) end
   local spread = self:check(plan.materialise, plan, { device = opt.device, seed = opt.seed })

   -- The optimiser, with its rate by the step.
   local optimiser = optim.make(self, opt, spread.params)

   -- The steps.
   local run = self:run(corpus, plan, {
      model = spread.model, parallel = spread.sharded, comm = spread.comm, optim = optimiser,
      sampler = text.sampler(self, opt, corpus, spread.data), accum = opt.accum, clip = opt.clip,
      router_bias_rate = opt.pattern:find('E', 1, true) and (opt.router_bias_rate or 0.001) or nil,
      val_windows = opt.val_windows, on_nonfinite = opt.on_nonfinite, captured = opt.captured })
   text.keep_tokenizer(self, opt, corpus)
   for s in run:steps() do
      if s.last or opt.val_every > 0 and s.step % opt.val_every == 0 then run:evaluate() end
      if opt.save_every > 0 and s.step % opt.save_every == 0 then run:save() end
   end
   local result = run:finish()
   if result.interrupted then return end

   -- The result.
   text.summary(self, opt, corpus, result)
   if opt.sample > 0 and corpus.kind == 'text' then text.sample(self, opt, spread, corpus) end
end

return job.main({ name = 'pretrain_hybrid',
   title = 'train a hybrid of Mamba-2 and attention layers on text',
   options = options.all('pretrain_hybrid', rows), words = words, train = train }, ...)
