-- An endpoint of nginx that continues text: nginx.conf beside this file loads it.
--
--   curl -d '{"prompt": "local function", "tokens": 40}' http://127.0.0.1:8080/generate
--   {"reason":"length","text":" ..."}
--
-- Each worker has a model of its own, loaded after the fork. A token is one piece of work: between
-- tokens the worker attends to its other connections. What a request did wrong is the answer, with
-- status 400; every other error is status 500 and one line in the log.

local ngx = ngx                          -- luacheck: ignore
local tide = require 'tide'
local each = require 'tide.util.each'
local writers = require 'recipes.embed.writer'

local endpoint = {}
local writer

-- Loads the model of this worker.
function endpoint.start(dir)
   tide.set_error_form 'text'            -- nginx logs strings
   writer = writers.open(dir, { threads = 1 })
end

local fields = { prompt = 'string', tokens = 'number', temperature = 'number', seed = 'number' }

-- Returns the request, or nil and what is wrong with it.
local function request_of(body)
   local ok, r = pcall(tide.json.decode, body, { name = 'request', limit = 1e6 })
   if not ok then return nil, r end
   if type(r) ~= 'table' or tide.json.is_array(r) then return nil, 'expected an object' end
   for name, value in each(r) do
      if type(value) ~= fields[name] then
         return nil, fields[name] and ("'%s': expected a %s"):format(name, fields[name])
            or ("'%s' is not known; there are prompt, tokens, temperature, seed"):format(name)
      end
   end
   if not r.prompt then return nil, "'prompt' is missing" end
   return r
end

local function reply(status, value)
   ngx.status = status
   ngx.header.content_type = 'application/json'
   ngx.say(tide.json.encode(value))
end

function endpoint.answer()
   ngx.req.read_body()
   local r, problem = request_of(ngx.req.get_body_data() or '')
   if not r then return reply(400, { error = problem }) end
   r.tokens = math.min(r.tokens or 64, 512)
   r.pause = function() ngx.sleep(0) end
   local ok, text, reason = pcall(writer.continue, writer, r.prompt, r)
   if ok then return reply(200, { text = text, reason = reason }) end
   local e = tide.error_of(text)
   if e and e.code == 'E_ARG' then return reply(400, { error = e.message }) end
   ngx.log(ngx.ERR, text)
   reply(500, { error = 'the log of the server has the cause' })
end

return endpoint
