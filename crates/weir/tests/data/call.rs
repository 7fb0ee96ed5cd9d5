//! Processes that make one call, and wait.

use crate::common::succeeds;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

/// The compiled helper; one for all tests of this run.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("call");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/call.c");
        succeeds(Command::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(source));
        (directory, program)
    });
    program
}

/// A running helper.
pub(crate) struct Call {
    child: Child,
    stdin: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

/// Starts `call WHAT FILE ARGUMENT...`; `{}` among the arguments stands for the file.
pub(crate) fn call(arguments: &[&str], file: &Path) -> Call {
    let mut command = Command::new(program());
    for argument in arguments {
        match *argument {
            "{}" => command.arg(file),
            other => command.arg(other),
        };
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let stdin = child.stdin.take();
    let says = BufReader::new(child.stdout.take().expect("a pipe"));
    Call { child, stdin, says }
}

impl Call {
    /// Waits for the helper's next output: a word and a number.
    pub(crate) fn says(&mut self) -> (String, i64) {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("a readable pipe");
        let (word, number) = line.trim().split_once(' ').unwrap_or((line.trim(), "0"));
        (word.to_owned(), number.parse().expect("a number"))
    }

    /// Fails unless this is the next output.
    #[track_caller]
    pub(crate) fn expect(&mut self, word: &str) -> i64 {
        let (said, number) = self.says();
        assert_eq!(said, word, "{number}");
        number
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the helper continue, and waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.stdin.take();
        self.child.wait().expect("a child of ours")
    }

    /// Kills the helper as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("a child of ours");
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
