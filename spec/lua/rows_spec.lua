-- Prompts of different lengths in one call, keys and states that a later call takes up, and draws
-- that do not depend on the number of threads.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local rows = require 'tide.train.rows'
local sample = tide.train.sample

local golden = dofile 'spec/golden/folders.lua'
local prompts = { { 1, 2, 3, 4, 5, 6, 7 }, { 5 }, { 9, 8, 7 }, { 3, 1, 4, 1, 5, 9, 2, 6 },
   { 5, 6 } }

-- Models by name: the golden ones, one of Mamba layers alone, one of all kinds of layers.
local function made(name)
   if golden[name] then return (case.model(golden[name], { dtype = 'f64' })) end
   local c = { vocab_size = case.V, hidden_size = 16, initializer_range = 0.3 }
   if name == 'mamba2' then
      c.num_hidden_layers, c.state_size, c.head_dim, c.num_heads, c.n_groups = 2, 8, 8, 4, 1
      return tide.model.mamba2(c, { seed = 1 })
   end
   c.hybrid_override_pattern, c.num_attention_heads, c.ssm_state_size = 'M*-M*', 4, 8
   c.mamba_head_dim, c.intermediate_size, c.max_position_embeddings = 8, 16, 12
   return tide.model.hybrid(c, { seed = 1 })
end

local names = case.names(golden)
names[#names + 1] = 'mamba2'
names[#names + 1] = 'hybrid'

local function largest(a, b)
   local most = 0
   for i = 1, #a do
      local d = math.abs(a[i] - b[i])
      if d > most or d ~= d then most = d end
   end
   return most
end

describe('rows of different lengths', function()
   for _, name in ipairs(names) do
      local model, most = made(name), golden[name] and 1e-9 or 1e-4          -- f64, or f32

      if rows.takes_ragged(model) then
         it('have the logits of each alone: ' .. name, function()
            tide.no_grad(function()
               local together, more = rows.new(model, 64), { { 1 }, { 2 }, { 3 }, { 4 }, { 5 } }
               local first = together:begin(prompts):tolist()
               local second = together:advance(more):tolist()
               for r, prompt in ipairs(prompts) do
                  local alone = rows.new(model, 64)
                  assert.is_true(largest(alone:begin({ prompt }):tolist()[1], first[r]) < most)
                  assert.is_true(largest(alone:advance({ more[r] }):tolist()[1], second[r]) < most)
               end
            end)
         end)
      end

      it('are continued as each alone, past the context: ' .. name, function()
         local o = { tokens = 12, seed = 5, stop = { 4 } }
         local list = sample.batch(model, prompts, o)
         for r, prompt in ipairs(prompts) do
            o.seed = 5 + r - 1
            local _, result = sample.generate(model, prompt, o)
            assert.same(result, list[r])
         end
      end)

      it('leave keys and states that the next turn takes up: ' .. name, function()
         local cache, prompt = {}, { 1, 2, 3, 4 }
         for turn = 1, 3 do
            local o = { tokens = 3, temperature = 0 }
            local want = sample.generate(model, prompt, o)
            o.cache = cache
            local ids = sample.generate(model, prompt, o)
            assert.same(want, ids)
            -- the second turn goes on from a part of the answer
            for i = 1, turn == 2 and 2 or 3 do prompt[#prompt + 1] = ids[i] end
            prompt[#prompt + 1] = turn
         end
      end)
   end
end)

describe('train.sample', function()
   it('reads only what a cache does not have', function()
      local model, read = made 'llama', 0
      model:hook_pre(function(_, ids) read = read + ids:size(2) end)
      local cache = {}
      local ids = sample.generate(model, { 1, 2, 3, 4, 5, 6 }, { tokens = 3, temperature = 0,
         cache = cache })
      assert.equal(8, read)                          -- the last id is not read
      read = 0
      sample.generate(model, { 1, 2, 3, 4, 5, 6, ids[1], ids[2], ids[3], 7 },
         { tokens = 1, temperature = 0, cache = cache })
      assert.equal(2, read)
      read = 0
      sample.generate(model, { 1, 2, 9 }, { tokens = 1, temperature = 0, cache = cache })
      assert.equal(1, read)
      read = 0
      sample.generate(made 'llama', { 1, 2, 9 }, { tokens = 1, cache = cache })
      assert.equal(0, read)
      sample.generate(model, { 1, 2, 9 }, { tokens = 1, cache = cache })
      assert.equal(3, read)                          -- what another model left is not taken up
   end)

   it('forgets what a call that failed had read', function()
      local model, cache, fail = made 'llama', {}, true
      model:hook_post(function() if fail then error('stop', 0) end end)
      local o = { tokens = 3, temperature = 0, cache = cache }
      assert.is_false(pcall(sample.generate, model, { 1, 2, 3 }, o))
      fail = false
      local ids = sample.generate(model, { 1, 2, 3, 4 }, o)
      assert.same(sample.generate(model, { 1, 2, 3, 4 }, { tokens = 3, temperature = 0 }), ids)
   end)

   it("ends where on_token returns 'stop'", function()
      local n = 0
      local function on_token()
         n = n + 1
         return n == 2 and 'stop' or nil
      end
      local ids, result = sample.generate(made 'llama', { 1, 2 }, { tokens = 9,
         on_token = on_token })
      assert.equal(2, #ids)
      assert.equal('callback', result.reason)
   end)

   it('draws alike on one thread and on two', function()
      local ctx = tide.default()
      local before = ctx:nthread()
      local wide = { vocab_size = 1000, hidden_size = 128, initializer_range = 0.1 }
      local function variant(more)
         for k, v in pairs(wide) do more[k] = v end
         return more
      end
      local models = {
         tide.model.llama(variant { num_hidden_layers = 2, num_attention_heads = 4,
            intermediate_size = 256 }, { seed = 3 }),
         tide.model.hybrid(variant { hybrid_override_pattern = 'M*-', num_attention_heads = 4,
            intermediate_size = 256, ssm_state_size = 16, mamba_head_dim = 32 }, { seed = 3 }),
         -- wide enough for every product to be cut among threads
         tide.model.llama({ vocab_size = 9000, hidden_size = 1024, num_hidden_layers = 1,
            num_attention_heads = 8, intermediate_size = 2048 }, { seed = 3 }) }
      for _, model in ipairs(models) do
         for _, dtype in ipairs { 'f32', 'bf16' } do
            model:to(dtype)
            local got = {}
            for n = 1, 2 do
               ctx:set_nthread(n)
               got[n] = sample.batch(model, { { 1, 2, 3 }, { 4, 5, 6, 7, 8 } }, { tokens = 24,
                  seed = 11, top_p = 0.95 })
            end
            ctx:set_nthread(before)
            assert.same(got[1], got[2])
         end
      end
   end)
end)
