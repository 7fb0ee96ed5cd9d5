//! Runs all checks that must pass before a review, in the order in which they fail fastest.

use std::process::Command;

/// A command to run.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Flags for rustdoc, which takes none from cargo.
    rustdoc_flags: Option<&'static str>,
}

const STEPS: [Step; 4] = [
    Step { name: "formatting", arguments: &["fmt", "--all", "--check"], rustdoc_flags: None },
    Step {
        name: "lints",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        rustdoc_flags: None,
    },
    Step { name: "tests", arguments: &["test", "--workspace"], rustdoc_flags: None },
    Step {
        name: "documentation",
        arguments: &["doc", "--workspace", "--no-deps", "--document-private-items"],
        rustdoc_flags: Some("-D warnings"),
    },
];

/// Runs all checks, tidiness first; `false` at the first that fails.
pub(crate) fn command() -> bool {
    if !crate::tidy::command() {
        return false;
    }
    STEPS.iter().all(|step| {
        eprintln!("checking {}: cargo {}", step.name, step.arguments.join(" "));
        let passed = run(step);
        if !passed {
            eprintln!("error: {} failed; repeat with: cargo {}", step.name, step.arguments.join(" "));
        }
        passed
    })
}

fn run(step: &Step) -> bool {
    // Cargo sets this variable for the programs that it runs.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(step.arguments);
    if let Some(flags) = step.rustdoc_flags {
        command.env("RUSTDOCFLAGS", flags);
    }
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("error: cargo cannot be started: {error}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_fails_fails_the_check() {
        let step = |arguments| Step { name: "a step", arguments, rustdoc_flags: None };
        assert!(run(&step(&["--version"])));
        assert!(!run(&step(&["no-such-command"])));
    }
}
