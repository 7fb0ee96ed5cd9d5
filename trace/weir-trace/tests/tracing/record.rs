//! Programs that the test records, compiles and replays. No result may depend on the order in which threads
//! happen to run.
//!
//! The tests need strace and root, as in CI. If something is missing, they say so and skip, unless
//! `WEIR_TESTS_MUST_MOUNT` is set.

use crate::common::{TestDirectory, succeeds, weir_trace};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use trace_file::CompiledTrace;

/// Replays of each program, as fast as possible.
const RUNS: &str = "5";
/// Random orders on the simulated file system.
const ORDERS: u64 = 100;

fn have(programs: &[&str]) -> bool {
    let there = |program: &&str| {
        Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()
            .is_ok_and(|found| found.status.success())
    };
    let missing: Vec<_> = programs.iter().filter(|program| !there(program)).collect();
    let all = missing.is_empty() && rustix::process::geteuid().is_root();
    let must = std::env::var_os("WEIR_TESTS_MUST_MOUNT").is_some();
    assert!(all || !must, "missing: {missing:?}, or not root; scripts/install-test-tools installs them");
    if !all {
        eprintln!("skipped: missing {missing:?}, or not root");
    }
    all
}

/// Runs a script under the recorder, in an empty directory that is listed first, and compiles the trace.
fn recorded(sandbox: &TestDirectory, script: &str) -> (PathBuf, Output) {
    let (work, trace) = (sandbox.path("work"), sandbox.path("trace"));
    fs::create_dir(&work).expect("a directory");
    let mut command = weir_trace();
    command.args(["record", "--tree", ".", "-o"]).arg(&trace).args(["--", "bash", "-ec", script]);
    let output = succeeds(command.current_dir(&work).env("HOME", &work));
    let compiled = sandbox.path("compiled");
    let mut compile = weir_trace();
    compile.args(["compile", "--snapshot"]).arg(sandbox.path("trace.snapshot"));
    succeeds(compile.arg(&trace).arg("-o").arg(&compiled));
    (compiled, output)
}

fn json(command: &mut Command) -> Value {
    serde_json::from_slice(&succeeds(command).stdout).expect("JSON")
}

fn replay(compiled: &Path, on: &Path, order: &str) -> Value {
    let mut command = weir_trace();
    command.args(["replay", "--json", "--runs", RUNS, "--order", order, "--on"]);
    json(command.arg(on).arg(compiled))
}

/// Seeds of random programs, each recorded once; `WEIR_RECORDED=FIRST,COUNT` sets others.
fn seeds() -> std::ops::Range<u32> {
    let chosen = std::env::var("WEIR_RECORDED").unwrap_or_else(|_| "1,6".into());
    let numbers =
        chosen.split_once(',').and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)));
    let (first, count): (u32, u32) = numbers.expect("WEIR_RECORDED is FIRST,COUNT");
    first..first + count
}

/// Whether the order promises this call's result. `root` does not order a listing and the names made before
/// and after it.
fn is_promised(order: &str, call: &str) -> bool {
    order != "root" || call != "getdents64"
}

/// Asserts that no result of a replay depends on the order. Returns the causes of other differences.
fn keeps_results(compiled: &Path, on: &Path) -> Vec<String> {
    let mut causes = Vec::new();
    for order in ["weir", "root"] {
        let report = replay(compiled, on, order);
        let groups = report["groups"].as_array().expect("groups");
        let call = |group: &Value| group["call"].as_str().unwrap_or_default().to_owned();
        let by_order = |group: &&Value| group["cause"] == "order" && is_promised(order, &call(group));
        assert_eq!(groups.iter().find(by_order), None, "{order}");
        causes.extend(groups.iter().filter_map(|group| group["cause"].as_str().map(str::to_owned)));
    }
    causes
}

/// The results that differ in some random order on the simulated file system.
fn changes(compiled: &Path, order: &str) -> Vec<String> {
    let compiled = CompiledTrace::read(compiled).expect("it was compiled");
    let verification = trace_verify::verify(&compiled, order, ORDERS, 1).expect("the order is compiled");
    let mut all = verification.results;
    all.retain(|changed| is_promised(order, &changed.what.call));
    if order == "weir" {
        all.extend(verification.views);
    }
    all.iter().map(|changed| changed.what.to_string()).collect()
}

fn races(compiled: &Path) -> u64 {
    let info = json(weir_trace().args(["info", "--json"]).arg(compiled));
    info["about"]["repairs"]["races"].as_u64().expect("a count")
}

/// Records and replays. Differences that do not come from the order must have one of these causes.
fn replays_faithfully(script: &str, others: &[&str]) -> (Value, Output) {
    let sandbox = TestDirectory::new();
    let (compiled, output) = recorded(&sandbox, script);
    let causes = keeps_results(&compiled, &sandbox.path("target"));
    // After a race, the model knows less than the program.
    for order in ["weir", "root"].into_iter().filter(|_| races(&compiled) == 0) {
        assert_eq!(changes(&compiled, order), [""; 0], "{order}");
    }
    let other = causes.iter().find(|cause| !others.contains(&cause.as_str()));
    assert_eq!(other, None, "{:#}", replay(&compiled, &sandbox.path("target"), "weir")["groups"]);
    (json(weir_trace().args(["info", "--json"]).arg(&compiled)), output)
}

