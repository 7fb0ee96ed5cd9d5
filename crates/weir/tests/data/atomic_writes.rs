//! Files that are marked for atomic writes.

use crate::common::{Mounted, Sandbox, can_mount};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use test_support::has_program;

const MARK: &str = "user.weir.atomic";

fn mark(path: &Path, value: &str) -> Result<(), Errno> {
    setxattr(path, MARK, value.as_bytes(), XattrFlags::empty())
}

fn mark_of(path: &Path) -> Option<String> {
    let mut value = [0; 64];
    let len = getxattr(path, MARK, &mut value[..]).ok()?;
    Some(String::from_utf8_lossy(&value[..len]).into_owned())
}

#[test]
fn a_mount_without_the_option_takes_no_mark() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), b"bytes").expect("a file");
    assert_eq!(mark(&mounted.path("file"), "8192"), Err(Errno::OPNOTSUPP));
    assert_eq!(mark(mounted.dir(), "8192"), Err(Errno::OPNOTSUPP));
    assert!(!mounted.status().atomic_writes);
    mounted.unmount();
}

#[test]
fn the_volume_remembers_the_option_and_directories_hand_the_mark_down() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--atomic-writes"]);
    assert!(mounted.status().atomic_writes);
    let directory = mounted.path("data");
    fs::create_dir(&directory).expect("a directory");
    for wrong in ["", "on", "2048", "8191", "131072", "8192 "] {
        assert_eq!(mark(&directory, wrong), Err(Errno::INVAL), "{wrong:?}");
    }
    mark(&directory, "8192").expect("a mark");
    fs::create_dir(directory.join("below")).expect("a directory");
    fs::write(directory.join("below/file"), b"bytes").expect("a file");
    fs::write(mounted.path("other"), b"bytes").expect("a file");
    File::open(&directory).and_then(|directory| directory.sync_all()).expect("a sync");
    mounted.kill();

    let mounted = sandbox.mount();
    assert!(mounted.status().atomic_writes);
    let directory = mounted.path("data");
    assert_eq!(mark_of(&directory.join("below/file")).as_deref(), Some("8192"));
    assert_eq!(mark_of(&mounted.path("other")), None);
    mark(&directory.join("below"), "off").expect("a mark");
    fs::write(directory.join("below/unmarked"), b"bytes").expect("a file");
    assert_eq!(mark_of(&directory.join("below/unmarked")), None);
    // `rsync -X` removes the attributes that the source does not have.
    assert_eq!(removexattr(mounted.dir(), MARK), Err(Errno::PERM));
    mounted.unmount();
}

#[test]
fn a_marked_file_is_one_file_however_it_is_opened() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--atomic-writes"]);
    mark(mounted.dir(), "8192").expect("a mark");
    let path = mounted.path("file");
    let created = File::options().create_new(true).read(true).write(true).open(&path).expect("a file");
    created.write_all_at(&[1; 8192], 0).expect("a write");
    let cached = File::open(&path).expect("the file");
    let read = |from: &File, at| {
        let mut bytes = [0; 8192];
        from.read_exact_at(&mut bytes, at).expect("a read");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn page");
        bytes[0]
    };
    assert_eq!((read(&created, 0), read(&cached, 0)), (1, 1));
    let opened = File::options().write(true).read(true).open(&path).expect("the file");
    opened.write_all_at(&[2; 8192], 0).expect("a write");
    assert_eq!((read(&created, 0), read(&cached, 0)), (2, 2));
    let mut appending = File::options().append(true).open(&path).expect("the file");
    appending.write_all(&[3; 8192]).expect("a write");
    assert_eq!((read(&cached, 8192), fs::metadata(&path).expect("metadata").len()), (3, 16384));
    // A write of another length than the page's is one, too.
    opened.write_all_at(&[4; 100], 8192).expect("a write");
    let mut bytes = [0; 200];
    cached.read_exact_at(&mut bytes, 8192).expect("a read");
    assert_eq!((bytes[99], bytes[100]), (4, 3));
    File::options().write(true).truncate(true).open(&path).expect("the file");
    assert_eq!(fs::metadata(&path).expect("metadata").len(), 0);
    drop((created, cached, opened, appending));
    mounted.unmount();
}

