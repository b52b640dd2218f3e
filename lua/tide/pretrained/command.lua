-- tide export: a checkpoint or the newest of a run as a published folder, from the command line.

local args = require 'tide.util.args'
local err = require 'tide.util.err'
local tokenizer_file = require 'tide.tokenizer.file'

local rows = {
   { 'max-shard', '5GB', 'largest size of a file of weights' },
   { 'dtype', nil, 'dtype of the weights; default: as they are stored', type = 'string',
     choices = { 'f32', 'bf16', 'f16', 'f64' } },
   { 'tokenizer', nil, 'folder whose tokenizer files are copied; default: the run',
     type = 'string' },
   { 'overwrite', false, 'replace the folder of a model' },
}

local title = 'export RUN DIR: write a checkpoint (of a run: the newest) as a published folder'

-- Runs the command with the words after `tide export`.
return function(...)
   local places, rest = args.split(rows, { ... })
   local opt = args.parse(title, rows, rest)
   if not opt then return end
   if #places ~= 2 then
      err.usage('export', 'expected RUN DIR, got %d words; see tide export --help', #places)
   end
   err.usage_if(opt.tokenizer and not tokenizer_file.place(opt.tokenizer), 'export', '--tokenizer: '
      .. 'expected a folder with a tokenizer (tokenizer.json, ...), got %q', opt.tokenizer)
   err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_UNSUPPORTED', 'E_SHAPE' }, function()
      require('tide').model.export(places[1], places[2], { max_shard = opt.max_shard,
         dtype = opt.dtype, tokenizer = opt.tokenizer, overwrite = opt.overwrite })
   end)
   io.stdout:write(('%s is written\n'):format(places[2]))
end
