//! Runs all checks that must pass before a review.

use crate::test_programs::{self, Executable};
use std::process::{Command, Output};

/// A command to run.
struct Step {
    name: String,
    command: Command,
}

/// Runs the checks in two lanes, each up to the first that fails. Shows its output last, and says how to repeat it alone. Whether
/// all passed.
pub(crate) fn command() -> bool {
    if !crate::tidy::command() || !run_shown(Step::cargo("formatting", "fmt --all --check")) {
        return false;
    }
    let Some(executables) = test_programs::build() else { return false };
    let (waiting, computing): (Vec<_>, Vec<_>) =
        executables.iter().filter(|program| program.has_tests).partition(|program| program.mounts());
    let mut computing: Vec<Step> = computing.into_iter().map(Step::tests).collect();
    computing.extend(other_checks(&executables));
    // Tests of mounts wait for disks and for each other most of their time: the processors are for the others.
    let (waited, computed) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waiting.into_iter().map(Step::tests).try_for_each(run));
        let computed = computing.into_iter().try_for_each(run);
        (waiting.join().expect("a step does not panic"), computed)
    });
    for Failure(shown) in [&waited, &computed].into_iter().filter_map(|lane| lane.as_ref().err()) {
        eprint!("{shown}");
    }
    waited.is_ok() && computed.is_ok()
}

/// The checks that are no test programs.
fn other_checks(executables: &[Executable]) -> Vec<Step> {
    let simulator = executables.iter().find(|program| program.name == "weir-simulator" && !program.has_tests);
    let simulator = &simulator.expect("the workspace has a simulator").path;
    let mut documentation =
        Step::cargo("documentation", "doc --workspace --no-deps --document-private-items");
    // rustdoc takes no flags from cargo.
    documentation.command.env("RUSTDOCFLAGS", "-D warnings");
    let mut fuzz_targets = Step::new("fuzz targets", "scripts/fuzz", "2");
    // Two seconds each are for the examples and what is next to them; compiling is what takes time.
    fuzz_targets.command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    vec![
        Step::cargo("examples of the documentation", "test --workspace --doc"),
        Step::new("simulator", simulator, "--seeds 5 --operations 20000 --crashes 500"),
        Step::new("short programs", simulator, "--exhaust 3 --programs 150"),
        fuzz_targets,
        Step::cargo("lints", "clippy --workspace --all-targets -- -D warnings"),
        documentation,
    ]
}

/// What a step that failed has printed, and how to repeat it.
#[derive(Debug)]
struct Failure(String);

impl Step {
    fn new(name: &str, program: impl AsRef<std::ffi::OsStr>, arguments: &str) -> Self {
        let mut command = Command::new(program);
        command.args(arguments.split(' '));
        Step { name: name.to_owned(), command }
    }

    fn cargo(name: &str, arguments: &str) -> Self {
        Step::new(name, test_programs::cargo(), arguments)
    }

    /// The tests of one program, where `cargo test` would run them.
    fn tests(program: &Executable) -> Self {
        let mut command = Command::new(&program.path);
        command.current_dir(&program.package);
        Step { name: format!("tests {} of {}", program.name, program.package.display()), command }
    }
}

/// Runs a step while others run. Its output is shown when it has ended, so that outputs do not mix.
fn run(mut step: Step) -> Result<(), Failure> {
    let outcome = step.command.output();
    let mut shown = format!("checked {}: {}\n", step.name, line(&step.command));
    if let Ok(Output { stdout, stderr, .. }) = &outcome {
        shown += &String::from_utf8_lossy(stdout);
        shown += &String::from_utf8_lossy(stderr);
    }
    match why_failed(&step, outcome.map(|output| output.status)) {
        None => {
            eprint!("{shown}");
            Ok(())
        }
        Some(error) => {
            eprintln!("{error}");
            Err(Failure(format!("{shown}{error}\n")))
        }
    }
}

/// Runs a step that has the terminal for itself.
fn run_shown(mut step: Step) -> bool {
    eprintln!("checking {}: {}", step.name, line(&step.command));
    let outcome = step.command.status();
    let failed = why_failed(&step, outcome);
    failed.iter().for_each(|error| eprintln!("{error}"));
    failed.is_none()
}

fn why_failed(step: &Step, outcome: std::io::Result<std::process::ExitStatus>) -> Option<String> {
    match outcome {
        Ok(status) if status.success() => None,
        Ok(_) => Some(format!("error: {} failed; repeat with: {}", step.name, line(&step.command))),
        Err(error) => Some(format!("error: {} cannot be started: {error}", line(&step.command))),
    }
}

/// The command as one types it.
fn line(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={:?}", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    let line = set.chain(words).collect::<Vec<_>>().join(" ");
    match command.get_current_dir() {
        Some(directory) => format!("(cd {} && {line})", directory.display()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_fails_or_does_not_start_fails_the_check() {
        for run in [run_shown, |step| run(step).is_ok()] {
            assert!(run(Step::cargo("a step", "--version")));
            assert!(!run(Step::cargo("a step", "no-such-command")));
            assert!(!run(Step::new("a step", "/no/such/program", "")));
        }
        let Failure(shown) = run(Step::cargo("a step", "no-such-command")).unwrap_err();
        assert!(shown.contains("no such command") && shown.ends_with("cargo no-such-command\n"), "{shown}");
    }

    #[test]
    fn a_step_is_shown_as_one_types_it() {
        let mut fuzz = Step::new("a step", "scripts/fuzz", "2 fs_acl");
        fuzz.command.env("LEVEL", "0 or 1");
        assert_eq!(line(&fuzz.command), "LEVEL=\"0 or 1\" scripts/fuzz 2 fs_acl");
        let program =
            Executable { name: "all".into(), path: "/t/all".into(), package: "/w/p".into(), has_tests: true };
        assert_eq!(line(&Step::tests(&program).command), "(cd /w/p && /t/all)");
    }
}
