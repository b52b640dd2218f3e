-- A tensor that outlives every open step scope, as gradients do: it is made one for a moment.

-- t itself.
return function(t)
   t:detach():requires_grad_(true):set_grad(t)
   return t
end
