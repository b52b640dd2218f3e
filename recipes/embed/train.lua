-- The Lua half of host.c: makes the global `task`, a training that the host runs step by step.

local tide = require 'tide'
local poll = require 'recipes.embed.poll'

local model = tide.nn.Linear(16, 1)
local optim = tide.optim.AdamW(model, { lr = 0.05, weight_decay = 0 })
local x = tide.randn { 256, 16 }
local y = x:sum(2, true)

task = poll.start(function(pause)              -- luacheck: ignore
   local loss
   for _ = 1, 300 do
      loss = (model(x) - y):square():mean()
      loss:backward()
      optim:step()
      optim:zero_grad()
      pause()
   end
   return ('loss %s after 300 steps'):format(loss:item() < 1e-3 and 'below 0.001' or loss:item())
end)
