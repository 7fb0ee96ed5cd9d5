//! `weir rules`: rules are checked, tried on a running task, and suggested for running programs.

use crate::common::{NOBODY, PATIENCE, Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Answers each byte of a client after a write and a sync. Its arguments are a file and a socket.
const SERVER: &str = r#"use IO::Handle; use IO::Socket::UNIX;
$0 = "db: app 127.0.0.1(42)";
open(my $file, ">", $ARGV[0]) or die; my $listener = IO::Socket::UNIX->new(Local => $ARGV[1], Listen => 1) or die;
my $client = $listener->accept;
while (sysread($client, my $byte, 1)) { syswrite($file, "x" x 8192); $file->sync; syswrite($client, $byte); }"#;

/// Writes and syncs all the time. Its arguments are a file and a title.
const WRITER: &str = r#"use IO::Handle;
$0 = $ARGV[1]; open(my $file, "+>>", $ARGV[0]) or die;
while (1) { truncate($file, 0); syswrite($file, "x" x 65536) for 1..16; $file->sync; }"#;

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

/// A Perl program without a terminal, which ends with the test.
fn perl(program: &str, arguments: &[&Path]) -> Titled {
    Titled(Command::new("setsid").args(["perl", "-e", program]).args(arguments).spawn().expect("perl starts"))
}

/// Asks the server at `socket` a hundred times a second until `is_running` is false.
fn ask(socket: &Path, is_running: &AtomicBool) -> io::Result<()> {
    let begun = Instant::now();
    let mut client = loop {
        match UnixStream::connect(socket) {
            Err(_) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
            connected => break connected?,
        }
    };
    while is_running.load(Ordering::Relaxed) {
        client.write_all(b"?")?;
        client.read_exact(&mut [0])?;
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

impl Drop for Titled {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn understood_rules_are_printed_with_warnings() {
    let sandbox = Sandbox::new();
    let path = sandbox.rules_file("# all\ncritical  file=/a\nbackground\nbackground   title=\"b c\"\n");
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
    let path = sandbox.rules_file("urgent\ncritical\ncritical uid=\x1b[2J");
    for command in [&["rules", "check"], &["rules", "test"]] {
        let pid: &[&str] = if command[1] == "test" { &["1"] } else { &[] };
        let output = weir().args(command).arg(&path).args(pid).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        let at = &path;
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
    let path = sandbox.rules_file(text);
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
fn a_tag_decides_before_all_rules() {
    let sandbox = Sandbox::new();
    let path = sandbox.rules_file("critical");
    let shell = format!("exec {} rules test {} $$ /file", env!("CARGO_BIN_EXE_weir"), path);
    let output = succeeds(weir().args(["class", "background", "--", "sh", "-c", &shell]));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_says(&said, "\ntag     background\n");
    assert_says(&said, "\n/file: background, by the tag, which comes before all rules\n");
}

#[test]
fn a_path_that_begins_with_the_mount_point_is_warned_of() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let pid = std::process::id().to_string();
    let path = sandbox.rules_file("critical file=/a/b");
    let output = succeeds(weir().args(["rules", "test"]).arg(path).arg(pid).arg(mounted.path("a").join("b")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_says(&said, &format!("rules of the mount {} see this file as /a/b\n", mounted.dir().display()));
    mounted.unmount();
}

#[test]
fn files_without_rules_and_huge_files_are_named() {
    let sandbox = Sandbox::new();
    let output = succeeds(weir().args(["rules", "check"]).arg(sandbox.rules_file("# none\n")));
    assert_says(&String::from_utf8_lossy(&output.stderr), "no rules: all requests are critical\n");
    let output = weir().args(["rules", "check", "/dev/zero"]).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(1));
    assert_says(&String::from_utf8_lossy(&output.stderr), "expected a file of at most 1 MiB\n");
}

#[test]
fn a_task_that_is_gone_is_named() {
    let sandbox = Sandbox::new();
    let path = sandbox.rules_file("critical");
    let said = fails(weir().args(["rules", "test"]).arg(&path).arg("4000000000"));
    assert_says(&said, "4000000000: there is no such process or thread");
    let said = fails(weir().args(["rules", "check"]).arg(sandbox.path("none")));
    assert_says(&said, "reading the rules");
}

#[test]
fn suggested_rules_name_servers_and_others() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let socket = sandbox.path("socket");
    let (log, data) = (mounted.path("log"), mounted.path("data"));
    let programs = [
        perl(SERVER, &[&log, &socket]),
        perl(WRITER, &[&data, Path::new("db: checkpointer")]),
        perl(WRITER, &[&log, Path::new("db: log writer")]),
    ];
    let is_running = AtomicBool::new(true);
    let output = thread::scope(|scope| {
        let client = scope.spawn(|| ask(&socket, &is_running));
        let output = succeeds(weir().args(["rules", "suggest", "--for", "5s"]).arg(mounted.dir()));
        is_running.store(false, Ordering::Relaxed);
        client.join().expect("no panic").expect("the server answers");
        output
    });
    let rules = String::from_utf8(output.stdout).expect("UTF-8");
    assert_says(&rules, "# Answers clients. `db: app 127.0.0.1(42)`: ");
    assert_says(&rules, "\ncritical title=\"db: app *\"\n");
    assert_says(&rules, "# Answers no client. `db: checkpointer`: ");
    assert_says(&rules, "\nbackground title=\"db: checkpointer\"\n");
    assert_says(&rules, "# In doubt: clients wait for files that it syncs; ");
    assert_says(&rules, "\n# background title=\"db: log *\"\n");
    let checked = succeeds(weir().args(["rules", "check"]).arg(sandbox.rules_file(&rules)));
    let checked = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked, "   1  critical title=\"db: app *\"\n   2  background title=\"db: checkpointer\"\n");
    drop(programs);
    mounted.unmount();
}

#[test]
fn dead_mounts_get_no_suggestions() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount();
    mounted.signal("KILL");
    mounted.ended();
    let said = fails(weir().args(["rules", "suggest", "--for", "1s"]).arg(mounted.dir()));
    assert_says(&said, "the daemon has ended");
    mounted.kill();
}

#[test]
fn suggestions_name_a_missing_permission() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let Some(command) = sandbox.command_for_all() else { return };
    let mounted = sandbox.mount();
    let suggest = ["rules", "suggest", "--for", "1s"];
    let output = succeeds(Command::new(command).args(suggest).arg(mounted.dir()).uid(NOBODY));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_says(&said, "run as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH\n");
    assert_says(&said, "no program was seen to use the mount");
    mounted.unmount();
}
