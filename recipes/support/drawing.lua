-- How answers are drawn: by options of the command line, else by the folder's
-- generation_config.json, else by defaults.

local copy = require 'tide.util.copy'

local drawing = {}

local by_file = '; default: that of generation_config.json, else %s'

local function row(name, default, help, more)
   return copy(more, { name, nil, help .. by_file:format(tostring(default)), type = 'number' })
end

-- Rows for util.args.
drawing.rows = {
   row('tokens', 400, 'tokens to generate, at most', { type = 'integer', min = 1,
      also = { 'max-tokens', 'max-new-tokens' } }),
   row('temperature', 0.8, 'sampling temperature; 0 takes the most likely id', { min = 0 }),
   row('top-k', 40, 'sample from the k most likely ids; 0: all', { type = 'integer', min = 0 }),
   row('top-p', 1, 'sample from the most likely ids whose probabilities add up to this',
      { min = 1e-6, max = 1 }),
   row('min-p', 0, 'sample from ids at least this fraction as likely as the most likely one',
      { min = 0, max = 1 }),
   row('repetition-penalty', 1, 'above 1 makes ids that are already in the text less likely',
      { min = 1e-6 }),
   { 'stop', nil, 'text that ends the answer; may be repeated', type = 'string', list = true },
   { 'generation-config', true, 'read generation_config.json of the folder' },
}

local names = { 'tokens', 'temperature', 'top_k', 'top_p', 'min_p', 'repetition_penalty' }
local defaults = { tokens = 400, temperature = 0.8, top_k = 40, top_p = 1, min_p = 0,
   repetition_penalty = 1 }

-- Returns options of train.sample.generate for a model, and what generation_config.json says
-- besides (as of model.generation) with `from`: where each option is from. Where the file decides
-- how to draw (do_sample), what it leaves out draws from all tokens.
function drawing.options(tide, model, opt)
   local of_file, said = {}, { unused = {} }
   if opt.generation_config then
      of_file, said = tide.model.generation(model)
   else
      local plain = tide.model.generation { config = model.config }
      of_file.stop = plain.stop
   end
   local o = { seed = opt.seed, device = opt.device, stop = of_file.stop }
   said.from = {}
   for _, name in ipairs(names) do
      local v, from = opt[name], 'given'
      if v == nil then v, from = of_file[name], 'generation_config.json' end
      if v == nil then v, from = defaults[name], 'default' end
      o[name], said.from[name] = v, from
   end
   o.stop_strings = type(opt.stop) == 'string' and { opt.stop } or opt.stop
      or of_file.stop_strings
   return o, said
end

-- Writes the options to standard error, with where they are from.
function drawing.tell(o, said)
   for _, name in ipairs(names) do
      io.stderr:write(('%s %g (%s)\n'):format(name:gsub('_', '-'), o[name], said.from[name]))
   end
   io.stderr:write(('seed %d; ids that end a text: %s\n'):format(o.seed,
      o.stop and #o.stop > 0 and table.concat(o.stop, ', ') or 'none'))
   if #said.unused > 0 then
      io.stderr:write('generation_config.json: fields that change nothing: ',
         table.concat(said.unused, ', '), '\n')
   end
end

return drawing
