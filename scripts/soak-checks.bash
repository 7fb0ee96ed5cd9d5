# soak-checks.bash: the checks of `scripts/soak`, while clients write and after a round, and its report.

# --- while clients write ---

# A line of $work/samples every five seconds: time, round, daemon, resident KiB, open files, health, event, and five numbers.
watch_mount() {
  local bad=0 old=0 status health numbers
  while sleep 5; do
    over && continue
    if ! status=$(timeout 60 "$weir" status --json "$mount" 2>"$work/status.err"); then
      over || report_failure "no status: $(cat "$work/status.err")"
      continue
    fi
    health=$(jq -r .health <<<"$status")
    numbers=$(jq -r '"\(.epoch.behind_ms) \(.epoch.given_up) \(.space.available_bytes) \(.counters.store.blocks_written) \(.counters.buffer_bytes_written)"' \
      <<<"$status")
    echo "$EPOCHREALTIME $round $daemon $(awk '/^VmRSS:/ { print $2 }' "/proc/$daemon/status") $(ls "/proc/$daemon/fd" | wc -l)" \
      "$health $(head -n 1 "$work/event") $numbers" >>"$work/samples" 2>/dev/null || continue
    case $health in
      ok) bad=0 ;;
      read-only) report_failure "the mount is read-only: $(jq -r .failed <<<"$status")" ;;
      *)
        echo "$EPOCHREALTIME $round $health $(head -n 1 "$work/event") $(jq -c '[.stalled, .stuck, .not_rescued, .space]' <<<"$status")" >>"$work/unhealthy"
        # In a full store some changes wait for space.
        [[ -e $work/full ]] || bad=$((bad + 5)) ;;
    esac
    [[ $bad -lt $unhealthy ]] || report_failure "$health for $bad s: $(tail -n 1 "$work/unhealthy")"
    # What the loss of the buffer would cost, as long as there is space for epochs.
    if jq -e ".epoch.behind_ms < 4000 * $every or .space.available_bytes < .space.usable_bytes / 4" <<<"$status" >/dev/null; then
      old=0
    else
      old=$((old + 5))
    fi
    [[ $old -lt $unhealthy ]] || report_failure "no new epoch for long: $(jq -c .epoch <<<"$status")"
    find_hanging_clients
  done
}

find_hanging_clients() {
  local client age
  for client in "${clients[@]}"; do
    age=$(($(date +%s) - $(stat -c %Y "$ledgers/$client")))
    [[ $age -lt $hang ]] || report_failure "$client had no answer for $age s"
  done
}

# A client that ends at an error begins anew, and notes the error. Only a full store may give one.
find_errors_of_clients() {
  local client
  [[ ! -e $work/filled ]] || return 0
  for client in "${replayed[@]}" sqlite postgres git; do
    [[ ! -s $work/log/$client ]] || report_failure "$client had an error: $(head -n 3 "$work/log/$client")"
  done
}

# --- after a round ---

# Resident memory may reach --memory and 128 MiB more. In a round of five minutes and more, the most of the last quarter may be a tenth
# of that above the most of the second, and 8 more open files. The median would tell less: memory sinks now and then, as when the
# store stalls.
judge_memory() {
  local allowed=$(((memory_mib + 128) * 1024)) quarter peak early late files_early files_late
  awk -v round="$round" '$2 == round { print $4, $5 }' "$work/samples" >"$work/life"
  quarter=$(($(wc -l <"$work/life") / 4))
  peak=$(cut -d' ' -f1 "$work/life" | most)
  [[ ${peak:-0} -le $allowed ]] || die "the daemon had $peak KiB, and may have $allowed"
  [[ $quarter -ge 12 ]] || return 0
  early=$(sed -n "$quarter,$((2 * quarter))p" "$work/life" | cut -d' ' -f1 | most)
  late=$(tail -n "$quarter" "$work/life" | cut -d' ' -f1 | most)
  files_early=$(sed -n "$quarter,$((2 * quarter))p" "$work/life" | cut -d' ' -f2 | most)
  files_late=$(tail -n "$quarter" "$work/life" | cut -d' ' -f2 | most)
  [[ $((late - early)) -le $((allowed / 10)) ]] || die "the daemon grew from $early to $late KiB"
  [[ $files_late -le $((files_early + 8)) ]] || die "the daemon had $files_early open files, and then $files_late"
}

