//! A mounted store: written data is there again after an unmount, and after a kill.

use crate::common::{Mounted, Sandbox, can_mount, fails, is_mounted, status_of, succeeds, weir};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn what_was_written_is_there_after_an_unmount() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
    fs::create_dir(mounted.path("dir")).expect("a directory");
    fs::write(mounted.path("dir/file"), &bytes).expect("a file");
    symlink("dir/file", mounted.path("link")).expect("a link");
    fs::hard_link(mounted.path("dir/file"), mounted.path("other")).expect("another name");
    fs::set_permissions(mounted.path("dir"), fs::Permissions::from_mode(0o750)).expect("a mode");
    fs::rename(mounted.path("other"), mounted.path("dir/renamed")).expect("a rename");
    mounted.unmount();

    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("link")).expect("through the link"), bytes);
    assert_eq!(fs::metadata(mounted.path("dir/renamed")).expect("renamed").nlink(), 2);
    assert_eq!(fs::metadata(mounted.path("dir")).expect("the directory").mode() & 0o7777, 0o750);
    assert!(!mounted.path("other").exists());
    let listing = fs::read_dir(mounted.dir()).expect("a listing");
    let mut names: Vec<_> = listing.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "link"]);
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn what_was_synced_survives_a_kill_with_one_thread_at_the_front_end_and_with_two() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    for round in 0..4u32 {
        let mounted = sandbox.mount_with(&[["--threads=1", "--threads=2"][round as usize % 2]]);
        for earlier in 0..round {
            let synced = fs::read(mounted.path(&format!("round{earlier}"))).expect("it was synced");
            assert_eq!(synced, earlier.to_le_bytes().repeat(5000), "of round {earlier}");
        }
        let mut file = File::create(mounted.path(&format!("round{round}"))).expect("a file");
        file.write_all(&round.to_le_bytes().repeat(5000)).expect("a write");
        file.sync_all().expect("a sync");
        mounted.kill();
    }
}

#[test]
fn weir_sync_makes_everything_durable() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--commit-interval", "3600000"]);
    fs::write(mounted.path("file"), b"not synced by its writer").expect("a file");
    succeeds(weir().arg("sync").arg(mounted.dir()));
    let status = mounted.status();
    assert_eq!(status.lsns.applied, status.lsns.durable);
    mounted.kill();
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("durable"), b"not synced by its writer");
}

#[test]
fn a_synchronous_write_is_durable_when_it_returns() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--commit-interval", "3600000"]);
    let o_dsync = rustix::fs::OFlags::DSYNC.bits() as i32;
    let mut options = OpenOptions::new();
    let file =
        options.write(true).create(true).truncate(true).custom_flags(o_dsync).open(mounted.path("file"));
    file.expect("a file").write_all_at(b"durable", 10_000).expect("a write");
    mounted.kill();
    let mounted = sandbox.mount();
    let bytes = fs::read(mounted.path("file")).expect("durable");
    assert_eq!((bytes.len(), &bytes[10_000..]), (10_007, &b"durable"[..]));
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.write_all_at(b"before", 0).expect("a write");
    fs::remove_file(&path).expect("unlinked");
    assert!(!path.exists());
    file.write_all_at(b"after!", 6).expect("a write to an unlinked file");
    let mut bytes = [0; 12];
    file.read_exact_at(&mut bytes, 0).expect("a read of an unlinked file");
    assert_eq!(&bytes, b"beforeafter!");
    drop(file);
    mounted.unmount();
}

#[test]
fn opening_with_truncation_empties_the_file() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), [7; 10_000]).expect("a file");
    fs::write(mounted.path("file"), b"short").expect("again");
    assert_eq!(fs::read(mounted.path("file")).expect("it"), b"short");
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("it"), b"short");
}

