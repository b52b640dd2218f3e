-- Fields of formatted text: numbers and texts by width, precision, sign and fill.
--
-- A spec has fill, align ('<', '>', '^', '='), sign ('-', '+', ' '), alternate, width, comma,
-- precision, digits (at least so many) and kind.

local fault = require 'tide.chat.fault'
local show = require 'tide.chat.show'
local utf = require 'tide.chat.unicode'

local field = {}

-- Returns the first n characters (all if n is nil).
function field.cut(s, n) return n and utf.sub(s, 0, n) or s end

local function sign_of(negative, spec)
   if negative then return '-' end
   return spec.sign ~= '-' and spec.sign or ''
end

local function grouped(digits, comma)
   local head, tail = digits:match '^(%d+)(.*)$'
   if not head then return digits end
   head = head:reverse():gsub('(%d%d%d)', '%1' .. comma):reverse()
   if head:sub(1, 1) == comma then head = head:sub(2) end
   return head .. tail
end

local function in_base(n, base)
   if n == 0 then return '0' end
   local list = {}
   while n > 0 do
      local d = n % base
      list[#list + 1] = ('0123456789abcdef'):sub(d + 1, d + 1)
      n = (n - d) / base
   end
   return table.concat(list):reverse()
end

local bases = { x = 16, X = 16, o = 8, b = 2 }

-- Returns an integer (a float is truncated) as text.
function field.integer(n, letter, spec)
   if n ~= n or math.abs(n) == math.huge then fault.raise 'cannot convert float to integer' end
   n = n - math.fmod(n, 1)
   local size, base = math.abs(n), bases[letter]
   local body = base and in_base(size, base) or ('%.0f'):format(size)
   if letter == 'X' then body = body:upper() end
   if spec.digits then body = ('0'):rep(math.min(spec.digits, 1000) - #body) .. body end
   if spec.comma then body = grouped(body, spec.comma) end
   if spec.alternate and bases[letter] then body = '0' .. letter .. body end
   return sign_of(n < 0, spec) .. body
end

-- Returns a number >= 0 with so many decimals, rounded half to even as in C and Python; LuaJIT's
-- own format rounds otherwise.
function field.fixed(v, precision)
   local text = ('%.' .. precision .. 'f'):format(v)
   local exact = ('%.99f'):format(v)
   local point = exact:find('.', 1, true)
   local stop = point + precision
   if not exact:find('^50*$', stop + 1) then return text end
   local kept = exact:sub(1, precision == 0 and point - 1 or stop)
   return kept:find '[02468]%.?$' and kept or text
end

-- Returns a number in the form of f, e, g, % or '' (the shortest digits that read back as it).
function field.float(n, letter, spec)
   local precision = spec.precision or 6
   if precision > 99 then
      fault.coded('E_UNSUPPORTED', 'a precision of %d digits is not supported', precision)
   end
   local negative = n < 0 or 1 / n < 0
   local v, tail = math.abs(n), ''
   if letter == '%' then v, letter, tail = v * 100, 'f', '%' end
   local body
   if v ~= v then
      body, negative = 'nan', false
   elseif v == math.huge then
      body = 'inf'
   elseif letter == '' then
      body = show.float(v)
   elseif letter:lower() == 'f' then
      body = field.fixed(v, precision) .. (spec.alternate and precision == 0 and '.' or '')
   else
      body = ('%' .. (spec.alternate and '#' or '') .. '.' .. precision .. letter):format(v)
   end
   if letter:find '%u' then body = body:upper() end
   if spec.comma then body = grouped(body, spec.comma) end
   return sign_of(negative, spec) .. body .. tail
end

-- Returns a text padded to the width of a spec.
function field.padded(s, spec)
   local missing = (spec.width or 0) - utf.length(s)
   local fill = spec.fill
   if spec.align == '<' then return s .. fill:rep(missing) end
   if spec.align == '^' then
      local left = math.floor(missing / 2)
      return fill:rep(left) .. s .. fill:rep(missing - left)
   end
   if spec.align == '=' then
      local head, body = s:match '^([-+ ]?0?[xXob]?)(.*)$'
      if not head:find '[xXob]' then head, body = s:match '^([-+ ]?)(.*)$' end
      return head .. fill:rep(missing) .. body
   end
   return fill:rep(missing) .. s
end

return field
