//! Runs of all benchmarks at small scale. They must print every row; no test checks a speed.

use serde_json::Value;
use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::Duration;
use test_support::{can_mount, succeeds};

/// The command under test. It measures the `weir` beside it, which `cargo build` and `cargo test --workspace`
/// also build.
fn weir_bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir-bench"))
}

fn bench(arguments: &[&str]) -> Value {
    bench_with(&mut weir_bench(), arguments)
}

fn bench_with(program: &mut Command, arguments: &[&str]) -> Value {
    let output = succeeds(program.args(arguments).arg("--json"));
    serde_json::from_slice(&output.stdout).expect("a benchmark's result is JSON")
}

#[test]
fn steady_writes_prints_weir_beside_ext4() {
    if !can_mount() {
        return;
    }
    let report = bench(&["steady-writes", "--size", "small", "--model", "ssd"]);
    let rows = report["rows"].as_array().expect("rows");
    let systems: Vec<_> = rows.iter().map(|row| row["system"].as_str().expect("a name")).collect();
    assert_eq!(systems, ["ext4", "weir"]);
    assert!(rows.iter().all(|row| row["steady_per_s"].as_f64().expect("a figure") > 0.0));
    assert!(rows[1]["store_bytes_written"].as_f64().is_some(), "weir's status has it");
}

/// The experiment itself fails if a synced page was lost.
#[test]
fn picture_draws_both_systems_and_prints_each_phase() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("picture.svg");
    let report = bench(&["picture", "--size", "small", "--svg", file.to_str().expect("a name in UTF-8")]);
    let rows = report["phases"].as_array().expect("rows");
    let phases = |system: &str| -> Vec<&str> {
        let of_system = rows.iter().filter(|row| row["system"] == system);
        of_system.map(|row| row["phase"].as_str().expect("a name")).collect()
    };
    assert_eq!(phases("ext4")[..3], ["calm", "checkpoint", "after it"]);
    assert!(phases("weir").contains(&"kill and restart"), "{report}");
    for row in rows.iter().filter(|row| row["phase"] == "calm") {
        assert!(row["synced"]["p50_ms"].as_f64().expect("a figure") > 0.0, "{row}");
        assert!(row["plain"]["p50_ms"].as_f64().expect("a figure") > 0.0, "{row}");
    }
    assert_eq!(report["failed_attempts"]["ext4"], 0, "nobody kills ext4");
    assert!(report["failed_attempts"]["weir"].as_u64().expect("a count") > 0, "the daemon was killed");
    let svg = std::fs::read_to_string(&file).expect("the picture");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.len() < 100 << 10);
    for text in [">ext4</text>", ">weir</text>", ">kill -9 of the daemon</text>", "prefers-color-scheme"] {
        assert!(svg.contains(text), "{text} is missing");
    }
}

/// The experiment itself fails if a page does not hold what was written last.
#[test]
fn commits_prints_every_way_and_nothing_for_what_no_vector_takes() {
    if !can_mount() {
        return;
    }
    let small = ["--sizes", "16,512", "--commits", "3", "--rounds", "2", "--file", "16", "--models", "ssd"];
    let report = bench(&[&["commits"][..], &small].concat());
    let rows = report["ssd"].as_array().expect("rows");
    let rounds: Vec<usize> =
        rows.iter().map(|row| row["commit_ms"].as_array().expect("rounds").len()).collect();
    assert_eq!(rounds, [2, 2, 2, 2, 0, 0]);
    assert_eq!(rows[0]["times"]["median"], 1.0, "the journal beside itself");
    assert_eq!(rows[4]["times"], Value::Null);
}

#[test]
fn criticality_prints_every_policy_that_weir_knows() {
    if !can_mount() {
        return;
    }
    let policies = ["none", "all", "sync", "file=/file", "critical", "unknown"];
    let report =
        bench(&["criticality", "--size", "small", "--model", "ssd", "--policies", &policies.join(",")]);
    assert_eq!(report["left_out"], serde_json::json!(["unknown"]));
    let rows = report["rows"].as_array().expect("rows");
    let named: Vec<_> = rows.iter().map(|row| row["policy"].as_str().expect("a name")).collect();
    assert_eq!(named, policies[..5]);
    for row in rows {
        for figure in ["p50_ms", "p99_ms", "p999_ms", "slowest_ms", "critical_per_s", "background_per_s"] {
            assert!(row[figure][0].as_f64().expect("a figure") > 0.0, "{figure}: {row}");
        }
        assert!(row["buffer_mib"][0].as_f64().is_some(), "weir's status has it: {row}");
    }
}