/// Writes a page of 8 KiB from a mapping of another file, of which it has read only the first half. As MariaDB does, it writes with
/// O_DIRECT and does not wait: the kernel takes a write of a killed program back if the program waits for it.
const WRITE_FROM_MAPPING: &str = "
import ctypes, mmap, os, struct, sys
SETUP, SUBMIT = (206, 209) if os.uname().machine == 'x86_64' else (0, 2)
libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8192)
memory.madvise(mmap.MADV_RANDOM)
memory[0]
target = os.open(sys.argv[2], os.O_WRONLY | os.O_DIRECT)
context = ctypes.c_ulong(0)
assert libc.syscall(SETUP, 1, ctypes.byref(context)) == 0
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
block = ctypes.create_string_buffer(struct.pack('<QIIHhIQQqQII', 0, 0, 0, 1, 0, target, address, 8192, 8192, 0, 0, 0))
blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
print('ready', flush=True)
sys.stdin.readline()
assert libc.syscall(SUBMIT, context, ctypes.c_long(1), blocks) == 1
";

/// Starts a program that writes a page to `target` from a mapping of `source`, and waits until it has the first half.
fn start_writer(source: &Path, target: &Path) -> Child {
    let mut writer = Command::new("python3")
        .args(["-c", WRITE_FROM_MAPPING])
        .args([source, target])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut line = String::new();
    BufReader::new(writer.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    writer
}

/// The system call in which a process waits, or `running`.
fn call_of(writer: &Child) -> String {
    let call = fs::read_to_string(format!("/proc/{}/syscall", writer.id())).expect("a process");
    call.split_whitespace().next().expect("a word").to_owned()
}

/// Waits until a condition holds.
fn wait_until(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for a minute");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The number of halves of the page that the killed writer wrote.
fn halves_written_by_killed_writer(source: (&Mounted, &str), target: &Path) -> usize {
    fs::write(target, [1; 16384]).expect("a file");
    let (memory, name) = source;
    let mut writer = start_writer(&memory.path(name), target);
    memory.signal("STOP");
    let state = format!("/proc/{}/status", memory.pid());
    wait_until(|| fs::read_to_string(&state).expect("a process").contains("State:\tT"));
    wait_until(|| call_of(&writer) != "running");
    let waits_for_line = call_of(&writer);
    writer.stdin.take().expect("a pipe").write_all(b"\n").expect("a line");
    // The kernel waits for the second half, whose file system does not answer.
    wait_until(|| !["running", &waits_for_line].contains(&call_of(&writer).as_str()));
    writer.kill().expect("a kill");
    // Once the program has no memory, its write has ended. Then it closes the mapped file, which needs the daemon.
    let title = format!("/proc/{}/cmdline", writer.id());
    wait_until(|| fs::read(&title).expect("a process").is_empty());
    memory.signal("CONT");
    writer.wait().expect("it ends");
    let bytes = fs::read(target).expect("the file");
    bytes[8192..].chunks(4096).filter(|half| half[0] != 1).count()
}

#[test]
fn a_page_stays_whole_if_its_writer_is_killed() {
    if !can_mount() || !has_program("python3") {
        return;
    }
    const ROUNDS: usize = 8;
    let (sandbox, other) = (Sandbox::formatted(), Sandbox::formatted());
    let source = other.mount();
    for round in 0..2 * ROUNDS {
        fs::write(source.path(&round.to_string()), [2; 8192]).expect("a file");
    }
    // The kernel forgets the pages.
    source.unmount();
    let source = other.mount();
    let mounted = sandbox.mount_with(&["--atomic-writes"]);
    fs::create_dir(mounted.path("marked")).expect("a directory");
    mark(&mounted.path("marked"), "8192").expect("a mark");
    for round in 0..ROUNDS {
        let name = |file: usize| (2 * round + file).to_string();
        let marked = halves_written_by_killed_writer((&source, &name(0)), &mounted.path("marked/page"));
        let unmarked = halves_written_by_killed_writer((&source, &name(1)), &mounted.path("page"));
        assert_eq!(
            (marked, unmarked),
            (0, 1),
            "round {round}: halves of a page of a marked and of an unmarked file"
        );
    }
    mounted.unmount();
    source.unmount();
}

/// In a database of pages of 16 KiB, compressed tables of InnoDB have pages of 8 KiB.
#[test]
fn a_page_shorter_than_the_mark_stays_whole_if_its_writer_is_killed() {
    if !can_mount() || !has_program("python3") {
        return;
    }
    let (sandbox, other) = (Sandbox::formatted(), Sandbox::formatted());
    let source = other.mount();
    fs::write(source.path("0"), [2; 8192]).expect("a file");
    source.unmount();
    let source = other.mount();
    let mounted = sandbox.mount_with(&["--atomic-writes"]);
    mark(mounted.dir(), "16384").expect("a mark");
    let halves = halves_written_by_killed_writer((&source, "0"), &mounted.path("page"));
    mounted.unmount();
    source.unmount();
    assert_eq!(halves, 0, "halves of the page");
}

/// What the scripts below begin with.
const ASYNCHRONOUS: &str = "
import ctypes, os, random, struct, sys, threading
SETUP, GETEVENTS, SUBMIT = (206, 208, 209) if os.uname().machine == 'x86_64' else (0, 4, 2)
libc = ctypes.CDLL(None, use_errno=True)
target = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT)
memory = ctypes.create_string_buffer(100)
entry = struct.pack('<QIIHhIQQqQII', 0, 0, 0, 1, 0, target, ctypes.addressof(memory), 100, 0, 0, 0, 0)
context = ctypes.c_ulong(0)
";

/// The kernel gives a process one of these contexts back when the memory of the process is gone, after all of its writes.
const END_AFTER_WRITES: &str = "
entries = [ctypes.create_string_buffer(entry) for _ in range(64)]
blocks = (ctypes.c_void_p * 64)(*[ctypes.addressof(one) for one in entries])
for _ in range(300):
    child = os.fork()
    if child == 0:
        libc.syscall(SETUP, 64, ctypes.byref(context))
        libc.syscall(SUBMIT, context, ctypes.c_long(64), blocks)
        for _ in range(random.randrange(100)):
            pass
        os._exit(0)
    os.waitpid(child, 0)
print('done', flush=True)
";

/// Runs a script on a file. Returns its last line, or `None` if it has none after a minute.
fn run_script(script: &str, file: &Path) -> Option<String> {
    let mut program = Command::new("python3")
        .args(["-c", &[ASYNCHRONOUS, script].concat()])
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let (tell, told) = std::sync::mpsc::channel();
    let output = program.stdout.take().expect("a pipe");
    thread::spawn(move || tell.send(BufReader::new(output).lines().map_while(Result::ok).last()));
    let line = told.recv_timeout(Duration::from_secs(60)).ok().flatten();
    if line.is_some() {
        program.wait().expect("it has ended");
    } else {
        // While the daemon hangs, the program does not end.
        program.kill().expect("a kill");
        thread::spawn(move || program.wait());
    }
    line
}

/// Has the kernel fail all requests of a mount, also those that its daemon waits for.
fn abort(mounted: &Mounted) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let dir = mounted.dir().to_str().expect("a plain name");
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(dir)).expect("the mount");
    let number = line.split(' ').nth(2).and_then(|device| device.split(':').nth(1)).expect("a device");
    let control = Path::new("/sys/fs/fuse/connections");
    let _ = Command::new("mount").args(["-t", "fusectl", "none"]).arg(control).status();
    fs::write(control.join(number).join("abort"), b"1").expect("an abort");
}

#[test]
fn a_program_that_ends_before_its_writes_stops_no_other() {
    if !can_mount() || !has_program("python3") {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--atomic-writes"]);
    mark(mounted.dir(), "8192").expect("a mark");
    fs::write(mounted.path("file"), [1; 8192]).expect("a file");
    let line = run_script(END_AFTER_WRITES, &mounted.path("file"));
    if line.is_none() {
        abort(&mounted);
    }
    assert_eq!(line.as_deref(), Some("done"), "the daemon waits for a write that it has to answer");
    mounted.unmount();
}
