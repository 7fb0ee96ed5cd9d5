//! What a critical program waits for in the kernel is lent priority.

use crate::common::{Mounted, PATIENCE, Sandbox, can_mount, succeeds, weir};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_status::LendingReport;

const FILE_BYTES: usize = 16 << 20;

/// Overwrites a file with whole pages, larger than the buffer, and syncs each pass over it.
fn overwrite(path: &Path, is_running: &AtomicBool) {
    let file = File::options().write(true).open(path).expect("a file");
    let bytes = vec![7; 1 << 20];
    while is_running.load(Ordering::Relaxed) {
        for at in (0..FILE_BYTES).step_by(bytes.len()) {
            file.write_all_at(&bytes, at as u64).expect("space");
        }
        file.sync_data().expect("a store that works");
    }
}

/// Overwrites a file in a background thread, and writes 8 KiB to it in another one. Returns the report after
/// `is_enough`, or after a while.
fn report_of(mounted: &Mounted, mut is_enough: impl FnMut(&LendingReport) -> bool) -> LendingReport {
    let path = mounted.path("file");
    fs::write(&path, vec![1; FILE_BYTES]).expect("space");
    let is_running = AtomicBool::new(true);
    thread::scope(|scope| {
        let scribe = thread::Builder::new().name("scribe".into());
        scribe.spawn_scoped(scope, || overwrite(&path, &is_running)).expect("a thread");
        scope.spawn(|| {
            let file = File::options().write(true).open(&path).expect("a file");
            while is_running.load(Ordering::Relaxed) {
                file.write_all_at(&[9; 8 << 10], 12288).expect("space");
                thread::sleep(Duration::from_millis(2));
            }
        });
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
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let rules = sandbox.path("rules");
    fs::write(&rules, "background thread=scribe\n").expect("a file");
    let rules = rules.to_str().expect("UTF-8");
    let mounted = sandbox.mount_with(&["--policy", "critical", "--rules", rules]);
    let mut looks = 0;
    let idle = report_of(&mounted, |_| {
        looks += 1;
        looks == 10
    });
    assert_eq!(idle, LendingReport::default(), "the policy does not lend");
    let tune = ["--policy", "critical+process+io", "--rules", rules];
    succeeds(weir().arg("tune").arg(mounted.dir()).args(tune));
    let busy = report_of(&mounted, |report| report.lent >= 3);
    assert!(busy.looks > 0 && busy.lent >= 3, "{busy:?}");
    assert_eq!(mounted.messages().matches("CAP_SYS_PTRACE").count(), 0);
    mounted.unmount();
}
