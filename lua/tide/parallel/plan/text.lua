-- A plan as text and as a plain table.
--
-- Names of layers that differ in a number only are one line: model.layers.*.mlp (4).

local each = require 'tide.util.each'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local fsdp_options = require 'tide.parallel.fsdp.options'
local recompute = require 'tide.parallel.recompute'
local spread = require 'tide.nn.spread'
local tp_plans = require 'tide.parallel.tp.plans'
local tp_style = require 'tide.parallel.tp.style'
local units = require 'tide.util.units'
local sorted_keys = require('tide.util.pretty').sorted_keys

local text = {}

-- ---- what the rehearsal has shown ------------------------------------------------------------

-- Returns the different texts of a list, each once; fmt adds how often it occurs, if more than
-- once.
local function counted(texts, fmt)
   local list, count = {}, {}
   for _, text_ in ipairs(texts) do
      if not count[text_] then count[text_], list[#list + 1] = 0, text_ end
      count[text_] = count[text_] + 1
   end
   for i, text_ in ipairs(list) do
      list[i] = count[text_] > 1 and fmt:format(text_, count[text_]) or text_
   end
   return list
end

local function grouped(names)
   local list = {}
   for i, name in ipairs(names) do list[i] = (name:gsub('%f[^.%z]%d+%f[.%z]', '*')) end
   return counted(list, '%s (%d)')
end

local function is_of_experts(entry) return entry.axis.deals_experts end

-- Returns the layout of what tensor parallelism cuts, or nil.
local function by_tensors(entry)
   if is_of_experts(entry) then return entry.within end
   return entry
end

-- Returns the layout of experts that are dealt out, or nil.
local function by_experts(entry) return is_of_experts(entry) and entry or nil end

-- Returns "weight rows / 2" of everything that is cut. of: the layout to show of that of a
-- parameter, or nil.
local function cut_modules(model, of)
   local names = {}
   local function add(name, entry)
      entry = entry and of(entry)
      if not entry or not entry.blocks then return end
      names[#names + 1] = ('%-48s Shard(%d)'):format(name:gsub('%.%d+%.', '.*.'),
         entry.placement.dim)
   end
   model:walk(function(m, path)
      local places = rawget(m, '_layout') or {}
      for _, list in ipairs { m._param, m._buffer } do
         for _, field in ipairs(list) do add(path .. '.' .. field, places[field]) end
      end
   end)
   return counted(names, '%s  x %d')
end

-- Returns what of a rehearsed run the text needs.
function text.of(run)
   local sharded, cut = run.sharded, spread.of(run.model).tp
   local names = {}
   for i, unit in ipairs(sharded and sharded.units or {}) do names[i] = unit.name end
   return {
      cut = cut_modules(run.model, by_tensors), experts = cut_modules(run.model, by_experts),
      ep = sharded and sharded.opts.ep_size or 1, recomputed = grouped(recompute.report(run.model)),
      units = grouped(names), shards = sharded and sharded.shard_comm.size,
      replicas = sharded and sharded.replicas.size, data = run.data.size,
      stages = run.stage and { counts = run.stage.counts, virtual = run.stage.virtual },
      strategy = sharded and sharded.opts.strategy, styles = cut and cut.styles or '',
   }
end

-- ---- text ------------------------------------------------------------------------------------

-- Returns text: "dp_shard=2 x tp=2".
function text.axes(plan)
   local out = {}
   for i, a in ipairs(plan.axes) do out[i] = ('%s=%d'):format(a.name, a.size) end
   return table.concat(out, ' x ')
end

local show_value
function show_value(v)
   if type(v) ~= 'table' then return tostring(v) end
   if tp_style.is(v) then return tostring(v) end
   if rawget(v, 'class_name') then return v.class_name end
   local out = {}
   for i, k in ipairs(sorted_keys(v)) do
      out[i] = (type(k) == 'number' and '' or tostring(k) .. ' ') .. show_value(v[k])
   end
   return '{' .. table.concat(out, ', ') .. '}'
end

-- Returns "; async_tp true; ..." of the options that are given and not `usual`.
local function options_text(options, usual)
   local out = {}
   for _, k in ipairs(sorted_keys(options)) do
      local v = options[k]
      if v ~= usual[k] and k ~= 'axis' and k ~= 'strategy' then
         out[#out + 1] = type(v) == 'function' and k .. ' (a function)'
            or ('%s %s'):format(k, show_value(v))
      end
   end
   return #out > 0 and '; ' .. table.concat(out, '; ') or ''
end

local function add_list(lines, list)
   for _, item in ipairs(list) do lines[#lines + 1] = '      ' .. item end
end

-- Returns the ranks of an axis of the plan, 1 where it has none of this name.
function text.axis_size(plan, name)
   for _, a in ipairs(plan.axes) do
      if a.name == name then return a.size end
   end
   return 1
end

local function sharding_line(plan, r)
   if not plan.fsdp then
      return r.data > 1 and ('plain data parallelism over %d ranks'):format(r.data) or 'none'
   end
   local usual = fsdp_options.check {}
   usual.keep_fp8_transpose_cache_when_using_custom_fsdp = false
   local replicas = r.replicas > 1 and (', %d replicas'):format(r.replicas) or ''
   return ('%s over %d rank%s%s%s'):format(r.strategy, r.shards, r.shards == 1 and '' or 's',
      replicas, options_text(plan.fsdp, usual))
end

-- Returns what print(plan) shows.
function text.show(plan)
   local r, model = plan.rehearsal, plan.model
   local tp, cp = text.axis_size(plan, plan.tp.axis), text.axis_size(plan, plan.cp.axis)
   local lines = {
      ('plan of %s, %s parameters (%d), over %d rank%s: %s'):format(model.class_name,
         units.count(plan.numel), plan.numel, plan.ranks, plan.ranks == 1 and '' or 's',
         text.axes(plan)),
   }
   local function head(name, fmt, ...)
      lines[#lines + 1] = ('   %-20s ' .. fmt):format(name, ...)
   end
   head('tensor parallel', '%s', tp == 1 and 'none'
      or ("axis '%s' of %d%s"):format(plan.tp.axis, tp, options_text(plan.tp,
         { async_tp = false, sequence_parallel = false })))
   add_list(lines, r.cut)
   head('context parallel', '%s', cp == 1 and 'none'
      or ("axis '%s' of %d%s"):format(plan.cp.axis, cp, options_text(plan.cp, {})))
   if r.ep > 1 then head('expert parallel', '%d ranks', r.ep) end
   add_list(lines, r.experts)
   if r.stages then
      local counts, v = r.stages.counts, r.stages.virtual
      head('pipeline', '%d stages of %s blocks; below %s', #counts, table.concat(counts, ', '),
         v == 1 and 'is the first one' or ('are the %d of rank 0'):format(v))
   end
   head('recompute', '%s', #r.recomputed == 0 and 'none' or show_value(plan.recompute)
      .. (plan.scope and '; scope ' .. plan.scope or ''))
   add_list(lines, r.recomputed)
   for name, options in each(plan.own) do head(name, '%s', show_value(options)) end
   head('sharding', '%s', sharding_line(plan, r))
   add_list(lines, r.units)
   return table.concat(lines, '\n')
end

local rows = {
   { 'parameters' }, { 'gradients' }, { 'optimizer' }, { 'state', 'the three' },
   { 'activations', 'kept from forward to backward' }, { 'unit', 'largest unit gathered' },
   { 'stays', 'of gathered units, among fewer ranks until backward' },
   { 'peak', 'everything, at its largest' },
}

-- How a price prints.
text.price_meta = { __tostring = function(p)
   local lines = { ('rank %d of %d, %d x %d tokens a micro-batch, %d a step'):format(p.rank,
      p.ranks, p.batch, p.seq, p.accum) }
   for _, row in ipairs(rows) do
      if p[row[1]] then
         lines[#lines + 1] = ('   %-20s %12s%s'):format(row[1], units.bytes(p[row[1]]),
            row[2] and '   ' .. row[2] or '')
      end
   end
   lines[#lines + 1] = ('   %-20s %12s   sent a step%s'):format('wire', units.bytes(p.wire),
      p.wire_between_hosts > 0 and ', between hosts ' .. units.bytes(p.wire_between_hosts) or '')
   local calls = {}
   for i, kind in ipairs(sorted_keys(p.collectives)) do
      calls[i] = ('%s %d'):format(kind, p.collectives[kind])
   end
   if p.idle then
      lines[#lines + 1] = ('   %-20s %10.1f %%   of a step, where all stages take equally long')
         :format('waits', 100 * p.idle)
   end
   lines[#lines + 1] = ('   %-20s %s'):format('collectives a step',
      #calls > 0 and table.concat(calls, ', ') or 'none')
   return table.concat(lines, '\n')
end }

-- ---- a plain table ---------------------------------------------------------------------------

local plain
function plain(v, where)
   local kind = type(v)
   err.raise_if(kind == 'function', 'E_ARG', 'parallel.plan.to_table',
      '%s is a function, which cannot be written down', where)
   if kind ~= 'table' then return v end
   if tp_style.is(v) then
      return { style = v.name, input = v.input, output = v.output, blocks = v.blocks }
   end
   if rawget(v, 'class_name') then return v.class_name end
   local out = {}
   for k, item in each(v) do out[k] = plain(item, where .. '.' .. tostring(k)) end
   return out
end

local function model_of(plan)
   local model = plan.model
   local op = model.op or model.family and model.family.op
   local family = type(op) == 'string' and op:match '^model%.(.*)$'
   local first = model:parameters()[1]
   if not family or type(model.config) ~= 'table' then return nil end
   return { family = family, config = plain(model.config, 'config'), dtype = first.dtype }
end

-- Returns the section tp as data: styles given by a function, or by a dotted path, are written out.
local function tp_table(tp)
   if type(tp) ~= 'table' or type(tp.plan) ~= 'function' and type(tp.plan) ~= 'string' then
      return plain(tp, 'tp')
   end
   local out = copy(tp)
   out.plan = tp_plans.custom(tp.plan)
   return plain(out, 'tp')
end

-- Returns what plan:to_table returns.
function text.to_table(plan)
   local t = { version = 1, axes = {}, model = model_of(plan), scope = plan.scope }
   for i, a in ipairs(plan.axes) do t.axes[i] = { name = a.name, size = a.size } end
   if plan.given.tp then t.tp = tp_table(plan.tp) end
   if plan.given.cp then t.cp = plain(plan.cp, 'cp') end
   if plan.given.pp then t.pp = { layers = plan.pp.layers, virtual = plan.pp.virtual } end
   t.recompute = plain(plan.recompute, 'recompute')
   t.fsdp = plan.fsdp and plain(plan.fsdp, 'fsdp')
   t.own = next(plan.own) and plain(plan.own, 'own')
   return t
end

-- Reads the styles of a plan from data. Data runs no code, so a dotted path of a function is
-- refused.
local function read_styles(op, tp)
   if type(tp) == 'table' and type(tp.plan) == 'string' then
      err.raise('E_ARG', op, 'tp.plan is %s, the dotted path of Lua code, which data must not run; '
         .. 'write the styles by pattern, as to_table does', err.show(tp.plan))
   end
   if type(tp) ~= 'table' or type(tp.plan) ~= 'table' then return tp end
   local out, styles = copy(tp), {}
   for pattern, s in each(tp.plan) do
      if type(s) == 'table' then
         s = tp_style.translate_to_parallel_style(s.style):with { input = s.input,
            output = s.output, blocks = s.blocks }
      end
      styles[pattern] = s
   end
   out.plan = styles
   return out
end

-- Returns the arguments of a plan: { mesh =, opts = }.
function text.from_table(op, t)
   err.options(op, t, { 'version', 'axes', 'model', 'tp', 'cp', 'pp', 'recompute', 'scope',
      'fsdp', 'own' })
   if t.version ~= 1 then err.arg(op, 'version', '1, which this library reads', t.version) end
   local mesh, n = {}, 1
   for i, a in ipairs(err.type(op, 'axes', t.axes, 'table')) do
      err.type(op, 'axes', a, 'table')
      mesh[i], n = { a.name, a.size }, n * err.integer(op, 'axes.size', a.size, 1)
   end
   local opts = { tp = read_styles(op, t.tp), cp = t.cp, pp = t.pp,
      recompute = t.recompute, scope = t.scope, fsdp = t.fsdp, ranks = n }
   for name, options in each(err.type(op, 'own', t.own or {}, 'table')) do
      opts[err.type(op, 'own', name, 'string')] = options
   end
   return { mesh = mesh, opts = opts }
end

return text
