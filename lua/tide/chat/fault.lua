-- Errors inside a template, raised as plain tables; template.lua adds line and column and raises
-- them as errors of tide.

local fault = {}

local Fault = {}

-- Raises a failure of the template with a formatted message.
function fault.raise(message, ...)
   error(setmetatable({ message = message:format(...), code = 'E_ARG' }, Fault), 0)
end

-- Raises a failure with its own status: 'E_UNSUPPORTED' for constructs outside the subset.
function fault.coded(code, message, ...)
   error(setmetatable({ message = message:format(...), code = code }, Fault), 0)
end

-- Returns whether a caught value was raised here.
function fault.is(e) return getmetatable(e) == Fault end

return fault
