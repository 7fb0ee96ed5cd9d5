//! Block volumes that `weir export` serves, used by the NBD clients of others.

use crate::common::{Sandbox, assert_says, can_mount, detach, fails, succeeds, weir};
use crate::kills::{PATIENCE, Server, have, kills, random};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CLIENTS: [&str; 7] = ["fio", "nbdcopy", "nbdinfo", "nbdkit", "nbdsh", "qemu-img", "qemu-io"];

/// What mounts a file system on an export, and looks at it.
const FILE_SYSTEMS: [&str; 8] =
    ["e2fsck", "fusermount3", "losetup", "mkfs.ext4", "mkfs.xfs", "nbdfuse", "qemu-io", "xfs_repair"];

fn have_all(programs: &[&'static str]) -> bool {
    have(&programs.iter().map(Path::new).collect::<Vec<_>>())
}

/// A store with the block volume `disk`.
fn store_with_disk(size: &str) -> Sandbox {
    let sandbox = Sandbox::formatted_with(&["--size", "2GiB", "--buffer-size", "64MiB"]);
    create(&sandbox, "disk", size);
    sandbox
}

fn create(sandbox: &Sandbox, volume: &str, size: &str) {
    succeeds(weir().args(["volume", "create"]).arg(sandbox.store()).args([volume, "--size", size]));
}

/// A running `weir export`. Dropping it kills it.
struct Export {
    process: Server,
    uri: String,
    is_read_only: bool,
}

impl Export {
    /// Exports a volume at a socket with the volume's name.
    fn start(sandbox: &Sandbox, volume: &str) -> Export {
        let socket = sandbox.path(&format!("{volume}.sock"));
        let mut command = weir();
        command.arg("export").arg(sandbox.store()).arg(volume).arg("--socket").arg(socket);
        Export::run(&mut command)
    }

    fn run(command: &mut Command) -> Export {
        let mut process = Server::start(command.stdout(Stdio::piped()));
        let mut uri = String::new();
        BufReader::new(process.0.stdout.take().expect("a pipe")).read_line(&mut uri).expect("text");
        assert!(!uri.is_empty(), "the export ended");
        Export { process, uri: uri.trim_end().to_owned(), is_read_only: false }
    }

    /// Runs qemu-io's commands, which must all succeed.
    #[track_caller]
    fn qemu_io(&self, commands: &[&str]) -> String {
        let mut qemu_io = Command::new("qemu-io");
        qemu_io.args(["-f", "raw", "-d", "unmap"]).args(self.is_read_only.then_some("-r"));
        for command in commands {
            qemu_io.args(["-c", command]);
        }
        let said = String::from_utf8_lossy(&succeeds(qemu_io.arg(&self.uri)).stdout).into_owned();
        assert!(!said.contains("verification failed"), "{said}");
        said
    }

    /// Ends it as ^C does.
    fn end(mut self) {
        self.process.signal("INT");
        self.process.wait("an export");
        let status = self.process.0.wait().expect("a child of ours");
        assert!(status.success(), "{status}");
    }

    fn kill(mut self) {
        self.process.signal("KILL");
        self.process.wait("an export");
    }
}

fn says(command: &mut Command) -> String {
    String::from_utf8_lossy(&succeeds(command).stdout).into_owned()
}

fn check(sandbox: &Sandbox) {
    let said = says(weir().arg("check").arg(sandbox.store()));
    assert_says(&said, "volume disk: the header of a block volume of");
}

#[test]
fn clients_find_what_they_need_and_read_what_was_written() {
    if !have_all(&CLIENTS) {
        return;
    }
    let sandbox = store_with_disk("64MiB");
    let export = Export::start(&sandbox, "disk");
    let info = says(Command::new("nbdinfo").arg(&export.uri));
    for ability in
        ["can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"]
    {
        assert_says(&info, &format!("{ability}: true"));
    }
    assert_says(&info, "export-size: 67108864");
    assert_says(&info, "base:allocation");
    assert_says(&says(Command::new("nbdinfo").arg("--list").arg(&export.uri)), "export=\"disk\":");

    export.qemu_io(&[
        "write -P 7 511 70001",
        "write -P 8 70000 3",
        "read -P 0 0 511",
        "read -P 7 511 69489",
        "read -P 8 70000 3",
        "read -P 7 70003 509",
        "read -P 0 70512 5000",
        "write -z 600 9001",
        "read -P 7 511 89",
        "read -P 0 600 9001",
        "read -P 7 9601 60399",
        "write -f -P 9 67108000 864",
        "discard 64k 4k",
        "read -P 0 64k 4k",
        "flush",
    ]);
    let map = says(Command::new("nbdinfo").args(["--map", &export.uri]));
    assert_says(&map, "hole,zero");

    let image = sandbox.path("image");
    let mut bytes = vec![0; 64 << 20];
    let mut random = random().1;
    for word in bytes[1 << 20..48 << 20].chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    fs::write(&image, &bytes).expect("a file");
    succeeds(Command::new("nbdcopy").arg(&image).arg(&export.uri));
    succeeds(
        Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&image).arg(&export.uri),
    );
    let back = sandbox.path("back");
    succeeds(Command::new("nbdcopy").arg(&export.uri).arg(&back));
    assert!(fs::read(&back).expect("a file") == bytes, "nbdcopy brings other bytes back");
    export.end();
    assert!(!sandbox.path("disk.sock").exists(), "the socket stays");
    check(&sandbox);
}

