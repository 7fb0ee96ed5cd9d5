//! The small sizes of the benchmarks: they run, and print every row. No test here asks how fast.

use crate::weir::{command, succeed};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Value {
    let output = succeed(command("bench").args(arguments).arg("--json"));
    serde_json::from_slice(&output.stdout).expect("a benchmark's result is JSON")
}

#[test]
fn nonblocking_writes_prints_every_system_beside_ext4() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: modelled devices need root");
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

#[test]
fn partial_writes_cause_no_store_read_and_syncs_no_store_io() {
    let counted = bench(&["counters", "--writes", "20000", "--pages", "4000"]);
    let count = |name: &str| counted[name].as_u64().expect("a count");
    // The pages were un-cached, or the zeros below would say nothing.
    assert!(count("writes_to_absent_pages") >= 4000, "{counted}");
    assert!(count("syncs") >= 100, "{counted}");
    for nothing in ["fetched_for_writes", "fetched_for_write_back", "fetched_for_reads", "store_io_for_syncs"]
    {
        assert_eq!(count(nothing), 0, "{nothing}: {counted}");
    }
}