# Whether an epoch was taken since the last verification, so that a lost buffer leads back into this round.
epoch_is_young() {
  "$weir" status --json "$mount" | jq -e --argjson now "$(now)" --argjson settled "${settled_at:-0}" \
    '.epoch.age_ms != null and $now - .epoch.age_ms / 1000 > $settled + 2' >/dev/null
}

# All data, as of the end of the round, or as of the moment that the mount names. Sets $as_of.
verify_all() {
  local since=9999999999 until=9999999999 moment
  as_of=
  if [[ $ending == *lost* ]]; then
    moment=$(sed -n 's/.*volume main is as of \([^ ]*\) now.*/\1/p' "$work/mounted" | tail -n 1)
    [[ -n $moment ]] || die "the mount does not say as of when it is: $(cat "$work/mounted")"
    since=$(date -d "$moment" +%s)
    # The moment has no fractions, and an epoch takes a while under load.
    until=$((since + 5))
    as_of=", as of $(awk -v killed="$killed" -v since="$since" 'BEGIN { printf "%.1f", killed - since }') s before the kill"
  fi
  # A kill may have come before the writer that fills the store had removed its file.
  rm -f "$mount/fill"
  wait_for_space
  plant before-verification
  verify_round "$mount/$round" "$since" "$until" >"$work/found" 2>&1 || die "after $ending$as_of: $(cat "$work/found")"
  start_server || die "PostgreSQL does not start: $(tail -n 5 "$PGHOST/log")"
  plant before-database
  verify_database "$since" >"$work/found" 2>&1 || die "after $ending$as_of: $(cat "$work/found")"
  verify_settled
  verify_snapshots "$since"
  delete_other_volumes
  fingerprint "$mount/$round" >"$work/settled" || die "round $round cannot be read whole"
  settled=$round settled_at=$(now)
}

# acknowledged CLIENT TIME: the last line of its ledger up to TIME.
acknowledged() { awk -v time="$2" '$2 <= time { line = $0 } END { print line }' "$ledgers/$1"; }

# verify_round DIRECTORY SINCE UNTIL: the clients' data, as of a moment between the two. Prints what is wrong.
verify_round() {
  local client
  for client in "${replayed[@]}"; do
    "$soak_client" verify "$client" "$1/$client" "$ledgers/$client" "$round_seed" "$2" "$3" >>"$work/log/verified" || return 1
  done
  verify_sqlite "$1/sqlite" "$2" || return 1
  verify_git "$1/git" "$2" || return 1
}

