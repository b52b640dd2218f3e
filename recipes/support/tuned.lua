-- Shared by recipes that train a model further: the model of --from with its adapters and frozen
-- modules, and the folders that are written at the end.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local near = require 'tide.util.near'
local options = require 'recipes.support.options'
local text = require 'recipes.support.text'

local tuned = {}

-- Rounds the base to NF4, if the options say so.
local function quantise(tide, job, model)
   local opt = job.opt
   if not opt.lora.quantise or rawget(model, 'quantised') then return end
   if opt.lora.rank == 0 and not opt.adapter then
      err.usage(job.name, '--lora.quantise: weights in NF4 cannot be trained, only adapters; give '
         .. '--lora.rank, or --adapter')
   end
   tide.nn.nf4.quantise_(model)
end

-- Refuses options of adapters that would be ignored: without adapters all weights would be trained,
-- and those of a folder have their own rank, alpha and layers.
local function check_adapters(job, model)
   local opt, given = job.opt, nil
   for _, name in ipairs { 'alpha', 'targets', 'dropout', 'rslora', 'dora' } do
      if job.given['lora.' .. name] ~= nil then given = given or name end
   end
   local owner = opt.adapter and '--adapter ' .. opt.adapter
      or rawget(model, 'adapter') and ('--from %s'):format(opt.from)
   if given and owner then
      err.usage(job.name, '--lora.%s is only for new adapters, and %s already has adapters; leave '
         .. 'the option out, or give --lora.rank instead of those adapters', given, owner)
   elseif given and opt.lora.rank == 0 then
      err.usage(job.name, '--lora.%s needs adapters, but --lora.rank is 0, which trains all '
         .. 'weights; give --lora.rank, or leave --lora.%s out', given, given)
   end
end

-- Adds the adapters of the options to the model, which has no bytes yet.
local function adapt(tide, job, model)
   local opt, o = job.opt, job.opt.lora
   if rawget(model, 'adapter') and (o.rank > 0 or opt.adapter) then
      err.usage(job.name, '--from %s already has adapters, which this run trains further; leave '
         .. 'out %s, or start from a folder with merged adapters (tide export)', opt.from,
         opt.adapter and '--adapter' or '--lora.rank')
   elseif opt.adapter and o.rank > 0 then
      err.usage(job.name, '--adapter and --lora.rank: give one of them')
   end
   check_adapters(job, model)
   quantise(tide, job, model)
   if opt.adapter then return tide.model.load_adapter(model, opt.adapter) end
   if o.rank == 0 then return end
   tide.nn.lora.attach(model, { rank = o.rank, alpha = o.alpha, targets = o.targets,
      dropout = o.dropout, rslora = o.rslora, dora = o.dora, except = text.listed(opt.freeze) })
end