#[test]
fn scripts_and_filters_of_others_work() {
    if !have_all(&CLIENTS) {
        return;
    }
    let sandbox = store_with_disk("64MiB");
    let export = Export::start(&sandbox, "disk");
    // Requests in flight at once, extents, requests that must fail, and what a failed one leaves.
    let script = r#"
h.pwrite(b"x" * 1000, 4096 * 3 + 7, nbd.CMD_FLAG_FUA)
assert h.pread(1002, 4096 * 3 + 6) == b"\0" + b"x" * 1000 + b"\0"
found = []
h.block_status(64 * 1024, 0, lambda context, offset, extents, error: found.append((context, list(extents))))
assert found == [("base:allocation", [12288, 3, 4096, 0, 49152, 3])], found
size = h.get_size()
h.set_strict_mode(0)
for call in (lambda: h.pread(2, size - 1), lambda: h.pwrite(b"ab", size - 1), lambda: h.trim(4096, size), lambda: h.zero(4096, 2 ** 63)):
    try:
        call()
    except nbd.Error as error:
        assert error.errno in ("EINVAL", "ENOSPC"), error
    else:
        raise SystemExit("a request past the end succeeds")
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([number]) * 4096), number * 4096) for number in range(200)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for number in range(200):
    assert h.pread(4096, number * 4096) == bytes([number]) * 4096
h.flush()
h.shutdown()
"#;
    let connect = format!("h.add_meta_context(\"base:allocation\")\nh.connect_uri(\"{}\")\n", export.uri);
    succeeds(Command::new("/usr/bin/python3").args(["-m", "nbd", "-c", &connect, "-c", script]));

    let mut fio = Command::new("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bssplit=512/20:4k/60:12k/20"]);
    fio.args(["--iodepth=32", "--size=64m", "--io_size=32m", "--verify=crc32c", "--verify_fatal=1"]);
    fio.arg("--verify_backlog=512").arg(format!("--uri={}", export.uri));
    succeeds(fio.current_dir(sandbox.path("")));

    // Clients between clients: nbdkit's filters make requests late, lose some, and cut them up.
    let served = sandbox.path("filtered.sock");
    let socket = sandbox.path("disk.sock");
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["--foreground", "--exit-with-parent", "--filter=blocksize", "--filter=retry"]);
    nbdkit.args(["--filter=error", "--filter=delay", "--unix"]).arg(&served).args(["nbd"]);
    nbdkit.arg(format!("socket={}", socket.display())).args(["export=disk", "maxdata=64k", "retry-delay=1"]);
    nbdkit.args(["error-pread-rate=0.5%", "error-pwrite-rate=0.5%", "delay-read=1ms", "delay-write=1ms"]);
    let mut nbdkit = Server::start(&mut nbdkit);
    assert!(nbdkit.wait_until(|| served.exists()), "nbdkit ends");
    let filtered = format!("nbd+unix:///?socket={}", served.display());
    let back = sandbox.path("back");
    succeeds(Command::new("nbdcopy").arg(&filtered).arg(&back));
    succeeds(
        Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&back).arg(&export.uri),
    );
    drop(nbdkit);
    export.end();
    check(&sandbox);
}

