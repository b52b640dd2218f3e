-- Writes README, the guides and what they link to as a site of plain HTML files:
--
--   luajit lua/guide/site.lua FOLDER      from the root of the tree; needs cmark-gfm
--
-- A page is a Markdown file that README reaches by links, at the same place below FOLDER. Files of
-- other kinds that pages link to are shown as text; pictures are copied. A link to a file or a
-- heading that is not there is an error that names the page.

local site = {}

local function read(path)
   local f = io.open(path, 'rb')
   local text = f and f:read '*a'               -- nil for a folder
   if f then f:close() end
   return text
end

local function write(path, text)
   os.execute(("mkdir -p '%s'"):format(path:match '^(.*)/' or '.'))
   local f = assert(io.open(path, 'wb'))
   assert(f:write(text))
   assert(f:close())
end

-- ---- names ----

-- Returns `path` relative to the file `from`, without . and ..; nil if it leads out of the tree.
local function resolve(from, path)
   local parts = {}
   for part in ((from:match '^(.*)/' or '') .. '/' .. path):gmatch '[^/]+' do
      if part == '..' then
         if not table.remove(parts) then return nil end
      elseif part ~= '.' then
         parts[#parts + 1] = part
      end
   end
   return table.concat(parts, '/')
end

local function is_picture(path) return path:match '%.svg$' or path:match '%.png$' end

-- Returns where the site has a file of the tree.
local function place(path)
   if is_picture(path) then return path end
   local folder = path:match '^(.-)README%.md$'
   return folder and folder .. 'index.html' or (path:gsub('%.md$', '') .. '.html')
end

-- Returns the path from the file `from` of the site to the file `to`.
local function relative(from, to)
   local ups = select(2, from:gsub('/', ''))
   return ('../'):rep(ups) .. to
end

-- ---- one page ----

local escapes = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }

local function plain(html)
   return (html:gsub('<[^>]*>', ''):gsub('&%a+;', { ['&amp;'] = '&', ['&lt;'] = '<',
      ['&gt;'] = '>', ['&quot;'] = '"' }))
end

-- Returns the anchor that source hosts give a heading.
local function slug(text)
   return (text:lower():gsub('[^%w%s_%-\128-\255]', ''):gsub('%s', '-'))
end

-- Gives headings their anchors. Returns the HTML, the set of anchors and the first heading's text.
local function anchored(html)
   local seen, title = {}, nil
   html = html:gsub('<h(%d)>(.-)</h%1>', function(level, text)
      local id = slug(plain(text))
      local n, unique = 0, id
      while seen[unique] do
         n = n + 1
         unique = id .. '-' .. n
      end
      seen[unique] = true
      title = title or plain(text)
      return ('<h%s id="%s">%s</h%s>'):format(level, unique, text, level)
   end)
   return html, seen, title
end

local function to_html(path)
   local pipe = assert(io.popen(("cmark-gfm -e table -e autolink '%s'"):format(path)))
   local html = pipe:read '*a'
   assert(pipe:close(), 'cmark-gfm failed on ' .. path)
   return html
end

-- ---- all pages ----

