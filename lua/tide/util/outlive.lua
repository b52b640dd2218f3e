-- Makes a tensor outlive every open step scope: for a moment it is a gradient, which scopes keep.

-- t itself.
return function(t)
   t:detach():requires_grad_(true):set_grad(t)
   return t
end
