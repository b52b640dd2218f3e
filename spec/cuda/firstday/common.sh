# Sourced by a, b, c and d: the environment of a packed folder or of a tree, and tasks with limits.
#
# Variables: OUT, folder of what a script writes (./out); LIMIT, seconds of the whole script;
# ONLY, an extended regular expression of the tasks to run; JOBS, tasks at a time.

firstday=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$firstday/../../.." && pwd)
out=${OUT:-$PWD/out}/$(basename "$0")
deadline=$((SECONDS + ${LIMIT:-540}))
jobs=${JOBS:-$(nproc)}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
: >"$out/summary.txt"
cd "$root" || exit 2

say() { echo "$*" | tee -a "$out/summary.txt"; }
fail() { say "$(basename "$0"): $*"; exit 2; }

# The folder of a library of CUDA: the loader's, a toolkit's, a Python package's.
folder_of() {
  local d
  for d in "$root/build" ${CUDA_LIBRARIES:-} /usr/local/cuda*/lib64 \
           /usr/local/cuda*/targets/x86_64-linux/lib \
           $(ldconfig -p 2>/dev/null | sed -n "s|.* => \(/.*\)/$1\$|\1|p") \
           $(python3 -c 'import nvidia, os
for p in nvidia.__path__:
    for q in sorted(os.listdir(p)): print(os.path.join(p, q, "lib"))' 2>/dev/null); do
    [ ! -e "$d/$1" ] || { echo "$d"; return; }
  done
}

cublas=$(folder_of libcublasLt.so.13) nccl=$(folder_of libnccl.so.2)
export LD_LIBRARY_PATH="$root/build:$root/lib${cublas:+:$cublas}${nccl:+:$nccl}:${LD_LIBRARY_PATH:-}"
export LUA_PATH="bindings/?.lua;lua/?.lua;lua/?/init.lua;share/lua/?.lua;share/lua/?/init.lua;./?.lua;;"
export LUA_CPATH="$root/lib/lua/?.so;;" TIDE_SPEC_DEVICE=cuda TIDE_WIDE=1 OMP_WAIT_POLICY=passive
luajit=luajit busted=$(command -v busted)
if [ -x "$root/bin/luajit" ]; then luajit=$root/bin/luajit busted=$root/bin/busted; fi
command -v "$luajit" >/dev/null && [ -n "$busted" ] ||
  fail 'luajit and busted are missing: bring a folder of make gpu-pack, or run make deps'

gpus=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader \
  2>/dev/null) || gpus=
capability=${TIDE_CAPABILITY:-$(echo "$gpus" | sed -n '1s/^[^,]*, \([0-9]*\)\.\([0-9]*\),.*/\1\2/p')}
ngpu=$(echo "$gpus" | grep -c .)

# What the script needs, and what is there.
needs() {
  say "$(basename "$0") needs: $*"
  say "here: ${gpus:-no nvidia-smi}; cuBLASLt: ${cublas:-not found}; NCCL: ${nccl:-not found};" \
      "luajit: $(command -v "$luajit")"
  [ -n "$cublas" ] || fail 'libcublasLt.so.13 was not found; name its folder in CUDA_LIBRARIES'
}

nfailed=0 nrun=0 names=()

# task NAME SECONDS COMMAND...: runs it in the background, at most $jobs at a time. Its output is
# NAME.log; check_NAME's verdict and the exit status decide.
task() {
  local name=$1 limit=$2 left=$((deadline - SECONDS))
  shift 2
  [[ $name =~ ${ONLY:-.} ]] || return 0
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n 2>/dev/null; done
  left=$((deadline - SECONDS))
  names+=("$name")
  if [ "$left" -le 0 ]; then echo 'not run: the time of the script is over' >"$out/$name.rc"; return; fi
  (
    begin=$SECONDS
    timeout -k 5 $((limit < left ? limit : left)) "$@" >"$out/$name.log" 2>&1
    rc=$?
    note=
    [ $rc -ne 124 ] || note=', out of time'
    if grep -q '^1\.\.[0-9]' "$out/$name.log"; then
      good=$(grep -c '^ok ' "$out/$name.log") bad=$(grep -c '^not ok ' "$out/$name.log")
      note="$note, $good passed, $bad failed"
      [ $((good + bad)) -gt 0 ] || { rc=1; note="$note, nothing ran"; }
    elif [[ " $* " == *" $busted "* ]]; then
      [ $rc -ne 0 ] || rc=1
      note="$note, ended early"
    fi
    echo "$rc" >"$out/$name.rc"
    echo "$name: $([ $rc = 0 ] && echo ok || echo "FAILED ($rc)")$note, $((SECONDS - begin)) s" |
      tee -a "$out/summary.txt"
  ) &
}

# spec NAME SECONDS FILE...: the cases of spec files.
spec() {
  local name=$1 limit=$2
  shift 2
  task "$name" "$limit" "$luajit" "$busted" -v -o TAP "$@"
}

# Waits for all tasks; shows what failed; ends the script with 0 only if all passed.
finish() {
  wait
  for name in "${names[@]}"; do
    nrun=$((nrun + 1))
    [ "$(cat "$out/$name.rc" 2>/dev/null)" = 0 ] && continue
    nfailed=$((nfailed + 1))
    echo "--- $name: $(cat "$out/$name.rc" 2>/dev/null || echo 'did not end')"
    grep -A 8 '^not ok' "$out/$name.log" 2>/dev/null | head -40 || true
    tail -n 5 "$out/$name.log" 2>/dev/null
  done
  [ "$nrun" -gt 0 ] || fail "no task is called '${ONLY:-}'"
  say "$(basename "$0"): $((nrun - nfailed)) of $nrun passed; all of it is in $out"
  [ "$nfailed" = 0 ]
  exit
}
