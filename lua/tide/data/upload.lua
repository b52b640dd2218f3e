-- A tensor of the host as one on a device. To a GPU it goes from pinned memory, so that the host
-- does not wait for the copy. device: nil leaves it where it is.

return function(t, device)
   if device == nil or device == t.device then return t end
   if device ~= 'cuda' then return t:to(device) end
   return t:pin_memory():to('cuda', { non_blocking = true })
end
