-- Greedy answers against transformers' generate, token for token (numbers of
-- spec/golden/greedy.py): from caches, and by a whole forward for each token.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'

local golden = dofile 'spec/golden/folders.lua'
local greedy = dofile 'spec/golden/greedy.lua'
local root = 'spec/golden/backbone/'

-- transformers limits the steps of Nemotron-H by time_step_min, tide by time_step_limit.
local changes = { nemotron_limit = { time_step_limit = { 0.3, math.huge } } }

local function of_folder(name)
   local c = tide.json.decode(tide.util.fs.read('spec', root .. name .. '/config.json'),
      { nonfinite = true })
   for k, v in pairs(changes[name] or {}) do c[k] = v end
   local family = name:find '^mamba2' and 'mamba2' or 'hybrid'
   local model = tide.model[family](c, { dtype = 'f64' })
   model:load_state_dict(tide.train.checkpoint.tensors(root .. name .. '/model.safetensors'))
   return model:eval()
end

local function copied(list)
   local out = {}
   for i, v in ipairs(list) do out[i] = v end
   return out
end

-- The best ids one after the other, each by a forward of all before it.
local function without_cache(model, n)
   local all, out = copied(greedy.prompt), {}
   tide.no_grad(function()
      for i = 1, n do
         local logits = model(tide.tensor({ all }, { dtype = 'i64' }), { last_only = true })
         out[i] = tide.train.sample.pick(logits:reshape(-1):tolist(), 0, { temperature = 0 })
         all[#all + 1] = out[i]
      end
   end)
   return out
end

local function with_cache(model, n, penalty)
   return (tide.train.sample.generate(model, greedy.prompt, { tokens = n, temperature = 0,
      repetition_penalty = penalty, context = #greedy.prompt + n }))
end

describe('greedy answers are those of transformers', function()
   local n = 0
   for name, row in require 'tide.util.each' (greedy) do
      if type(row) == 'table' and row.ids then
         n = n + 1
         it('in ' .. name, function()
            local model = golden[name] and case.model(golden[name], { dtype = 'f64' })
               or of_folder(name)
            -- where its cache changes the ids, those of whole forwards count
            local want = row.whole or row.ids
            assert.same(want, without_cache(model, #want))
            assert.same(want, with_cache(model, #want, 1))
            assert.same(row.penalised, with_cache(model, #want, greedy.penalty))
         end)
      end
   end

   it('for every stored configuration', function()
      assert.equal(#case.names(golden) + 5, n)
   end)
end)
