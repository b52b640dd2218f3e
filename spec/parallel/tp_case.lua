-- A model cut over a tensor-parallel axis beside the whole one, for the specs: case.check(n, c), or
-- case.check(n, list of c) by one start of the ranks. c: family, config, opts, batch, tokens, loss,
-- frozen, recompute.

local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'

local M = {}

-- Runs on a rank: loss, logits and gathered gradients of a model cut over all ranks against the
-- whole model, and its weights against those of the whole. Returns true or what is wrong.
local function check(_, n, case)
   local tide = require 'tide'
   local parallel = tide.parallel
   local axis = parallel.mesh({ { 'tp', n } }):axis 'tp'
   local function inputs()
      local B, T, V = case.batch or 2, case.tokens or 7, case.config.vocab_size
      local ids, labels = {}, {}
      for b = 1, B do
         ids[b], labels[b] = {}, {}
         for t = 1, T do
            ids[b][t] = (7 * t + 3 * b + t * t) % V
            labels[b][t] = (t + b) % 5 == 0 and -100 or (5 * t + b * t) % V
         end
      end
      return tide.tensor(ids, { dtype = 'i64' }), tide.tensor(labels, { dtype = 'i64' })
   end
   local function make(device)
      local model = tide.model[case.family](case.config, { device = device, seed = 3 })
      if device ~= 'null' then
         -- weights that are not all alike, so that sums over ranks show
         tide.no_grad(function()
            for k, e in ipairs(model:named_parameters()) do
               if e.param.ndim == 1 then
                  local wave = (tide.arange(e.param:numel(), { dtype = 'f32' }) + k):sin()
                  e.param:add_(wave * 0.2)
               end
            end
         end)
      end
      return model
   end
   local whole = make()
   local cut = parallel.tensor_parallel(make(), axis, case.opts)
   if case.frozen then
      for _, m in ipairs { whole, cut } do
         for _, e in ipairs(m:named_parameters()) do
            if e.name:find(case.frozen) then e.param:requires_grad_(false) end
         end
      end
   end
   if case.recompute then parallel.recompute(cut, case.recompute) end
   local function far(a, b, what)
      local d = (a:double() - b:double()):abs():amax():item()
      local scale = math.max(1e-2, b:double():abs():amax():item())
      if d ~= d or d > 1e-5 * scale then return ('%s: off by %g of %g'):format(what, d, scale) end
   end
   local ids, labels = inputs()
   local wrong = far(tide.no_grad(cut, ids), tide.no_grad(whole, ids), 'logits')
   if wrong then return wrong end
   local loss_opts = case.loss
   local a, b = cut:loss(ids, labels, loss_opts), whole:loss(ids, labels, loss_opts)
   wrong = far(a:detach(), b:detach(), 'loss')
   if wrong then return wrong end
   a:backward()
   b:backward()
   local grads = parallel.layout.gathered(cut, true)
   for _, e in ipairs(whole:named_parameters()) do
      if (grads[e.name] ~= nil) ~= (e.param.grad ~= nil) then return 'gradient of ' .. e.name end
      wrong = grads[e.name] and far(grads[e.name], e.param.grad, 'gradient of ' .. e.name)
      if wrong then return wrong end
   end
   -- the same numbers when the model is cut before it has bytes
   local plain = tide.model[case.family](case.config, { seed = 3 })
   local late = tide.model[case.family](case.config, { device = 'null' })
   parallel.tensor_parallel(late, axis, case.opts):materialise('cpu', 3)
   local values = parallel.layout.gathered(late)
   for _, e in ipairs(plain:named_parameters()) do
      if not values[e.name]:equal(e.param) then return 'initial values of ' .. e.name end
   end
   -- something is really cut
   if n > 1 and late:num_parameters() >= plain:num_parameters() then return 'nothing is cut' end
   return true
end

M.on_rank = check

-- Runs on a rank: true, or what is wrong in the first case that fails.
local function check_list(rank, n, list)
   local one = require 'spec.parallel.tp_case'.on_rank
   for k, c in ipairs(list) do
      local got = one(rank, n, c)
      if got ~= true then return ('case %d: %s'):format(k, got) end
   end
   return true
end

-- Raises unless a case, or each of a list by one start of the ranks, holds on n ranks.
function M.check(n, c)
   for r, got in ipairs(ranks.run(n, check_list, c.family and { c } or c)) do
      if got ~= true then error(('rank %d: %s'):format(r - 1, tostring(got)), 2) end
   end
end

-- A configuration whose heads n ranks can share, with changes.
function M.config(n, changes)
   local c = {
      vocab_size = 23, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 4 * n,
      num_key_value_heads = 2 * n, head_dim = 4, intermediate_size = 22,
   }
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

M.families = {
   llama = {}, ['llama tied'] = { tie_word_embeddings = true },
   ['llama with biases'] = { attention_bias = true, mlp_bias = true, num_key_value_heads = false },
   qwen2 = { head_dim = 6 }, qwen3 = { tie_word_embeddings = true },
   mistral = { sliding_window = 3 }, phi3 = {}, olmo2 = {},
   gemma3 = { sliding_window = 3, sliding_window_pattern = 2 },
}

-- The case of a family on n ranks.
function M.of(name, n, opts)
   local c = M.config(n, M.families[name])
   if c.num_key_value_heads == false then c.num_key_value_heads = c.num_attention_heads end
   return { family = name:match '%w+', config = c, opts = opts }
end

return M
