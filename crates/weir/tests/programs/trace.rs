//! Recorded programs, replayed on a mount by `weir trace`, which runs `weir-trace`.

use crate::common::{Sandbox, can_mount, succeeds, weir};
use serde_json::Value;
use std::path::{Path, PathBuf};

const TRACES: [&str; 4] = ["sqlite-wal-6threads", "git-clone-nolocal", "cargo-build", "fio-libaio-2threads"];

fn recorded(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../trace/compile/tests/data").join(file)
}

fn compile(sandbox: &Sandbox, name: &str) -> PathBuf {
    let benchmark = sandbox.path(&format!("{name}.benchmark"));
    let (trace, snapshot) = (format!("{name}.strace.gz"), format!("{name}.snapshot.gz"));
    let mut command = weir();
    command.args(["trace", "compile", "--snapshot-root", "/srv/app", "--snapshot"]).arg(recorded(&snapshot));
    succeeds(command.arg(recorded(&trace)).arg("-o").arg(&benchmark));
    benchmark
}

fn replay(benchmark: &Path, on: &Path, order: &str) -> Value {
    let mut command = weir();
    command.args(["trace", "replay", "--json", "--order", order, "--on"]).arg(on).arg(benchmark);
    serde_json::from_slice(&succeeds(&mut command).stdout).expect("a report is JSON")
}

fn by_order(report: &Value) -> u64 {
    report["causes"]["order"].as_u64().unwrap_or(0)
}

/// Whether `weir-trace` lies beside `weir`. If not, prints that: `cargo test -p weir` alone does not build
/// `weir-trace`.
fn have_weir_trace() -> bool {
    let there = Path::new(env!("CARGO_BIN_EXE_weir")).with_file_name("weir-trace").exists();
    let must = std::env::var_os("WEIR_TESTS_MUST_MOUNT").is_some();
    assert!(there || !must, "missing: weir-trace beside weir; `cargo build -p weir-trace` makes it");
    if !there {
        eprintln!("skipped: no weir-trace beside weir");
    }
    there
}

#[test]
fn no_result_of_four_programs_depends_on_the_order_on_a_mount() {
    if !can_mount() || !have_weir_trace() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "2GiB", "--buffer-size", "256MiB"]);
    let mounted = sandbox.mount();
    for name in TRACES {
        let benchmark = compile(&sandbox, name);
        let report = replay(&benchmark, &mounted.path("target"), "weir");
        assert_eq!(by_order(&report), 0, "{name}: {:#}", report["differences"]);
    }
    mounted.unmount();
}