#[test]
fn a_directory_of_two_thousand_files_is_listed_once_each_and_removed() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::create_dir(mounted.path("many")).expect("a directory");
    let name = |i: u32| format!("many/a file with a rather long name, number {i:05}");
    (0..2000).for_each(|i| drop(File::create(mounted.path(&name(i))).expect("a file")));
    let listing = fs::read_dir(mounted.path("many")).expect("a listing");
    let mut listed: Vec<_> = listing.map(|entry| entry.expect("an entry").file_name()).collect();
    listed.sort();
    assert_eq!(listed.len(), 2000);
    assert!(
        listed.iter().enumerate().all(|(i, listed)| name(i as u32).ends_with(&*listed.to_string_lossy()))
    );
    fs::remove_dir_all(mounted.path("many")).expect("removed while it is listed");
    assert!(!mounted.path("many").exists());
    mounted.unmount();
}

#[test]
fn status_names_the_pid_the_version_and_how_things_stand() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let mut file = File::create(mounted.path("file")).expect("a file");
    file.write_all(&[1; 5000]).expect("a write");
    file.sync_all().expect("a sync");
    let status = mounted.status();
    assert_eq!(status.pid, mounted.pid());
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert!(status.dirty.pages >= 2);
    assert!(status.counters.syncs >= 1);
    assert_eq!(status.counters.store_io_for_syncs, 0);
    assert!(status.latency["fsync"].count >= 1);
    assert!(status.slowest_ms.buffer.flush > 0.0, "a sync flushes it");
    let write = &status.latency["write"];
    assert!(write.p50_us > 0.0);
    assert!(write.max_us >= write.p50_us);
    assert!(status.space.total_bytes > 16 << 20);
    assert_eq!(status.settings.fetch, "adaptive");
    let wake_up = status.wake_up;
    assert_eq!(wake_up.state == "off", wake_up.why_off.is_some(), "{wake_up:?}");
    let shown = succeeds(weir().arg("status").arg(mounted.dir())).stdout;
    assert!(String::from_utf8_lossy(&shown).contains(&format!("pid {}", mounted.pid())));
    drop(file);
    mounted.unmount();
}

#[test]
fn a_mount_that_lets_processors_sleep_says_so_and_has_two_threads() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--wake-up=off"]);
    let status = mounted.status();
    assert_eq!(status.wake_up.why_off.as_deref(), Some("--wake-up=off"));
    assert_eq!(status.settings.threads, 2);
    let shown = succeeds(weir().arg("status").arg(mounted.dir())).stdout;
    assert!(String::from_utf8_lossy(&shown).contains("wake-up    off: --wake-up=off"));
}

#[test]
fn partial_writes_to_pages_that_are_not_in_memory_read_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), vec![1; 4 << 20]).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount();
    let file = OpenOptions::new().write(true).open(mounted.path("file")).expect("the file");
    // Mounting reads the file system's metadata.
    let reads_before = mounted.status().counters.store_reads;
    (0..1024u64).for_each(|page| file.write_all_at(&[2; 512], page * 4096 + 1000).expect("a write"));
    file.sync_data().expect("a sync");
    let counters = mounted.status().counters;
    assert!(counters.writes_to_absent_pages >= 1024, "{counters:?}");
    assert_eq!(counters.store_reads.for_writes, reads_before.for_writes);
    assert_eq!(counters.store_reads.for_reads, reads_before.for_reads);
    assert_eq!(counters.store_reads.ahead, reads_before.ahead);
    assert_eq!(counters.store_io_for_syncs, 0);
    drop(file);
    let bytes = fs::read(mounted.path("file")).expect("the file");
    let page = [vec![1; 1000], vec![2; 512], vec![1; 4096 - 1512]].concat();
    assert!(bytes.chunks(4096).all(|found| found == page));
    mounted.unmount();
}

/// Pages fetched since the mount: for waiting readers, and ahead of readers.
fn fetched(mounted: &Mounted) -> [u64; 2] {
    let reads = mounted.status().counters.store_reads;
    [reads.for_reads, reads.ahead]
}

