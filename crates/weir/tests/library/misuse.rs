//! Programs that use files of a store in unusual and wrong ways under `weir run`: see misuse.c.

use crate::common::{Sandbox, succeeds};
use crate::run::run_in;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use test_support::has_program;
use weir_library::{OFlags, Weir, WeirOptions};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/misuse.c");

/// The compiled program; `None` without a C compiler.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compiled = PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("misuse-{}", std::process::id()));
        has_program("cc").then(|| {
            succeeds(
                Command::new("cc")
                    .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
                    .args([&program, Path::new(SOURCE)]),
            );
            program
        })
    });
    compiled.as_deref()
}

/// Runs a case, which must end with `wanted`: an exit code, or with a minus a signal. Returns the store's sandbox.
#[track_caller]
fn run_case(case: &str, wanted: i32) -> Option<Sandbox> {
    use std::os::unix::process::ExitStatusExt;
    let sandbox = Sandbox::formatted();
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    let mut command = Command::new("timeout");
    let run = run_in(&sandbox, [program()?.as_os_str(), case.as_ref()]);
    command.args(["-s", "KILL", "60"]).arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.current_dir(sandbox.path("empty")).output().unwrap();
    let ended = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap());
    // `timeout` dies of the signal of its program.
    assert_eq!(ended, wanted, "{case}: {}", String::from_utf8_lossy(&output.stderr));
    Some(sandbox)
}

/// The content of a file of the store, read after the program's end.
#[track_caller]
fn content(sandbox: &Sandbox, path: &str) -> String {
    let opened = Weir::open(&sandbox.store(), &WeirOptions::default()).unwrap();
    let file = opened.open(path, OFlags::RDONLY, 0).unwrap();
    let mut bytes = vec![0; 1000];
    let read = file.read(&mut bytes).unwrap();
    bytes.truncate(read);
    String::from_utf8(bytes).unwrap().trim_end_matches('\0').into()
}

/// A test for each case that is judged by the program itself.
macro_rules! cases {
    ($($case:ident)*) => {
        const CASES: &[&str] = &[$(stringify!($case)),*];
        $(
            #[test]
            fn $case() {
                run_case(stringify!($case), 0);
            }
        )*
    };
}
cases! {
    failed_chdir unserved_relative_path renamed_working_directory closed_unseen closed_stream dev_fd duplicates all_closed
    many_descriptors handler_writes handler_closes appended_lines vectors copied_bytes mapping_made_writable mapping_remapped
    mapping_and_writes mapping_that_comes_and_goes mapping_of_a_full_store mapping_truncated locks locks_wait names listings
    jumps_out start_execl start_execlp start_execle children fork_among_threads attributes sent_descriptor walks
    unwelcome_message
}

/// The cases whose files are looked at afterwards.
const LOOKED_AT: &[&str] =
    &["mapping_before_a_kill", "streams", "exit_handler", "quick_exit_handler", "aborted"];

#[test]
fn each_case_is_run() {
    let source = std::fs::read_to_string(SOURCE).unwrap();
    let named = source.split("CASE(").skip(2).filter_map(|rest| rest.split(')').next());
    let mut named: Vec<&str> = named.collect();
    let mut run: Vec<&str> = CASES.iter().chain(LOOKED_AT).copied().collect();
    named.sort_unstable();
    run.sort_unstable();
    assert_eq!(named, run);
}

#[test]
fn a_mapping_is_kept_but_for_its_last_second() {
    let Some(sandbox) = run_case("mapping_before_a_kill", -libc_signal::KILL) else { return };
    assert_eq!(content(&sandbox, "/f"), "stored");
}

#[test]
fn streams_are_flushed_at_the_end_however_many() {
    let Some(sandbox) = run_case("streams", 0) else { return };
    for number in [0, 500, 1023, 1024, 1099] {
        assert_eq!(content(&sandbox, &format!("/stream{number}")), "unflushed", "{number}");
    }
}

#[test]
fn exit_handlers_still_write() {
    for case in ["exit_handler", "quick_exit_handler"] {
        let Some(sandbox) = run_case(case, 0) else { return };
        assert_eq!(content(&sandbox, "/exit"), "at exit", "{case}");
    }
}

#[test]
fn what_was_synced_outlives_an_abort() {
    let Some(sandbox) = run_case("aborted", -libc_signal::ABRT) else { return };
    assert!(content(&sandbox, "/f").starts_with("synced"));
}

/// Numbers of signals.
mod libc_signal {
    pub(super) const ABRT: i32 = 6;
    pub(super) const KILL: i32 = 9;
}
