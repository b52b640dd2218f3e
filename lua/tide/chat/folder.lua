-- The chat template that a model's folder holds, in the forms that published folders have:
-- chat_template.jinja, additional_chat_templates/NAME.jinja, chat_template.json, and the field
-- `chat_template` of tokenizer_config.json (a text, or a list of { name, template }).

local err = require 'tide.util.err'
local field = require 'tide.tokenizer.field'
local fs = require 'tide.util.fs'
local near = require 'tide.util.near'
local sorted_keys = require('tide.util.pretty').sorted_keys

local op = 'chat.load'

local folder = {}

-- Adds the templates of a value (a text, or a list of { name, template }) to `found`.
local function collect(found, path, v)
   if type(v) == 'string' then
      found.default = v
   elseif type(v) == 'table' then
      for i, row in ipairs(v) do
         local is_row = type(row) == 'table' and type(row.name) == 'string'
         err.raise_if(not is_row or type(row.template) ~= 'string', 'E_FORMAT', op,
            '%s: chat_template[%d] is not { name, template }', path, i)
         found[row.name] = row.template
      end
   elseif v ~= nil then
      err.raise('E_FORMAT', op, '%s: chat_template is a %s, neither a text nor a list', path,
         type(v))
   end
end

local function read_optional(path) return fs.size(path) and fs.read_json(op, path) or {} end

-- Returns the templates of a folder by name, and the special tokens that they can use.
function folder.templates(dir)
   err.type(op, 'dir', dir, 'string')
   if not fs.is_dir(dir) then
      err.raise('E_IO', op, '%s is not a folder%s', dir, fs.size(dir)
         and '; tide.chat.find reads a template from a file' or '')
   end
   local found, path = {}, fs.join(dir, 'tokenizer_config.json')
   local config = read_optional(path)
   if config.chat_template ~= fs.io().json.null then collect(found, path, config.chat_template) end
   path = fs.join(dir, 'chat_template.json')
   collect(found, path, read_optional(path).chat_template)
   path = fs.join(dir, 'chat_template.jinja')
   if fs.size(path) then found.default = fs.read(op, path) end
   local more = fs.join(dir, 'additional_chat_templates')
   for _, name in ipairs(fs.is_dir(more) and fs.list(op, more) or {}) do
      local stem = name:match '^(.+)%.jinja$'
      if stem then found[stem] = fs.read(op, fs.join(more, name)) end
   end
   return found, field.token_texts(config, {})
end

-- Returns the template of a folder. name: which of several, e.g. 'tool_use' (default: 'default').
-- E_FORMAT: the folder has no template, or not one of this name.
function folder.load(dir, name)
   local found, tokens = folder.templates(dir)
   local names = sorted_keys(found)
   err.raise_if(#names == 0, 'E_FORMAT', op, '%s has no chat template: neither '
      .. "chat_template.jinja, nor chat_template.json, nor the field 'chat_template' in "
      .. 'tokenizer_config.json', dir)
   local text = found[name or 'default'] or not name and #names == 1 and found[names[1]]
   if not text then
      err.raise('E_FORMAT', op, "%s has no chat template '%s' (it has %s)%s", dir,
         name or 'default', table.concat(names, ', '), near.hint(name or 'default', names))
   end
   return require('tide.chat.template').new(text, tokens)
end

-- Returns the template at a path: a template file, a folder, or the folder above it (a run holds
-- the template of its checkpoints, see util.fs.places); nil if no place has a template. name: which
-- of several; model: folder whose special tokens a template file can use.
function folder.find(path, name, model)
   err.type('chat.find', 'path', path, 'string')
   if not fs.exists(path) then
      err.raise('E_IO', 'chat.find', 'cannot read %s: there is no such file or folder%s', path,
         path:find('{[{%%]') and '; give a file that holds the template' or '')
   elseif not fs.is_dir(path) then
      local _, tokens = nil, {}
      if model and fs.is_dir(model) then _, tokens = folder.templates(model) end
      return require('tide.chat.template').new(fs.read('chat.find', path), tokens)
   end
   for _, dir in ipairs(fs.places(path)) do
      if fs.is_dir(dir) and next((folder.templates(dir))) then return folder.load(dir, name) end
   end
end

return folder