#[test]
fn a_file_that_is_read_in_order_is_fetched_ahead_and_each_page_of_it_once() {
    if !can_mount() {
        return;
    }
    const PAGES: u64 = 1024;
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let content: Vec<u8> = (0..PAGES * 1024).flat_map(|word| (word as u32).to_le_bytes()).collect();
    fs::write(mounted.path("file"), &content).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount();
    let before = fetched(&mounted);
    assert!(fs::read(mounted.path("file")).expect("the file") == content);
    let after = fetched(&mounted);
    let (for_reads, ahead) = (after[0] - before[0], after[1] - before[1]);
    assert!(for_reads + ahead == PAGES && ahead > 0, "{for_reads} for reads, {ahead} ahead");
    mounted.unmount();
}

#[test]
fn small_files_that_were_made_together_are_fetched_together_once_some_are_read() {
    if !can_mount() {
        return;
    }
    const FILES: u64 = 400;
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let content = |file: u64| file.to_le_bytes().repeat(500 + file as usize);
    for file in 0..FILES {
        fs::write(mounted.path(&format!("file{file}")), content(file)).expect("a file");
    }
    mounted.unmount();
    let mounted = sandbox.mount();
    let before = fetched(&mounted);
    for file in 0..FILES {
        assert!(fs::read(mounted.path(&format!("file{file}"))).expect("a file") == content(file), "{file}");
    }
    let after = fetched(&mounted);
    let (for_reads, ahead) = (after[0] - before[0], after[1] - before[1]);
    let pages: u64 = (0..FILES).map(|file| (content(file).len() as u64).div_ceil(4096)).sum();
    // Pages of the last records were found in the buffer. A stored part of its log may not be freed yet.
    let found = mounted.status().counters.replayed;
    let fetched = for_reads + ahead;
    assert!(fetched <= pages && fetched + found >= pages, "each once: {for_reads} for reads, {ahead} ahead");
    assert!(ahead > pages / 2, "{for_reads} for reads");
    mounted.unmount();
}

#[test]
fn a_mount_in_the_background_returns_when_it_is_ready_and_sigterm_ends_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    succeeds(weir().arg("mount").arg(sandbox.store()).arg(sandbox.mount_point()));
    let pid = status_of(&sandbox.mount_point()).pid.to_string();
    let written = fs::write(sandbox.mount_point().join("file"), b"ready");
    succeeds(Command::new("kill").arg(&pid));
    written.expect("it was ready");
    let begin = Instant::now();
    while is_mounted(&sandbox.mount_point()) || is_running(&pid) {
        assert!(begin.elapsed() < Duration::from_secs(60), "SIGTERM did not end the daemon");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("it was written back"), b"ready");
    mounted.unmount();
}

/// Whether the process runs. A daemon in the background may stay a zombie, because it has no parent here that
/// waits for it. A zombie has ended.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_busy_mount_is_not_unmounted_and_goes_on() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let file = File::create(mounted.path("file")).expect("a file");
    let said = fails(weir().arg("unmount").arg(mounted.dir()));
    assert!(said.contains("busy"), "{said}");
    file.write_all_at(b"goes on", 0).expect("a write");
    drop(file);
    mounted.unmount();
}

#[test]
fn who_is_about_to_leave_is_waited_for() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let file = File::create(mounted.path("file")).expect("a file");
    // This thread holds the file as a forked process holds its parent's files until its `exec`.
    let leaves = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(file);
    });
    mounted.unmount();
    leaves.join().expect("it left");
}

#[test]
fn a_mount_whose_daemon_was_killed_is_unmounted_with_a_word() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    succeeds(Command::new("kill").args(["-9", &mounted.pid().to_string()]));
    let begin = Instant::now();
    // Do not look at the mount: the kernel still caches the daemon's replies.
    while is_running(&mounted.pid().to_string()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the daemon outlived kill -9");
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = fails(weir().arg("status").arg(mounted.dir()));
    assert!(said.contains("does not answer"), "{said}");
    let output = succeeds(weir().arg("unmount").arg(mounted.dir()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning: "), "nothing was said");
    assert!(!is_mounted(mounted.dir()));
}