#[test]
fn a_snapshot_is_exported_beside_its_source() {
    if !have_all(&CLIENTS) {
        return;
    }
    let sandbox = store_with_disk("64MiB");
    let export = Export::start(&sandbox, "disk");
    export.qemu_io(&["write -P 1 0 1M"]);
    succeeds(weir().args(["volume", "snapshot"]).arg(sandbox.store()).arg("night=disk"));
    export.qemu_io(&["write -P 2 0 64k", "discard 512k 512k"]);
    let snapshot = Export { is_read_only: true, ..Export::start(&sandbox, "night") };
    snapshot.qemu_io(&["read -P 1 0 1M"]);
    export.qemu_io(&["read -P 2 0 64k", "read -P 1 64k 448k", "read -P 0 512k 512k"]);
    let info = says(Command::new("nbdinfo").arg(&snapshot.uri));
    assert_says(&info, "is_read_only: true");

    // One daemon serves both, and says so.
    let listed = says(weir().args(["volume", "list", "--json"]).arg(sandbox.store()));
    assert_says(&listed, &format!("\"exported_at\": \"{}\"", snapshot.uri));
    let twice = fails(weir().arg("export").arg(sandbox.store()).args(["night", "--socket", "other.sock"]));
    assert_says(&twice, "volume night is exported already");
    assert_says(
        &fails(weir().args(["volume", "snapshot"]).arg(sandbox.store()).arg("unnamed")),
        "name the volume",
    );
    let checked = weir().arg("check").arg(sandbox.store()).output().expect("weir runs");
    assert_says(&String::from_utf8_lossy(&checked.stderr), "it exports volumes");
    let deleted = fails(weir().args(["volume", "delete"]).arg(sandbox.store()).arg("night"));
    assert_says(&deleted, "end its `weir export` first");
    let tuned = fails(
        weir().arg("export").arg(sandbox.store()).args(["disk", "--socket", "x.sock", "--memory", "64MiB"]),
    );
    assert_says(&tuned, "--memory: a daemon has the store open");

    // The daemon began with the first export, and ends with the last.
    let mut first = export;
    first.process.signal("TERM");
    let begin = Instant::now();
    while fs::exists(sandbox.path("disk.sock")).expect("a directory")
        && Command::new("nbdinfo").arg(&first.uri).output().expect("nbdinfo runs").status.success()
    {
        assert!(begin.elapsed() < PATIENCE, "the export does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    snapshot.qemu_io(&["read -P 1 0 1M"]);
    snapshot.end();
    first.process.wait("the daemon");
    check(&sandbox);
}

#[test]
fn exports_and_mounts_share_a_daemon() {
    if !have_all(&CLIENTS) || !can_mount() {
        return;
    }
    let sandbox = store_with_disk("64MiB");
    let mut mounted = sandbox.mount();
    let mut command = weir();
    command.arg("export").arg(mounted.dir()).args(["disk", "--tcp", "127.0.0.1:0"]);
    let export = Export::run(&mut command);
    assert!(export.uri.starts_with("nbd://127.0.0.1:"), "{}", export.uri);
    export.qemu_io(&["write -P 3 5000 5000", "flush"]);
    fs::write(mounted.path("file"), b"of the file system").expect("space");
    assert_says(
        &fails(weir().arg("export").arg(mounted.dir()).args(["main", "--tcp", "0"])),
        "is mounted already",
    );
    let other = sandbox.path("other");
    fs::create_dir(&other).expect("a new directory");
    let refused = fails(weir().args(["mount", "--volume", "disk"]).arg(sandbox.store()).arg(&other));
    assert_says(&refused, "volume disk is exported already");
    succeeds(weir().args(["volume", "create"]).arg(mounted.dir()).args(["unused", "--size", "1MiB"]));
    let refused = fails(weir().args(["mount", "--volume", "unused"]).arg(sandbox.store()).arg(&other));
    assert_says(&refused, "volume unused is a block volume");

    // The mount goes, and the export stays.
    succeeds(weir().arg("unmount").arg(mounted.dir()));
    export.qemu_io(&["read -P 3 5000 5000", "write -P 4 5000 10"]);
    succeeds(weir().args(["volume", "snapshot"]).arg(sandbox.store()).arg("after=disk"));
    // The daemon takes another mount.
    let tuned = fails(weir().args(["mount", "--memory", "64MiB"]).arg(sandbox.store()).arg(mounted.dir()));
    assert_says(&tuned, "--memory: a daemon has the store open");
    succeeds(weir().arg("mount").arg(sandbox.store()).arg(mounted.dir()));
    assert_eq!(fs::read(mounted.path("file")).expect("a file"), b"of the file system");
    succeeds(weir().arg("unmount").arg(mounted.dir()));
    export.end();
    mounted.ended();
    let export = Export { is_read_only: true, ..Export::start(&sandbox, "after") };
    export.qemu_io(&["read -P 4 5000 10", "read -P 3 5010 4990"]);
    export.end();
    check(&sandbox);
}

/// A file system on an export: nbdfuse makes a file of it, and a loop device a disk.
struct LoopMount {
    directory: PathBuf,
    device: String,
    fuse: Child,
}

impl LoopMount {
    /// Attaches the disk, and mounts it after `mkfs`, if there is one.
    fn new(export: &Export, sandbox: &Sandbox, mkfs: Option<&[&str]>) -> LoopMount {
        let file = sandbox.path("nbdfuse");
        File::create(&file).expect("a file");
        let fuse = Command::new("nbdfuse").arg(&file).arg(&export.uri).spawn().expect("nbdfuse runs");
        let begin = Instant::now();
        while fs::metadata(&file).is_ok_and(|file| file.len() == 0) {
            assert!(begin.elapsed() < PATIENCE, "nbdfuse is not ready");
            std::thread::sleep(Duration::from_millis(10));
        }
        let device = says(Command::new("losetup").args(["--find", "--show"]).arg(&file)).trim().to_owned();
        let directory = sandbox.path("fs");
        fs::create_dir_all(&directory).expect("a directory");
        let made = LoopMount { directory, device, fuse };
        if let Some(mkfs) = mkfs {
            succeeds(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&made.device));
        }
        succeeds(Command::new("mount").arg(&made.device).arg(&made.directory));
        made
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // After a kill of the export each of them may fail, and all must be tried.
        detach(&self.directory);
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
        let begin = Instant::now();
        let backing = Path::new("/sys/block").join(&self.device["/dev/".len()..]).join("loop/backing_file");
        while backing.exists() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let file = self.directory.with_file_name("nbdfuse");
        let _ = Command::new("fusermount3").arg("-u").arg(&file).stderr(Stdio::null()).status();
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
        detach(&file);
    }
}

#[test]
fn file_systems_on_an_export_are_whole_after_kills() {
    if !have_all(&FILE_SYSTEMS) || !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (seed, mut random) = random();
    for (mkfs, repair) in [
        (["mkfs.ext4", "-q", "-F"].as_slice(), ["e2fsck", "-fn"].as_slice()),
        (["mkfs.xfs", "-q", "-f"].as_slice(), ["xfs_repair", "-n"].as_slice()),
    ] {
        let sandbox = store_with_disk("512MiB");
        let mut export = Export::start(&sandbox, "disk");
        let mut mkfs = Some(mkfs);
        for kill in 0..kills() {
            let mounted = LoopMount::new(&export, &sandbox, mkfs.take());
            let when = format!("{repair:?}, seed {seed}, kill {kill}");
            for earlier in 0..kill {
                let found =
                    fs::read(mounted.directory.join(format!("synced{earlier}"))).expect("it was synced");
                assert!(found == vec![earlier as u8 + 1; 100_000], "{when}: file {earlier} has other bytes");
            }
            let path = mounted.directory.join(format!("synced{kill}"));
            fs::write(&path, vec![kill as u8 + 1; 100_000]).expect("space");
            File::open(&path).and_then(|file| file.sync_all()).expect("a sync");
            File::open(&mounted.directory).and_then(|dir| dir.sync_all()).expect("a sync");
            let directory = mounted.directory.clone();
            let writer = std::thread::spawn(move || {
                // Until the disk is gone.
                for number in 0..5000 {
                    if fs::write(directory.join(format!("unsynced{}", number % 50)), vec![1; 30_000]).is_err()
                    {
                        return;
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(random.below(700)));
            export.kill();
            drop(mounted);
            writer.join().expect("no panic");
            export = Export::start(&sandbox, "disk");
            // Mounting replays the journal; then nothing may be wrong.
            drop(LoopMount::new(&export, &sandbox, None));
            let image = sandbox.path("image");
            succeeds(Command::new("nbdcopy").arg(&export.uri).arg(&image));
            let found = Command::new(repair[0]).args(&repair[1..]).arg(&image).output().expect("it runs");
            assert!(found.status.success(), "{when}: {found:?}");
        }
        export.end();
        check(&sandbox);
    }
}

#[test]
fn a_disk_of_a_tebibyte_is_made_discarded_and_freed() {
    if !have_all(&FILE_SYSTEMS) || !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let sandbox = store_with_disk("1TiB");
    let used = || fs::metadata(sandbox.store().join("store")).expect("a file").blocks() / 2048;
    let export = Export::start(&sandbox, "disk");
    let mounted = LoopMount::new(
        &export,
        &sandbox,
        Some(&["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,discard"]),
    );
    fs::write(mounted.directory.join("file"), vec![5; 200 << 20]).expect("space");
    succeeds(Command::new("sync").arg("--file-system").arg(&mounted.directory));
    let full = used();
    assert!(full >= 200, "{full} MiB");
    fs::remove_file(mounted.directory.join("file")).expect("it is there");
    succeeds(Command::new("sync").arg("--file-system").arg(&mounted.directory));
    succeeds(Command::new("fstrim").arg(&mounted.directory));
    let begin = Instant::now();
    while used() > full - 100 {
        assert!(
            begin.elapsed() < PATIENCE,
            "the space of what was discarded is not freed: {} of {full} MiB",
            used()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(mounted);
    export.end();
    check(&sandbox);
}

#[test]
fn wrong_arguments_and_sizes_are_refused_by_name() {
    let sandbox = store_with_disk("64MiB");
    let export = || {
        let mut command = weir();
        command.arg("export").arg(sandbox.store());
        command
    };
    let socket = sandbox.path("socket");
    fs::write(&socket, b"a file").expect("a file");
    assert_says(&fails(export().arg("disk").arg("--socket").arg(&socket)), "Address already in use");
    assert_eq!(fs::read(&socket).expect("the file"), b"a file");
    for (arguments, part) in [
        (["disk", "--tcp", "192.0.2.1:10809"].as_slice(), "no passwords"),
        (&["disk", "--tcp", "here"], "127.0.0.1:10809"),
        (&["disk"], "--socket"),
    ] {
        let refused = export().args(arguments).output().expect("weir runs");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert_says(&String::from_utf8_lossy(&refused.stderr), part);
    }
    assert_says(&fails(export().args(["nope", "--tcp", "0"])), "no volume nope");
    assert_says(&fails(export().args(["main", "--tcp", "0"])), "is no block volume");
    let resize =
        |arguments: &[&str]| fails(weir().args(["volume", "resize"]).arg(sandbox.store()).args(arguments));
    assert_says(&resize(&["disk", "--size", "32MiB"]), "--accept-loss");
    assert_says(&resize(&["disk", "--size", "1000", "--accept-loss"]), "steps of 512 bytes");
    assert_says(&resize(&["main", "--size", "1GiB"]), "is no block volume");
    let created = |size: &str| {
        fails(weir().args(["volume", "create"]).arg(sandbox.store()).args(["x", "--size", size]))
    };
    assert_says(&created("0"), "steps of 512 bytes");
    assert_says(&created("129TiB"), "steps of 512 bytes");
    let volumes = says(weir().args(["volume", "list"]).arg(sandbox.store()));
    assert_eq!(volumes.lines().count(), 3, "{volumes}");
    succeeds(weir().args(["volume", "resize"]).arg(sandbox.store()).args(["disk", "--size", "128MiB"]));
    succeeds(weir().args(["volume", "resize"]).arg(sandbox.store()).args([
        "disk",
        "--size",
        "1MiB",
        "--accept-loss",
    ]));
    check(&sandbox);
}
