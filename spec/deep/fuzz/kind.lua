-- What a failure is, without its numbers: two with the same first line but for those are one to the
-- report.

return function(text)
   local first = text:match '^[^\n]*' or ''
   return (first:gsub('0x%x+', '#'):gsub('%-?%d[%d.e+-]*', '#'):gsub('%f[%a]inf%f[%A]', '#')
      :gsub('%f[%a]nan%f[%A]', '#'):sub(1, 90))
end
