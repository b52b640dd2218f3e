#!/bin/sh
# Tries the packages of `make deb` as a user would: lintian, a second build, a bare Debian.
#
#   spec/support/deb.sh build/deb        needs root, a Debian mirror and a tree without changes
#
# The bare system is below FOLDER/bare and is kept for the next time.
set -eu
packages=$(cd "$1" && pwd)
bare=$packages/bare
need='lintian debootstrap'
dpkg-query -W $need >/dev/null 2>&1 ||
  env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $need

lintian --allow-root --fail-on error,warning "$packages"/*.deb
echo 'passed: lintian'

# Another folder, the same commit: the same bytes.
again=$packages/again
rm -rf "$again"
git clone -q . "$again"
(cd "$again" && make deb >/dev/null)
for deb in "$packages"/*.deb; do cmp "$deb" "$again/build/deb/${deb##*/}"; done
echo 'passed: built again'

test -e "$bare/done" || {
  debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$bare" >/dev/null
  touch "$bare/done"
}
rm -rf "$bare/tmp/try"
mkdir "$bare/tmp/try"
cp "$packages"/*.deb spec/support/nginx.sh spec/support/rhyme.lua "$bare/tmp/try"
cat >"$bare/tmp/try/try.sh" <<'TRY'
set -eu
export DEBIAN_FRONTEND=noninteractive HOME=/tmp
cd /tmp/try
apt-get update -qq
apt-get install -y -qq --no-install-recommends ./libtide0_*.deb ./lua-tide_*.deb ./tide_*.deb >/dev/null
tide version | grep -q '^tide '
apt-get install -y -qq --no-install-recommends luajit >/dev/null
test "$(printf 'print(require("tide").ones({ 3 }):sum():item())\n' >a.lua; luajit a.lua)" = 3
cat /usr/share/tide/recipes/*.lua >corpus.txt
tide run -n 2 /usr/share/tide/recipes/pretrain.lua --mesh.dp 2 --data corpus.txt --dim 32 \
  --heads 2 --layers 1 --seq 32 --batch 4 --steps 3 --out run 2>&1 | grep 'step 3/3' >/dev/null
apt-get install -y -qq --no-install-recommends ./libtide-dev_*.deb gcc libc6-dev pkg-config >/dev/null
cat >b.c <<'C'
#include <stdio.h>
#include <tide/tide.h>
int main(void) { return puts(tide_version()) < 0; }
C
cc b.c $(pkg-config --cflags --libs tide) -o b
test "$(./b)" = "$(tide version | sed -n 's/^tide \([^ ]*\) .*/\1/p')"
(cd /usr/share/tide/recipes/embed && cc host.c $(pkg-config --cflags --libs tide-host) -o /tmp/try/host &&
  /tmp/try/host) | grep '^in Lua: loss below' >/dev/null
apt-get install -y -qq --no-install-recommends python3-numpy neovim >/dev/null
python3 /usr/share/tide/recipes/embed/host.py | grep '^refused: matmul' >/dev/null
tide run rhyme.lua model
cat >try.vim <<'VIM'
let g:tide_model = '/tmp/try/model'
luafile /usr/share/tide/recipes/embed/neovim.lua
call setline(1, 'one two th')
set virtualedit=onemore
call cursor(1, 11)
TideComplete
lua vim.wait(60000, function() return #vim.fn.getline(1) > 10 end)
write /tmp/try/line
quitall!
VIM
timeout 100 nvim --headless -u NONE -i NONE -S try.vim
test "$(cat line)" = 'one two three four'
# The Lua module of nginx has a LuaJIT of its own: Debian's goes, and libtide-dev with it, until that
# LuaJIT's headers are there.
apt-get install -y -qq --no-install-recommends nginx libnginx-mod-http-lua curl >/dev/null
mkdir nginx
sh nginx.sh /usr /tmp/try/nginx /tmp/try/model
apt-get install -y -qq --no-install-recommends libluajit2-5.1-dev ./libtide-dev_*.deb >/dev/null
(cd /usr/share/tide/recipes/embed && cc host.c $(pkg-config --cflags --libs tide-host) -o /tmp/try/host &&
  /tmp/try/host) | grep '^in Lua: loss below' >/dev/null
apt-get purge -y -qq tide lua-tide libtide0 libtide-dev >/dev/null
test -z "$(find / -xdev -path /tmp -prune -o -path /proc -prune -o -name '*tide*' -print)"
TRY
# A mount namespace of its own: /proc of the bare system is gone with it.
unshare --mount sh -c 'mount -t proc proc "$1/proc" && chroot "$1" sh /tmp/try/try.sh' sh "$bare"
echo 'passed: a bare Debian'
