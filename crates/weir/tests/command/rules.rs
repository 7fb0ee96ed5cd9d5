//! `weir rules`: rules are checked, and tried on a running task.

use crate::common::{Sandbox, assert_says, fails, succeeds, weir};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

fn rules_file(sandbox: &Sandbox, text: &str) -> PathBuf {
    let path = sandbox.path("rules");
    fs::write(&path, text).expect("a file");
    path
}

/// A process with a title, which ends with the test.
struct Titled(Child);

impl Titled {
    fn new(title: &str) -> Titled {
        let child = Command::new("sleep").arg0(title).arg("600").spawn().expect("sleep starts");
        // Until the program is loaded, it has no title.
        let command_line = || fs::read(format!("/proc/{}/cmdline", child.id())).expect("it runs");
        while command_line().is_empty() {}
        Titled(child)
    }
}

impl Drop for Titled {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn understood_rules_are_printed_with_warnings() {
    let sandbox = Sandbox::new();
    let path = rules_file(&sandbox, "# all\ncritical  file=/a\nbackground\nbackground   title=\"b c\"\n");
    let output = succeeds(weir().args(["rules", "check"]).arg(path));
    let expected = "   1  critical file=/a\n   2  background\n   3  background title=\"b c\"\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_says(&said, "line 4: rule 3 never decides: rule 2 matches all that it matches");
    assert_eq!(said.lines().count(), 1);
}

#[test]
fn all_errors_are_printed_at_once() {
    let sandbox = Sandbox::new();
    let path = rules_file(&sandbox, "urgent\ncritical\ncritical uid=\x1b[2J");
    for command in [&["rules", "check"], &["rules", "test"]] {
        let pid: &[&str] = if command[1] == "test" { &["1"] } else { &[] };
        let output = weir().args(command).arg(&path).args(pid).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        let at = path.display();
        assert_says(
            &said,
            &format!("error: {at}: line 1: expected `critical` or `background`, not `urgent`\n"),
        );
        assert_says(
            &said,
            &format!("error: {at}: line 3: expected a user's number after `uid=`, not `\\u{{1b}}[2J`\n"),
        );
        assert_eq!(said.lines().count(), 2);
    }
}

#[test]
fn rules_are_tried_on_a_running_task() {
    let sandbox = Sandbox::new();
    let text =
        "critical file=/pg_wal/**\nbackground title=\"postgres: checkpointer*\"\nbackground uid=4000000";
    let path = rules_file(&sandbox, text);
    let titled = Titled::new("postgres: checkpointer");
    let pid = titled.0.id().to_string();
    let test = |file: &[&str]| {
        let output = succeeds(weir().args(["rules", "test"]).arg(&path).arg(&pid).args(file));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = test(&[]);
    assert_says(&said, "title   postgres: checkpointer 600\nthread  sleep\n");
    assert_says(
        &said,
        "   1  critical file=/pg_wal/**\n   2  background title=\"postgres: checkpointer*\"\n",
    );
    assert_says(&said, "files that no rule names: background, by rule 2\n");
    assert!(!said.contains("4000000"), "{said}");
    assert_says(&test(&["/pg_wal/0001"]), "/pg_wal/0001: critical, by rule 1\n");
    assert_says(&test(&["/base/1"]), "/base/1: background, by rule 2\n");
}

#[test]
fn a_task_that_is_gone_is_named() {
    let sandbox = Sandbox::new();
    let path = rules_file(&sandbox, "critical");
    let said = fails(weir().args(["rules", "test"]).arg(&path).arg("4000000000"));
    assert_says(&said, "4000000000: there is no such process or thread");
    let said = fails(weir().args(["rules", "check"]).arg(sandbox.path("none")));
    assert_says(&said, "reading the rules");
}
