//! A mount over media that fail.

use crate::common::{Mounted, Sandbox, can_mount, fails, succeeds, weir};
use crate::medium::Media;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_status::StatusReport;

/// Written shortly before the buffer fails, and not synced.
const UNSYNCED: &[u8] = b"nobody waited for this";

/// A sandbox whose media may be made to fail.
pub(crate) struct Faulty {
    /// Dropped before the directory in which it is mounted.
    pub media: Media,
    served: PathBuf,
    sandbox: Sandbox,
}

impl Faulty {
    pub(crate) fn new() -> Faulty {
        let sandbox = Sandbox::formatted_with(&["--size", "120MiB", "--buffer-size", "8MiB"]);
        let served = sandbox.path("served");
        fs::create_dir(&served).expect("a directory");
        let media = Media::serve(&sandbox.store(), &served);
        Faulty { media, served, sandbox }
    }

    pub(crate) fn mount(&self) -> Mounted {
        self.mount_with(&[])
    }

    fn mount_with(&self, more: &[&str]) -> Mounted {
        let options = [&["--dirty-age", "1", "--memory", "64MiB"], more].concat();
        Mounted::start(&self.served, &self.sandbox.mount_point(), &options, &self.sandbox.path("daemon.log"))
    }

    /// Ends all faults.
    pub(crate) fn mend(&self) {
        for faults in [&self.media.store, &self.media.buffer] {
            faults.set([None; 3]);
            faults.set_every(0);
        }
    }
}

/// Writes records one by one, each with a sync. Returns the number that were acknowledged before the first
/// failure.
fn write_records(mounted: &Mounted, from: u64, count: u64) -> u64 {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(mounted.path("records"));
    let Ok(file) = file else { return from };
    for number in from..from + count {
        let record = number.to_le_bytes().repeat(128);
        let wrote = file.write_all_at(&record, number * 1024).and_then(|()| file.sync_data());
        if wrote.is_err() {
            return number;
        }
    }
    from + count
}

#[track_caller]
fn assert_records(mounted: &Mounted, acknowledged: u64) {
    let bytes = fs::read(mounted.path("records")).unwrap_or_default();
    let numbers = bytes.chunks(1024).zip(0..acknowledged);
    for (record, number) in numbers {
        assert!(record == number.to_le_bytes().repeat(128), "record {number} of {acknowledged} is not there");
    }
    assert!(bytes.len() as u64 >= acknowledged * 1024, "{} bytes of {acknowledged} records", bytes.len());
}

