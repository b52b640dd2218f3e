-- Positions that a model was made for.

-- Returns how many tokens a text may have, and whether a longer one cannot be read (learned
-- positions); nil for a model without a bound.
return function(model)
   local config, most = model.config or {}, nil
   model:walk(function(m) most = most or m._positions and m:_positions() end)
   if most then return most, true end
   return config.rope_theta and config.max_position_embeddings or nil, false
end
