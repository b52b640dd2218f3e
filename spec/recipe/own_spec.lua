-- A recipe of one's own trains with equal losses on every mesh of two ranks.

local files = require 'spec.support.files'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'

local code = files.read 'spec/support/own_recipe.lua'

-- What rank 0 prints where `axis` has all n ranks, and the losses and own figures in the metrics.
local function trained(axis, n)
   local text, losses, epochs
   tmp.with(function(dir)
      local head = ('package.path = %q .. package.path\naxis, out = %q, %q\n'):format(
         io.popen 'pwd':read '*l' .. '/?.lua;', axis, dir .. '/run')
      local all, status = recipe.source(head .. code, '-n ' .. n)
      assert.equal(0, status, all)
      text = all:gsub('%[r0%] ', '')
      losses, epochs = recipe.losses(dir .. '/run'), recipe.losses(dir .. '/run', 'epochs')
   end)
   return text, losses, epochs
end

describe("a recipe of one's own", function()
   local text, losses, epochs = trained('dp', 1)

   it('trains, with a metric and a callback', function()
      assert.is_true(losses[8] < losses[1] - 0.1, text)
      assert.equal(8, #epochs)
      assert.is_true(epochs[8] > epochs[1])
      assert.matches('evaluated %d%.%d%d%d\n$', text)
   end)

   for _, axis in ipairs { 'dp', 'dp_shard', 'tp', 'cp' } do
      it('has the losses of one rank with ' .. axis .. ' 2', function()
         local _, other, marks = trained(axis, 2)
         for s = 1, 8 do assert.near(losses[s], other[s], 2e-4) end
         assert.same(epochs, marks)
      end)
   end
end)
