-- Writes the models and chats that spec/golden/sft.py trains on into a folder, and prints which
-- records make up which step.
--
--    luajit spec/golden/sft_order.lua DIR > DIR/order.json

package.path = './?.lua;bindings/?.lua;lua/?.lua;lua/?/init.lua;' .. package.path

local case = require 'spec.recipe.sft_case'

case.write(arg[1])
print(case.order(arg[1]))
