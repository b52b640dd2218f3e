-- The building blocks of models, each loaded at first use.

return require 'tide.util.lazy' ('nn', {
   Module = 'module', Linear = 'linear', Embedding = 'embedding', Attention = 'attention',
   LatentAttention = 'latent_attention',
   RMSNorm = { 'norm', 'RMSNorm' }, LayerNorm = { 'norm', 'LayerNorm' }, MLP = 'mlp',
   Dropout = 'dropout', Block = 'block', Stack = 'stack', rope = 'rope', loss = 'loss',
   weight = 'weight', MoE = 'moe', MoELayer = 'moe_layer', Mamba2 = { 'mamba', 'Mamba2' },
   GatedDeltaNet = 'gated_delta',
   GatedRMSNorm = { 'mamba', 'GatedRMSNorm' }, context = 'context', window = 'window',
   lora = 'lora', nf4 = 'nf4', balance = 'balance', logprob = 'logprob',
   preference = 'preference', distil = 'distil',
})
