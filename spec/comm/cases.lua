-- The case table of collectives: one collective, all dtypes and counts, against plain Lua sums.
-- Runs on each rank of any communicator; has no upvalues, so it can travel. Returns the number of
-- cases, or text: what was wrong.

return function(comm, name)
   local tide = require 'tide'
   local n, me = comm.size, comm.rank
   local dtypes = { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8', 'bool' }
   -- The last is odd, larger than what ranks leave on their seats in any dtype, and cut among them;
   -- smaller where a sanitizer makes every element dear.
   local plain = tide.build_info():find('sanitizers: none', 1, true)
   local counts = { 0, 1, 7, plain and 4099 or 2053 }

   -- element i (from 0) of rank r: small enough to be exact in every dtype
   local function value(r, i, dtype)
      if dtype == 'bool' then return (r + i) % 3 == 0 and 1 or 0 end
      return (r * 5 + i * 3) % 4
   end
   local made = {}
   local function make(count, dtype)
      local key = dtype .. count
      if not made[key] then
         local list = {}
         for i = 1, count do list[i] = value(me, i - 1, dtype) end
         made[key] = tide.tensor(list, { dtype = dtype })
      end
      return made[key]:clone()
   end
   -- Elements for each rank of calls that take some for all: a part of `count` for many ranks.
   local function each(count) return n > 3 and math.ceil(2 * count / n) or count end
   local function numbers(t)
      local list = t:reshape { t:numel() }:tolist()
      for i, v in ipairs(list) do
         if type(v) == 'boolean' then list[i] = v and 1 or 0 end
      end
      return list
   end
   local fold = {
      sum = function(a, b) return a + b end, mean = function(a, b) return a + b end,
      min = math.min, max = math.max, prod = function(a, b) return a * b end,
   }
   -- Values repeat after 12 elements in every dtype, and so do their sums.
   local known = {}
   local function reduced(op, i, dtype)
      local key = op .. dtype .. i % 12
      if not known[key] then
         local v = value(0, i, dtype)
         for r = 1, n - 1 do v = fold[op](v, value(r, i, dtype)) end
         known[key] = op == 'mean' and v / n or dtype == 'u8' and v % 256 or v
      end
      return known[key]
   end
   local function near(dtype, a, b)
      if a == b then return true end
      local eps = dtype == 'bf16' and 2^-8 or dtype == 'f16' and 2^-11 or dtype == 'f32' and 2^-24
         or dtype == 'f64' and 2^-53 or 0
      return math.abs(a - b) <= eps * math.abs(b)
   end
   local function check(what, t, expected, count, dtype)
      local list = numbers(t)
      if #list ~= count then return what .. ': ' .. #list .. ' elements, expected ' .. count end
      for i = 1, count do
         local want = expected(i - 1)
         if not near(dtype, list[i], want) then
            return ('%s: element %d is %s, expected %s'):format(what, i, list[i], want)
         end
      end
   end
   local function reductions(dtype)
      if dtype == 'bool' then return { 'min', 'max', 'prod' } end
      if dtype == 'f32' or dtype == 'f64' or dtype == 'bf16' or dtype == 'f16' then
         return { 'sum', 'mean', 'min', 'max', 'prod' }
      end
      return { 'sum', 'min', 'max', 'prod' }
   end
   -- unequal rows: rank r has r * 3 % 4 + base
   local function uneven(base)
      local list, sum, at = {}, 0, {}
      for r = 0, n - 1 do
         at[r] = sum
         list[r + 1] = base == 0 and 0 or (r * 3 % 4) + base
         sum = sum + list[r + 1]
      end
      return list, sum, at
   end
   local root = n - 1
   local run = {}

   function run.all_reduce(count, dtype, opts)
      for _, op in ipairs(reductions(dtype)) do
         local t = make(count, dtype)
         local got = comm:all_reduce(t, op, opts)
         if opts then got = got:wait() end
         if not rawequal(got, t) then return 'all_reduce returned another tensor' end
         local bad = check('all_reduce ' .. op, t, function(i) return reduced(op, i, dtype) end,
            count, dtype)
         if bad then return bad end
      end
   end
   function run.all_reduce_list(count, dtype, opts)
      local op = dtype == 'bool' and 'max' or 'sum'
      local list = {}
      for k = 1, 20 do list[k] = make(k % 3 == 0 and count or k, dtype) end
      local got = comm:all_reduce(list, op, opts)
      if opts then got:wait() end
      for k = 1, 20 do
         local bad = check('tensor ' .. k, list[k], function(i) return reduced(op, i, dtype) end,
            k % 3 == 0 and count or k, dtype)
         if bad then return bad end
      end
   end
   function run.reduce(count, dtype, opts)
      for _, op in ipairs(reductions(dtype)) do
         local t = make(count, dtype)
         local work = comm:reduce(t, root, op, opts)
         if opts then work:wait() end
         local bad = check('reduce ' .. op, t, function(i)
            return me == root and reduced(op, i, dtype) or value(me, i, dtype)
         end, count, dtype)
         if bad then return bad end
      end
   end
   function run.broadcast(count, dtype, opts)
      local t = make(count, dtype)
      local work = comm:broadcast(t, root, opts)
      if opts then work:wait() end
      return check('broadcast', t, function(i) return value(root, i, dtype) end, count, dtype)
   end
   function run.all_gather(count, dtype, opts)
      local out = comm:all_gather(make(count, dtype), opts)
      if opts then out = out:wait() end
      return check('all_gather', out, function(i)
         return value(math.floor(i / count), i % count, dtype)
      end, count * n, dtype)
   end
   function run.all_gather_v(count, dtype, opts)
      local rows, sum, at = uneven(count)
      local out = comm:all_gather_v(make(rows[me + 1], dtype), rows, nil, opts)
      if opts then out = out:wait() end
      return check('all_gather_v', out, function(i)
         local r = n - 1
         while at[r] > i do r = r - 1 end
         return value(r, i - at[r], dtype)
      end, sum, dtype)
   end
   function run.reduce_scatter(count, dtype, opts)
      count = each(count)
      for _, op in ipairs(reductions(dtype)) do
         local out = comm:reduce_scatter(make(count * n, dtype), op, opts)
         if opts then out = out:wait() end
         local bad = check('reduce_scatter ' .. op, out, function(i)
            return reduced(op, me * count + i, dtype)
         end, count, dtype)
         if bad then return bad end
      end
   end
   function run.reduce_scatter_v(count, dtype, opts)
      local rows, sum, at = uneven(count)
      local op = dtype == 'bool' and 'min' or 'sum'
      local out = comm:reduce_scatter_v(make(sum, dtype), rows, op, nil, opts)
      if opts then out = out:wait() end
      return check('reduce_scatter_v', out, function(i) return reduced(op, at[me] + i, dtype) end,
         rows[me + 1], dtype)
   end
   function run.all_to_all(count, dtype, opts)
      count = each(count)
      local out = comm:all_to_all(make(count * n, dtype), opts)
      if opts then out = out:wait() end
      return check('all_to_all', out, function(i)
         return value(math.floor(i / count), me * count + i % count, dtype)
      end, count * n, dtype)
   end
   function run.all_to_all_v(count, dtype, opts)
      -- rank a sends (a + b) % 3 * k rows to rank b
      local k = math.min(count, 50)
      local give, take, ngive, from, at, ntake = {}, {}, 0, {}, {}, 0
      for r = 0, n - 1 do
         give[r + 1], take[r + 1] = (me + r) % 3 * k, (r + me) % 3 * k
         at[r] = ntake
         ngive, ntake = ngive + give[r + 1], ntake + take[r + 1]
         local before = 0
         for q = 0, me - 1 do before = before + (r + q) % 3 * k end
         from[r] = before
      end
      local out = comm:all_to_all_v(make(ngive, dtype), give, take, nil, opts)
      if opts then out = out:wait() end
      return check('all_to_all_v', out, function(i)
         local r = n - 1
         while at[r] > i or take[r + 1] == 0 do r = r - 1 end
         return value(r, from[r] + i - at[r], dtype)
      end, ntake, dtype)
   end
   function run.gather(count, dtype, opts)
      local out = comm:gather(make(count, dtype), root, opts)
      if opts then out = out:wait() end
      if me ~= root then return out ~= nil and 'gather gave a tensor to another rank' or nil end
      return check('gather', out, function(i)
         return value(math.floor(i / count), i % count, dtype)
      end, count * n, dtype)
   end
   function run.scatter(count, dtype, opts)
      count = each(count)
      local out = tide.empty({ count }, { dtype = dtype })
      local work = comm:scatter(out, me == root and make(count * n, dtype) or nil, root, opts)
      if opts then work:wait() end
      return check('scatter', out, function(i) return value(root, me * count + i, dtype) end,
         count, dtype)
   end
   function run.send_recv(count, dtype, opts)
      local out = comm:shift({ make(count, dtype), make(3, dtype) }, 1, opts)
      if opts then out = out:wait() end
      local from = (me - 1) % n
      local function expected(i) return value(from, i, dtype) end
      return check('first', out[1], expected, count, dtype)
         or check('second', out[2], expected, 3, dtype)
   end
   function run.chain(count, dtype, opts)
      -- not a ring: the ends have no partner
      local t, out = make(count, dtype), make(count, dtype)
      local work = comm:send_recv(me > 0 and out or nil, me > 0 and me - 1 or nil,
         me < n - 1 and t or nil, me < n - 1 and me + 1 or nil, opts)
      if opts then work:wait() end
      return check('chain', out, function(i) return value(math.max(me - 1, 0), i, dtype) end,
         count, dtype)
   end

   local ncase = 0
   for _, dtype in ipairs(dtypes) do
      for _, count in ipairs(counts) do
         for _, opts in ipairs { false, { async = true } } do
            local bad = run[name](count, dtype, opts or nil)
            if bad then
               return ('%s, %d elements%s: %s'):format(dtype, count, opts and ', async' or '', bad)
            end
            ncase = ncase + 1
         end
      end
   end
   return ncase
end
