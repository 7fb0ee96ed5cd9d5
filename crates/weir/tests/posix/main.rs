//! Names, kinds, attributes and access on a real mount, by the calls that programs make.

mod acls;
#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod dates;
mod errnos;
mod handles;
mod kinds;
mod many;
mod names;
mod numbers;
mod overlay;
mod privileges;
mod users;
mod xattrs;

use common::{Mounted, Sandbox, succeeds};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount that all users may enter and write to.
fn open_to_all(sandbox: &Sandbox) -> Mounted {
    set_permissions(sandbox.path("."), Permissions::from_mode(0o755)).expect("the way there");
    let mounted = sandbox.mount_with(&["--allow-other"]);
    set_permissions(mounted.dir(), Permissions::from_mode(0o1777)).expect("a mode");
    mounted
}

/// Runs `script` in the mount's root as a user with this number, group, and further groups (`""`: none).
/// Returns the output, or the error message.
fn as_user(mounted: &Mounted, user: (u32, u32, &str), script: &str) -> Result<String, String> {
    as_user_in(mounted.dir(), user, script)
}

/// Runs `script` as [`as_user`] does, in the directory `dir`.
fn as_user_in(dir: &Path, (uid, gid, groups): (u32, u32, &str), script: &str) -> Result<String, String> {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.arg(format!("--groups={groups}")),
    };
    command.args(["--inh-caps=-all", "sh", "-ec", script]).env("LC_ALL", "C").current_dir(dir);
    let output = command.output().expect("setpriv runs");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
}

/// The compiled helper, `call.c`, which all users may run.
fn compiled_calls(sandbox: &Sandbox) -> PathBuf {
    let program = sandbox.path("call");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix/call.c");
    succeeds(Command::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]));
    program
}

/// A plain user.
const USER: (u32, u32, &str) = (1000, 1000, "");

/// Kills the daemon after a sync of everything, checks the store, and mounts again.
fn crash(sandbox: &Sandbox, mounted: Mounted) -> Mounted {
    succeeds(common::weir().arg("sync").arg(mounted.dir()));
    mounted.kill();
    succeeds(common::weir().arg("check").arg(sandbox.store()));
    sandbox.mount_with(&["--allow-other"])
}
