-- Pretraining: bytes or token files -> a Llama-family decoder.
--
--    tide run recipes/pretrain.lua --data FILE|DIR --out runs/first --steps 400
--    tide run -n 2 recipes/pretrain.lua --mesh.dp 2       two data-parallel ranks
--    tide run -n 4 recipes/pretrain.lua --mesh.dp_shard 2 --mesh.tp 2
--    tide run -n 4 recipes/pretrain.lua --mesh.dp_shard 2 --mesh.cp 2 --packed
--    tide run -n 4 recipes/pretrain.lua --mesh.pp 4 --batch 16 --accum 16     pipeline stages
--    tide run recipes/pretrain.lua --plan --mesh.dp_shard 16    what 16 ranks would hold and send
--    tide run recipes/pretrain.lua --out runs/first --resume    all options as they were
--
-- Without --data it learns from tide's own sources and documents. The last part of every file is
-- held out. At the end it prints the validation loss beside the order-2 entropy of the training
-- bytes (what a perfect table of byte trigrams would lose) and a sampled continuation.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local err = require 'tide.util.err'
local job = require 'tide.train.job'
local optim = require 'recipes.support.optim'
local options = require 'recipes.support.options'
local text = require 'recipes.support.text'

local option = options.option

local rows = {
   { 'from', nil, 'published folder or checkpoint to continue training from; its configuration '
     .. 'replaces the options of the model, and its tokenizer reads the text', type = 'string' },
   { 'sliding-window', 0, 'tokens that attention sees, the current one included; 0: all before',
     min = 0, also = { 'window' } },
   { 'layers', 4, 'decoder layers', min = 1, also = { 'num-layers' } },
   option 'dim', option 'heads', option 'kv-heads',
   option('hidden', 'width of the gated MLP, or of each expert; 0: about 8/3 of --dim'),
   option 'tie',
   { 'experts', 0, 'experts in place of the MLP of each layer; 0: none', min = 0,
     also = { 'num-experts' } },
   { 'experts-per-token', nil, 'experts that each token uses; default: 2', type = 'integer',
     min = 1, also = { 'moe-router-topk', 'num-experts-per-tok' } },
   { 'balance', nil, 'factor of the loss that spreads tokens evenly over the experts; 0: none; '
     .. 'default: 0.01, with --from what its configuration says', type = 'number', min = 0,
     also = { 'moe-aux-loss-coeff', 'router-aux-loss-coef' } },
   { 'router-bias-rate', nil, 'with --from: step by which the correction biases of routers move '
     .. 'against the load of their experts; default: they stay', type = 'number', min = 0, max = 1,
     also = { 'moe-router-bias-update-rate' } },
}

-- Refuses options of experts for a model without --from that has none.
local function check_experts(opt)
   for _, name in ipairs { 'experts_per_token', 'balance' } do
      err.usage_if(opt[name] and opt.experts == 0, 'pretrain', '--%s is of experts, and the model '
         .. 'has none; give --experts, or leave it out', (name:gsub('_', '-')))
   end
end

-- Gives the model of --from the loss of --balance, where its family has it.
local function set_balance(opt, model)
   err.usage_if(opt.experts_per_token, 'pretrain', '--experts-per-token is of experts, which the '
      .. 'model of --from has as its configuration says; leave it out')
   if not opt.balance then return end
   err.usage_if(not model:has_experts(), 'pretrain', '--balance is of experts, and the model of '
      .. '--from has none; leave it out')
   local c = model.config
   err.usage_if(not c.router_aux_loss_coef, 'pretrain', '--balance: a %s has no loss that balances '
      .. 'its experts, in transformers either; leave it out', model.class_name)
   c.output_router_logits, c.router_aux_loss_coef = opt.balance > 0, opt.balance
end

-- Refuses --router-bias-rate for a model whose routers have no correction biases.
local function check_bias_rate(opt, model)
   if not opt.router_bias_rate then return end
   local has = false
   model:walk(function(m) has = has or m.router_bias ~= nil end)
   err.usage_if(not has, 'pretrain', '--router-bias-rate: a %s has no correction biases; leave it '
      .. 'out%s', model.class_name, model:has_experts() and ', or give --balance' or '')
end

-- Adds the fields of a mixture of experts to a configuration.
local function with_experts(c, opt)
   local coef = opt.balance or 0.01
   c.num_local_experts, c.num_experts_per_tok = opt.experts, opt.experts_per_token or 2
   c.output_router_logits, c.router_aux_loss_coef = coef > 0, coef
   c.router_aux_loss_by_layer = true
   c.rope_theta = 10000                                  -- a Mixtral is for longer contexts
   return c
end

local function config(opt, vocab)
   return {
      vocab_size = vocab, hidden_size = opt.dim, num_hidden_layers = opt.layers,
      num_attention_heads = opt.heads,
      num_key_value_heads = opt.kv_heads > 0 and opt.kv_heads or opt.heads,
      intermediate_size = opt.hidden > 0 and opt.hidden or nil,
      sliding_window = opt.sliding_window > 0 and opt.sliding_window or nil,
      max_position_embeddings = opt.seq, tie_word_embeddings = opt.tie,
   }
end

-- Makes the model on the null device, by the options or by the folder of --from.
local function make_model(tide, opt, corpus)
   local o = { dtype = opt.dtype, fp8 = options.fp8('pretrain', opt), device = 'null' }
   if not opt.from then
      check_experts(opt)
      local c = config(opt, corpus.vocab_size)
      if opt.experts > 0 then return tide.model.mixtral(with_experts(c, opt), o) end
      return opt.sliding_window > 0 and tide.model.mistral(c, o) or tide.model.llama(c, o)
   end
   local model = tide.model.load(opt.resume and (opt.resume_from or opt.out) or opt.from, o)
   if corpus.vocab_size and model.config.vocab_size < corpus.vocab_size then
      err.usage('pretrain', '--from %s: its vocabulary of %d is smaller than that of the data, %d',
         opt.from, model.config.vocab_size, corpus.vocab_size)
   end
   set_balance(opt, model)
   return model:train()
end

local function train(self, opt)
   local tide = require 'tide'

   -- The data, and a model of its vocabulary, which has no bytes yet.
   local corpus = text.corpus(self, opt)
   local model = self:check(make_model, tide, opt, corpus)
   self:check(check_bias_rate, opt, model)

   -- How it lies over the ranks and what that costs; then it gets its bytes.
   local plan = self:check(tide.parallel.plan, model, self:mesh())
   local per_rank = text.rows(self, opt, plan:data().size)
   if opt.plan then return text.show_plan(self, opt, plan, per_rank) end
   local from = not opt.resume and opt.from or nil
   local spread = self:check(plan.materialise, plan, { device = opt.device, seed = opt.seed,
      init = not from })
   if from then self:check(tide.model.fill, spread, from) end

   -- The optimiser, with its rate by the step.
   local optimiser = optim.make(self, opt, spread.params)

   -- The steps.
   local run = self:run(corpus, plan, {
      model = spread.model, parallel = spread.sharded, comm = spread.comm, optim = optimiser,
      sampler = text.sampler(self, opt, corpus, spread.data), accum = opt.accum, clip = opt.clip,
      router_bias_rate = opt.router_bias_rate,
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

return job.main({ name = 'pretrain', title = 'train a Llama-family decoder on text',
   options = options.all('pretrain', rows), words = options.words, train = train }, ...)
