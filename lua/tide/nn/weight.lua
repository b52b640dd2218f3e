-- Initial weights by name, a pure function of (seed, parameter path, element).
--
-- The random stream of a parameter is a hash of its dotted name, and element i of the whole
-- parameter always reads word i of that stream. So the result does not depend on the order in
-- which parameters are made, nor on which ranks hold which part: a shard passes the index of its
-- first element (start) and the strides of the whole tensor (stride).

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local hash = require 'tide.util.hash'

local weight = {}

local fill = {}

function fill.zeros(t) t:zero_() end
function fill.ones(t) t:fill_(1) end
function fill.constant(t, spec) t:fill_(spec.value) end
function fill.normal(t, spec, at) t:normal_(spec.mean or 0, spec.std, at) end
function fill.uniform(t, spec, at) t:uniform_(spec.lo, spec.hi, at) end

-- Fills t with normal numbers cut at lo and hi, which count standard deviations.
function fill.trunc_normal(t, spec, at)
   t:trunc_normal_(spec.mean or 0, spec.std, spec.lo or -3, spec.hi or 3, at)
end

-- Fills t with uniform numbers of variance gain^2 / fan_in (He et al., 2015).
function fill.kaiming(t, spec, at)
   local bound = (spec.gain or 1) * math.sqrt(3 / math.max(1, spec.fan_in))
   t:uniform_(-bound, bound, at)
end

-- Fills t with logarithms of uniform numbers.
function fill.log_uniform(t, spec, at)
   t:uniform_(spec.lo, spec.hi, at)
   t:copy_(t:to('f64'):log())
end

-- Fills t with log(exp(v) - 1), the inverse of softplus, for v that is log-uniform between lo and
-- hi and at least `least`.
function fill.softplus_inverse(t, spec, at)
   t:uniform_(math.log(spec.lo), math.log(spec.hi), at)
   local v = t:to('f64'):exp():clamp(spec.least or 0, nil)
   t:copy_(v + (1 - (-v):exp()):log())
end

local kinds = { 'zeros', 'ones', 'constant', 'normal', 'uniform', 'trunc_normal', 'kaiming',
   'log_uniform', 'softplus_inverse' }
local needs = {
   constant = { 'value' }, normal = { 'std' }, uniform = { 'lo', 'hi' }, trunc_normal = { 'std' },
   kaiming = { 'fan_in' }, log_uniform = { 'lo', 'hi' }, softplus_inverse = { 'lo', 'hi' },
}

-- Checks an initialiser: a name or { kind, number fields... }. Returns the table form.
function weight.spec(op, name, spec)
   if type(spec) == 'string' then spec = { kind = spec } end
   err.type(op, name, spec, 'table')
   local kind = err.choice(op, name, spec.kind or spec[1], kinds)
   for _, field in ipairs(needs[kind] or {}) do
      err.number(op, name .. '.' .. field, spec[field])
   end
   local copy = { kind = kind }
   for k, v in each(spec) do
      if type(k) == 'string' then copy[k] = v end
   end
   return copy
end

-- Fills t in place. opts: seed, path, and for a shard start and stride (list).
function weight.fill(t, spec, opts)
   local op = 'nn.weight.fill'
   if type(t) ~= 'cdata' then err.arg(op, 't', 'a tensor', t) end
   err.choice(op, 'spec.kind', err.type(op, 'spec', spec, 'table').kind, kinds)
   err.type(op, 'opts.path', err.type(op, 'opts', opts, 'table').path, 'string')
   fill[spec.kind](t, spec, {
      seed = opts.seed or 0, stream = hash.stream(opts.path), offset = 0,
      start = opts.start, stride = opts.stride,
   })
end

return weight
