# The reference numbers of llama_spec.lua and optim_spec.lua: the published formulas in PyTorch, f64.
#
#    python spec/lua/llama_reference.py
#
# Weights are sines of the element number and the place of the name in sorted order, so both sides
# can make them. Needed only to make the numbers again; the specs hold them.

import json
import math

import torch

torch.set_default_dtype(torch.float64)
V,C,H,K,D,L,I=23,16,4,2,6,2,20
theta,eps=10000.0,1e-5
sc=dict(factor=8.0,low=1.0,high=4.0,orig=32)
def names(tied,bias):
    n=['model.embed_tokens.weight']
    for l in range(L):
        p=f'model.layers.{l}.'
        n.append(p+'input_layernorm.weight')
        for x in 'qkvo':
            n.append(p+f'self_attn.{x}_proj.weight')
            if bias: n.append(p+f'self_attn.{x}_proj.bias')
        n.append(p+'post_attention_layernorm.weight')
        n += [p+f'mlp.{x}_proj.weight' for x in ('gate','up','down')]
    n.append('model.norm.weight')
    if not tied: n.append('lm_head.weight')
    return n
def shape(n):
    if 'embed' in n or 'lm_head' in n: return (V,C)
    if 'norm' in n: return (C,)
    o={'q':H*D,'k':K*D,'v':K*D,'o':C}; 
    x=n.split('.')[-2][0] if 'self_attn' in n else None
    if x:
        if n.endswith('bias'): return (o[x],)
        return (o[x], H*D if x=='o' else C)
    if 'down' in n: return (C,I)
    return (I,C)
def weights(tied,bias):
    w={}
    for k,n in enumerate(sorted(names(tied,bias))):
        s=shape(n); num=math.prod(s)
        t=0.3*torch.sin(0.7*torch.arange(num)+1.3*k)
        if 'norm' in n: t=1+t/3
        w[n]=t.reshape(s).requires_grad_()
    return w
def freqs(scaled):
    f=[theta**(-2*i/D) for i in range(D//2)]
    if scaled:
        out=[]
        for x in f:
            wl=2*math.pi/x
            if wl<sc['orig']/sc['high']: out.append(x)
            elif wl>sc['orig']/sc['low']: out.append(x/sc['factor'])
            else:
                s=(sc['orig']/wl-sc['low'])/(sc['high']-sc['low'])
                out.append((1-s)*x/sc['factor']+s*x)
        f=out
    return torch.tensor(f)
def rms(x,w): return x*torch.rsqrt((x*x).mean(-1,keepdim=True)+eps)*w
def rope(x,pos,f): # B T H D
    a=pos[:,None]*f[None]; cos=torch.cat([a.cos(),a.cos()],-1)[None,:,None]; sin=torch.cat([a.sin(),a.sin()],-1)[None,:,None]
    h=D//2; rot=torch.cat([-x[...,h:],x[...,:h]],-1)
    return x*cos+rot*sin
def run(tied,bias,scaled,window):
    w=weights(tied,bias); f=freqs(scaled)
    ids=torch.tensor([[(7*i+3*b+i*i)%V for i in range(9)] for b in range(2)])
    labels=torch.roll(ids,-1,1).clone(); labels[:,-1]=-100; labels[0,2]=-100
    x=w['model.embed_tokens.weight'][ids]; B,T,_=x.shape; pos=torch.arange(T)
    for l in range(L):
        p=f'model.layers.{l}.'
        h=rms(x,w[p+'input_layernorm.weight'])
        def lin(n,h): 
            y=h@w[p+n+'.weight'].T
            return y+w[p+n+'.bias'] if bias and 'self_attn' in n else y
        q=rope(lin('self_attn.q_proj',h).reshape(B,T,H,D),pos,f)
        k=rope(lin('self_attn.k_proj',h).reshape(B,T,K,D),pos,f).repeat_interleave(H//K,2)
        v=lin('self_attn.v_proj',h).reshape(B,T,K,D).repeat_interleave(H//K,2)
        s=torch.einsum('bqhd,bkhd->bhqk',q,k)/math.sqrt(D)
        d=pos[:,None]-pos[None]; m=d>=0
        if window: m&=d<window
        s=s.masked_fill(~m,-math.inf).softmax(-1)
        a=torch.einsum('bhqk,bkhd->bqhd',s,v).reshape(B,T,H*D)
        x=x+lin('self_attn.o_proj',a)
        h=rms(x,w[p+'post_attention_layernorm.weight'])
        x=x+lin('mlp.down_proj',torch.nn.functional.silu(lin('mlp.gate_proj',h))*lin('mlp.up_proj',h))
    x=rms(x,w['model.norm.weight'])
    head=w['model.embed_tokens.weight'] if tied else w['lm_head.weight']
    lo=x@head.T
    loss=torch.nn.functional.cross_entropy(lo.reshape(-1,V),labels.reshape(-1),ignore_index=-100)
    loss.backward()
    g=math.sqrt(sum(float((t.grad**2).sum()) for t in w.values()))
    pick={n:float(w[n].grad.norm()) for n in ('model.embed_tokens.weight','model.layers.0.self_attn.k_proj.weight','model.layers.1.mlp.down_proj.weight','model.layers.0.input_layernorm.weight')}
    return dict(loss=float(loss),norm=g,logits=[float(lo[0,0,0]),float(lo[1,8,22]),float(lo[0,4,11])],sum=float(lo.sum()),sq=float((lo**2).sum()),grads=pick)
for name,a in dict(untied=(False,False,False,None),tied=(True,False,False,None),bias_scaled=(False,True,True,None),window=(True,False,False,3)).items():
    print(name, json.dumps(run(*a)))
# optimizers
def opt(make,steps=5):
    w=torch.sin(torch.arange(6.)).reshape(2,3).requires_grad_(); b=torch.cos(torch.arange(3.)).requires_grad_()
    o=make(w,b)
    for s in range(steps):
        o.zero_grad(); x=torch.tensor([[1.,2.],[0.5,-1.]]); y=((x@w+b-1)**2).sum(); y.backward(); o.step()
    return [float(v) for v in w.flatten()]+[float(v) for v in b]
print('adamw',opt(lambda w,b: torch.optim.AdamW([dict(params=[w],weight_decay=.1),dict(params=[b],weight_decay=0)],lr=0.05,betas=(.9,.95),eps=1e-8)))
print('sgd',opt(lambda w,b: torch.optim.SGD([dict(params=[w],weight_decay=.01),dict(params=[b],weight_decay=0)],lr=0.02,momentum=.9,nesterov=True)))
