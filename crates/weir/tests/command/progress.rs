//! Long work shows its progress on a terminal, and answers SIGINT and SIGTERM.

use crate::common::{Mounted, PATIENCE, Sandbox, assert_says, can_mount, detach, is_mounted, succeeds, weir};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use test_support::stop_ignoring_interrupts;

/// Within this time a command has ended after a signal.
const SOON: Duration = Duration::from_secs(2);

/// Longer than the time between two looks of a command at its signals.
const LOOK: Duration = Duration::from_millis(300);

/// How a line on a terminal is erased.
const ERASE_LINE: &str = "\x1b[2K";

/// Bytes whose pages are all different, so that each is in the store once.
fn unique(pages: u32) -> Vec<u8> {
    (0..pages).flat_map(|page| (page + 1).to_le_bytes().repeat(1024)).collect()
}

/// A sandbox whose store has a file of `pages` pages, and nothing in the buffer.
fn filled(pages: u32) -> Sandbox {
    let sandbox = Sandbox::formatted_with(&["--size", "300MiB", "--buffer-size", "16MiB"]);
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), unique(pages)).expect("a file");
    mounted.unmount();
    sandbox
}

fn start(command: &mut Command) -> Child {
    stop_ignoring_interrupts();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process");
    kill_process(pid, signal).expect("it is there");
}

/// Waits until `is_so`, or until the child has ended.
#[track_caller]
fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() && child.try_wait().expect("a child of ours").is_none() {
        assert!(begun.elapsed() < PATIENCE, "it does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a process has a handler for SIGINT, as it has during long work.
fn catches_interrupts(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
}

/// Sends a signal to a command once it is at its long work. The command is stopped meanwhile, so that it cannot end before the
/// signal arrives.
#[track_caller]
fn interrupt_at_work(command: &mut Command, signal: Signal, is_at_work: impl Fn() -> bool) -> Output {
    let mut child = start(command);
    let pid = child.id();
    wait_until(&mut child, || catches_interrupts(pid) && is_at_work());
    send(&child, Signal::STOP);
    thread::sleep(LOOK);
    send(&child, signal);
    let begun = Instant::now();
    send(&child, Signal::CONT);
    let output = child.wait_with_output().expect("it ends");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    output
}

/// The last line of an interrupted command.
#[track_caller]
fn interrupted(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.starts_with("interrupted: ") && said.lines().count() == 1, "{said}");
    said
}

/// Runs a command whose standard error is a terminal. Returns its standard output, and the text on the terminal.
fn on_terminal(command: &mut Command) -> (Output, String) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).expect("a pseudo-terminal");
    unlockpt(&master).expect("a pseudo-terminal");
    let terminal = ioctl_tiocgptpeer(&master, flags).expect("its other end");
    let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).expect("a size");
    command.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(terminal);
    let child = command.spawn().expect("it starts");
    // The command has the only other end, so the terminal closes with it.
    command.stderr(Stdio::null());
    let mut screen = File::from(master);
    let reader = thread::spawn(move || {
        let mut printed = Vec::new();
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = screen.read(&mut bytes) {
            printed.extend_from_slice(&bytes[..count]);
        }
        String::from_utf8_lossy(&printed).into_owned()
    });
    let output = child.wait_with_output().expect("it ends");
    (output, reader.join().expect("no panic"))
}

fn scrub(dir: &Path, rate: &str) -> Command {
    let mut command = weir();
    command.args(["scrub", "--rate", rate]).arg(dir);
    command
}

#[test]
fn a_scrub_shows_a_line_on_a_terminal_and_none_elsewhere() {
    if !can_mount() {
        return;
    }
    let sandbox = filled(2000);
    let mounted = sandbox.mount();
    let elsewhere = succeeds(&mut scrub(mounted.dir(), "6MiB"));
    assert_eq!(String::from_utf8_lossy(&elsewhere.stderr), "");
    assert_says(&String::from_utf8_lossy(&elsewhere.stdout), "MiB read: 0 damaged, 0 of them repaired\n");
    let (on_terminal, shown) = on_terminal(&mut scrub(mounted.dir(), "6MiB"));
    assert!(on_terminal.status.success(), "{shown}");
    assert_eq!(on_terminal.stdout, elsewhere.stdout);
    assert_says(&shown, "scrubbing ");
    assert_says(&shown, "MiB of ");
    assert!(shown.ends_with(ERASE_LINE), "the line is erased: {shown:?}");
    mounted.unmount();
}

#[test]
fn an_interrupted_scrub_says_what_was_read_and_does_not_disturb_the_daemon() {
    if !can_mount() {
        return;
    }
    let sandbox = filled(2000);
    let mounted = sandbox.mount();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        // At this rate it would take eight seconds.
        let output = interrupt_at_work(&mut scrub(mounted.dir(), "1MiB"), signal, || true);
        let said = interrupted(&output, code);
        assert_says(&said, "were read, no damage so far; the scrub changed nothing. Run it again");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
    succeeds(&mut scrub(mounted.dir(), "1GiB"));
    assert!(fs::read(mounted.path("file")).expect("a file") == unique(2000));
    mounted.unmount();
}

