//! The library for C: programs compiled against its header, with each of its two libraries.

use crate::common::{Sandbox, assert_says, succeeds};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What cargo has built for this test: beside the command, or beside the test.
pub(crate) fn built(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_weir"));
    let test = std::env::current_exe().expect("a test has a path");
    let places = [test.parent(), program.parent()].map(|place| place.expect("a directory").join(name));
    places.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("cargo has built {name}"))
}

fn library_c() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../library-c")
}

/// Installs the shared library under its names, and returns the directory.
fn installed(sandbox: &Sandbox) -> PathBuf {
    let directory = sandbox.path("lib");
    std::fs::create_dir(&directory).unwrap();
    for name in ["libweir.so", "libweir.so.0.1"] {
        symlink(built("libweir_c.so"), directory.join(name)).unwrap();
    }
    directory
}

/// Compiles a program, and returns it.
fn compiled(sandbox: &Sandbox, source: &Path, name: &str, libraries: &[&str]) -> PathBuf {
    let program = sandbox.path(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    compiler.arg("-I").arg(library_c().join("include")).args(libraries);
    succeeds(&mut compiler);
    program
}

fn with_shared(sandbox: &Sandbox, source: &Path, name: &str) -> Command {
    let directory = installed(sandbox);
    let at = format!("-L{}", directory.display());
    let mut run = Command::new(compiled(sandbox, source, name, &[&at, "-lweir"]));
    run.env("LD_LIBRARY_PATH", directory);
    run
}

#[test]
fn the_example_reads_what_its_last_run_wrote() {
    let sandbox = Sandbox::formatted();
    let source = library_c().join("examples/ledger.c");
    let first = succeeds(with_shared(&sandbox, &source, "shared").arg(sandbox.store()).arg("one"));
    assert_eq!(String::from_utf8_lossy(&first.stdout), "one\n/ledger has lines\n");
    // The libraries of the system that a static library of Rust needs.
    let archive = built("libweir_c.a");
    let libraries = [archive.to_str().expect("UTF-8"), "-lgcc_s", "-lpthread", "-lm", "-ldl"];
    let alone = compiled(&sandbox, &source, "static", &libraries);
    let second = succeeds(Command::new(&alone).arg(sandbox.store()).arg("two"));
    assert_eq!(String::from_utf8_lossy(&second.stdout), "one\ntwo\n/ledger has lines\n");
    let refused = Command::new(alone).arg(sandbox.path("nothing")).arg("three").output().unwrap();
    assert_says(&String::from_utf8_lossy(&refused.stderr), "there is no store here; check the path");
}

#[test]
fn bad_calls_have_the_errno_of_posix_and_a_wild_pointer_loses_nothing_synced() {
    let sandbox = Sandbox::formatted();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/bad_calls.c");
    let ended = with_shared(&sandbox, &source, "bad_calls").arg(sandbox.store()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "done\n");
    assert_eq!(ended.status.signal(), Some(11), "SIGSEGV");
    let weir = weir_library::Weir::open(&sandbox.store(), &Default::default()).unwrap();
    assert_eq!(weir.metadata("/synced").unwrap().size, 4);
}