#[test]
fn streams_prints_every_load_on_weir_with_either_order_beside_ext4() {
    if !can_mount() {
        return;
    }
    let report = bench(&["streams", "--size", "small", "--disk", "limited", "--file", "16"]);
    let disk = &report["disks"][0];
    assert!(disk["measured"]["sequential_mib_per_s"].as_f64().expect("a figure") > 0.0);
    let (rows, mixed) = (disk["rows"].as_array().expect("rows"), disk["mixed"].as_array().expect("rows"));
    let systems = ["ext4", "weir --data ordered", "weir --data journal"];
    assert_eq!(rows.len(), 5 * systems.len(), "{report}");
    for (row, system) in rows.iter().zip(systems.iter().cycle()) {
        assert_eq!(row["system"], *system);
        assert!(row["mib_per_s"][0].as_f64().expect("a figure") > 0.0, "{row}");
        let on_weir = row["store_bytes_per_byte"].as_array().expect("figures").len();
        assert_eq!(on_weir, usize::from(*system != "ext4"), "{row}");
    }
    for (row, system) in mixed.iter().zip(systems) {
        assert_eq!(row["system"], system);
        for figure in ["alone_per_s", "beside_per_s", "stream_mib_per_s"] {
            assert!(row["rounds"][0][figure].as_f64().expect("a figure") > 0.0, "{row}");
        }
    }
}

#[test]
fn delta_reads_prints_both_ways_of_reading_before_and_after_delta_merge() {
    if !can_mount() {
        return;
    }
    let report = bench(&["delta-reads", "--size", "small", "--model", "ssd"]);
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| row["what"].as_str().expect("a name")).collect();
    assert_eq!(names, ["random", "sequential", "random, merged", "sequential, merged"]);
    assert!(rows.iter().all(|row| row["ratio"]["median"].as_f64().expect("a figure") > 0.0));
}

#[test]
fn snapshots_prints_writers_beside_one_and_later_writes() {
    if !can_mount() {
        return;
    }
    let dirty = ["snapshots", "--parts", "dirty,later", "--dirty", "16", "--seconds", "1"];
    let later = ["--io", "512", "--file", "4", "--passes", "1", "--memory", "16"];
    let report = bench(&[&dirty[..], &later[..]].concat());
    let figures = report["dirty"].as_array().expect("rows");
    let value = |name: &str| {
        let row = figures.iter().find(|row| row["figure"] == name).expect("a row of each name");
        row["value"].as_f64().expect("a figure")
    };
    assert!(value("dirty at the snapshot") >= 16.0, "all is dirty: {report}");
    assert!(value("the snapshot") > 0.0 && value("before: the slowest") > 0.0, "{report}");
    let phases: Vec<_> = report["later"].as_array().expect("rows").iter().map(|row| &row["phase"]).collect();
    assert_eq!(phases, ["warm-up", "no snapshot", "one snapshot", "it was deleted"]);

    let epochs = ["snapshots", "--parts", "epochs", "--seconds", "2", "--rounds", "1", "--every", "0,1"];
    let report = bench(&[&epochs[..], &["--file", "4", "--memory", "16"]].concat());
    let rows = report["epochs"].as_array().expect("rows");
    let speeds: Vec<f64> = rows.iter().map(|row| row["writes_per_s"].as_f64().expect("a figure")).collect();
    assert!(speeds.len() == 2 && speeds.iter().all(|&speed| speed > 0.0), "{report}");
}

