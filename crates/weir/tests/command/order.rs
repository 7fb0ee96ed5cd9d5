//! `weir order`: what keeps its place in the one order, changed while programs go on.

use crate::common::{Mounted, Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::fs;

const STREAM_BYTES: usize = 8 << 20;

/// Writes a file in order; whether some of it went to the store directly.
fn streams_directly(mounted: &Mounted, name: &str) -> bool {
    let pages = || mounted.status()["counters"]["pages_direct"].as_u64().expect("a number");
    let before = pages();
    fs::write(mounted.path(name), vec![7; STREAM_BYTES]).expect("a file");
    pages() > before
}

#[test]
fn an_order_that_is_changed_counts_at_once_and_after_a_crash_and_is_kept() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--order", "strict"]);
    assert!(!streams_directly(&mounted, "strict"));
    succeeds(weir().arg("order").arg(mounted.dir()).arg("streams"));
    assert!(streams_directly(&mounted, "streams"));
    succeeds(weir().arg("order").arg(mounted.dir()).arg("strict"));
    mounted.kill();
    let mounted = sandbox.mount();
    assert_eq!(mounted.status()["settings"]["order"], "strict");
    let content = fs::read(mounted.path("streams")).expect("durable since the order was changed");
    assert!(content == vec![7; STREAM_BYTES]);
    assert!(!streams_directly(&mounted, "strict again"));
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--order", "streams"]);
    assert!(streams_directly(&mounted, "streams again"));
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(mounted.status()["settings"]["order"], "streams");
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--read-only"]);
    assert_says(&fails(weir().arg("order").arg(mounted.dir()).arg("strict")), "read-only");
    mounted.unmount();
}
