//! Targets that cannot do what the program did: full, read-only, without a feature, or forbidden. Each is
//! named, and has its own exit code.

use crate::common::{TestDirectory, copy_program, succeeds, weir_trace};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles calls of thread 1, one after the other.
fn compile(sandbox: &TestDirectory, calls: &[&str]) -> PathBuf {
    let (text, compiled) = (sandbox.path("trace"), sandbox.path("compiled"));
    let line = |(number, call): (usize, &&str)| format!("1 1700000000.{:06} {call} <0.000001>\n", number * 2);
    fs::write(&text, calls.iter().enumerate().map(line).collect::<String>()).expect("a trace");
    succeeds(weir_trace().args(["compile"]).arg(&text).arg("-o").arg(&compiled));
    compiled
}

/// Replays on a file system that exists only for this command. `None` if this user may not mount one.
fn replay_on(sandbox: &TestDirectory, mount: &str, compiled: &Path) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may mount");
        return None;
    }
    let script = format!("mount {mount} none \"$1\" && exec \"$0\" replay --json --on \"$1\" \"$2\"");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "bash", "-c", &script, env!("CARGO_BIN_EXE_weir-trace")]);
    let mount_point = sandbox.path("mnt");
    fs::create_dir_all(&mount_point).expect("a mount point");
    Some(shell.arg(mount_point).arg(compiled).output().expect("it starts"))
}

fn causes(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report is JSON");
    report["causes"].clone()
}

const OPEN: &str = "openat(AT_FDCWD, \"/f\", O_RDWR|O_CREAT, 0644) = 3";

#[test]
fn a_target_that_gets_full_is_named() {
    let sandbox = TestDirectory::new();
    let write = "write(3, \"\"..., 41943040) = 41943040";
    let compiled = compile(&sandbox, &[OPEN, write, write]);
    let Some(output) = replay_on(&sandbox, "-t tmpfs -o size=32m", &compiled) else { return };
    assert_eq!(causes(&output), serde_json::json!({"space": 2}));
}

#[test]
fn a_target_without_a_feature_is_named() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox, &[OPEN, "fsetxattr(3, \"user.x\", \"\"..., 4, 0) = 0"]);
    let Some(output) = replay_on(&sandbox, "-t ramfs", &compiled) else { return };
    assert_eq!(causes(&output), serde_json::json!({"feature": 1}));
}

#[test]
fn a_read_only_target_has_an_exit_code_of_its_own() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox, &[OPEN]);
    let Some(output) = replay_on(&sandbox, "-t tmpfs -o ro", &compiled) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("Read-only") && said.contains("  help: "), "{said}");
}

#[test]
fn a_target_that_may_not_be_written_to_has_an_exit_code_of_its_own() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox, &[OPEN]);
    let program = std::env::temp_dir().join(format!("weir-copy-{}", std::process::id()));
    copy_program(env!("CARGO_BIN_EXE_weir-trace"), &program);
    let copy = std::env::temp_dir().join(format!("weir-compiled-{}", std::process::id()));
    fs::copy(&compiled, &copy).expect("a copy");
    for path in [&program, &copy] {
        succeeds(Command::new("chmod").arg("755").arg(path));
    }
    let mut command = Command::new(&program);
    command.uid(65534).gid(65534).args(["replay", "--on", "/etc"]).arg(&copy);
    let output = command.output().expect("it starts");
    for path in [&program, &copy] {
        fs::remove_file(path).expect("it is ours");
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("ermission denied") && said.contains("  help: "), "{said}");
}

fn code(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("it starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn no_trace_has_code_one_and_nonsense_code_two() {
    let sandbox = TestDirectory::new();
    let garbage = sandbox.path("garbage");
    fs::write(&garbage, [0xff, 0x00, b'(', b'\n'].repeat(5000)).expect("a file");
    let (found, said) = code(weir_trace().args(["compile"]).arg(&garbage).arg("-o").arg(sandbox.path("b")));
    assert!(
        found == Some(1) && said.contains("no call could be read") && said.contains("  help: "),
        "{said}"
    );
    let (found, said) = code(weir_trace().args(["replay"]).arg(&garbage).arg("--on").arg(sandbox.path("t")));
    assert!(found == Some(1) && said.contains("not a compiled trace"), "{said}");
    let compiled = compile(&sandbox, &[OPEN]);
    let mut old = fs::read(&compiled).expect("a compiled trace");
    old[8] = 1;
    fs::write(&garbage, old).expect("a file");
    let (found, said) = code(weir_trace().args(["info"]).arg(&garbage));
    assert!(found == Some(1) && said.contains("compile the trace again"), "{said}");
    assert_eq!(code(weir_trace().args(["replay", "--fsync", "sometimes"])).0, Some(2));
}

#[test]
fn a_trace_that_asks_for_a_billion_descriptors_and_the_largest_sizes_is_counted() {
    let sandbox = TestDirectory::new();
    let compiled = compile(
        &sandbox,
        &[
            OPEN,
            "dup2(3, 1000000000) = 1000000000",
            "dup3(3, 2147483647, O_CLOEXEC) = 2147483647",
            "pwrite64(1000000000, \"\"..., 9223372036854775807, 9223372036854775806) = -1 EFBIG (File too large)",
            "pread64(2147483647, \"\"..., 18446744073709551615, 0) = 0",
            "fallocate(3, 0, 9223372036854775807, 9223372036854775807) = -1 EFBIG (File too large)",
            "fcntl(3, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=18446744073709551615, l_len=9}) = 0",
            "fsetxattr(3, \"user.x\", \"\"..., 9223372036854775807, 0) = -1 E2BIG (Argument list too long)",
            "mknod(\"/disk\", S_IFBLK|0666, makedev(0x8, 0)) = 0",
            "openat(AT_FDCWD, \"/disk\", O_RDWR) = 9",
            "close_range(3, 4294967295, 0) = 0",
        ],
    );
    let mut command = weir_trace();
    command.args(["replay", "--json", "--keep", "--on"]).arg(sandbox.path("target"));
    let output = command.arg(&compiled).output().expect("it starts");
    assert!(causes(&output).as_object().is_some_and(|causes| causes.get("order").is_none()));
    let disk =
        walk(&sandbox.path("target")).into_iter().find(|path| path.ends_with("disk")).expect("it was made");
    assert!(disk.metadata().expect("it is there").is_file(), "a device would lead out of the target");
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn fsync_means_what_was_asked_for() {
    let sandbox = TestDirectory::new();
    let compiled =
        compile(&sandbox, &[OPEN, "write(3, \"\"..., 4096) = 4096", "fsync(3) = 0", "fdatasync(3) = 0"]);
    for fsync in ["durable", "device", "none"] {
        let mut command = weir_trace();
        command.args(["replay", "--json", "--fsync", fsync, "--on"]).arg(sandbox.path("target"));
        let output = command.arg(&compiled).output().expect("it starts");
        assert_eq!(causes(&output), serde_json::json!({}), "{fsync}");
    }
}