#[test]
fn nonblocking_writes_prints_every_system_beside_ext4() {
    if !can_mount() {
        return;
    }
    let report = bench(&["nonblocking-writes", "--size", "small", "--model", "ssd"]);
    let model = &report["models"][0];
    assert!(model["measured"]["reads_per_s_depth_1"].as_f64().expect("a figure") > 0.0);
    let rows = model["rows"].as_array().expect("rows");
    let systems: Vec<_> = rows
        .iter()
        .filter(|row| row["runs"][0]["writes"].as_u64().expect("a count") > 0)
        .map(|row| row["system"].as_str().expect("a name"))
        .collect();
    let expected = [
        "ext4",
        "weir lazy, buffer on disk",
        "weir blocking, buffer on disk",
        "ext4",
        "ext4 data=journal, journal on tmpfs",
        "weir lazy, buffer on tmpfs",
        "ext4 data=journal, journal on disk",
        "weir lazy, buffer on disk",
        "bare pwrite + fdatasync on the disk",
    ];
    assert_eq!(systems, expected);
    assert_eq!(model["ratios"].as_array().expect("ratios").len(), 3);
}

/// Chart and label of each cell of a report. Checks that each cell has a rate of every system.
fn cells(report: &Value, systems: &[&str]) -> Vec<String> {
    let cells = report["cells"].as_array().expect("cells");
    for cell in cells {
        let figures = cell["figures"].as_array().expect("figures");
        for system in systems {
            let of = |figure: &&Value| figure["system"] == *system;
            let rate = figures.iter().find(of).expect("a figure of each system");
            assert!(rate["rounds"][0].as_f64().expect("a figure") > 0.0, "{cell}");
        }
    }
    let name = |cell: &Value| format!("{}: {}", cell["chart"], cell["label"]).replace('"', "");
    cells.iter().map(name).collect()
}

#[test]
fn experiments_of_cells_go_on_where_they_stopped() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a plain path").to_owned();
    let file = path("cells");
    let lines = || std::fs::read_to_string(&file).expect("cells").lines().count();
    let small = ["--size", "small", "--into", &file];
    let run = |arguments: &[&str]| bench(&[arguments, &small[..]].concat());

    let fetch = ["personalities", "--model", "ssd", "--io", "64,4096", "--only", "random-write"];
    let found = cells(&run(&fetch), &["blocking", "lazy"]);
    assert_eq!(found, ["ssd, random-write: 64 B", "ssd, random-write: 4096 B"]);
    let servers = ["periodic-flushing", "--only", "varmail", "--rate", "200"];
    let systems = ["weir", "weir --dirty-age=5", "weir --dirty-age=30", "ext4"];
    assert_eq!(cells(&run(&servers), &systems).len(), 1);
    let matrix = ["sync-matrix", "--io", "100", "--shares", "0,100"];
    let found = run(&matrix);
    assert_eq!(cells(&found, &["ext4", "weir"]).len(), 2);
    assert!(found["cells"][0]["figures"].to_string().contains("device bytes/byte"), "{found}");
    assert_eq!(lines(), 2 + 1 + 2);

    assert_eq!(cells(&run(&matrix), &["ext4", "weir"]).len(), 2);
    assert_eq!(lines(), 5, "what is there is not measured again");
    run(&[&fetch[..], &["--pairs", "1"]].concat());
    assert_eq!(lines(), 5 + 1, "the cell of whole pages has another parameter");
}

#[test]
fn the_overview_has_both_systems_under_each_load() {
    if !can_mount() {
        return;
    }
    let report = bench(&["overview", "--model", "ssd", "--rows", "50", "--pages", "500", "--seconds", "1"]);
    let loads = report["loads"].as_array().expect("loads");
    assert_eq!(loads.len(), 3, "{report}");
    for load in loads {
        for system in ["ext4", "weir"] {
            assert!(load[system].as_f64().is_some_and(|rate| rate > 0.0), "{system}: {load}");
        }
    }
}

#[test]
fn partial_writes_cause_no_store_read_and_syncs_no_store_io() {
    if !can_mount() {
        return;
    }
    let counted = bench(&["counters", "--writes", "20000", "--pages", "4000"]);
    let count = |name: &str| counted[name].as_u64().expect("a count");
    // The pages must have been un-cached. Otherwise the zeros below would prove nothing.
    assert!(count("writes_to_absent_pages") >= 4000, "{counted}");
    assert!(count("syncs") >= 100, "{counted}");
    let fetched = ["fetched_for_writes", "fetched_for_write_back", "fetched_for_reads", "fetched_ahead"];
    for nothing in fetched.into_iter().chain(["store_io_for_syncs"]) {
        assert_eq!(count(nothing), 0, "{nothing}: {counted}");
    }
}

