-- Failures inside a template: raised as plain tables, which the template turns into errors with
-- line and column.

local fault = {}

local Fault = {}

-- Raises a failure of the template with a formatted message.
function fault.raise(message, ...)
   error(setmetatable({ message = message:format(...), code = 'E_ARG' }, Fault), 0)
end

-- Raises a failure with a status of its own: 'E_UNSUPPORTED' for what the subset leaves out.
function fault.coded(code, message, ...)
   error(setmetatable({ message = message:format(...), code = code }, Fault), 0)
end

-- Whether a caught value was raised here.
function fault.is(e) return getmetatable(e) == Fault end

return fault
