//! `weir tune`: settings of a mounted store, changed while programs use it.

use crate::common::{Mounted, Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::fs;

const STREAM_BYTES: usize = 8 << 20;

/// Writes a file sequentially. Returns whether some of its pages bypassed the buffer.
fn bypasses(mounted: &Mounted, name: &str) -> bool {
    let pages = || mounted.status().counters.pages_bypassed;
    let before = pages();
    fs::write(mounted.path(name), vec![7; STREAM_BYTES]).expect("a file");
    pages() > before
}

#[test]
fn a_changed_data_mode_counts_at_once_and_after_a_crash_and_is_kept() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--data", "journal"]);
    assert!(!bypasses(&mounted, "strict"));
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--data", "ordered"]));
    assert!(bypasses(&mounted, "streams"));
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--data", "journal"]));
    mounted.kill();
    let mounted = sandbox.mount();
    assert_eq!(mounted.status().settings.data, "journal");
    let content = fs::read(mounted.path("streams")).expect("durable since the mode was changed");
    assert!(content == vec![7; STREAM_BYTES]);
    assert!(!bypasses(&mounted, "strict again"));
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--data", "ordered"]);
    assert!(bypasses(&mounted, "streams again"));
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(mounted.status().settings.data, "ordered");
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--read-only"]);
    assert_says(&fails(weir().arg("tune").arg(mounted.dir()).args(["--data", "journal"])), "read-only");
    mounted.unmount();
}

#[test]
fn old_words_are_refused_with_the_new_ones() {
    let refused = |arguments: &[&str], says: &str| {
        let output = weir().args(arguments).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(2));
        assert_says(&String::from_utf8_lossy(&output.stderr), says);
    };
    refused(&["order", "/mnt/demo", "strict"], "weir tune DIR --data");
    refused(&["mount", "--order", "strict", "/store", "/mnt/demo"], "--data journal");
    refused(&["mount", "--direct-after", "0", "/store", "/mnt/demo"], "--bypass-after SIZE");
}