#[test]
fn the_front_end_is_measured_beside_a_trivial_file_system_operation_by_operation() {
    if !can_mount() {
        return;
    }
    let report =
        bench(&["front-end", "--rows", "operations", "--rounds", "2", "--slice", "10", "--clients", "1,2"]);
    let rows = report["operations"].as_array().expect("rows");
    assert_eq!(rows.len(), 9 * 2, "each operation by one client and by two: {report}");
    for row in rows {
        for of in ["peer", "weir"] {
            let of = |what: &str| &row["summary"][format!("{of}_{what}")];
            for figure in [&of("micros")["median"], &of("per_s")["median"], of("cpu_micros")] {
                assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{row}");
            }
        }
    }
    // Every operation must reach the front end: an answer from the kernel's cache takes less than a thread
    // switch.
    let peer = rows.iter().filter_map(|row| row["summary"]["peer_micros"]["median"].as_f64());
    let fastest = peer.fold(f64::MAX, f64::min);
    assert!(fastest > 1.0, "{fastest} us");
    // The disk's file system supports writes, wherever this test runs.
    assert!(rows[0]["disk"][1]["p50_micros"].as_f64().is_some_and(|figure| figure > 0.0), "{report}");
}

#[test]
fn every_target_of_the_front_end_has_a_figure() {
    if !can_mount() {
        return;
    }
    let operations = ["--clients", "1,8", "--slice", "10", "--only", "write512,create-unlink"];
    let small = ["front-end", "--size", "small", "--rounds", "1"];
    let report = bench(&[&small[..], &operations[..]].concat());
    let targets = report["targets"].as_array().expect("targets");
    let rows: Vec<_> = targets.iter().map(|target| target["row"].as_str().expect("a name")).collect();
    assert_eq!(rows.len(), 5 + 6 + 7 + 3, "{rows:?}");
    for target in targets {
        assert!(target["figure"]["median"].as_f64().is_some_and(|figure| figure > 0.0), "{target}");
        assert!(target["met"].is_boolean(), "{target}");
    }
    assert_eq!(report["busy_threads"], 0);
}

#[test]
fn the_front_end_is_measured_under_load() {
    if !can_mount() {
        return;
    }
    let report = bench(&["front-end", "--rows", "sqlite", "--size", "small", "--rounds", "1", "--load"]);
    assert_eq!(report["busy_threads"], report["processors"]);
    assert_eq!(report["targets"].as_array().map(Vec::len), Some(3), "{report}");
    let used = report["others"]["used"].as_f64().expect("a share");
    assert!((0.0..=1.0).contains(&used), "{report}");
}

#[test]
fn overwrites_of_a_nearly_full_store_cost_no_more_than_cleaning_oldest_first() {
    let report = bench(&["cleaning", "--size", "128", "--full", "30,100", "--times", "2"]);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 2, "each load on each store: {report}");
    for row in rows {
        let written = |name: &str| row["written"][name].as_f64().expect("a figure");
        assert!(written("data") >= 1.0 && written("all") > written("data"), "{row}");
        let oldest_first = row["oldest_first"].as_f64().expect("a figure");
        // The formula is for uniform overwrites; skewed ones cost less.
        assert!(written("data") < 1.25 * oldest_first, "the cleaner moves too much: {row}");
        let (full, asked) = (row["full_percent"].as_f64(), row["asked_percent"].as_u64());
        let full = full.expect("a figure");
        // The store keeps space back here, too.
        assert!(
            if asked == Some(100) { full > 31.0 && full < 90.0 } else { (full - 30.0).abs() < 0.1 },
            "{row}"
        );
    }
    let fullest = &rows[2];
    assert!(fullest["written"]["data"].as_f64() > Some(1.0), "nothing was cleaned: {fullest}");
}

