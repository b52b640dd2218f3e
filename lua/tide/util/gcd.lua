-- gcd(a, b): the greatest common divisor of two integers >= 0; that of 0 and b is b.

return function(a, b)
   while b ~= 0 do a, b = b, a % b end
   return a
end
