//! `weir status` without a directory.

use crate::common::{Sandbox, can_mount, status_of, succeeds, weir};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The line of a mount in the list: its first word, and all of it.
fn listed(dir: &Path) -> Option<(String, String)> {
    let list = succeeds(weir().arg("status")).stdout;
    let list = String::from_utf8(list).expect("UTF-8");
    assert!(!list.contains("HEALTH"), "a script gets no head: {list}");
    let is_of = |line: &&str| line.split_whitespace().nth(1) == dir.to_str();
    let line = list.lines().find(is_of)?;
    Some((line.split_whitespace().next()?.to_owned(), line.to_owned()))
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill").success());
}

#[test]
fn each_mount_has_a_line_that_begins_with_its_health() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let dir = mounted.dir().to_owned();
    let (health, line) = listed(&dir).expect("a line");
    assert_eq!(health, status_of(&dir).health.to_string());
    assert!(line.contains(" main of "), "{line}");
    assert_eq!(line.matches("0 B/s").count(), 2, "nobody writes or reads: {line}");
    let json = succeeds(weir().args(["status", "--json"])).stdout;
    let all: Vec<serde_json::Value> = serde_json::from_slice(&json).expect("a list");
    let own = |one: &&serde_json::Value| one["mounted_on"].as_str() == dir.to_str();
    assert_eq!(all.iter().find(own).expect("this mount")["health"], health);
    // A daemon that is stopped, and one that is gone.
    let pid = status_of(&dir).pid;
    signal(pid, "STOP");
    assert_eq!(listed(&dir).expect("a line").0, "silent");
    signal(pid, "CONT");
    signal(pid, "KILL");
    let begun = Instant::now();
    while listed(&dir).expect("a line").0 != "dead" {
        assert!(begun.elapsed() < Duration::from_secs(30), "a dead mount is not called dead");
    }
    mounted.kill();
}