/// Not a part of `make test`: what the compiler puts into one function, and how the processor copies, moves the counts of code
/// by a tenth from machine to machine.
#[test]
fn footprints_stay_within_their_gates() {
    let Some(release_build) = std::env::var_os("WEIR_TESTS_FOOTPRINTS") else {
        return eprintln!("not measured: `make footprints` does it");
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let page = directory.path().join("footprint.html");
    let arguments = ["footprint", "--html", page.to_str().expect("a plain path")];
    let report = bench_with(&mut Command::new(release_build), &arguments);
    let operations = report["operations"].as_array().expect("rows");
    assert_eq!(operations.len(), 8);
    for row in operations {
        for figure in ["code_bytes", "executed_bytes", "data_lines", "data_lines_written", "instructions"] {
            assert!(row[figure].as_u64().expect("a count") > 0, "{figure}: {row}");
        }
        assert!(row["executed_bytes"].as_u64() <= row["code_bytes"].as_u64(), "{row}");
    }
    let bounds = report["bounds"].as_array().expect("rows");
    assert_eq!(bounds.len(), 11);
    let exceeded: Vec<_> = bounds.iter().filter(|row| row["value"].as_u64() > row["gate"].as_u64()).collect();
    assert!(exceeded.is_empty(), "{exceeded:#?}");
    let components = report["components"].as_array().expect("rows");
    for part in ["fs", "cache", "buffer"] {
        let touched = |row: &&Value| row["operation"] == "overwrite 512 B" && row["component"] == part;
        assert_eq!(components.iter().filter(touched).count(), 1, "{part}");
    }
    let page = std::fs::read_to_string(page).expect("it was written");
    assert!(page.contains("<h2>fstat</h2>") && page.contains("bytes executed"));
}

#[test]
fn the_dense_core_is_measured_beside_tmpfs() {
    if !can_mount() {
        return;
    }
    let report = bench(&["dense", "--rounds", "1", "--operations", "20"]);
    let threads = report["threads"].as_array().expect("rows");
    assert_eq!(threads.len(), 5);
    assert!(threads.iter().all(|row| row["several_threads"].as_f64().expect("a figure") > 0.0));
    let report = bench(&["working-set", "--rounds", "1", "--walks", "2"]);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5 * 9);
    assert!(rows.iter().all(|row| row["weir"]["median"].as_f64().is_some()));
}

#[test]
fn programs_are_measured_by_weir_run_beside_tmpfs_a_mount_and_ext4() {
    if !can_mount() {
        return;
    }
    let report = bench(&["sqlite", "--inserts", "20", "--rounds", "1"]);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 2 * 5 * 2);
    for row in rows {
        assert!(row["weir_us"].as_f64() > Some(0.0) && row["tmpfs_us"].as_f64() > Some(0.0), "{row}");
    }
    assert!(report["off_speed"].as_f64() >= report["off_speed_least"].as_f64());
    let small = ["--files", "100", "--tar-files", "50", "--rounds", "1", "--passes", "2"];
    let report = bench(&[&["small-files"], &small[..]].concat());
    let grep = report["grep"].as_array().expect("rows");
    assert_eq!(grep.len(), 2);
    assert!(grep.iter().all(|row| row["run_s"].as_f64() > Some(0.0) && row["mount_s"].as_f64() > Some(0.0)));
    assert_eq!(report["tar"].as_array().expect("rows").len(), 3);
}

#[test]
fn a_benchmark_that_is_stopped_takes_everything_down() {
    if can_mount() {
        // The tmpfs, an export, and a file system on it.
        stop_while_mounted(&["nonblocking-writes", "--size", "small", "--model", "hdd"], 3);
        // The device, ext4 on it, and weir.
        stop_while_mounted(&["streams", "--size", "small", "--disk", "limited"], 3);
        stop_while_mounted(&["front-end", "--rows", "operations", "--only", "create-unlink"], 2);
        stop_while_mounted(&["front-end", "--rows", "tree", "--size", "small", "--rounds", "100"], 1);
    }
}

