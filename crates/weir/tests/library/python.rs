//! The library for Python.

use crate::c::built;
use crate::common::{Sandbox, assert_says, succeeds};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn library_python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../library-python")
}

/// Lays out the package as maturin would, and returns its parent.
fn installed(sandbox: &Sandbox) -> PathBuf {
    let site = sandbox.path("site");
    fs::create_dir_all(site.join("weir")).unwrap();
    for file in ["__init__.py", "_weir.pyi", "py.typed"] {
        fs::copy(library_python().join("python/weir").join(file), site.join("weir").join(file)).unwrap();
    }
    fs::copy(built("lib_weir.so"), site.join("weir/_weir.abi3.so")).unwrap();
    site
}

/// Debian's interpreter, which has mypy.
fn python(site: &Path) -> Command {
    let mut python = Command::new("/usr/bin/python3");
    python.env("PYTHONPATH", site).env("MYPYPATH", site).current_dir(site);
    python
}

#[test]
fn the_python_example_reads_what_its_last_run_wrote() {
    let sandbox = Sandbox::formatted();
    let site = installed(&sandbox);
    let example = library_python().join("examples/ledger.py");
    let run = |store: PathBuf, text: &str| {
        let mut python = python(&site);
        python.arg(&example).arg(store).arg(text);
        python
    };
    assert_eq!(succeeds(&mut run(sandbox.store(), "one")).stdout, b"3 one\n");
    assert_eq!(succeeds(&mut run(sandbox.store(), "seven")).stdout, b"3 one\n5 seven\n");
    let refused = run(sandbox.path("nothing"), "x").output().unwrap();
    assert_says(&String::from_utf8_lossy(&refused.stderr), "there is no store here; check the path");
}

#[test]
fn files_are_those_of_the_interpreter_and_errors_those_of_the_system() {
    let sandbox = Sandbox::formatted();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/python.py");
    let said = succeeds(python(&installed(&sandbox)).arg(script).arg(sandbox.store()));
    assert_eq!(String::from_utf8_lossy(&said.stdout), "done\n");
}

#[test]
fn the_stubs_are_those_of_the_compiled_module() {
    let sandbox = Sandbox::new();
    let site = installed(&sandbox);
    succeeds(python(&site).args(["-m", "mypy.stubtest", "weir._weir"]));
    succeeds(python(&site).args(["-m", "mypy", "--strict", "--cache-dir=/dev/null", "-p", "weir"]));
}
