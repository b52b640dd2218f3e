"""The peer's side of the rows of experts: a training step of the Qwen3 MoE or the DeepSeek-V3 of
transformers.

Variants are its ways to run the experts. Parameters arrive under the names of tide, where each
projection of all experts is one tensor.
"""
import torch
import torch.nn.functional as F

from peer import Llama


class Moe(Llama):
    routed = ''                  # the part of a layer's experts that tide routes

    def make(self, common):
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
        o = self.o
        return Qwen3MoeForCausalLM, Qwen3MoeConfig(
            **common, head_dim=o['dim'] // o['heads'], num_experts=o['experts'],
            norm_topk_prob=True)

    def load(self, inputs):
        o = self.o
        self.ids = inputs.pop('ids').view(o['batch'], o['seq'])
        self.labels = inputs.pop('labels')
        cls, config = self.make(dict(
            vocab_size=o['vocab'], hidden_size=o['dim'], num_hidden_layers=o['layers'],
            num_attention_heads=o['heads'], num_key_value_heads=o['heads'],
            moe_intermediate_size=o['ffn'], num_experts_per_tok=o['topk'], use_cache=False,
            attn_implementation='sdpa'))
        config._experts_implementation = o['variant']
        self.model = cls(config)
        state = {n: b for n, b in self.model.named_buffers() if 'correction' in n}
        for name, t in inputs.items():
            layer, _, field = name.partition('.mlp.' + self.routed)
            if field == 'router':
                state[layer + '.mlp.gate.weight'] = t
            elif field == 'gate_proj':
                up = inputs[f'{layer}.mlp.{self.routed}up_proj']
                state[layer + '.mlp.experts.gate_up_proj'] = torch.cat((t, up), 1)
            elif field == 'down_proj':
                state[layer + '.mlp.experts.down_proj'] = t
            elif field != 'up_proj':
                state[name] = t
        self.model.load_state_dict(state, assign=True)
        self.params = list(self.model.parameters())
        for p in self.params:
            p.requires_grad_()
        self.auto, self.master = False, None
        self.optim = torch.optim.AdamW(self.params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                       fused=True)

    def loss(self):
        x = self.model.model(input_ids=self.ids)[0]
        return F.cross_entropy(self.model.lm_head(x).view(-1, self.o['vocab']), self.labels)


class Latent(Moe):
    routed = 'routed.'

    def make(self, common):
        from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
        o = self.o
        return DeepseekV3ForCausalLM, DeepseekV3Config(
            **common, n_routed_experts=o['experts'], n_group=1, topk_group=1, q_lora_rank=o['qlatent'],
            kv_lora_rank=o['latent'], qk_nope_head_dim=o['nope'], qk_rope_head_dim=o['rope'],
            v_head_dim=o['value'], first_k_dense_replace=0)


CASES = {'moe': Moe, 'latent': Latent}
