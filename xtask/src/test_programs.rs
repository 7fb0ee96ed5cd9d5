//! Which programs a build of the whole workspace makes, as cargo lists them.

use serde::Deserialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program that cargo built.
pub(crate) struct Executable {
    /// As its target is called in its package.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The directory of its package, where its tests expect to run.
    pub(crate) package: PathBuf,
    /// Whether it runs the tests of its target. Otherwise it is the target itself.
    pub(crate) has_tests: bool,
}

impl Executable {
    /// Whether its tests run whole programs on mounts.
    pub(crate) fn mounts(&self) -> bool {
        ["weir", "bench", "weir-trace"].iter().any(|package| self.package.ends_with(package))
    }
}

/// A message of cargo. One about an executable has all of these fields.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The cargo that runs this program, or else the one on the path.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Builds everything, as `cargo test` does, and lists the programs. None if the build failed: cargo has said why.
pub(crate) fn build() -> Option<Vec<Executable>> {
    let mut command = Command::new(cargo());
    command.args(["build", "--workspace", "--all-targets", "--message-format=json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().ok().filter(|output| output.status.success());
    if output.is_none() {
        eprintln!("error: the build failed");
    }
    Some(listed(&String::from_utf8_lossy(&output?.stdout)))
}

fn listed(messages: &str) -> Vec<Executable> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    messages.filter_map(executable).collect()
}

fn executable(message: Message) -> Option<Executable> {
    Some(Executable {
        name: message.target?.name,
        path: message.executable?,
        package: message.manifest_path?.parent()?.to_owned(),
        has_tests: message.profile?.test,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_listed_and_nothing_else_is() {
        let library = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/weir/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":null}"#;
        let program = library.replace("null", "\"/t/a-1\"");
        let tests = program.replace("false", "true").replace("crates/weir", "crates/fs");
        let end = r#"{"reason":"build-finished","success":true}"#;
        let listed = listed(&[library, &program, &tests, end].join("\n"));
        let found: Vec<_> = listed.iter().map(|one| (one.has_tests, one.mounts())).collect();
        assert_eq!(found, [(false, true), (true, false)]);
        assert_eq!((listed[0].name.as_str(), listed[0].path.to_str()), ("a", Some("/t/a-1")));
    }
}