#[test]
fn a_scrub_ends_when_another_one_begins_which_reads_everything() {
    if !can_mount() {
        return;
    }
    let sandbox = filled(2000);
    let mounted = sandbox.mount();
    let mut first = start(&mut scrub(mounted.dir(), "1MiB"));
    let pid = first.id();
    wait_until(&mut first, || catches_interrupts(pid));
    thread::sleep(LOOK);
    let second = succeeds(scrub(mounted.dir(), "1GiB").arg("--json")).stdout;
    let second: serde_json::Value = serde_json::from_slice(&second).expect("JSON");
    assert!(second["read"]["blocks"].as_u64() >= Some(2000), "{second}");
    let output = first.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert_says(&String::from_utf8_lossy(&output.stderr), "another scrub of this store has begun");
    mounted.unmount();
}

#[test]
fn an_interrupted_scrub_counts_damaged_data() {
    if !can_mount() {
        return;
    }
    let sandbox = filled(2000);
    let path = sandbox.store().join("store");
    let mut bytes = fs::read(&path).expect("the store");
    let pages: BTreeSet<Vec<u8>> = unique(2000).chunks(4096).map(<[u8]>::to_vec).collect();
    bytes.chunks_mut(4096).filter(|block| pages.contains(*block)).for_each(|block| block[0] ^= 0x80);
    fs::write(&path, bytes).expect("a store whose data is damaged");
    let mounted = sandbox.mount();
    let counts = || {
        let output = interrupt_at_work(&mut scrub(mounted.dir(), "1MiB"), Signal::INT, || true);
        interrupted(&output, 130).contains(" damaged so far, 0 of them repaired; the end of a scrub names")
    };
    // The interruption may come before the first block was read.
    assert!((0..5).any(|_| counts()));
    let whole = scrub(mounted.dir(), "1GiB").output().expect("it runs");
    assert_says(&String::from_utf8_lossy(&whole.stdout), "MiB read: 2000 damaged, 0 of them repaired");
    mounted.unmount();
}

#[test]
fn an_interrupted_check_changes_nothing_and_another_one_works() {
    if !can_mount() {
        return;
    }
    let sandbox = filled(40_000);
    let before = fs::metadata(sandbox.store().join("store")).expect("it").modified().expect("a time");
    for json in [&[][..], &["--json"]] {
        let mut check = weir();
        check.arg("check").args(json).arg(sandbox.store());
        let output = interrupt_at_work(&mut check, Signal::INT, || true);
        let said = interrupted(&output, 130);
        assert_says(&said, "no damage so far; the check changed nothing. Run it again");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
    let whole = succeeds(weir().arg("check").arg(sandbox.store()));
    assert!(whole.stdout.ends_with(b"\nclean\n"), "{whole:?}");
    assert_eq!(String::from_utf8_lossy(&whole.stderr), "");
    let after = fs::metadata(sandbox.store().join("store")).expect("it").modified().expect("a time");
    assert_eq!(before, after);
}

/// A shell ignores SIGINT in background jobs of scripts.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    if !can_mount() {
        return;
    }
    let sandbox = filled(2000);
    let mounted = sandbox.mount();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$0\" \"$@\""]).arg(weir().get_program());
    shell.args(["scrub", "--rate", "4MiB"]).arg(mounted.dir());
    let mut child = start(&mut shell);
    let comm = format!("/proc/{}/comm", child.id());
    wait_until(&mut child, || fs::read_to_string(&comm).is_ok_and(|name| name == "weir\n"));
    thread::sleep(LOOK);
    send(&child, Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    mounted.unmount();
}

/// A mount that another place keeps in use: an unmount waits for two seconds at least.
fn mount_in_use(sandbox: &Sandbox) -> (Mounted, PathBuf) {
    let mounted = sandbox.mount();
    let other = sandbox.path("other");
    fs::create_dir_all(&other).expect("a directory");
    succeeds(Command::new("mount").arg("--bind").args([mounted.dir(), &other]));
    (mounted, other)
}

fn unmount(dir: &Path) -> Command {
    let mut unmount = weir();
    unmount.arg("unmount").arg(dir);
    unmount
}

#[test]
fn an_interrupted_unmount_leaves_the_rest_to_the_daemon() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let (mut mounted, other) = mount_in_use(&sandbox);
    let is_unmounted = || !is_mounted(&sandbox.mount_point());
    let output = interrupt_at_work(&mut unmount(mounted.dir()), Signal::INT, is_unmounted);
    let said = interrupted(&output, 130);
    assert_says(&said, &format!("The daemon, process {}, goes on, and ends by itself", mounted.pid()));
    fs::write(other.join("file"), "written afterwards").expect("the daemon goes on");
    detach(&other);
    assert!(mounted.ended().success(), "{}", mounted.messages());
    drop(mounted);
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("a file"), b"written afterwards");
    mounted.unmount();
}

