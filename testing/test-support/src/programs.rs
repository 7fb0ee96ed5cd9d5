use signal_hook::consts::SIGINT;
use signal_hook::flag::register_conditional_default;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

/// Runs `command`, which must succeed.
#[track_caller]
pub fn succeeds(command: &mut Command) -> Output {
    let output = command.output().expect("the command starts");
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said)).concat();
    assert!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    output
}

/// Lets programs that are started from now on end at SIGINT. A shell lets jobs in the background ignore it, perhaps these tests. A
/// started program ignores what its parent ignores, but not what its parent handles.
pub fn stop_ignoring_interrupts() {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        let ends_the_process = Arc::new(AtomicBool::new(true));
        register_conditional_default(SIGINT, ends_the_process).expect("a signal that can be handled");
    });
}

/// Copies a program, in another process. This process may fork for another test while the copy is open for
/// writing, and the copy cannot be run until that fork has called `exec`.
pub fn copy_program(from: &str, to: &Path) {
    succeeds(Command::new("cp").arg(from).arg(to));
}

/// Whether this machine can mount, which needs root and /dev/fuse. Prints a message if not.
pub fn can_mount() -> bool {
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    let can = rustix::process::geteuid().is_root() && fuse.is_ok();
    let must = std::env::var_os("WEIR_TESTS_MUST_MOUNT").is_some();
    assert!(can || !must, "this test must mount, which needs root and /dev/fuse");
    if !can {
        eprintln!("skipped: mounting needs root and /dev/fuse");
    }
    can
}

/// Whether this machine has a program. On one that must mount, as in CI, it must have all.
pub fn has_program(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).output().expect("a shell");
    if !found.status.success() {
        assert!(
            std::env::var_os("WEIR_TESTS_MUST_MOUNT").is_none(),
            "there is no {name}: scripts/install-test-tools"
        );
        eprintln!("skipped: this machine has no {name}");
    }
    found.status.success()
}
