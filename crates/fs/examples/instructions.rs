//! Counts the instructions of six operations below the front end, on disks in memory: an overwrite of 512
//! bytes of a page that is dirty already, a create, a stat (by name), a read of a page that is in memory, into
//! new memory and into the caller's, and a look-up of the rules that hold for a file.
//!
//! ```text
//! cargo build --release -p weir-fs --example instructions
//! for operation in one_overwrite one_create one_stat one_read one_try_read one_look_at_rules; do
//!     valgrind --tool=callgrind --toggle-collect="*$operation*" --callgrind-out-file=$operation.out \
//!         target/release/examples/instructions
//!     callgrind_annotate --inclusive=yes $operation.out > $operation.txt
//! done
//! ```
//!
//! The first figure, divided by the number of operations that the program prints, is the instructions of one.
//! The files of the code are the lines of the `.out` that begin with `fl=`, `fi=` and `fe=`.

use buffer::Buffer;
use cache::{BackgroundTask, Cache, CacheSettings, StepProgress};
use device::{StoreId, VolumeId};
use fs::{CallerCredentials, FileAttributes, FileKind, Fs, FsError, Ino};
use request::{RuleMask, RuleSet};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::hint::black_box;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{NewVolume, Store, StoreLayout};

const OPERATIONS: u64 = 20_000;
const WRITE_BYTES: usize = 512;
const READ_BYTES: usize = 4096;
/// All pages of the file are dirty before the first operation that counts.
const FILE_BYTES: u64 = 4 << 20;
/// Operations within one tick of the clock from which the file system takes its times.
const TICK_OPERATIONS: u64 = 400;
/// Operations after which appended records are made durable, and the buffer's unneeded groups are released.
const STEP_OPERATIONS: u64 = 1000;
const OWNER: CallerCredentials = CallerCredentials { uid: 0, gid: 0, umask: 0 };

/// The write that is counted.
#[inline(never)]
fn one_overwrite(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> bool {
    matches!(fs.try_write(ino, offset, bytes), Some(Ok(())))
}

/// The create that is counted. `None` if it would have to wait.
#[inline(never)]
fn one_create(fs: &Fs, name: &[u8]) -> Option<FileAttributes> {
    let made = Arc::new(OnceLock::new());
    let into = made.clone();
    let done = Box::new(move |file: Result<FileAttributes, FsError>| {
        let _ = into.set(file.expect("space"));
    });
    fs.make(OWNER, Ino::ROOT, name, FileKind::File, 0o644, done);
    made.get().copied()
}

/// The look-up that is counted.
#[inline(never)]
fn one_stat(fs: &Fs, name: &[u8]) -> FileAttributes {
    fs.lookup(Ino::ROOT, name).expect("it was made")
}

/// The read into the caller's memory that is counted. `false` if it would have to wait.
#[inline(never)]
fn one_try_read(fs: &Fs, ino: Ino, offset: u64, into: &mut [u8]) -> bool {
    matches!(fs.try_read(ino, offset, into), Some(Ok(READ_BYTES)))
}

/// The read that is counted. `false` if it would have to wait.
#[inline(never)]
fn one_read(fs: &Fs, ino: Ino, offset: u64) -> bool {
    let answered = Arc::new(OnceLock::new());
    let into = answered.clone();
    let done = Box::new(move |bytes: Result<Vec<u8>, FsError>| {
        let _ = into.set(bytes.expect("it is in memory").len() == READ_BYTES);
    });
    fs.read(ino, offset, READ_BYTES, done);
    answered.get() == Some(&true)
}

/// The look-up of a file's rules that is counted.
#[inline(never)]
fn one_look_at_rules(fs: &Fs, ino: Ino) -> RuleMask {
    fs.rules_of(ino)
}

fn main() {
    let id = StoreId([7; 16]);
    let power = PowerSupply::new();
    let (store, buffer) =
        (SimDisk::new("store", 1 << 16, &power, 1), SimDisk::new("buffer", 1 << 14, &power, 2));
    Store::format(&*store, &StoreLayout { id, segment_blocks: None }).expect("a disk that is large enough");
    Buffer::format(&*buffer, id).expect("a disk that is large enough");
    let clock = Arc::new(SimClock::new());
    let store = Arc::new(Store::open(store).expect("a store"));
    let cache = Cache::open(store, buffer, clock.clone(), CacheSettings::default()).expect("a cache");
    let cache = Arc::new(cache);
    let pages = Fs::create(&*clock, OWNER, [3; 16]).expect("a new file system");
    let main = NewVolume { name: "main", ..NewVolume::default() };
    cache.create_volume(&main, &pages).expect("space");
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, clock.clone()).expect("a file system");
    let ino = one_create(&fs, b"file").expect("made at once").ino;
    let (sender, written) = channel();
    fs.write(ino, 0, vec![1; FILE_BYTES as usize], Box::new(move |done| drop(sender.send(done))));
    written.recv().expect("an answer").expect("space");

    let settle = |number: u64| {
        if number.is_multiple_of(TICK_OPERATIONS) {
            clock.advance(Duration::from_millis(4));
        }
        if number.is_multiple_of(STEP_OPERATIONS) {
            for task in [BackgroundTask::Commit, BackgroundTask::WriteBack] {
                while cache.step(task) == StepProgress::Worked {}
            }
        }
    };
    let bytes = [7; WRITE_BYTES];
    // Each far from the last one, and never across the end of a page.
    let offset_of = |number: u64| number * (4096 * 37 + WRITE_BYTES as u64) % FILE_BYTES;
    // Memory of the log and of pages is allocated once.
    for number in 0..OPERATIONS {
        assert!(fs.try_write(ino, offset_of(number), &bytes).is_some(), "{number} would have to wait");
        settle(number);
    }
    for number in 0..OPERATIONS {
        assert!(one_overwrite(&fs, ino, offset_of(number), &bytes), "write {number} would have to wait");
        settle(number);
    }
    for number in 0..OPERATIONS {
        let name = format!("file-{number}");
        assert!(one_create(&fs, name.as_bytes()).is_some(), "create {number} would have to wait");
        settle(number);
    }
    let mut into = [0; READ_BYTES];
    for number in 0..OPERATIONS {
        black_box(one_stat(&fs, format!("file-{number}").as_bytes()));
        let page = offset_of(number) / READ_BYTES as u64 * READ_BYTES as u64;
        assert!(one_read(&fs, ino, page), "read {number} would have to wait");
        assert!(one_try_read(&fs, ino, page, &mut into), "read {number} would have to wait");
    }
    let rules = RuleSet::parse("critical file=/file-*").expect("a rule");
    fs.set_rules(Arc::new(rules));
    let inos: Vec<Ino> =
        (0..OPERATIONS).map(|number| one_stat(&fs, format!("file-{number}").as_bytes()).ino).collect();
    assert!(inos.into_iter().all(|ino| one_look_at_rules(&fs, ino) == RuleMask(1)));
    println!(
        "{OPERATIONS} operations of each kind, {} pages dirty, {} stored",
        cache.status().dirty_pages,
        cache.status().counters.pages_stored
    );
}
