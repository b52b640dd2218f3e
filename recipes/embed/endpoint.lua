-- An endpoint of nginx that continues text: nginx.conf beside this file loads it.
--
--   curl -d '{"prompt": "local function", "tokens": 40}' http://127.0.0.1:8080/generate
--   {"reason":"length","text":" ..."}
--
-- Each worker has a model of its own, loaded after the fork. After some milliseconds of work,
-- between two tokens, the worker attends to its other connections. What a request did wrong is the
-- answer, with status 400; every other error is status 500 and one line in the log.

local ngx = ngx                          -- luacheck: ignore
local tide = require 'tide'
local each = require 'tide.util.each'
local writers = require 'recipes.embed.writer'

local endpoint = {}
local writer

-- Seconds that an answer keeps the worker to itself, and that it waits then for its next turn.
-- nginx without OpenResty's patch writes a warning for each wait of 0.
local turn, rest = 5e-3, 1e-3

-- Loads the model of this worker.
function endpoint.start(dir)
   tide.set_error_form 'text'            -- nginx logs strings
   if not dir then
      error('TIDE_MODEL is not set: expected the folder of a model, e.g. a run of pretrain.lua', 0)
   end
   writer = writers.open(dir, { threads = 1 })
end

local fields = { prompt = 'string', tokens = 'number', temperature = 'number', seed = 'number' }

-- Returns the request, or nil and what is wrong with it.
local function request_of(body)
   local ok, r = pcall(tide.json.decode, body, { name = 'request', limit = 1e6 })
   if not ok then return nil, tide.error_of(r).message end
   if type(r) ~= 'table' or r == tide.json.null or tide.json.is_array(r) then
      return nil, 'expected an object'
   end
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

-- Lets the worker serve its other connections from time to time. Call it between two tokens.
local function pauses()
   local began = tide.clock()
   return function()
      if tide.clock() - began < turn then return end
      ngx.sleep(rest)
      began = tide.clock()
   end
end

function endpoint.answer()
   if not writer then
      return reply(503, { error = 'no model is loaded; the log of the server has the cause' })
   end
   ngx.req.read_body()
   local r, problem = request_of(ngx.req.get_body_data() or '')
   if not r then return reply(400, { error = problem }) end
   r.tokens = math.min(r.tokens or 64, 512)
   r.pause = pauses()
   local ok, text, reason = pcall(writer.continue, writer, r.prompt, r)
   if ok then return reply(200, { text = text, reason = reason }) end
   local e = tide.error_of(text)
   if e and e.code == 'E_ARG' then return reply(400, { error = e.message }) end
   ngx.log(ngx.ERR, text)
   reply(500, { error = 'the log of the server has the cause' })
end

return endpoint
