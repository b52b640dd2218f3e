-- Returns the tensor that make(device) builds of values of the host. One for a GPU is built on the
-- host and sent from pinned memory, so that the host does not wait for the copy.

return function(make, device)
   if device ~= 'cuda' then return make(device) end
   return make('cpu'):pin_memory():to('cuda', { non_blocking = true })
end
