-- The site of `make docs`: each Markdown file of the tree is on it, and its links lead somewhere.

local files = require 'spec.support.files'
local tmp = require 'spec.support.tmp'

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function run(command)
   local pipe = assert(io.popen('{ ' .. command .. '; } 2>&1; echo "status=$?"'))
   local text, status = pipe:read('*a'):match '^(.*)status=(%d+)%s*$'
   pipe:close()
   return tonumber(status), text
end

if run 'command -v cmark-gfm' ~= 0 then
   pending 'the site needs cmark-gfm'
   return
end

local root = files.lines_of('pwd')[1]
local tree = "find *.md core bindings lua kernels recipes spec -name '*.md'"
local maker = ('luajit %s'):format(quote(root .. '/lua/guide/site.lua'))

describe('the site', function()
   it('has a page for each Markdown file, reached from README, and no link that leads nowhere',
      function()
         tmp.with(function(dir)
            local status, text = run(('%s %s/site'):format(maker, quote(dir)))
            assert.equal(0, status, text)
            for _, path in ipairs(files.lines_of(tree)) do
               local page = path:gsub('README%.md$', 'index.html'):gsub('%.md$', '.html')
               local html = files.read(('%s/site/%s'):format(dir, page))
               assert.matches('<h1 id="', html, 1, true)
            end
            assert.matches('</svg>', files.read(dir .. '/site/lua/guide/loss.svg'), 1, true)
         end)
      end)

   it('is not made where a page links to a file or a heading that is not there', function()
      for link, want in pairs {
         ['a.md'] = false, ['a.md#second-part'] = false, ['#the-first-of-all'] = false,
         ['b.md'] = 'README.md links to b.md, which is not there',
         ['../x.md'] = 'README.md links to ../x.md, which is not there',
         ['a.md#third'] = 'README.md links to a.md#third: no such heading',
      } do
         tmp.with(function(dir)
            files.write(dir .. '/README.md', ('# The first of `all`\n\n[x](%s)\n'):format(link))
            files.write(dir .. '/a.md', '# A & B\n\n## Second part\n\n<script>x</script>\n')
            local status, text = run(('cd %s && %s out'):format(quote(dir), maker))
            assert.equal(want and 1 or 0, status, text)
            if want then assert.equal('site: ' .. want .. '\n', text) end
         end)
      end
   end)
end)
