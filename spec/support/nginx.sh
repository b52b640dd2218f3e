#!/bin/sh
# Tries the endpoint of recipes/embed: 4 times 1,000 requests on 4 connections, one in ten malformed.
#
#   spec/support/nginx.sh PREFIX FOLDER MODEL [PORT]     needs nginx with the Lua module, and curl
#
# PREFIX: where tide is installed. FOLDER: an empty one, for logs. All requests are answered, right
# ones with 200 and a text, wrong ones with 400 and an error; the workers do not grow, and the log
# stays empty. A request to workers without a model is answered with 503 and an error.
set -eu
prefix=$1 folder=$2 model=$3 port=${4:-8089}
conf=$folder/nginx.conf
sed -e "s|/usr/share/lua|$prefix/share/lua|; s|127.0.0.1:8080|127.0.0.1:$port|" \
  "$prefix/share/tide/recipes/embed/nginx.conf" >"$conf"
url=http://127.0.0.1:$port/generate
nginx=
trap 'kill $nginx 2>/dev/null || true' EXIT

# Starts nginx with the folder of a model, and waits for its first answer.
start() {
  env -u LUA_PATH TIDE_MODEL="$1" nginx -p "$folder/" -c "$conf" 2>"$folder/said" & nginx=$!
  n=0
  until curl -s -o /dev/null -d '{"prompt": "one ", "tokens": 1}' $url; do
    n=$((n + 1))
    test $n -lt 100 || { cat "$folder/said" "$folder/error.log"; exit 1; }
    sleep 0.1
  done
}

stop() {
  kill -QUIT $nginx
  wait $nginx
}

# A list of N requests for curl; every tenth is wrong, in one of three ways.
requests() {
  i=0
  while [ $i -lt "$1" ]; do
    case $((i % 30)) in
      9) body='{"prompt": "one ", "tok' ;;
      19) body='{"prompt": 7}' ;;
      29) body='{"prompt": "one ", "temperature": -1}' ;;
      *) body="{\"prompt\": \"one \", \"tokens\": 8, \"seed\": $i}" ;;
    esac
    test $i = 0 || echo next
    printf 'url = "%s"\noutput = "%s/out.%d"\nsilent\nwrite-out = "%%{http_code}\\n"\n' $url "$folder" $i
    printf 'data = "%s"\n' "$(printf %s "$body" | sed 's/"/\\"/g')"
    i=$((i + 1))
  done
}

memory() { # of the workers together, in KiB
  for p in $(cat /proc/$nginx/task/$nginx/children); do grep VmRSS /proc/"$p"/status; done |
    awk '{ s += $2 } END { print s }'
}

round() {
  curl --parallel --parallel-max 4 -K "$folder/list" >"$folder/codes" 2>/dev/null
  test "$(grep -c '^200$' "$folder/codes")" = 900
  test "$(grep -c '^400$' "$folder/codes")" = 100
}

start "$model"
requests 1000 >"$folder/list"
round
test "$(grep -l '"text":"two thr' "$folder"/out.* | wc -l)" = 900
test "$(grep -l '"error":' "$folder"/out.* | wc -l)" = 100
round
before=$(memory)
round
round
after=$(memory)
test "$after" -lt $((before + 4096)) || { echo "memory: $before KiB, then $after KiB"; exit 1; }
stop
if test -s "$folder/error.log"; then head -20 "$folder/error.log"; exit 1; fi
start "$folder/nowhere"
test "$(curl -s -o "$folder/out" -w '%{http_code}' -d '{"prompt": "one "}' $url)" = 503
grep -q '^{"error":"no model is loaded' "$folder/out"
stop
grep -q 'init_worker_by_lua error: .*/nowhere' "$folder/error.log"
echo "answered 4 times 1,000 requests; memory of 4 workers: $before KiB, $after KiB at the end"
