//! Tells the program which commit it is built from, for `weir --version`.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn main() {
    // Git writes a line there whenever the commit changes.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let number = env!("CARGO_PKG_VERSION");
    // There is no commit in a source package.
    let version = match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => format!("{number} ({commit})"),
        None => number.to_owned(),
    };
    println!("cargo::rustc-env=WEIR_VERSION={version}");
}