#[test]
fn an_unmount_that_is_interrupted_says_so_if_it_has_unmounted() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    for wait_us in (0..12_000).step_by(500) {
        let (mut mounted, other) = mount_in_use(&sandbox);
        let child = start(&mut unmount(mounted.dir()));
        thread::sleep(Duration::from_micros(wait_us));
        send(&child, Signal::INT);
        let output = child.wait_with_output().expect("it ends");
        let is_mounted = is_mounted(mounted.dir());
        if output.status.code().is_some() {
            interrupted(&output, 130);
            assert!(!is_mounted, "after {wait_us} us");
        } else {
            assert!(is_mounted, "after {wait_us} us it said nothing");
            detach(mounted.dir());
        }
        detach(&other);
        assert!(mounted.ended().success(), "{}", mounted.messages());
    }
}

#[test]
fn a_daemon_goes_on_growing_its_buffer_when_the_command_is_interrupted() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let mut grow = weir();
    grow.args(["grow", "--buffer", "--size", "600MiB"]).arg(mounted.dir());
    let buffer = sandbox.store().join("buffer");
    let has_begun = || fs::metadata(&buffer).expect("the buffer").len() > 8 << 20;
    let mut child = start(&mut grow);
    wait_until(&mut child, has_begun);
    // At once, before it is done.
    let daemon = Pid::from_raw(mounted.pid().cast_signed()).expect("a process");
    kill_process(daemon, Signal::STOP).expect("it is there");
    send(&child, Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    mounted.signal("CONT");
    assert_says(&interrupted(&output, 130), "goes on growing the buffer");
    let begun = Instant::now();
    while mounted.status().buffer_log.bytes < 590 << 20 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", mounted.status().buffer_log);
        thread::sleep(Duration::from_millis(20));
    }
    mounted.unmount();
}

/// Writes a file and syncs it, so that it is in the buffer at least.
fn write_synced(mounted: &Mounted, name: &str) {
    let mut file = File::create(mounted.path(name)).expect("a file");
    file.write_all(name.repeat(1000).as_bytes()).and_then(|()| file.sync_all()).expect("a durable file");
}

/// A store whose daemon was killed. One of its files is in the buffer alone.
fn with_dirty_buffer() -> Sandbox {
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    write_synced(&mounted, "stored");
    mounted.unmount();
    let mounted = sandbox.mount();
    write_synced(&mounted, "synced");
    mounted.kill();
    sandbox
}

/// Asserts that the store has its data, a buffer, and nothing else.
#[track_caller]
fn assert_whole(sandbox: &Sandbox) {
    succeeds(weir().arg("check").arg(sandbox.store()));
    assert_eq!(fs::read_dir(sandbox.store()).expect("it").count(), 2, "store and buffer");
    let mounted = sandbox.mount();
    for name in ["stored", "synced"] {
        assert!(fs::read(mounted.path(name)).expect("a file") == name.repeat(1000).as_bytes(), "{name}");
    }
    mounted.unmount();
}

fn replace(sandbox: &Sandbox) -> Command {
    let mut command = weir();
    command.arg("replace-buffer").arg(sandbox.store()).args(["--buffer-size", "600MiB"]);
    command
}

#[test]
fn a_new_buffer_that_is_interrupted_while_it_is_formatted_is_removed() {
    if !can_mount() {
        return;
    }
    let sandbox = with_dirty_buffer();
    let new = sandbox.store().join("buffer.new");
    let output = interrupt_at_work(&mut replace(&sandbox), Signal::INT, || new.exists());
    let said = interrupted(&output, 130);
    assert_says(&said, &format!("still has the buffer {}", sandbox.store().join("buffer").display()));
    assert_says(&said, &format!("{} was removed. Run it again", new.display()));
    assert_whole(&sandbox);
    succeeds(&mut replace(&sandbox));
    assert_eq!(fs::metadata(sandbox.store().join("buffer")).expect("it").len(), 600 << 20);
    assert_whole(&sandbox);
}

#[test]
fn replacing_a_buffer_may_be_interrupted_at_any_moment() {
    if !can_mount() {
        return;
    }
    for wait_ms in [0, 10, 30, 60, 100, 200, 400, 800, 1500] {
        let sandbox = with_dirty_buffer();
        let child = start(&mut replace(&sandbox));
        thread::sleep(Duration::from_millis(wait_ms));
        send(&child, Signal::INT);
        let output = child.wait_with_output().expect("it ends");
        // Without a code, the signal came before the work. With 0, it came when nothing was left to stop.
        assert!(matches!(output.status.code(), None | Some(0 | 130)), "after {wait_ms} ms: {output:?}");
        assert_whole(&sandbox);
    }
}