#[track_caller]
fn wait_for(mounted: &Mounted, what: &str, is_so: impl Fn(&StatusReport) -> bool) {
    let begun = Instant::now();
    while !is_so(&mounted.status()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "never {what}: {:#?}", mounted.status());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the daemon's log has `line`.
#[track_caller]
fn wait_for_message(mounted: &Mounted, line: &str) {
    let begun = Instant::now();
    while !mounted.messages().contains(line) {
        assert!(begun.elapsed() < Duration::from_secs(60), "never said {line:?}: {}", mounted.messages());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_store_that_fails_is_named_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let (io, full) = (Some(Errno::IO), Some(Errno::NOSPC));
    for (round, errors) in
        [[None, io, None], [None, full, None], [None, None, io], [io, io, io]].into_iter().enumerate()
    {
        let faulty = Faulty::new();
        let mounted = faulty.mount();
        let before = write_records(&mounted, 0, 50);
        assert_eq!(before, 50);
        faulty.media.store.set(errors);
        // Syncs go on: they do not need the store.
        let acknowledged = write_records(&mounted, before, 200);
        assert_eq!(acknowledged, 250, "round {round}");
        wait_for(&mounted, "stalled", |status| status.stalled.is_some());
        let said = mounted.status().stalled.expect("why");
        assert!(said.contains("store"), "round {round}: {said}");
        wait_for_message(&mounted, "nothing has been written back");
        assert_records(&mounted, acknowledged);
        if round % 2 == 0 {
            // The store works again: everything is written back.
            faulty.mend();
            wait_for(&mounted, "stored", |status| status.dirty.pages == 0);
            wait_for_message(&mounted, "write-back works again");
            mounted.unmount();
        } else {
            mounted.kill();
            faulty.mend();
        }
        let mounted = faulty.mount();
        assert_records(&mounted, acknowledged);
        mounted.unmount();
        succeeds(weir().arg("check").arg(&faulty.served));
    }
}

#[test]
fn an_order_that_the_store_cannot_keep_is_refused_and_does_not_count_now_nor_after_a_crash() {
    if !can_mount() {
        return;
    }
    for (before, refused) in [("ordered", "journal"), ("journal", "ordered")] {
        let faulty = Faulty::new();
        let mounted = faulty.mount_with(&["--data", before]);
        faulty.media.store.set([None, Some(Errno::IO), None]);
        fails(weir().arg("tune").arg(mounted.dir()).args(["--data", refused]));
        assert_eq!(mounted.status().settings.data, before);
        fails(weir().arg("tune").arg(mounted.dir()).args(["--data", refused, "--policy", "critical"]));
        let settings = mounted.status().settings;
        assert_eq!((settings.data.as_str(), settings.policy), (before, None));
        faulty.mend();
        mounted.kill();
        let mounted = faulty.mount();
        assert_eq!(mounted.status().settings.data, before);
        mounted.unmount();
    }
}

#[test]
fn a_buffer_that_fails_stops_changes_says_why_and_keeps_what_was_acknowledged() {
    if !can_mount() {
        return;
    }
    for errors in
        [[None, Some(Errno::IO), None], [None, Some(Errno::NOSPC), None], [None, None, Some(Errno::IO)]]
    {
        let faulty = Faulty::new();
        let mounted = faulty.mount();
        let before = write_records(&mounted, 0, 50);
        fs::write(mounted.path("unsynced"), UNSYNCED).expect("a file");
        faulty.media.buffer.set(errors);
        let acknowledged = write_records(&mounted, before, 50);
        assert_eq!(acknowledged, 50, "a sync succeeded without its buffer");
        let status = mounted.status();
        assert!(status.failed.as_ref().is_some_and(|why| why.contains("buffer")), "{status:#?}");
        // Reads continue. Changes fail, even when the device is back, because the device may have lost
        // flushed data.
        assert_records(&mounted, acknowledged);
        faulty.mend();
        let refused =
            File::create(mounted.path("another")).expect_err("a change that cannot be made durable");
        assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
        wait_for_message(&mounted, "read-only from now on");
        wait_for(&mounted, "rescued", |status| status.rescued.is_some());
        let volume = mounted.status().rescued.expect("a name");
        wait_for_message(&mounted, &volume);
        mounted.kill();
        let mounted = faulty.mount();
        assert_records(&mounted, acknowledged);
        assert_eq!(write_records(&mounted, acknowledged, 10), 60);
        mounted.unmount();
        // The other volume also has the data that could not be synced.
        let mounted = faulty.mount_with(&["--volume", &volume]);
        assert_records(&mounted, acknowledged + 1);
        assert!(fs::read(mounted.path("unsynced")).expect("a file") == UNSYNCED);
        mounted.unmount();
        succeeds(weir().arg("check").arg(&faulty.served));
    }
}

/// A mount with fifty records in its buffer, whose device then fails in the ways of `errors`; killed after
/// the rescue. Returns the name of the volume that was rescued.
fn fail_buffer_for_good(faulty: &Faulty, errors: [Option<Errno>; 3]) -> String {
    let mounted = faulty.mount();
    assert_eq!(write_records(&mounted, 0, 50), 50);
    fs::write(mounted.path("unsynced"), UNSYNCED).expect("a file");
    faulty.media.buffer.set(errors);
    assert_eq!(write_records(&mounted, 50, 1), 50);
    wait_for(&mounted, "rescued", |status| status.rescued.is_some());
    let volume = mounted.status().rescued.expect("a name");
    mounted.kill();
    volume
}

/// `weir replace-buffer` of a store whose media are devices, by a new file.
fn replace_buffer(faulty: &Faulty, new: &Path, more: &[&str]) -> Command {
    let mut command = weir();
    command.arg("replace-buffer").arg(faulty.served.join("store"));
    command.arg("--old").arg(faulty.served.join("buffer")).arg("--buffer").arg(new).args(more);
    command
}

/// Asserts that the records and the unsynced file exist, and that further writes succeed.
#[track_caller]
fn assert_rescued(faulty: &Faulty, buffer: &Path, volume: &str) {
    let (store, buffer) = (faulty.served.join("store"), buffer.to_str().expect("a path"));
    let (dir, log) = (faulty.sandbox.mount_point(), faulty.sandbox.path("daemon.log"));
    let mounted = Mounted::start(&store, &dir, &["--buffer", buffer, "--volume", volume], &log);
    assert_records(&mounted, 51);
    assert!(fs::read(mounted.path("unsynced")).expect("a file") == UNSYNCED);
    assert_eq!(write_records(&mounted, 51, 10), 61);
    mounted.unmount();
    succeeds(weir().args(["check", "--buffer", buffer]).arg(&store));
}

#[test]
fn a_buffer_that_is_gone_for_good_takes_nothing_with_it() {
    if !can_mount() {
        return;
    }
    let faulty = Faulty::new();
    let volume = fail_buffer_for_good(&faulty, [Some(Errno::IO); 3]);
    let new = faulty.sandbox.path("new-buffer");
    let said = fails(&mut replace_buffer(&faulty, &new, &[]));
    assert!(said.contains("--accept-loss") && !new.exists(), "{said}");
    let said = succeeds(&mut replace_buffer(&faulty, &new, &["--accept-loss"]));
    assert!(String::from_utf8_lossy(&said.stdout).contains(&volume), "it says what is whole: {said:?}");
    assert_rescued(&faulty, &new, &volume);
}

#[test]
fn a_buffer_that_can_only_be_read_is_written_back_from_there() {
    if !can_mount() {
        return;
    }
    for flush in [None, Some(Errno::IO)] {
        let faulty = Faulty::new();
        let volume = fail_buffer_for_good(&faulty, [None, Some(Errno::IO), flush]);
        let (store, old) = (faulty.served.join("store"), faulty.served.join("buffer"));
        let new = faulty.sandbox.path("new-buffer");
        let mount = |buffer: &Path| {
            let mut command = weir();
            command.arg("mount").arg("--buffer").arg(buffer).arg(&store).arg(faulty.sandbox.mount_point());
            command
        };
        let said = fails(&mut mount(&old));
        assert!(said.contains("cannot be written") && said.contains("replace-buffer"), "{said}");

        let before = fs::read(faulty.sandbox.store().join("buffer")).expect("the old one");
        let said = succeeds(&mut replace_buffer(&faulty, &new, &[]));
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("nothing is lost") && said.contains("could not be marked"), "{said}");
        assert!(fs::read(faulty.sandbox.store().join("buffer")).expect("it") == before, "it was written to");
        // Only the store can tell the failed buffer from a good one.
        faulty.mend();
        let said = fails(&mut mount(&old));
        assert!(said.contains("since been used with another buffer"), "{said}");

        let (dir, log) = (faulty.sandbox.mount_point(), faulty.sandbox.path("daemon.log"));
        let buffer = new.to_str().expect("a path");
        let mounted = Mounted::start(&store, &dir, &["--buffer", buffer], &log);
        assert_records(&mounted, 50);
        mounted.unmount();
        assert_rescued(&faulty, &new, &volume);
    }
}

#[test]
fn media_that_fail_every_nth_call_lose_nothing_that_was_acknowledged() {
    if !can_mount() {
        return;
    }
    for every in [2, 3, 7, 19] {
        let faulty = Faulty::new();
        let mut acknowledged = 0;
        for round in 0..4 {
            let mounted = faulty.mount();
            assert_records(&mounted, acknowledged);
            // First the store alone, then both.
            faulty.media.store.set_every(every);
            if round % 2 == 1 {
                faulty.media.buffer.set_every(every * 5 + 1);
            }
            acknowledged = write_records(&mounted, acknowledged, 100);
            let mut scratch = File::create(mounted.path("scratch")).ok();
            if let Some(file) = &mut scratch {
                let _ = file.write_all(&vec![round as u8; 2_000_000]);
            }
            // Wait until write-back has failed.
            let (begun, failed) = (Instant::now(), faulty.media.store.failed());
            while faulty.media.store.failed() == failed && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(10));
            }
            mounted.kill();
            faulty.mend();
        }
        assert!(faulty.media.store.failed() > 0, "every {every}: nothing failed");
        let mounted = faulty.mount();
        assert_records(&mounted, acknowledged);
        mounted.unmount();
        succeeds(weir().arg("check").arg(&faulty.served));
    }
}

#[test]
fn media_that_vanish_and_come_back_lose_nothing_that_was_acknowledged() {
    if !can_mount() {
        return;
    }
    let faulty = Faulty::new();
    let mounted = faulty.mount();
    let mut acknowledged = write_records(&mounted, 0, 100);
    let gone = [Some(Errno::NODEV); 3];
    faulty.media.store.set(gone);
    acknowledged = write_records(&mounted, acknowledged, 100);
    assert_eq!(acknowledged, 200, "the store is not needed for a sync");
    wait_for(&mounted, "stalled", |status| status.stalled.is_some());
    faulty.media.store.set([None; 3]);
    wait_for(&mounted, "stored", |status| status.dirty.pages == 0 && status.stalled.is_none());
    // Then both, as when a cable is pulled.
    faulty.media.store.set(gone);
    faulty.media.buffer.set(gone);
    let after = write_records(&mounted, acknowledged, 10);
    assert_eq!(after, acknowledged, "a sync succeeded without media");
    faulty.mend();
    mounted.kill();
    let mounted = faulty.mount();
    assert_records(&mounted, acknowledged);
    mounted.unmount();
    succeeds(weir().arg("check").arg(&faulty.served));
}
