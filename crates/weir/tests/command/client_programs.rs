//! Programs that talk to the daemon through the crate `client`.

use crate::common::{Sandbox, can_mount, status_of};
use client::WeirMount;
use std::fs::{self, File};

#[test]
fn an_open_file_leads_to_its_mount_and_daemon() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let file = File::create(mounted.path("data")).expect("space");
    let mount = WeirMount::of_file(&file).expect("a mount");
    assert_eq!(mount.dir(), mounted.dir());
    let status = mount.connect().and_then(|mut daemon| daemon.request("status")).expect("a daemon");
    assert_eq!(status["mounted_on"].as_str(), mounted.dir().to_str());
}

#[test]
fn a_daemon_may_have_as_many_open_files_as_its_user() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let pid = status_of(mounted.dir()).pid;
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("a daemon");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let [soft, hard] = [3, 4].map(|column| line.split_whitespace().nth(column).expect("a column"));
    assert_eq!(soft, hard);
}
