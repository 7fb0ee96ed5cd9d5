//! The four recorded programs, replayed with as many threads as they had. No result may depend on the order
//! in which threads happen to run. Without an order, some do.
//!
//! These tests run as root, as in CI, because the traced programs did.

use crate::common::{TestDirectory, succeeds, weir_trace};
use serde_json::Value;
use std::path::{Path, PathBuf};

const TRACES: [&str; 4] = ["sqlite-wal-6threads", "git-clone-nolocal", "cargo-build", "fio-libaio-2threads"];

fn recorded(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compile/tests/data").join(file)
}

fn compile(sandbox: &TestDirectory, name: &str) -> PathBuf {
    let compiled = sandbox.path(&format!("{name}.compiled"));
    let (trace, snapshot) = (format!("{name}.strace.gz"), format!("{name}.snapshot.gz"));
    let mut command = weir_trace();
    command.args(["compile", "--snapshot-root", "/srv/app", "--snapshot"]).arg(recorded(&snapshot));
    succeeds(command.arg(recorded(&trace)).arg("-o").arg(&compiled));
    compiled
}

fn replay(compiled: &Path, on: &Path, order: &str) -> Value {
    let mut command = weir_trace();
    command.args(["replay", "--json", "--order", order, "--on"]).arg(on).arg(compiled);
    serde_json::from_slice(&succeeds(&mut command).stdout).expect("a report is JSON")
}

fn by_order(report: &Value) -> u64 {
    report["causes"]["order"].as_u64().unwrap_or(0)
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: these programs were recorded as root");
    }
    root
}

#[test]
fn no_result_of_four_programs_depends_on_the_order_in_a_directory() {
    if !is_root() {
        return;
    }
    let sandbox = TestDirectory::new();
    for name in TRACES {
        let compiled = compile(&sandbox, name);
        for order in ["weir", "root"] {
            let report = replay(&compiled, &sandbox.path("target"), order);
            assert_eq!(by_order(&report), 0, "{name}, {order}: {:#}", report["differences"]);
        }
    }
}

#[test]
fn traces_of_dtruss_replay_as_recorded() {
    let sandbox = TestDirectory::new();
    for name in ["copy", "edit", "database"] {
        let compiled = sandbox.path(&format!("{name}.compiled"));
        let mut command = weir_trace();
        let trace = recorded(&format!("dtruss/{name}.dtruss"));
        succeeds(command.arg("compile").arg(trace).arg("-o").arg(&compiled));
        let report = replay(&compiled, &sandbox.path("target"), "weir");
        assert_eq!(report["differences"], serde_json::json!([]), "{name}");
    }
}

#[test]
fn without_an_order_results_of_a_compiler_depend_on_luck() {
    if !is_root() {
        return;
    }
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox, "cargo-build");
    let report = replay(&compiled, &sandbox.path("target"), "unconstrained");
    assert!(by_order(&report) > 0, "{report:#}");
    let mut strict = weir_trace();
    strict.args(["replay", "--strict", "--order", "unconstrained", "--on"]);
    let output = strict.arg(sandbox.path("target")).arg(&compiled).output().expect("it starts");
    assert_eq!(output.status.code(), Some(3), "an exit code says it to scripts");
}
