-- A tour of the tensor: making, reading, views, arithmetic, gradients, a small fit.
--
--    tide run recipes/tensor_tour.lua

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local options = args.main(args.parse, 'tensor_tour: what a tensor can do', {}, { ... })
if not options then return end

local tide = require 'tide'

local function title(text) print('\n' .. text) end

title 'A tensor from lists; sizes, dims and elements count from 1.'
local x = tide.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
print(x)
print('size of dim 2:', x:size(2), 'element (2, 3):', x:at(2, 3))

title 'Views share bytes: a transpose, a slice of columns 2 and 3.'
print(x:t())
print(x:slice(2, 2, 3))
print('same bytes:', x:same_storage(x:slice(2, 2, 3)))

title 'Arithmetic broadcasts; reductions name their dim.'
print((x - x:mean(1, true)) / 2)
print('sum of everything:', x:sum():item())

title 'Gradients: y = sum(x^2), dy/dx = 2 x.'
local leaf = tide.tensor({ 1, -2, 3 }, { requires_grad = true })
leaf:square():sum():backward()
print(leaf.grad)

title 'Random numbers are a function of the seed alone.'
tide.default():seed(7)
local a = tide.randn { 3 }
tide.default():seed(7)
print('equal again:', a:equal(tide.randn { 3 }))

title 'Fitting a line by gradient descent.'
local inputs = tide.rand { 64, 1 }
local targets = inputs * 3 - 1
local line = tide.nn.Linear(1, 1)
local sgd = tide.optim.SGD(line, { lr = 0.5 })
for _ = 1, 200 do
   local loss = (line(inputs) - targets):square():mean()
   sgd:zero_grad()
   loss:backward()
   sgd:step()
end
print(('slope %.3f, offset %.3f'):format(line.weight:item(), line.bias:item()))