-- Freezes the modules of --freeze.
local function freeze(job, model)
   local paths = text.listed(job.opt.freeze) or {}
   local names, modules = {}, {}
   for i, e in ipairs(#paths > 0 and model:named_modules() or {}) do
      names[i], modules[e.name] = e.name, e.module
   end
   for _, path in ipairs(paths) do
      err.usage_if(not modules[path], job.name, '--freeze %s: the model has no module of this '
         .. 'path%s', path, near.hint(path, names))
      modules[path]:requires_grad_(false)
   end
   if #paths == 0 then return end
   for _, p in ipairs(model:parameters()) do
      if p.requires_grad then return end
   end
   err.usage(job.name, '--freeze %s: no weight is left to train', table.concat(paths, ' --freeze '))
end

-- Refuses an --export that would be lost: only the run that has written it replaces it.
local function check_export(job)
   local opt = job.opt
   if opt.plan or not opt.export then return end
   local is_out = opt.export:match '^(.-)/*$' == fs.absolute(opt.out):match '^(.-)/*$'
   err.usage_if(is_out, job.name, '--export %s is --out, which holds the checkpoints; choose '
      .. 'another folder', opt.export)
   local before = job:is_same_run() and job.resumed and job.resumed.options.export
   local is_own = before and fs.absolute(before) == opt.export or job:is_restart()
   if opt.overwrite or is_own or not fs.is_present(opt.export) then return end
   err.usage_if(not fs.is_dir(opt.export) or #fs.list(job.name, opt.export) > 0, job.name,
      '--export %s exists already; choose another folder, or give --overwrite to replace it',
      opt.export)
end

-- Returns the folder whose weights the adapters change: --from, or what a run of --from began with;
-- and whether that run has adapters of it, or this one makes some.
local function base_of(of)
   local has_new = not of.lora or of.lora.rank > 0 or of.adapter ~= nil
   if has_new or not of.from or not fs.is_dir(of.from)
      or require('tide.pretrained.folder').is(of.from) then
      return of.from, has_new and of.lora ~= nil
   end
   return base_of(require('tide.train.checkpoint').recipe(of.from))
end

-- Returns whether an option of this run names a folder or something in it, or adapters at --from
-- have it as their base.
local function reads_from(opt, dir)
   local base, has_adapters = base_of(opt)
   local list = { { has_adapters and base or nil } }
   for _, input in ipairs { 'from', 'adapter', 'reference', 'teacher', 'tokenizer', 'chat_template',
      'data', 'val_data' } do
      list[#list + 1] = text.listed(opt[input])
   end
   dir = fs.resolve(dir)
   for _, names in ipairs(list) do
      for _, given in ipairs(names) do
         local path = fs.resolve(given)
         if dir and path and (path .. '/'):sub(1, #dir + 1) == dir .. '/' then return true end
      end
   end
   return false
end

-- Returns the folders of the model and the adapters in --out of the run before, which --overwrite
-- replaces, but not those that this run reads. Refuses one that holds a folder: a model has none.
local function old_results(job)
   local opt, list = job.opt, {}
   for _, name in ipairs(job.replaces and { 'model', 'adapter' } or {}) do
      local dir = fs.join(opt.out, name)
      local is_result = fs.exists(fs.join(dir, 'config.json'))
         or fs.exists(fs.join(dir, 'adapter_config.json'))
      is_result = is_result and not reads_from(opt, dir)
      for _, inner in ipairs(is_result and fs.list(job.name, dir) or {}) do
         err.usage_if(fs.is_dir(fs.join(dir, inner)), job.name, '--overwrite would remove %s, '
            .. 'which holds the folder %s; move that elsewhere, or choose another --out', dir,
            inner)
      end
      list[#list + 1] = is_result and dir or nil
   end
   return list
end

-- Removes the results of the run that --overwrite replaces: until the end of this run a reader
-- would take them for its own.
function tuned.remove_old(job)
   for _, dir in ipairs(old_results(job)) do fs.remove_dir(job.name, dir) end
end

-- Returns the model on the null device: of the run that is resumed, or of --from. With
-- --lora.rank or --adapter all of it is frozen but its adapters.
function tuned.model(job)
   local tide, opt = require 'tide', job.opt
   if not opt.from then err.usage(job.name, '--from is needed: the model to train') end
   check_export(job)
   old_results(job)
   local model = tide.model.load(opt.resume and (opt.resume_from or opt.out) or opt.from,
      { dtype = opt.dtype, fp8 = options.fp8(job.name, opt), device = 'null' })
   if not opt.resume then adapt(tide, job, model) end
   freeze(job, model)
   return model:train()
end

-- Reads the weights of --from, and of --adapter, into what plan:materialise gave.
function tuned.fill(job, opt, spread)
   local tide = require 'tide'
   job:check(tide.model.fill, spread, opt.from)
   if opt.adapter then job:check(tide.model.load_adapter, spread, opt.adapter) end
end

-- The checkpoint that counts: the best one, if it is kept, else the last.
function tuned.chosen(opt, run, result)
   local checkpoint = require 'tide.train.checkpoint'
   return run.best and fs.join(opt.out, checkpoint.name(run.best.step)) or result.folder
end

-- Writes the adapters of a checkpoint as a folder for PEFT.
local function export_adapters(job, opt, folder, model)
   local dir, base = fs.join(opt.out, 'adapter'), base_of(opt)
   job:check(require('tide').model.save_adapter, folder, dir, { dtype = opt.dtype, base = base })
   job:print('the adapters of %s are written as %s', folder, dir)
   local refused = require('tide.pretrained.adapter')._refused(model)
   if refused then
      job:print('PEFT refuses adapters of %s in this family, and tide reads them; for PEFT leave '
         .. '%s out of --lora.targets', refused, refused)
   end
   if base and fs.is_dir(base) and not fs.exists(fs.join(base, 'config.json')) then
      job:print('PEFT needs their base as a folder of transformers: tide export %s DIR', base)
   end
end

-- Writes the checkpoint as a published folder, or the adapters of it, on one rank. The published
-- folder has adapters merged that PEFT cannot read.
function tuned.export(job, opt, folder, model)
   if not job.first then return end
   local tide = require 'tide'
   if model.adapter then
      local why, targets = require('tide.pretrained.adapter')._obstacle(model)
      if not why then
         export_adapters(job, opt, folder, model)
         if not opt.export then return end
      else
         job:print('%s; the adapters are merged into the weights%s', why,
            targets and ('; for a folder of adapters, train %s'):format(targets) or '')
      end
   end
   local dir = opt.export or fs.join(opt.out, 'model')
   job:check(tide.model.export, folder, dir, { dtype = opt.dtype, overwrite = true,
      tokenizer = opt.out })
   job:print('%s is written as %s', folder, dir)
end

return tuned