/// Starts a benchmark, stops it once `mounts` file systems are mounted, and checks that it left nothing.
fn stop_while_mounted(arguments: &[&str], mounts: usize) {
    let mut says = tempfile::tempfile().expect("a temporary file");
    let mut bench = weir_bench()
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(says.try_clone().expect("a free descriptor"))
        .spawn()
        .expect("weir-bench starts");
    let place = std::env::temp_dir().join(format!("weir-bench-{}", bench.id()));
    let place = place.to_str().expect("a plain path");
    while mounts_below(place) < mounts {
        if let Some(status) = bench.try_wait().expect("a child of ours") {
            let mut text = String::new();
            says.rewind().and_then(|()| says.read_to_string(&mut text)).expect("what it said");
            panic!("the benchmark ended too early: {status}: {text}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    succeeds(Command::new("kill").args(["-INT", &bench.id().to_string()]));
    let status = bench.wait().expect("a stopped benchmark ends");
    assert_eq!(status.code(), Some(128 + 2), "ends as the signal says");
    assert_eq!(mounts_below(place), 0, "mounts are left");
    let loops = succeeds(&mut Command::new("losetup")).stdout;
    assert!(!String::from_utf8_lossy(&loops).contains(place), "loop devices are left");
    assert!(!std::path::Path::new(place).exists(), "files are left");
}

fn mounts_below(place: &str) -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the kernel lists mounts");
    mounts.lines().filter(|line| line.split(' ').nth(1).is_some_and(|at| at.starts_with(place))).count()
}

#[test]
fn a_start_is_told_by_parts() {
    if !can_mount() {
        return;
    }
    let report = bench(&["start", "--files", "500", "--buffer", "8", "--pages", "3000", "--runs", "2"]);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert!(run["ready_ms"].as_f64().expect("a figure") > 0.0);
        assert!(run["parts"]["transactions"].as_u64().expect("a count") > 0, "{run}");
        assert!(run["parts"]["store_bytes"].as_u64().expect("a count") > 500 * 64, "{run}");
        let (used, read) = (&run["buffer_used_bytes"], &run["parts"]["media_read_bytes"]);
        assert!(read.as_u64().expect("bytes") >= used.as_u64().expect("bytes") + 500 * 64, "{run}");
        assert!(run["parts"]["media_read_ms"].as_f64().expect("a figure") > 0.0, "{run}");
    }
}

#[test]
fn replays_are_timed_beside_the_program_and_a_campaign_goes_on_where_it_stopped() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let results = directory.path().to_str().expect("a plain path");
    let small = ["replay-accuracy", "--size", "small", "--only", "two-devices", "--results", results];
    let lines =
        || std::fs::read_to_string(directory.path().join("runs.jsonl")).expect("results").lines().count();
    let first = bench(&[&small[..], &["--rounds", "1", "--baselines", "0"]].concat());
    assert_eq!(first["complete"], true);
    // On each of two targets: the program, and both traces at both speeds.
    assert_eq!(lines(), 2 * (1 + 2 * 2));
    bench(&[&small[..], &["--rounds", "1", "--baselines", "1"]].concat());
    assert_eq!(lines(), 2 * (1 + 2 * 5), "only the other orders were missing");
    let report = bench(&[&small[..], &["--report"]].concat());
    assert_eq!(lines(), 2 * (1 + 2 * 5), "a report measures nothing");
    for target in report["results"]["targets"].as_array().expect("targets") {
        assert!(target["original"].as_f64().expect("seconds") > 0.0);
        for replay in target["replays"].as_array().expect("replays") {
            assert!(replay["error"].as_f64().expect("a share") > -1.0, "{replay}");
            assert!(replay["concurrency"].as_f64().expect("a share") > 0.0, "{replay}");
        }
    }
    assert_eq!(report["results"]["summaries"].as_array().expect("summaries").len(), 5);
    assert_eq!(report["traces"].as_array().expect("traces").len(), 2);
}

#[test]
fn database_prints_every_system_and_the_pair() {
    if !can_mount() {
        return;
    }
    let report = bench(&["database", "--model", "ssd", "--scale", "1", "--seconds", "1", "--rounds", "2"]);
    for load in ["tpcb-like", "simple-update"] {
        let rows = report[load]["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 5, "{report}");
        for row in rows {
            for figure in ["tps", "p99_ms", "longest_ms", "wal_kib"] {
                let rounds = row[figure].as_array().expect("rounds");
                assert_eq!(rounds.len(), 2, "{row}");
                assert!(rounds.iter().all(|round| round.as_f64().expect("a figure") > 0.0), "{row}");
            }
        }
        let ratios = report[load]["full_page_writes_off_over_on"].as_array().expect("ratios");
        assert!(ratios.len() == 2 && ratios.iter().all(|ratio| ratio.as_f64().expect("a ratio") > 0.0));
        // Pages that are logged whole make most of the WAL right after a checkpoint.
        let wal = |row: usize| rows[row]["wal_kib"][0].as_f64().expect("a figure");
        assert!(wal(4) < wal(3), "{report}");
    }
}