fn skipped(info: &Value) -> Vec<&Value> {
    let fates = info["fates"].as_array().expect("fates");
    fates
        .iter()
        .filter(|fate| fate["fate"].as_str().is_some_and(|text| text.starts_with("skipped")))
        .collect()
}

#[test]
fn processes_that_share_two_databases_of_sqlite() {
    if !have(&["strace", "sqlite3"]) {
        return;
    }
    let script = "
        sqlite3 wal.db 'pragma journal_mode=wal; create table t(x)' >/dev/null
        sqlite3 rollback.db 'create table t(x)'
        for process in 1 2 3; do
            for row in 1 2 3 4 5 6; do
                for db in wal rollback; do
                    sqlite3 -cmd '.timeout 20000' $db.db \"insert into t values($row); select count(*) from t\" >/dev/null
                done
            done &
        done
        wait";
    let (info, output) = replays_faithfully(script, &["stand-in", "race"]);
    assert_eq!(skipped(&info), [&Value::Null; 0], "{info:#}");
    // SQLite writes the index of its write-ahead log through a mapping.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("warning: ") && said.contains("shared mappings"), "{said}");
}

#[test]
fn redis_that_syncs_always_and_rewrites_its_log() {
    if !have(&["strace", "redis-server", "redis-cli", "redis-benchmark"]) {
        return;
    }
    let script = "
        redis-server --port 0 --unixsocket $PWD/s --dir $PWD --appendonly yes --appendfsync always --save '' >/dev/null &
        until [ -S s ]; do sleep 0.05; done
        redis-benchmark -s s -n 200 -c 4 -q -t set,lpush >/dev/null
        redis-cli -s s bgrewriteaof >/dev/null
        redis-benchmark -s s -n 200 -c 4 -q -t set >/dev/null
        redis-cli -s s shutdown nosave
        wait";
    let (info, _) = replays_faithfully(script, &["stand-in", "race"]);
    assert_eq!(skipped(&info), [&Value::Null; 0], "{info:#}");
}

#[test]
fn git_that_commits_clones_and_packs() {
    if !have(&["strace", "git"]) {
        return;
    }
    let script = "
        git init -q one; cd one; git config user.email a@b; git config user.name n
        for file in 1 2 3 4 5 6; do mkdir -p d$file; echo $file > d$file/f; done
        git add .; git commit -qm first
        echo more >> d1/f; git -c core.fsync=all commit -qam second
        cd ..; git clone -q --no-local one two; cd two
        git gc -q; git log --stat >/dev/null";
    let (info, _) = replays_faithfully(script, &["stand-in", "race"]);
    assert_eq!(skipped(&info), [&Value::Null; 0], "{info:#}");
}

#[test]
fn a_compiler_that_runs_four_times_at_once() {
    if !have(&["strace", "cc"]) {
        return;
    }
    let script = "
        for file in 1 2 3; do echo \"int f$file(void) { return $file; }\" > f$file.c; done
        echo 'int f1(void), f2(void), f3(void); int main(void) { return f1() + f2() + f3() - 6; }' > main.c
        for file in f1 f2 f3 main; do cc -O1 -c $file.c & done
        wait
        cc -o program f1.o f2.o f3.o main.o
        ./program";
    let (info, _) = replays_faithfully(script, &["stand-in", "race"]);
    assert_eq!(skipped(&info), [&Value::Null; 0], "{info:#}");
}

#[test]
fn rocksdb_that_fills_with_syncs_and_reads_at_random() {
    if !have(&["strace", "db_bench"]) {
        return;
    }
    let script = "
        db_bench --db=$PWD/db --benchmarks=fillrandom,readrandom --num=1000 --reads=500 --threads=3 --sync=1 \
            --value_size=400 --write_buffer_size=65536 --target_file_size_base=65536 --compression_type=none >/dev/null";
    let (info, _) = replays_faithfully(script, &["stand-in", "race"]);
    assert_eq!(skipped(&info), [&Value::Null; 0], "{info:#}");
}

#[test]
fn programs_drawn_from_a_seed_replay_in_order_five_times_each() {
    if !have(&["strace", "cc"]) {
        return;
    }
    let sandbox = TestDirectory::new();
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/generated.c"), sandbox.path("generated"));
    succeeds(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source));
    for seed in seeds() {
        let sandbox = TestDirectory::new();
        let (compiled, _) = recorded(&sandbox, &format!("{} . {seed} 60", program.display()));
        keeps_results(&compiled, &sandbox.path("target"));
        for order in ["weir", "root"] {
            assert_eq!(changes(&compiled, order), [""; 0], "seed {seed}, {order}");
        }
        println!("seed {seed}: {} races", races(&compiled));
    }
}