-- Pages by path: { html, anchors, title, links = { { file, anchor }.. } }, from `first` on.
local function crawl(first)
   local pages, order, problems = {}, { first }, {}
   local i = 0
   while i < #order do
      i = i + 1
      local path = order[i]
      local page = { path = path, links = {} }
      pages[path] = page
      if path:match '%.md$' then
         page.html, page.anchors, page.title = anchored(to_html(path))
      elseif not is_picture(path) then
         local text = read(path):gsub('[&<>"]', escapes)
         page.html = ('<h1>%s</h1>\n<pre>%s</pre>'):format(path, text)
         page.anchors, page.title = {}, path
      end
      page.html = page.html and page.html:gsub('(%f[%w]%l+)="([^"]*)"', function(name, link)
         if name ~= 'href' and name ~= 'src' or link:match '^%l+:' then return nil end
         local target, anchor = link:match '^([^#]*)#?(.*)$'
         local file = target == '' and path or resolve(path, target)
         if file and not read(file) and read(file .. '/README.md') then
            file = file .. '/README.md'
         end
         if not file or not read(file) then
            problems[#problems + 1] = ('%s links to %s, which is not there'):format(path, link)
            return nil
         end
         if not pages[file] then
            pages[file] = {}
            order[#order + 1] = file
         end
         page.links[#page.links + 1] = { file = file, anchor = anchor, link = link }
         return ('%s="%s%s"'):format(name, relative(place(path), place(file)),
            anchor ~= '' and '#' .. anchor or '')
      end)
   end
   return pages, order, problems
end

local function check_anchors(pages, order, problems)
   for _, path in ipairs(order) do
      for _, l in ipairs(pages[path].links) do
         local anchors = pages[l.file].anchors
         if l.anchor ~= '' and not (anchors and anchors[l.anchor]) then
            problems[#problems + 1] = ('%s links to %s: no such heading'):format(path, l.link)
         end
      end
   end
end

local style = [[
:root { color-scheme: light dark; --line: #8884; --code: #8881 }
:root { --link: light-dark(#0b5cad, #7ab8ff) }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; display: flex; flex-wrap: wrap }
nav { flex: 0 0 13rem; padding: 1.2rem; font-size: 14px; border-right: 1px solid var(--line) }
nav ul { list-style: none; padding: 0 0 .6rem } nav b { opacity: .7 }
main { flex: 1 1 30rem; min-width: 0; max-width: 60rem; padding: 1rem 2rem }
a { color: var(--link); text-decoration: none } a:hover { text-decoration: underline }
pre, code { font: 13.5px/1.45 ui-monospace, monospace; background: var(--code); border-radius: 4px }
pre { padding: .8rem; overflow-x: auto } code { padding: .1em .25em }
pre code { padding: 0; background: none }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border: 1px solid var(--line); padding: .25rem .6rem; vertical-align: top }
img { max-width: 100%; background: #fff }
[aria-current] { font-weight: 600 }
]]

-- Returns the list of pages beside the text, with the page `path` marked. groups: { title, path...
-- }.
local function menu(groups, pages, path)
   local out = {}
   for _, g in ipairs(groups) do
      out[#out + 1] = ('<b>%s</b><ul>'):format(g[1])
      for i = 2, #g do
         local title = pages[g[i]].title:gsub('[&<>"]', escapes)
         out[#out + 1] = ('<li><a href="%s"%s>%s</a></li>'):format(relative(place(path),
            place(g[i])), g[i] == path and ' aria-current="page"' or '', title)
      end
      out[#out + 1] = '</ul>'
   end
   return table.concat(out, '\n')
end

local function grouped(order)
   local tide, guides, inside = { 'tide' }, { 'Guides' }, { 'Inside' }
   for _, path in ipairs(order) do
      if path:match '%.md$' then
         local group = path:find '^lua/guide/' and guides or path:find '/' and inside or tide
         group[#group + 1] = path
      end
   end
   return { tide, guides, inside }
end

-- Writes the site of the tree in the current folder below `out`. Returns the number of pages;
-- raises where a link leads nowhere.
function site.write(out)
   local pages, order, problems = crawl 'README.md'
   check_anchors(pages, order, problems)
   if #problems > 0 then error('site: ' .. table.concat(problems, '\n  '), 0) end
   local groups = grouped(order)
   for _, path in ipairs(order) do
      local page, to = pages[path], out .. '/' .. place(path)
      write(to, page.html and ('<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8">\n'
         .. '<meta name="viewport" content="width=device-width">\n<title>%s</title>\n'
         .. '<style>\n%s</style>\n<nav>\n%s</nav>\n<main>\n%s</main></html>\n'):format(page.title,
            style, menu(groups, pages, path), page.html) or read(path))
   end
   return #order
end

if arg and arg[0] and arg[0]:find 'site%.lua$' then
   local out = arg[1] or 'build/docs'
   local ok, count = pcall(site.write, out)
   if not ok then
      io.stderr:write(count, '\n')
      os.exit(1)
   end
   print(('%d files in %s'):format(count, out))
end

return site
