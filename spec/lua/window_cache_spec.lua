-- Caches of layers with a window keep the last tokens alone: the same logits as without a cache, in
-- rows of one and of different lengths, after going back, and in copies.

local tide = require 'tide'
local kv_cache = require 'tide.nn.kv_cache'
local rows = require 'tide.train.rows'

local window, total = 5, 1100

local function ids_of(n, seed)
   local list = {}
   for i = 1, n do list[i] = (i * i * 7 + seed * i) % 40 end
   return list
end

local function model_of(more)
   local c = { vocab_size = 40, hidden_size = 16, head_dim = 8, num_hidden_layers = 3,
      num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 24,
      sliding_window = window, max_position_embeddings = 4096,
      layer_types = { 'sliding_attention', 'sliding_attention', 'full_attention' } }
   for k, v in pairs(more or {}) do c[k] = v end
   return tide.model.gemma3(c, { seed = 3, dtype = 'f64' }):eval()
end

-- Logits behind each token of a list: [T, vocabulary].
local function whole(model, ids)
   return tide.no_grad(function()
      return model(tide.tensor({ ids }, { dtype = 'i64' })):select(1, 1):float()
   end)
end

local function near(want, got)
   local far = (want - got):abs():amax():item()
   assert.is_true(far < 1e-5, far)
end

local function part(list, first, last)
   local out = {}
   for i = first, last do out[#out + 1] = list[i] end
   return out
end

describe('a cache of a layer with a window', function()
   local model, ids = model_of(), ids_of(total, 3)
   local want = whole(model, ids)

   -- Reads the tokens in steps of these sizes, again and again; fn(r, n) after each.
   local function read(steps, fn)
      local r, n, i = rows.new(model), 0, 0
      tide.no_grad(function()
         while n < total do
            i = i % #steps + 1
            local more = part(ids, n + 1, math.min(total, n + steps[i]))
            local logits = n == 0 and r:begin { more } or r:advance { more }
            n = n + #more
            near(want:select(1, n), logits:select(1, 1))
            if fn then fn(r, n) end
         end
      end)
      return r
   end

   it('gives the logits of a whole forward, read one by one or in parts', function()
      for _, steps in ipairs { { 1 }, { 700, 1, 1, 3, 300 }, { 64, 1, 2 } } do
         local r = read(steps, function(r, n)
            for layer = 1, 2 do
               local cache = r.caches[layer]
               local held = cache.k:size(2)
               assert.equal(n, held + (cache.dropped or 0))
               assert.is_true(held <= 700 + 2 * 325, held)
            end
            assert.is_nil(r.caches[3].dropped)
         end)
         assert.is_true(r.caches[1].dropped > 0)
         assert.equal(total, r.caches[3].k:size(2))
      end
   end)

   it('holds no more than window and spare tokens, however many are read', function()
      local r = read { 1 }
      assert.is_true(r.caches[1].room.k:size(2) <= window - 1 + 64 + 1 + 256,
         r.caches[1].room.k:size(2))
      r = read { total }
      assert.equal(window - 1 + 64, r.caches[1].k:size(2))
   end)

   it('goes back as far as the keys last, and begins anew behind that', function()
      for _, back in ipairs { 3, 60, 300, 900 } do
         local r = read { 1 }
         local other = part(ids, 1, total - back)
         other[#other + 1] = 11
         other[#other + 1] = 12
         local logits = tide.no_grad(function() return r:begin { other } end)
         near(whole(model, other):select(1, #other), logits:select(1, 1))
         local cache = { k = tide.zeros { 1, 69, 1, 8 }, dropped = 1031, left = 4 }
         assert.is_true(kv_cache.can_shorten(cache, 1035))
         assert.is_false(kv_cache.can_shorten(cache, 1034))
      end
   end)

   it('serves rows of different lengths', function()
      local lists = { part(ids, 1, 600), part(ids, 40, 80), part(ids, 7, 400) }
      local r = rows.new(model)
      tide.no_grad(function()
         local logits = r:begin(lists)
         for step = 1, 340 do
            if step % 30 == 1 then
               for i, list in ipairs(lists) do
                  near(whole(model, list):select(1, #list), logits:select(1, i))
               end
            end
            local more = {}
            for i, list in ipairs(lists) do
               more[i] = { (step * 5 + i) % 40 }
               list[#list + 1] = more[i][1]
            end
            logits = r:advance(more)
         end
      end)
      assert.is_true(r.caches[1].dropped > 0)
   end)

   it('is shared by copies, each of which goes on', function()
      local attention = tide.nn.Attention { dim = 8, heads = 2, window = { 3, -1 }, seed = 1 }
      local x = tide.randn { 1, 500, 8 }
      local function at(cache, first, n)
         return attention(x:narrow(2, first, n), { cache = cache })
      end
      tide.no_grad(function()
         local y, cache = attention(x), {}
         for i = 1, 350 do at(cache, i, 1) end
         local copy = {}
         for k, v in pairs(cache) do copy[k] = v end
         for i = 351, 500 do
            near(y:narrow(2, i, 1), at(cache, i, 1))
            near(y:narrow(2, i, 1), at(copy, i, 1))
         end
         assert.is_true(cache.dropped > 0 and copy.dropped > 0)
      end)
   end)

   it('keeps all tokens while gradients are taken', function()
      local attention = tide.nn.Attention { dim = 8, heads = 2, window = { 3, -1 }, seed = 1 }
      local x, cache = tide.randn { 1, 400, 8 }, {}
      local y = attention(x)
      near(y:narrow(2, 1, 390), attention(x:narrow(2, 1, 390), { cache = cache }):detach())
      near(y:narrow(2, 391, 10), attention(x:narrow(2, 391, 10), { cache = cache }):detach())
      assert.is_nil(cache.dropped)
      assert.equal(400, cache.k:size(2))
   end)
end)
