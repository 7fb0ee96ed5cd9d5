# soak-events.bash: what `scripts/soak` does to a mounted store while its clients write. A file in $work/snapshots stands for each
# snapshot: when it was made, the round, and the checksums of what it has.

# try COMMAND...: its failure is the soak's, unless the daemon was killed meanwhile.
try() {
  timeout 300 "$@" >"$work/event.out" 2>&1 && return
  local status=$?
  excused || report_failure "$* ended with status $status: $(tail -5 "$work/event.out")"
  return 1
}

mount_snapshot() { try "$weir" mount --volume "$1" "$work/store" "$work/snapshot"; }
unmount_snapshot() { try "$weir" unmount "$work/snapshot"; }

event_snapshot() {
  local name=s$round-$1 since until
  [[ $(ls "$work/snapshots" | wc -l) -lt 4 ]] || { event_delete; return; }
  since=$(now)
  try "$weir" volume clone "$mount" "$name" --read-only || return 1
  until=$(now)
  echo "$since $until" >"$work/snapshots/$name"
  mount_snapshot "$name" || return 1
  if ! verify_round "$work/snapshot/$round" "$since" "$until" >"$work/event.out" 2>&1; then
    excused || report_failure "snapshot $name of $since to $until: $(cat "$work/event.out")"
    return 1
  fi
  fingerprint "$work/snapshot/$round" >"$work/fingerprint" 2>"$work/event.out" || { excused || report_failure "snapshot $name: $(cat "$work/event.out")"; return 1; }
  unmount_snapshot || return 1
  echo "$round" >>"$work/snapshots/$name"
  cat "$work/fingerprint" >>"$work/snapshots/$name"
}
a_snapshot() { ls "$work/snapshots" | shuf -n 1 --random-source=<(yes $RANDOM); }
event_reread() {
  local name directory
  name=$(a_snapshot)
  [[ -n $name && $(wc -l <"$work/snapshots/$name") -gt 2 ]] || return 0
  directory=$(sed -n 2p "$work/snapshots/$name")
  mount_snapshot "$name" || return 1
  if ! fingerprint "$work/snapshot/$directory" 2>&1 | diff <(tail -n +3 "$work/snapshots/$name") - >"$work/event.out"; then
    excused || report_failure "snapshot $name changed: $(head -5 "$work/event.out")"
    return 1
  fi
  unmount_snapshot
}
event_delete() {
  local name
  name=$(a_snapshot)
  [[ -n $name ]] || return 0
  rm "$work/snapshots/$name"
  try "$weir" volume delete "$mount" "$name"
}
event_grow_store() {
  local size=$(($(stat -c %s "$work/disk/store") / 1048576 + 64 + RANDOM % 256))
  [[ $size -gt $store_mib_most ]] || try "$weir" grow --size "${size}MiB" "$mount"
}
event_grow_buffer() {
  local size=$(($(stat -c %s "$work/store/buffer") / 1048576 + 8 + RANDOM % 32))
  [[ $size -gt $buffer_mib_most ]] || try "$weir" grow --buffer --size "${size}MiB" "$mount"
}
event_scrub() { try "$weir" scrub --rate "$((20 + RANDOM % 200))MiB" "$mount"; }
event_tune() {
  local settings=("--data journal" "--data ordered" "--policy all" "--policy none")
  # shellcheck disable=SC2086
  try "$weir" tune ${settings[RANDOM % 4]} "$mount"
}
event_ask() { try "$weir" why "$mount" && try "$weir" space --exact "$mount" && try "$weir" sync "$mount"; }
event_stall() {
  local stalled=$((1 + RANDOM % 8))
  fsfreeze --freeze "$work/disk"
  sleep "$stalled"
  fsfreeze --unfreeze "$work/disk"
}
# Writes until there is no space, and removes that again. The space must come back.
event_fill() {
  local status=0 waited
  touch "$work/full" "$work/filled"
  LC_ALL=C timeout 300 dd if=/dev/urandom "of=$mount/fill" bs=1M conv=fsync >"$work/event.out" 2>&1 || status=$?
  sleep $((RANDOM % 5))
  if ! grep -q 'No space left' "$work/event.out"; then
    excused || report_failure "a writer without end stopped with status $status: $(cat "$work/event.out")"
    return 1
  fi
  try rm "$mount/fill" || return 1
  for ((waited = 0; waited < 60; waited++)); do
    "$weir" status --json "$mount" 2>/dev/null | jq -e '.space.available_bytes > .space.usable_bytes / 8' >/dev/null && break
    excused && return 1
    sleep 1
  done
  [[ $waited -lt 60 ]] || { excused || report_failure "no space 60 s after the file was removed"; return 1; }
  rm -f "$work/full"
}

# One event after the other until the round is over. $RANDOM repeats what it drew for the same seed.
run_events() {
  local kind number=0 begun
  RANDOM=$round_seed
  local kinds=(snapshot snapshot snapshot reread reread delete grow_store grow_buffer scrub tune tune ask stall stall)
  # Filling the store takes as long as many other events.
  kinds+=("${kinds[@]}" fill)
  while ! over; do
    sleep $((1 + RANDOM % 6))
    over && break
    kind=${kinds[RANDOM % ${#kinds[@]}]}
    number=$((number + 1))
    begun=$(now)
    echo "$kind" >"$work/event"
    if "event_$kind" "$number"; then echo "$begun $(now) $kind" >>"$work/events"; else echo "$begun $(now) $kind-cut" >>"$work/events"; fi
    echo none >"$work/event"
  done
}
