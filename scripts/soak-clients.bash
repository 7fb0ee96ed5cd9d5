# soak-clients.bash: the eight clients of `scripts/soak`.
#
# Each works below $mount/$round (PostgreSQL in $mount/postgres), until `over` says so, and adds a line "NUMBER TIME" to its
# ledger, $ledgers/NAME, whenever something is durable, or a full store refused it. The mount can end at any moment.

# Clients of the program `weir-soak`.
replayed=(pages direct files stream)
clients=("${replayed[@]}" sqlite postgres git fio)

as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups env -C / "$@"; }
ask() { as_postgres psql --no-psqlrc --quiet --tuples-only --no-align --command "$1"; }
start_server() {
  as_postgres pg_ctl --pgdata "$mount/postgres" --log "$PGHOST/log" --wait --timeout 120 \
    --options "-c listen_addresses= -c unix_socket_directories=$PGHOST -c shared_buffers=32MB -c max_wal_size=64MB -c min_wal_size=32MB" \
    start >"$work/pg_ctl.log" 2>&1
}
stop_server() {
  local pid waited
  pid=$(head -n 1 "$PGHOST/.s.PGSQL.5432.lock" 2>/dev/null) || return 0
  kill "-$1" "$pid" 2>/dev/null || true
  for ((waited = 0; waited < 600; waited++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  rm -f "$PGHOST"/.s.PGSQL.5432*
}
make_database() {
  rm -rf "$PGHOST"
  mkdir "$PGHOST" "$mount/postgres"
  chown postgres "$PGHOST" "$mount/postgres"
  as_postgres initdb --data-checksums --username postgres --auth trust --pgdata "$mount/postgres" >"$work/initdb.log"
  start_server
  as_postgres pgbench --initialize --scale 3 --quiet 2>"$work/pgbench.log"
  ask 'create table ledger (number bigint primary key)'
  ask 'create extension amcheck'
}

last_of() { awk 'END { print $1 + 0 }' "$ledgers/$1"; }
note() { while read -r number; do echo "$number $EPOCHREALTIME" >>"$ledgers/$1"; done; }

# One session that commits row after row, until its first error.
postgres_rows() {
  local number=$1
  while ! over && number=$((number + 1)); do
    echo "insert into ledger values ($number) on conflict (number) do update set number = excluded.number returning number;" || return 0
    sleep 0.03
  done
}
postgres_client() {
  local bench=
  while ! over; do
    if ! kill -0 "$bench" 2>/dev/null; then
      as_postgres pgbench --client 2 --rate 40 --time 100000 >>"$work/log/pgbench" 2>&1 &
      bench=$!
    fi
    postgres_rows "$(last_of postgres)" \
      | as_postgres stdbuf -oL psql --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 2>>"$work/log/postgres" \
      | note postgres || true
    over && break
    # A full store stops the server.
    ask 'select 1' >/dev/null 2>&1 || start_server || sleep 1
    echo "$(last_of postgres) $EPOCHREALTIME" >>"$ledgers/postgres"
  done
  kill_tree "$bench" TERM
}

sqlite_rows() {
  local number=$1
  echo 'PRAGMA synchronous=FULL;' || return 0
  while ! over && number=$((number + 1)); do
    echo "INSERT OR REPLACE INTO rows VALUES ($number, printf('%0300d', $number)); SELECT $number;" || return 0
    sleep 0.01
  done
}
sqlite_client() {
  local database=$mount/$round/sqlite/rows.db
  mkdir -p "$mount/$round/sqlite"
  while ! over; do
    sqlite3 -init /dev/null "$database" 'PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, body TEXT)' \
      >/dev/null 2>>"$work/log/sqlite" || { sleep 1; continue; }
    sqlite_rows "$(last_of sqlite)" | stdbuf -oL sqlite3 -batch -bail -init /dev/null "$database" 2>>"$work/log/sqlite" \
      | note sqlite || true
    over || { sleep 0.5; echo "$(last_of sqlite) $EPOCHREALTIME" >>"$ledgers/sqlite"; }
  done
}

git_quiet() {
  git -c user.name=weir -c user.email=weir@localhost -c gc.auto=0 -c safe.directory='*' -c init.defaultBranch=main \
    -c core.fsync=all "$@"
}
make_origin() {
  mkdir "$work/origin"
  for directory in $(seq 20); do
    mkdir "$work/origin/$directory"
    for file in $(seq 20); do seq "$directory" "$((directory * file + 100))" >"$work/origin/$directory/$file.txt"; done
  done
  git_quiet -C "$work/origin" init -q
  git_quiet -C "$work/origin" add .
  git_quiet -C "$work/origin" commit -q -m "Four hundred files"
}
git_commit() {
  seq "$1" $(($1 + 3000)) >"$here/$((1 + $1 % 20))/1.txt"
  git_quiet -C "$here" add . || return 1
  git_quiet -C "$here" commit -q -m "Commit $1" || return 1
  # git syncs the new head of the branch, but not the name that it gets then.
  sync "$here/.git/refs/heads" || return 1
  echo "$1 $EPOCHREALTIME" >>"$ledgers/git"
  [[ $(($1 % 25)) -ne 0 ]] || git_quiet -C "$here" gc -q --prune=now
}
git_client() {
  local here=$mount/$round/git number=0
  while ! over; do
    rm -rf "$here"
    git_quiet clone -q --no-local "$work/origin" "$here" && break
    sleep 1
  done
  while ! over; do
    if git_commit $((number + 1)); then
      number=$((number + 1))
    elif ! over; then
      # A full store.
      sleep 1
      rm -f "$here/.git/index.lock" "$here/.git/HEAD.lock" "$here/.git/refs/heads/main.lock"
      echo "$number $EPOCHREALTIME" >>"$ledgers/git"
    fi
  done
}

# fio reads back what it wrote; runs of ten seconds, so that a run that hangs is seen.
fio_client() {
  local run=0
  mkdir -p "$mount/$round/fio"
  while ! over; do
    run=$((run + 1))
    if fio --name=random --directory="$mount/$round/fio" --rw=randwrite --bsrange=512-16k --bs_unaligned=1 --size=128m --fdatasync=16 \
      --rate_iops=200 --time_based --runtime=8 --verify=crc32c --verify_backlog=256 --verify_fatal=1 --verify_state_save=0 \
      --fallocate=none --output="$work/log/fio.out" 2>>"$work/log/fio"; then
      echo "$run $EPOCHREALTIME" >>"$ledgers/fio"
    elif ! over; then
      grep -qi 'verify: \|verify failed\|bad magic\|bad header' "$work/log/fio" "$work/log/fio.out" \
        && report_failure "fio read other data than it wrote: $(tail -5 "$work/log/fio")"
      echo "$run $EPOCHREALTIME" >>"$ledgers/fio"
      sleep 1
    fi
  done
}

start_clients() {
  local client
  client_pids=()
  rm -rf "$work/log" "$work/filled"
  mkdir "$work/log"
  # Directories of rounds before the last one.
  for directory in "$mount"/[0-9]*; do
    [[ ! -d $directory || ${directory##*/} == $((round - 1)) ]] || rm -rf "$directory"
  done
  mkdir "$mount/$round"
  for client in "${clients[@]}"; do : >"$ledgers/$client"; done
  echo "$(ask 'select coalesce(max(number), 0) from ledger') $EPOCHREALTIME" >"$ledgers/postgres"
  for client in "${replayed[@]}"; do
    "$soak_client" run "$client" "$mount/$round/$client" "$ledgers/$client" "$round_seed" "$work/stop" >"$work/log/$client" 2>&1 &
    client_pids+=($!)
  done
  sqlite_client & client_pids+=($!)
  postgres_client >>"$work/log/postgres" 2>&1 & client_pids+=($!)
  git_client >>"$work/log/git" 2>&1 & client_pids+=($!)
  fio_client & client_pids+=($!)
}
