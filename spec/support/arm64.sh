#!/bin/sh
# Builds tide for AArch64 with Debian's cross compiler and runs specs on an emulated processor.
#
#   spec/support/arm64.sh [JOBS] [SPEC ...]      from the root of the tree
#
# Everything is below build/arm64: `root` holds the arm64 packages, unpacked and not installed;
# `tree` is a copy of this tree with its own build folder, where `tide` and the C specs are scripts
# that start their program on qemu-user; `bin/luajit` is one, too. Installs the compiler and the
# emulator where they are missing (needs root or sudo).
set -eu
arm=$PWD/build/arm64
root=$arm/root
tree=$arm/tree
build=$tree/build
jobs=${1:-2}
test $# -eq 0 || shift
luajit=$(command -v luajit)

need='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user'
if ! dpkg-query -W $need >/dev/null 2>&1; then
  sudo=; test "$(id -u)" = 0 || sudo='sudo -n'
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $need
fi

# The libraries of the other architecture, without adding it to this machine.
if ! test -e "$root/done"; then
  lists=$arm/lists
  mkdir -p "$lists/partial" "$arm/packages" "$root"
  set_arch="-oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists=$lists"
  apt-get -qq $set_arch update
  (cd "$arm/packages" && apt-get -qq $set_arch download libc6:arm64 libgcc-s1:arm64 \
    libgomp1:arm64 luajit:arm64 libluajit-5.1-2:arm64 libluajit-5.1-dev:arm64 \
    libluajit-5.1-common lua-filesystem:arm64 lua-system:arm64 lua-term:arm64 \
    libcmocka0:arm64 libcmocka-dev:arm64 libpcre2-8-0:arm64 libutf8proc2:arm64 \
    libturbojpeg0:arm64 libpng16-16:arm64 libwebp7:arm64 zlib1g:arm64)
  for package in "$arm"/packages/*.deb; do dpkg -x "$package" "$root"; done
  touch "$root/done"
fi

# script PROGRAM AT: a script at AT that starts PROGRAM on the emulator.
script() {
  printf '#!/bin/sh\nexec qemu-aarch64 -L %s %s "$@"\n' "'$root'" "'$1'" >"$2"
  chmod +x "$2"
}

# A program that the build has linked anew is moved aside, and a script takes its place.
wrap() {
  if test "$(head -c 4 "$1" | tail -c 3)" = ELF; then
    mv "$1" "$1.elf"
    script "$1.elf" "$1"
  fi
}

# File times are kept, so that only what changed is compiled again.
mkdir -p "$build" "$arm/bin"
find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
cp -a core bindings lua kernels recipes spec CMakeLists.txt CMakePresets.json Makefile README.md \
  CHANGELOG.md LICENSE .busted .luacheckrc "$tree"

cd "$tree"
export PKG_CONFIG_LIBDIR="$root/usr/lib/aarch64-linux-gnu/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
cmake --preset release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_FIND_ROOT_PATH="$root" \
  -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DTIDE_CUDA=OFF >"$arm/configure.log" \
  || { cat "$arm/configure.log"; exit 1; }
cmake --build build -j "$jobs"
cmake --build build --target specs -j "$jobs"
script "$root/usr/bin/luajit" "$arm/bin/luajit"
wrap "$build/tide"
for program in "$build"/spec/spec_*; do
  case $program in *.elf) ;; *) if test -f "$program"; then wrap "$program"; fi ;; esac
done

export PATH="$arm/bin:$PATH" LUA_CPATH="$root/usr/lib/aarch64-linux-gnu/lua/5.1/?.so;;"
export TIDE_SPEC_SLOW=10
export LUA_PATH='bindings/?.lua;lua/?.lua;lua/?/init.lua;;'
test $# -gt 0 || set -- spec/ffi/compiler_spec.lua spec/op spec/kernel spec/grad spec/comm spec/recipe
exec "$luajit" spec/support/run.lua --build build --jobs "$jobs" --limit 3600 "$@"
