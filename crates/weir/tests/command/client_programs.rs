//! Programs that talk to the daemon through the crate `client`.

use crate::common::{Sandbox, can_mount};
use client::WeirMount;
use std::fs::File;

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
