//! `weir top` on a terminal: a pseudo-terminal whose other end is the test.

use crate::common::{PATIENCE, Sandbox, can_mount, weir};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How a program takes the screen of a terminal, and gives it back.
const ENTER_SCREEN: &str = "\x1b[?1049h";
const LEAVE_SCREEN: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// The size of the terminal.
const COLUMNS: usize = 160;
const LINES: usize = 40;

/// The text on a screen after a program has printed `printed`. The program moves the cursor, clears the screen, and prints; its
/// colours are left out.
fn screen_after(printed: &str) -> String {
    let blank = vec![vec![' '; COLUMNS]; LINES];
    let mut screen = blank.clone();
    let mut line = 0;
    let mut column = 0;
    let mut parts = printed.split("\x1b[");
    let before = parts.next().unwrap_or_default();
    assert_eq!(before, "", "the program takes the screen first");
    for part in parts {
        // The last one may have arrived in part.
        let Some(end) = part.find(|char: char| char.is_ascii_alphabetic()) else { break };
        let (parameters, text) = part.split_at(end);
        match text.as_bytes()[0] {
            b'H' => {
                let mut numbers =
                    parameters.split(';').map(|number| number.parse::<usize>().unwrap_or(1) - 1);
                line = numbers.next().unwrap_or(0);
                column = numbers.next().unwrap_or(0);
            }
            b'J' => screen.clone_from(&blank),
            _ => {}
        }
        for char in text[1..].chars() {
            screen[line][column.min(COLUMNS - 1)] = char;
            column += 1;
        }
    }
    screen.iter().map(|line| line.iter().collect::<String>()).collect::<Vec<_>>().join("\n")
}

/// `weir top` on a terminal of its own. Dropping it ends the program.
struct TopOnTerminal {
    keyboard: File,
    /// The terminal as the program has it.
    terminal: OwnedFd,
    program: Child,
    printed: Arc<Mutex<Vec<u8>>>,
}

impl TopOnTerminal {
    fn start(arguments: &[&OsStr]) -> TopOnTerminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a pseudo-terminal");
        unlockpt(&master).expect("a pseudo-terminal");
        let terminal = ioctl_tiocgptpeer(&master, flags).expect("its other end");
        let size = Winsize { ws_row: LINES as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).expect("a size");
        let end = || terminal.try_clone().expect("a descriptor");
        // In a session of its own, where this is the terminal of which programs ask for the size.
        let program = Command::new("setsid")
            .args([OsStr::new("--ctty"), weir().get_program(), OsStr::new("top")])
            .args(arguments)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the program starts");
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().expect("a descriptor");
        let printed: Arc<Mutex<Vec<u8>>> = Arc::default();
        let printed_by_thread = printed.clone();
        // Ends with an error when the terminal is closed on both ends.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                printed_by_thread.lock().expect("no panic").extend_from_slice(&bytes[..count]);
            }
        });
        TopOnTerminal { keyboard, terminal, program, printed }
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&self.printed.lock().expect("no panic")).into_owned()
    }

    /// Waits until the program has printed `sequence`, which is one for terminals.
    #[track_caller]
    fn wait_for_sequence(&self, sequence: &str) {
        self.wait_until(|top| top.printed().contains(sequence), sequence);
    }

    /// Waits until the screen shows `text`.
    #[track_caller]
    fn wait_for(&self, text: &str) {
        self.wait_until(|top| screen_after(&top.printed()).contains(text), text);
    }

    #[track_caller]
    fn wait_until(&self, holds: impl Fn(&TopOnTerminal) -> bool, wanted: &str) {
        let begun = Instant::now();
        while !holds(self) {
            let late = begun.elapsed() >= PATIENCE;
            assert!(!late, "no {wanted:?} on the screen:\n{}", screen_after(&self.printed()));
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes it");
    }

    /// Waits for the end of the program, which must leave the terminal as it was.
    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        let status = loop {
            match self.program.try_wait().expect("a child of ours") {
                Some(status) => break status,
                None => assert!(begun.elapsed() < PATIENCE, "it does not end"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        self.wait_for_sequence(LEAVE_SCREEN);
        self.wait_for_sequence(SHOW_CURSOR);
        assert!(!self.is_raw(), "the terminal is not restored");
        status
    }

    /// Whether keys go to the program at once, and are not shown.
    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).expect("a terminal").local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

impl Drop for TopOnTerminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn a_mount_is_shown_until_a_key_ends_the_program() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let dir = mounted.dir().to_str().expect("UTF-8").to_owned();
    for key in ["q", "\x03"] {
        // Without the directory, all mounts of the machine are shown, and perhaps not this one.
        let mut top = TopOnTerminal::start(&[mounted.dir().as_os_str()]);
        top.wait_for_sequence(ENTER_SCREEN);
        top.wait_for(&dir);
        assert!(top.is_raw());
        top.press(key);
        assert_eq!(top.end().code(), Some(0), "after {key:?}");
    }
}

#[test]
fn it_goes_on_when_a_daemon_dies_and_a_mount_is_gone() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let mut top = TopOnTerminal::start(&[mounted.dir().as_os_str()]);
    top.wait_for("not filling");
    mounted.signal("KILL");
    top.wait_for("The daemon has ended");
    mounted.kill();
    top.wait_for("not mounted any more");
    let mounted = sandbox.mount();
    top.wait_for("not filling");
    top.press("q");
    assert_eq!(top.end().code(), Some(0));
    drop(mounted);
}

#[test]
fn a_signal_ends_it_with_the_terminal_restored() {
    let mut top = TopOnTerminal::start(&[]);
    top.wait_for("weir top");
    let pid = top.program.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill").success());
    assert_eq!(top.end().signal(), Some(15));
}

#[test]
fn without_a_terminal_it_names_the_commands_for_scripts() {
    let output = weir().arg("top").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for command in ["`weir status --json`", "`weir metrics`"] {
        assert!(said.contains(command), "{said}");
    }
}
