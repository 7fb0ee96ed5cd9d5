# mounted.bash: for scripts that run somebody's tests on a mounted store; they source it from the project's root.
#
#   build_weir              builds it, and sets $weir
#   install_tool NAME VERSION
#                           prints the path of a program that cargo installs
#   mount_store SIZE [OPTION...]
#                           formats a store of SIZE in a directory of its own, mounts it with these options of
#                           `weir mount`, and sets $work (beside the mount) and $mount
#   remount_store           unmounts in order, checks the store, and mounts it again
#   finish_store            unmounts in order and checks the store; a finding fails the script
#
# Whatever ends the script, the mount, its daemon and the directory are gone afterwards. $WEIR_STORE_DIR says where that
# directory is made ($TMPDIR, or /var/tmp), $WEIR names a weir to use instead of building one, $BUFFER_SIZE the buffer's size
# (256MiB).

say() { printf '\n== %s\n' "$*"; }
fail() { echo "error: $*" >&2; exit 1; }

target_directory() {
  cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

build_weir() {
  if [[ -z ${WEIR:-} ]]; then
    say "building"
    cargo build --release --package weir
    WEIR=$(target_directory)/release/weir
  fi
  weir=$(realpath "$WEIR")
}

# install_tool PROGRAM VERSION: prints where PROGRAM of this version is; installs it below the target directory (some minutes).
install_tool() {
  local tools
  tools=$(target_directory)/tools
  [[ -x $tools/bin/$1 && $("$tools/bin/$1" --version) == *" $2" ]] \
    || cargo install --quiet --locked --version "$2" --root "$tools" "$1" >&2
  echo "$tools/bin/$1"
}

is_mounted() { awk -v dir="$mount" '$2 == dir { found = 1 } END { exit !found }' /proc/self/mounts; }

# Ends what runs on the mount, then the mount itself; a daemon that does not answer is killed.
clean_store() {
  set +e
  cd /
  local pid
  pid=$("$weir" status "$mount" --json 2>/dev/null | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1)
  for _ in 1 2 3; do
    is_mounted || break
    timeout 300 "$weir" unmount "$mount" >/dev/null 2>&1 || sleep 1
  done
  if is_mounted; then
    umount -l "$mount" || fusermount3 -uz "$mount"
    [[ -z $pid ]] || kill -9 "$pid" 2>/dev/null
  fi
  rm -rf "$work"
}

mount_store() {
  local size=$1
  shift
  mount_options=("$@")
  work=$(mktemp -d "${WEIR_STORE_DIR:-${TMPDIR:-/var/tmp}}/weir-run.XXXXXX")
  mount=$work/mnt
  trap clean_store EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
  # Other users must reach what they may use.
  chmod 755 "$work"
  mkdir "$mount"
  "$weir" format --size "$size" --buffer-size "${BUFFER_SIZE:-256MiB}" "$work/store"
  "$weir" mount "${mount_options[@]}" "$work/store" "$mount"
}

finish_store() {
  "$weir" unmount "$mount"
  "$weir" check "$work/store"
}

remount_store() {
  finish_store
  "$weir" mount "${mount_options[@]}" "$work/store" "$mount"
}
