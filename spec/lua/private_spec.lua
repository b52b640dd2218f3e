-- Temporaries of the library: given up at their last use, never a value that user code has seen.

local tide = require 'tide'
local class = require 'tide.class'
local private = require 'tide.util.private'
local nn = tide.nn

local function gone(fn)
   local ok, err = pcall(fn)
   assert.is_false(ok)
   assert.equal('E_GONE', err.code)
   return err.message
end

local config = { vocab_size = 31, hidden_size = 16, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 24 }

local function ids_of() return tide.arange(24, { dtype = 'i64' }):reshape { 2, 12 } end

describe('a tensor that was given up', function()
   it('loses its bytes at once, and a use says why', function()
      local live = tide.stats().live
      local x = tide.ones { 256, 1024 }
      private.spend(x)
      assert.is_true(tide.stats().live <= live)
      assert.is_true(x:is_gone())
      assert.same({ 256, 1024 }, x.shape)
      assert.equal('f32', x.dtype)
      assert.equal('cpu', x.device)
      assert.matches('gave it up at its last use; clone it before', gone(function()
         return x + 1
      end), 1, true)
      for _, use in ipairs { function() return x:tolist() end, function() x:fill_(1) end,
         function() return x:reshape(-1) + 1 end, function() return x:restore_bytes() end,
         function() return x:detach():sum() end } do
         gone(use)
      end
      assert.is_true(tostring(x):find 'dropped' ~= nil)
      private.spend(x, x)
      x:release()
      collectgarbage()
      assert.is_false(x:same_storage(x))
   end)

   it('stays for the tape and for views until they let go', function()
      local x = tide.full({ 3 }, 3, { requires_grad = true })
      local y = x * 2
      local view = y:reshape { 3, 1 }
      local z = (y * y):sum()
      private.spend(y)
      assert.same({ 6, 6, 6 }, y:tolist())             -- the tape has it: right numbers
      z:backward()
      assert.same({ 24, 24, 24 }, x.grad:tolist())
      assert.equal(18, view:sum():item())
      gone(function() return y:sum() end)
   end)

   it('is not written in place by a gradient that it can still be read by', function()
      local x = tide.ones({ 4 }, { requires_grad = true })
      local seen = {}
      local double = private.relay {
         name = 'double', forward = function(_, a) return a end,
         backward = function(_, dy)
            local dx = dy * 2
            seen[#seen + 1] = dx
            return dx
         end,
      }
      local sum = double(x) + double(x) * 3
      sum:sum():backward()
      assert.same({ 8, 8, 8, 8 }, x.grad:tolist())
      for _, dx in ipairs(seen) do
         local ok, list = pcall(dx.tolist, dx)
         assert.is_true(not ok or list[1] == 2 or list[1] == 6)
      end
   end)

   it('is left alone where user code has seen it, and where it is no tensor', function()
      local x = private.keep(tide.ones { 2 })
      private.spend(x)
      assert.equal(2, x:sum():item())
      private.spend(nil, 'text', 3, {})
      assert.equal(7, private.keep(7))
   end)
end)

describe('what user code sees of a model', function()
   it('in hooks stays as it was', function()
      local model = tide.model.llama(config, { seed = 1 })
      local seen = {}
      local function add(_, _, y) seen[#seen + 1] = { y, y:clone() } end
      for _, entry in ipairs(model:named_modules()) do
         if entry.name ~= '' then entry.module:hook_post(add) end
         entry.module:hook_pre(function(_, x)
            if tide.is_tensor(x) then seen[#seen + 1] = { x, x:clone() } end
         end)
      end
      model:loss(ids_of(), ids_of()):backward()
      assert.is_true(#seen > 30)
      for _, pair in ipairs(seen) do assert.same(pair[2]:tolist(), pair[1]:tolist()) end
   end)

   it('in classes, inner calls and methods of its own stays as it was', function()
      local seen = {}
      local function note(x)
         seen[#seen + 1] = { x, x:clone() }
         return x
      end
      local Mixer = class('Mixer', nn.Module)
      Mixer.mixes = false
      function Mixer:init() nn.Module.init(self) end
      function Mixer:forward(x)                          -- luacheck: ignore self
         self.last = x:tanh()
         note(x)
         return note(self.last)
      end
      local Own = class('OwnMLP', nn.MLP)
      function Own:project(x)
         local gate, up = nn.MLP.project(self, note(x))
         return note(gate), note(up)
      end
      local block = nn.Block { norm1 = nn.RMSNorm(8), mixer = Mixer(), norm2 = nn.RMSNorm(8),
         mlp = Own { dim = 8, hidden = 12 } }
      local stack = nn.Stack { block, nn.Block { norm1 = nn.RMSNorm(8),
         mixer = nn.Attention { dim = 8, heads = 2 } } }
      stack[2].mixer:wrap('seen', function(next, self, q, k, v, o)
         return note(next(self, note(q), k, note(v), o))
      end, { of = 'attend' })
      for _, policy in ipairs { 'none', 'full' } do
         tide.parallel.recompute(stack, policy)
         stack(tide.randn { 2, 3, 8 }):sum():backward()
      end
      assert.equal(24, #seen)
      for _, pair in ipairs(seen) do assert.same(pair[2]:tolist(), pair[1]:tolist()) end
   end)

   it('of caches stays as it was', function()
      local model = tide.model.llama(config, { seed = 1 }):eval()
      local whole = model(ids_of()):tolist()
      local caches = { {}, {} }
      for t = 1, 12 do
         local y = model(ids_of():slice(2, t, t), { caches = caches,
            positions = tide.full({ 1, 1 }, t - 1, { dtype = 'i64' }) }):tolist()
         for v = 1, 31 do
            assert.is_true(math.abs(y[2][1][v] - whole[2][t][v]) < 1e-4)
         end
      end
      assert.same({ 2, 12, 2, 4 }, caches[2].k.shape)
      assert.is_false(caches[1].v:is_gone())
   end)

   it('made by code of its own within a function of the library stays', function()
      local kept
      private.frame(function()
         local t = tide.ones { 2 }
         private.call(function(x) kept = x + 1 end, t)
         return nil
      end)
      assert.same({ 2, 2 }, kept:tolist())
      local lost
      assert.is_false((pcall(private.frame, function()
         lost = tide.ones { 2 }
         error 'no'
      end)))
      assert.equal(2, lost:sum():item())
      local after = tide.ones { 2 }                      -- no list is open any more
      assert.equal(2, after:sum():item())
   end)
end)

describe('a steady step of training', function()
   local debt
   setup(function() debt = tide.param 'debt' end)
   teardown(function() tide.param('debt', debt) end)

   local models = {
      llama = function()
         return tide.model.llama({ vocab_size = 64, hidden_size = 64, num_hidden_layers = 3,
            num_attention_heads = 4, intermediate_size = 160 }, { seed = 2 })
      end,
      hybrid = function()
         return tide.model.hybrid({ vocab_size = 64, hidden_size = 64, num_attention_heads = 4,
            hybrid_override_pattern = 'M*-M', mamba_num_heads = 4, mamba_head_dim = 16,
            ssm_state_size = 16, n_groups = 2, intermediate_size = 160 }, { seed = 2 })
      end,
      qwen3_next = function()
         return tide.model.qwen3_next({ vocab_size = 64, hidden_size = 64, num_hidden_layers = 2,
            layer_types = { 'linear_attention', 'full_attention' }, num_attention_heads = 2,
            head_dim = 32, linear_num_key_heads = 2, linear_num_value_heads = 4,
            linear_key_head_dim = 16, linear_value_head_dim = 16, num_experts = 0 }, { seed = 2 })
      end,
      qwen3_5 = function()
         return tide.model.qwen3_5({ vocab_size = 64, hidden_size = 64, num_hidden_layers = 2,
            layer_types = { 'linear_attention', 'full_attention' }, num_attention_heads = 2,
            head_dim = 32, linear_num_key_heads = 2, linear_num_value_heads = 4,
            linear_key_head_dim = 16, linear_value_head_dim = 16,
            intermediate_size = 160 }, { seed = 2 })
      end,
   }
   for name, make in pairs(models) do
      it('forces no collection: ' .. name, function()
         tide.param('debt', '1m')                        -- a step needs many times that
         local model = make()
         local step = tide.train.step.new { model = model, clip = 1,
            optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
         local ids = tide.zeros({ 4, 128 }, { dtype = 'i64' })
         local function run() step:run { { ids = ids, labels = ids } } end
         run()
         run()
         tide.default():collect()
         run()
         local before = tide.stats().forced
         local peak = tide.stats().peak
         for _ = 1, 5 do run() end
         assert.equal(before, tide.stats().forced)
         assert.is_true(tide.stats().peak <= 1.01 * peak)
         assert.is_true(before > 0)
      end)
   end
end)
