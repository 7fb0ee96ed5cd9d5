//! Small runs of the scripts that anybody can run for long.

use crate::common::{can_mount, succeeds, weir};
use std::path::Path;
use std::process::Command;

fn script(name: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(root.join("scripts").join(name));
    command.env("WEIR", weir().get_program()).env("BUFFER_SIZE", "16MiB");
    command
}

#[test]
fn fio_finds_every_byte_that_it_wrote_with_each_engine() {
    if !can_mount() {
        return;
    }
    succeeds(script("fio-verify").arg("8m"));
}

#[test]
fn stress_ng_finds_nothing_wrong_with_holes_locks_and_mappings() {
    if !can_mount() {
        return;
    }
    let stressors =
        ["aio", "fallocate", "flock", "fpunch", "fsize", "lockf", "lockofd", "hdd", "mmap", "seek"];
    succeeds(script("stress-ng").arg("1").args(stressors));
}
