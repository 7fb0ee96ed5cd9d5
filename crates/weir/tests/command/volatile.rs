//! A buffer on a medium that loses flushed data at a power failure: weir refuses it without
//! `--volatile-buffer`.

use crate::common::{
    LoopDevice, Mounted, SMALL, Sandbox, TmpfsMount, VOLATILE, assert_says, can_mount, fails, succeeds, weir,
};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const LIES_ON_TMPFS: &str =
    "this buffer loses synced data when the power fails: it lies on tmpfs, which is memory";

/// A sandbox with a file system in memory, which goes first.
fn memory() -> Option<(Sandbox, TmpfsMount)> {
    if !can_mount() {
        return None;
    }
    let sandbox = Sandbox::new();
    let dir = sandbox.path("memory");
    fs::create_dir(&dir).expect("a new directory");
    Some((sandbox, TmpfsMount::new(dir, "200m")))
}

fn format(options: &[&str], buffer: &Path, store: &Path) -> Command {
    let mut format = weir();
    format.arg("format").args(SMALL).args(options).arg("--buffer").arg(buffer).arg(store);
    format
}

fn said(Output { stderr, .. }: Output) -> String {
    String::from_utf8_lossy(&stderr).into_owned()
}

#[test]
fn a_buffer_in_memory_is_refused_until_it_is_accepted_and_status_says_so() {
    let Some((sandbox, memory)) = memory() else { return };
    let (buffer, store) = (memory.0.join("buffer"), sandbox.store());
    let refused = fails(&mut format(&[], &buffer, &store));
    assert_says(&refused, &format!("error: {}: {LIES_ON_TMPFS}", buffer.display()));
    assert_says(&refused, "with `--buffer PATH`; or add --volatile-buffer to accept that");
    assert!(!store.exists() && !buffer.exists(), "it has begun");
    assert_eq!(said(succeeds(&mut format(&[VOLATILE], &buffer, &store))), "", "the store is on a disk");

    let refused = fails(weir().arg("mount").arg(&store).arg(sandbox.mount_point()));
    assert_says(&refused, &format!("error: {}: {LIES_ON_TMPFS}", buffer.display()));
    assert_says(&refused, &format!("`weir replace-buffer --buffer PATH {}`", store.display()));
    let mounted = sandbox.mount_with(&[VOLATILE]);
    assert_eq!(mounted.status().volatile.as_deref(), Some("lies on tmpfs, which is memory"));
    let text = succeeds(weir().arg("status").arg(mounted.dir())).stdout;
    assert_says(
        &String::from_utf8_lossy(&text),
        "VOLATILE   a power failure loses all changes that are not stored, synced or not",
    );
    mounted.unmount();
    let looking = sandbox.mount_with(&["--read-only"]);
    assert_eq!(looking.status().volatile.as_deref(), Some("lies on tmpfs, which is memory"));
    looking.unmount();
}

#[test]
fn another_buffer_in_memory_is_refused_and_a_buffer_moves_from_there_to_a_disk() {
    let Some((sandbox, memory)) = memory() else { return };
    let (buffer, store) = (memory.0.join("buffer"), sandbox.store());
    succeeds(weir().arg("format").args(SMALL).arg(&store));
    let mounted = sandbox.mount();
    assert_eq!(mounted.status().volatile, None, "the tests' directory is on a disk");
    fs::write(mounted.path("file"), "kept").expect("a file");
    mounted.unmount();

    let replace = |options: &[&str], buffer: &Path| {
        let mut replace = weir();
        replace.arg("replace-buffer").args(options).arg("--buffer").arg(buffer).arg(&store);
        replace
    };
    assert_says(&fails(&mut replace(&[], &buffer)), LIES_ON_TMPFS);
    assert!(!buffer.exists(), "it has begun");
    succeeds(&mut replace(&[VOLATILE], &buffer));
    let mounted = sandbox.mount_with(&[VOLATILE]);
    fs::write(mounted.path("more"), "kept, too").expect("a file");
    mounted.kill();
    succeeds(&mut replace(&[], &sandbox.path("on-a-disk")));
    let mounted = sandbox.mount();
    assert_eq!(fs::read_to_string(mounted.path("file")).expect("it was stored"), "kept");
    mounted.unmount();
}

#[test]
fn a_store_in_memory_is_warned_of_and_mounted() {
    let Some((sandbox, memory)) = memory() else { return };
    let (buffer, store) = (sandbox.path("buffer"), memory.0.join("media"));
    let warned = said(succeeds(&mut format(&[], &buffer, &store)));
    let file = store.join("store");
    let warning =
        format!("warning: {}: a power failure loses the whole store: it lies on tmpfs", file.display());
    assert_says(&warned, &warning);
    assert_eq!(warned.lines().count(), 1, "{warned}");
    Mounted::start(&store, &sandbox.mount_point(), &[], &sandbox.path("daemon.log")).unmount();
}

#[test]
fn a_buffer_on_a_loop_device_is_where_its_file_is() {
    let Some((sandbox, memory)) = memory() else { return };
    let image = memory.0.join("image");
    let Some(device) = LoopDevice::over(&image) else { return };
    let format = || {
        let mut format = weir();
        format.args(["format", "--size", "64MiB", "--buffer"]).arg(&device.0).arg(sandbox.store());
        format
    };
    let over = format!("a loop device over {}, and that lies on tmpfs, which is memory", image.display());
    assert_says(&fails(&mut format()), &over);
    succeeds(format().arg(VOLATILE));
    let Some(durable) = LoopDevice::over(&sandbox.path("image")) else { return };
    succeeds(weir().arg("replace-buffer").arg("--buffer").arg(&durable.0).arg(sandbox.store()));
    sandbox.mount().unmount();
}

#[test]
fn a_buffer_on_a_file_system_without_barriers_is_refused_and_with_them_not() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let Some(device) = LoopDevice::over(&sandbox.path("image")) else { return };
    let cache =
        format!("/sys/class/block/{}/queue/write_cache", device.0.file_name().expect("a name").display());
    if !fs::read_to_string(cache).is_ok_and(|cache| cache.trim() == "write back") {
        eprintln!("skipped: the loop device has no cache");
        return;
    }
    let dir = sandbox.path("disk");
    fs::create_dir(&dir).expect("a new directory");
    if !Command::new("mkfs.ext4").arg("-q").arg(&device.0).status().is_ok_and(|made| made.success()) {
        eprintln!("skipped: no mkfs.ext4");
        return;
    }
    succeeds(Command::new("mount").args(["-o", "nobarrier"]).arg(&device.0).arg(&dir));
    // `TmpfsMount` unmounts any file system.
    let disk = TmpfsMount(dir);
    let buffer = disk.0.join("buffer");
    let why = format!("it lies on {}, mounted `nobarrier`, which does not flush its disk", disk.0.display());
    assert_says(&fails(&mut format(&[], &buffer, &sandbox.store())), &why);
    let warned = said(succeeds(&mut format(&[VOLATILE], &buffer, &sandbox.store())));
    assert_eq!(warned, "");
    succeeds(Command::new("mount").args(["-o", "remount,barrier"]).arg(&disk.0));
    sandbox.mount().unmount();
}
