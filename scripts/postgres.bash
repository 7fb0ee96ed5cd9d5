# postgres.bash: for scripts that kill weir under PostgreSQL. They set $work, and $mount below it, and source this.
#
#   make_cluster            makes a cluster in $mount/postgres with pgbench's tables and a table `ledger`, and starts its server
#   start_server            starts the server
#   stop_server             ends the server as a crash does, if it runs
#   end_server              ends the server in order
#   ask SQL                 prints the result of a query
#   start_load              starts pgbench, and a client that commits rows with the next numbers to `ledger` and notes in
#                           $work/committed the number of each committed row, and the time
#   stop_load               ends both
#   missing_rows            prints how many rows are missing from `ledger` before its newest
#   noted_at NUMBER         prints when this row was committed; if it was not noted, the one before
#   forget_lost_rows NEWEST takes those after NEWEST off the notes
#
# The socket and the server's log are in $work/server. A script that sources this calls stop_server and stop_load in its EXIT trap:
# without a server the clients end, too.

PATH=$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' :)
export PGHOST=$work/server PGUSER=postgres PGDATABASE=postgres
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups env -C / "$@"; }
ask() { as_postgres psql --no-psqlrc --quiet --tuples-only --no-align --command "$1"; }

make_cluster() {
  mkdir "$PGHOST" "$mount/postgres"
  chown postgres "$PGHOST" "$mount/postgres"
  as_postgres initdb --data-checksums --username postgres --auth trust --pgdata "$mount/postgres" >"$work/initdb.log"
  start_server
  as_postgres pgbench --initialize --scale 5 --quiet 2>"$work/pgbench.log"
  ask 'create table ledger (number bigint primary key)'
  ask 'create extension amcheck'
  echo "0 0" >"$work/committed"
}

start_server() {
  as_postgres pg_ctl --pgdata "$mount/postgres" --log "$PGHOST/log" --wait --timeout 120 \
    --options "-c listen_addresses= -c unix_socket_directories=$PGHOST -c shared_buffers=64MB -c max_wal_size=128MB" \
    start >"$work/pg_ctl.log" 2>&1
}

stop_server() {
  local pid
  pid=$(head -n 1 "$PGHOST/.s.PGSQL.5432.lock" 2>/dev/null) || return 0
  kill -QUIT "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  rm -f "$PGHOST"/.s.PGSQL.5432*
}

end_server() { as_postgres pg_ctl --pgdata "$mount/postgres" --mode fast stop >>"$work/pg_ctl.log"; }

# psql prints a number once its transaction is committed.
write_ledger() {
  seq "$1" 1000000 | sed 's/.*/insert into ledger values (&) returning number;/' \
    | as_postgres psql --no-psqlrc --quiet --tuples-only --no-align -v ON_ERROR_STOP=1 2>/dev/null \
    | while read -r number; do echo "$number ${EPOCHREALTIME/,/.}"; done >>"$work/committed"
}

start_load() {
  local newest
  newest=$(ask 'select coalesce(max(number), 0) from ledger')
  # The row on its way when the daemon died may have been committed without anybody having been told.
  grep -q "^$newest " "$work/committed" || echo "$newest ${EPOCHREALTIME/,/.}" >>"$work/committed"
  write_ledger $((newest + 1)) &
  as_postgres pgbench --client 4 --time 60 >>"$work/pgbench.log" 2>&1 &
}

stop_load() {
  # shellcheck disable=SC2046
  kill $(jobs -p) 2>/dev/null || true
  wait
}

missing_rows() {
  ask 'select count(*) from generate_series(1, (select max(number) from ledger)) n where n not in (select number from ledger)'
}

noted_at() { awk -v number="$1" '$1 <= number { at = $2 } END { print at }' "$work/committed"; }

forget_lost_rows() { sed -i "/^[0-9]* /{ /^$1 /q }" "$work/committed"; }