# Row 1 is the first, so as many rows as the number of the newest are all of them.
verify_sqlite() {
  local line rows newest
  line=$(acknowledged sqlite "$2")
  [[ -n $line ]] || return 0
  # SQLite writes to what it reads, and a snapshot cannot be written.
  rm -rf "$work/copy"
  cp -r "$1" "$work/copy" || return 1
  [[ $(sqlite3 -init /dev/null "$work/copy/rows.db" 'PRAGMA integrity_check' 2>&1) == ok ]] || { echo "SQLite: integrity_check"; return 1; }
  rows=$(sqlite3 -init /dev/null "$work/copy/rows.db" \
    "SELECT count(*) || ' ' || coalesce(max(n), 0) FROM rows WHERE body = printf('%0300d', n)") || return 1
  newest=${rows#* }
  [[ ${rows% *} == "$newest" ]] || { echo "SQLite: rows are missing before row $newest: ${rows% *} are there"; return 1; }
  [[ $newest -ge ${line%% *} ]] || { echo "SQLite: row ${line%% *} was committed, and $newest is the newest"; return 1; }
}

verify_git() {
  local line newest
  line=$(acknowledged git "$2")
  [[ -n $line ]] || return 0
  git_quiet -C "$1" fsck --strict --full --no-progress || { echo "git fsck"; return 1; }
  newest=$(git_quiet -C "$1" log -1 --format=%s | sed -n 's/^Commit //p')
  [[ ${newest:-0} -ge ${line%% *} ]] || { echo "git: commit ${line%% *} was made, and ${newest:-none} is the newest"; return 1; }
}

# verify_database SINCE
verify_database() {
  local line newest rows
  line=$(acknowledged postgres "$1")
  newest=$(ask 'select coalesce(max(number), 0) from ledger') || return 1
  rows=$(ask 'select count(*) from ledger') || return 1
  [[ $rows == "$newest" ]] || { echo "PostgreSQL: rows are missing before row $newest: $rows are there"; return 1; }
  [[ $newest -ge ${line%% *} ]] || { echo "PostgreSQL: row ${line%% *} was committed, and $newest is the newest"; return 1; }
  as_postgres pg_amcheck --database postgres --heapallindexed || return 1
}

# Names and checksums of everything below a directory.
fingerprint() { (cd "$1" && find . -path ./fio -prune -o -type f -print0 | sort -z | xargs -0 sha256sum); }

# What was verified at the end of the round before has not changed since.
verify_settled() {
  [[ -n $settled ]] || return 0
  fingerprint "$mount/$settled" 2>&1 | diff "$work/settled" - >"$work/error" \
    || die "round $settled, which was verified before, changed: $(head -n 5 "$work/error")"
}

# verify_snapshots SINCE: every snapshot that a command made is there. A lost buffer may take those with it that are newer than the epoch.
verify_snapshots() {
  local name made
  "$weir" volume list --json "$mount" | jq -r '.[].name' >"$work/volumes"
  for name in $(ls "$work/snapshots"); do
    grep -qx -- "$name" "$work/volumes" && continue
    made=$(head -n 1 "$work/snapshots/$name" | cut -d' ' -f2)
    [[ ${made%.*} -ge $1 ]] || die "snapshot $name is missing"
    rm "$work/snapshots/$name"
  done
}

# What a lost buffer leaves beside the restored volume, and snapshots whose making or deletion a kill has cut off.
delete_other_volumes() {
  local name
  for name in $(grep -e -damaged- -e '^s[0-9]' "$work/volumes"); do
    [[ -e $work/snapshots/$name ]] || "$weir" volume delete "$mount" "$name" >/dev/null || die "volume $name cannot be deleted"
  done
}

wait_for_space() {
  local waited
  for ((waited = 0; waited < 120; waited++)); do
    "$weir" status --json "$mount" | jq -e '.space.freeing or .space.available_bytes < .space.usable_bytes / 16' >/dev/null || return 0
    sleep 1
  done
  die "the space of deleted data is not free after 120 s"
}

# --- at the end of a store ---

# The store must count as many bytes as the files hold, and none once they are removed. Each end of a daemon replaces the epoch, which keeps
# what was overwritten.
end_store() {
  local name held counted left slack=$((8 << 20))
  stop_server INT
  # Snapshots, and epochs to which a lost buffer has led back: weir keeps these although there are newer ones.
  "$weir" volume list --json "$mount" \
    | jq -r '.[] | select(.name != "main" and ((.name | startswith("epoch-")) and .from == "main" | not)) | .name' >"$work/volumes"
  for name in $(cat "$work/volumes"); do
    "$weir" volume delete "$mount" "$name" >/dev/null || die "volume $name cannot be deleted"
  done
  rm -f "$work/snapshots"/*
  unmount_main
  mount_main
  wait_for_space
  held=$(du -s --block-size=1 "$mount" | cut -f1)
  counted=$("$weir" space --exact --json "$mount" | jq '.by_volume[] | select(.name == "main") | .exclusive_bytes + .shared_bytes')
  rm -rf "${mount:?}"/*
  plant after-removal
  unmount_main
  mount_main
  wait_for_space
  left=$("$weir" space --exact --json "$mount" | jq .data_bytes)
  echo "$held $counted $left" >>"$work/leaks"
  [[ $counted -le $((held + held / 16 + slack)) ]] || die "the store counts $counted bytes for files of $held bytes"
  [[ $left -le $slack ]] || die "an empty volume has $left bytes"
  unmount_main
  settled=
}

# --- planted damage ---

# The damage that `--planted` does, each with a part of the message that must follow.
declare -A planted=(
  [page]='pages: ' [name]='files: ' [stream]='stream: ' [row]='SQLite: rows are missing' [database]='PostgreSQL: rows are missing'
  [commit]='was made, and' [settled]='changed: ' [snapshot]='is missing' [block]='weir check: ' [leak]='an empty volume has'
  [hang]='had no answer for' [error]='had an error'
)

find_planted_damage() {
  local plant said kept
  for plant in "${!planted[@]}"; do
    said=$(PLANT=$plant scripts/soak 0.025 2>&1 || true)
    kept=$(sed -n 's/^kept below \(.*weir-soak[^:]*\):.*/\1/p' <<<"$said")
    [[ -z $kept ]] || rm -rf "$kept"
    grep -qF -- "${planted[$plant]}" <<<"$said" || { echo "$said"; fail "$plant was not found"; }
    echo "$plant: found"
  done
}

# plant WHEN: breaks what $PLANT names, if this is its moment.
plant() {
  local files offset
  case "$1 ${PLANT:-nothing}" in
    "while-clients-write hang") kill -STOP "${client_pids[0]}" ;;
    "while-clients-write error") (sleep 5 && rm -rf "$mount/$round/git/.git/objects") & ;;
    "while-not-mounted block")
      for offset in {16..400..16}; do
        dd if=/dev/urandom of="$work/disk/store" bs=64k count=1 oseek="${offset}M" oflag=seek_bytes conv=notrunc 2>"$work/error"
      done ;;
    "before-verification page") printf X | dd of="$mount/$round/pages/pages" bs=1 seek=12345 conv=notrunc 2>"$work/error" ;;
    "before-verification name") files=("$mount/$round/files/3"/*) && rm "${files[0]}" ;;
    "before-verification stream") files=("$mount/$round/stream"/*.whole) && rm "${files[-1]}" ;;
    "before-verification row") sqlite3 -init /dev/null "$mount/$round/sqlite/rows.db" 'DELETE FROM rows WHERE n = 3' ;;
    "before-verification commit") git_quiet -C "$mount/$round/git" reset -q --hard HEAD~2 ;;
    "before-verification settled") [[ -z $settled ]] || echo >>"$mount/$settled/stream/1.whole" ;;
    "before-verification snapshot") echo "0 0" >"$work/snapshots/never-made" ;;
    "before-database database") ask 'delete from ledger where number = 3' ;;
    "after-removal leak") head -c 20M /dev/urandom >"$mount/forgotten" ;;
  esac
}

# --- the report ---

most() { sort -n | tail -n 1; }

# A line of $work/pauses for each client: the longest time between two lines of its ledger, and the longest beside stalls and full stores.
note_longest_pauses() {
  local client
  for client in "${clients[@]}"; do
    awk -v client="$client" -v events="$work/events" '
      BEGIN { while ((getline < events) > 0) if ($3 ~ /stall|fill/) { from[count] = $1; to[count++] = $2 } }
      NR > 1 {
        pause = $2 - last
        meets = 0
        for (i = 0; i < count; i++) if (from[i] < $2 && to[i] > last) meets = 1
        if (pause > longest) longest = pause
        if (!meets && pause > calm) calm = pause
      }
      { last = $2 }
      END { print client, longest + 0, calm + 0 }' "$ledgers/$client"
  done >>"$work/pauses"
}

count_kinds() { sort | uniq -c | awk '{ count = $1; $1 = ""; printf "%s%s %d", separator, $0, count; separator = ";" } END { print "" }'; }

report() {
  echo "time:    $((SECONDS - begun)) s of $seconds, $round rounds, seed $seed"
  echo "ends:   $(count_kinds <"$work/ends")"
  echo "events: $(cut -d' ' -f3 "$work/events" | count_kinds) (-cut: ended by a kill)"
  awk '{ if ($4 > most) most = $4; if ($5 > files) files = $5; if (NR == 1) first = $4; last = $4 }
    END { printf "memory:  %d MiB resident in the first sample, %d in the last, %d at most; %d open files at most\n", first / 1024, last / 1024, most / 1024, files
    }' "$work/samples"
  # Each daemon counts from 0.
  awk '{ blocks[$2] = $11; bytes[$2] = $12 }
    END { for (i in blocks) { store += blocks[i] * 4096; buffer += bytes[i] }
      printf "written: %.1f GiB to the store, %.1f GiB to the buffer\n", store / 2 ^ 30, buffer / 2 ^ 30 }' "$work/samples"
  awk '{ printf "space:   files held %d MiB, the store counted %d MiB; %d KiB were left without them\n", $1 / 2 ^ 20, $2 / 2 ^ 20, $3 / 1024 }' "$work/leaks"
  awk '{ count[$3 " during " $4]++ } END { for (health in count) printf "health:  %s in %d samples\n", health, count[health] }' "$work/unhealthy"
  echo "pauses:  the longest in seconds between two answers to a client, and the longest without a stall or a full store"
  awk '{ if ($2 > longest[$1]) longest[$1] = $2; if ($3 > calm[$1]) calm[$1] = $3 }
    END { for (client in longest) printf "  %-9s %6.1f %6.1f\n", client, longest[client], calm[client] }' "$work/pauses" | sort
}
