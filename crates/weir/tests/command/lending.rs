//! A background program that a critical one waits for in the kernel is lent priority.

use crate::common::{Mounted, PATIENCE, Sandbox, can_mount, succeeds, weir};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_status::LendingReport;

/// More than the buffer has.
const FILE_BYTES: usize = 16 << 20;

/// Mounts with the policy `critical` and a rule for threads with the name `scribe`, and calls `test` with the
/// mount and the options that let it lend.
fn with_mount(test: impl FnOnce(&Mounted, &[&str])) {
    with_mount_by(Sandbox::mount_with, test);
}

fn with_mount_by(mount: fn(&Sandbox, &[&str]) -> Mounted, test: impl FnOnce(&Mounted, &[&str])) {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let rules = sandbox.rules_file("background thread=scribe\n");
    let mounted = mount(&sandbox, &["--policy", "critical", "--rules", &rules]);
    fs::write(mounted.path("file"), vec![1; FILE_BYTES]).expect("space");
    fs::write(mounted.path("other"), vec![1; 64 << 10]).expect("space");
    test(&mounted, &["--policy", "critical+process+io", "--rules", &rules]);
    mounted.unmount();
}

fn open(mounted: &Mounted, name: &str) -> File {
    File::options().write(true).open(mounted.path(name)).expect("a file")
}

/// Overwrites a file with whole pages, and syncs it. Returns the time of the sync.
fn overwrite(file: &File) -> Duration {
    let bytes = vec![7; 1 << 20];
    for at in (0..FILE_BYTES).step_by(bytes.len()) {
        file.write_all_at(&bytes, at as u64).expect("space");
    }
    let begun = Instant::now();
    file.sync_data().expect("a store that works");
    begun.elapsed()
}

/// Repeats `background` in a background thread and `critical` in another one. Returns the report after
/// `is_enough`, or after a while.
fn report_of(
    mounted: &Mounted,
    background: impl Fn() + Sync,
    critical: impl Fn() + Sync,
    mut is_enough: impl FnMut(&LendingReport) -> bool,
) -> LendingReport {
    let is_running = AtomicBool::new(true);
    let repeat = |step: &(dyn Fn() + Sync)| {
        while is_running.load(Ordering::Relaxed) {
            step();
        }
    };
    thread::scope(|scope| {
        let scribe = thread::Builder::new().name("scribe".into());
        scribe.spawn_scoped(scope, || repeat(&background)).expect("a thread");
        scope.spawn(|| repeat(&critical));
        let begun = Instant::now();
        let mut report = mounted.status().lending;
        while !is_enough(&report) && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
            report = mounted.status().lending;
        }
        is_running.store(false, Ordering::Relaxed);
        report
    })
}

#[test]
fn a_background_sync_that_blocks_a_critical_write_is_lent_to() {
    with_mount(|mounted, lending| {
        let file = open(mounted, "file");
        let background = || {
            let _ = overwrite(&file);
        };
        let critical = || {
            file.write_all_at(&[9; 8 << 10], 12 << 10).expect("space");
            thread::sleep(Duration::from_millis(2));
        };
        let begun = Instant::now();
        let idle = report_of(mounted, background, critical, |_| begun.elapsed() > Duration::from_secs(1));
        assert_eq!(idle, LendingReport::default(), "the policy does not lend");
        succeeds(weir().arg("tune").arg(mounted.dir()).args(lending));
        let busy = report_of(mounted, background, critical, |report| report.lent >= 3);
        assert!(busy.looks >= 1 && busy.lent >= 3, "{busy:?}");
        let waits = mounted.waits();
        let lent = waits.ended.iter().find(|wait| wait.lent_for.is_some()).expect("a lent wait is shown");
        assert_eq!(
            (lent.class.as_str(), lent.rule.as_deref()),
            ("background", Some("background thread=scribe"))
        );
        assert!(lent.task.is_some() && lent.task != lent.lent_for, "{lent:?}");
        assert_eq!(mounted.messages().matches("CAP_SYS_PTRACE").count(), 0);
    });
}

#[test]
fn a_background_holder_of_a_file_lock_is_lent_to() {
    with_mount(|mounted, lending| {
        succeeds(weir().arg("tune").arg(mounted.dir()).args(lending));
        let file = open(mounted, "file");
        let other = open(mounted, "other");
        fs::write(mounted.path("lock"), []).expect("a file");
        let [held, wanted] = [open(mounted, "lock"), open(mounted, "lock")];
        let background = || {
            held.lock().expect("a lock");
            let _ = overwrite(&file);
            held.unlock().expect("held");
        };
        let critical = || {
            other.write_all_at(&[9; 8 << 10], 0).expect("space");
            wanted.lock().expect("a lock");
            wanted.unlock().expect("held");
        };
        let report = report_of(mounted, background, critical, |report| report.lent >= 3);
        assert!(report.lent >= 3, "{report:?}");
    });
}

#[test]
fn without_permission_files_of_critical_tasks_are_lent_for() {
    with_mount_by(Sandbox::mount_without_ptrace, |mounted, lending| {
        succeeds(weir().arg("tune").arg(mounted.dir()).args(lending));
        let [file, other] = [open(mounted, "file"), open(mounted, "other")];
        let slow_syncs = AtomicU32::new(0);
        let background = || {
            if overwrite(&file) > Duration::from_millis(50) {
                slow_syncs.fetch_add(1, Ordering::Relaxed);
            }
        };
        let write_to = |file: &File| {
            file.write_all_at(&[9; 8 << 10], 12 << 10).expect("space");
            thread::sleep(Duration::from_millis(2));
        };
        let begun = Instant::now();
        let is_reported = || mounted.messages().contains("CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH\n");
        let is_enough = |_: &LendingReport| is_reported() && begun.elapsed() > Duration::from_secs(2);
        let elsewhere = report_of(mounted, background, || write_to(&other), is_enough);
        assert!(is_reported() && elsewhere.lent == 0, "{elsewhere:?}");
        slow_syncs.store(0, Ordering::Relaxed);
        let blocked = report_of(mounted, background, || write_to(&file), |report| report.lent >= 3);
        // On a fast disk no sync takes long enough.
        assert!(blocked.lent >= 3 || slow_syncs.into_inner() < 10, "{blocked:?}");
    });
}
