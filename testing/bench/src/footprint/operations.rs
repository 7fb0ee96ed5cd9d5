//! The operations whose footprint is measured, as a program of one thread on a small store in memory.
//!
//! `weir-bench footprint` traces this program. Two functions mark where a measured operation begins and ends.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buffer::Buffer;
use cache::{BackgroundTask, Cache, CacheSettings, StepProgress};
use device::{StoreId, VolumeId};
use fs::{CallerCredentials, FileKind, Fs, FsCompletion, IfExists, Ino};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use store::{NewVolume, Store, StoreLayout};

/// The file has few pages and the directory few names, so that set-up is a small part of the trace.
pub(super) const PAGES: u64 = 64;
pub(super) const NAMES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
/// Turns of each operation before the measured ones: memory that is kept for later turns is allocated.
const WARM_UP_TURNS: u64 = 16;
/// Measured turns of each operation. An odd number, so that one of them is the median.
pub(super) const TURNS: u64 = 7;
const OWNER: CallerCredentials = CallerCredentials { uid: 0, gid: 0, umask: 0 };

/// One operation, by the number of its turn.
pub(super) type Operation = fn(&Bed, u64);

/// The operations in the order in which the program runs them.
pub(super) const OPERATIONS: [(&str, Operation); 8] = [
    ("fstat", |bed, _| drop(black_box(bed.fs.attributes(bed.file)))),
    ("look-up", |bed, turn| {
        black_box(bed.fs.lookup(Ino::ROOT, bed.name(turn))).expect("it was made");
    }),
    ("read 512 B", |bed, turn| bed.read::<512>(turn)),
    ("read 4 KiB", |bed, turn| bed.read::<4096>(turn)),
    ("overwrite 512 B", |bed, turn| bed.overwrite::<512>(turn)),
    ("overwrite 4 KiB", |bed, turn| bed.overwrite::<4096>(turn)),
    ("create and unlink", |bed, _| {
        let new = b"new";
        at_once(|done| bed.fs.make(OWNER, Ino::ROOT, new, FileKind::File, 0o644, done));
        at_once(|done| bed.fs.unlink(Ino::ROOT, new, done));
    }),
    ("rename", |bed, turn| {
        let pair: [&[u8]; 2] = [b"even", b"odd"];
        let [from, to] = if turn.is_multiple_of(2) { pair } else { [pair[1], pair[0]] };
        at_once(|done| bed.fs.rename((Ino::ROOT, from), (Ino::ROOT, to), IfExists::Replace, done));
    }),
];

/// A measured operation begins where this returns. Not folded with [`operation_ends`]: the bodies differ.
#[inline(never)]
pub(super) fn operation_begins(turn: u64) {
    black_box(turn.wrapping_add(1));
}

/// A measured operation ends where this is called.
#[inline(never)]
pub(super) fn operation_ends(turn: u64) {
    black_box(turn.wrapping_mul(3));
}

/// Runs all operations, each [`TURNS`] times between the two marks.
pub(super) fn run() {
    let bed = Bed::new();
    for (_, operation) in OPERATIONS {
        for turn in 0..WARM_UP_TURNS {
            operation(&bed, turn);
        }
        for turn in WARM_UP_TURNS..WARM_UP_TURNS + TURNS {
            operation_begins(turn);
            operation(&bed, turn);
            operation_ends(turn);
        }
    }
    // Closing everything would be most of the trace.
    std::mem::forget(bed);
}

/// A file system on disks in memory, with one file whose pages are dirty, and names.
pub(super) struct Bed {
    fs: Fs,
    cache: Arc<Cache>,
    file: Ino,
    names: Vec<String>,
}

impl Bed {
    fn new() -> Bed {
        let id = StoreId([7; 16]);
        let power = PowerSupply::new();
        let (store, buffer) =
            (SimDisk::new("store", 1 << 15, &power, 1), SimDisk::new("buffer", 1 << 9, &power, 2));
        Store::format(&*store, &StoreLayout { id, segment_blocks: None })
            .expect("a disk that is large enough");
        Buffer::format(&*buffer, id).expect("a disk that is large enough");
        // The clock stands still: most operations are in the same tick of the kernel's clock as the one before.
        let clock = Arc::new(SimClock::new());
        let store = Arc::new(Store::open(store).expect("a store"));
        let cache =
            Arc::new(Cache::open(store, buffer, clock.clone(), CacheSettings::default()).expect("a cache"));
        let pages = Fs::create(&*clock, OWNER, [3; 16]).expect("a new file system");
        cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &pages).expect("space");
        let fs = Fs::open(cache.clone(), VolumeId::MAIN, clock).expect("a file system");
        let make = |name: &[u8]| at_once(|done| fs.make(OWNER, Ino::ROOT, name, FileKind::File, 0o644, done));
        make(b"file");
        make(b"even");
        let file = fs.lookup(Ino::ROOT, b"file").expect("it was made").ino;
        let names: Vec<String> = (0..NAMES).map(|number| format!("name-{number}")).collect();
        for name in &names {
            make(name.as_bytes());
        }
        let bed = Bed { fs, cache, file, names };
        // As an open file is.
        bed.fs.hold(bed.file).expect("it was made");
        let page = [1; PAGE_BYTES as usize];
        for number in 0..PAGES {
            bed.write(number * PAGE_BYTES, &page);
        }
        bed.settle();
        for number in 0..PAGES {
            bed.write(number * PAGE_BYTES, &page[..512]);
        }
        bed
    }

    fn name(&self, turn: u64) -> &[u8] {
        self.names[(turn * 37 % NAMES) as usize].as_bytes()
    }

    /// Far from the offset of the turn before.
    fn offset(turn: u64) -> u64 {
        turn * 37 % PAGES * PAGE_BYTES
    }

    fn read<const BYTES: usize>(&self, turn: u64) {
        let mut into = [0; BYTES];
        let read = self.fs.try_read(self.file, Bed::offset(turn), &mut into);
        assert!(matches!(read, Some(Ok(bytes)) if bytes == BYTES), "the page is in memory");
        black_box(into);
    }

    fn overwrite<const BYTES: usize>(&self, turn: u64) {
        // Differs in the first and the last byte from what is there.
        let mut bytes = [2; BYTES];
        bytes[0] = turn as u8;
        bytes[BYTES - 1] = !turn as u8;
        self.write(Bed::offset(turn), &bytes);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let written = self.fs.try_write(self.file, offset, bytes);
        assert!(matches!(written, Some(Ok(()))), "there is space");
    }

    /// Makes appended records durable and stores what is due, so that no operation waits.
    fn settle(&self) {
        for task in [BackgroundTask::Commit, BackgroundTask::WriteBack] {
            while self.cache.step(task) == StepProgress::Worked {}
        }
    }
}

/// Whether the last operation with a completion has succeeded.
static SUCCEEDED: AtomicBool = AtomicBool::new(false);

/// Runs an operation that need not wait. Its completion captures nothing, so that only weir allocates memory.
fn at_once<T>(operation: impl FnOnce(FsCompletion<T>)) {
    SUCCEEDED.store(false, Ordering::Relaxed);
    operation(Box::new(|result| SUCCEEDED.store(result.is_ok(), Ordering::Relaxed)));
    assert!(SUCCEEDED.load(Ordering::Relaxed), "there is space");
}
