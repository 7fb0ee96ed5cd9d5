//! Overwrites of 512 bytes in pages that are dirty already, on disks in memory: the processor time of a write below the front
//! end's handler, to be counted:
//!
//! ```text
//! cargo build --release -p weir-fs --example overwrite
//! valgrind --tool=callgrind --toggle-collect='*one_overwrite*' --callgrind-out-file=overwrite.out \
//!     target/release/examples/overwrite 200000
//! callgrind_annotate --inclusive=yes overwrite.out
//! ```
//!
//! The first figure, over the number of writes, is the instructions of one. The files in which they are run are the lines of the
//! outcome that begin with `fl=`, `fi=` and `fe=`.

use buffer::Buffer;
use cache::{BackgroundTask, Cache, CacheSettings, StepProgress};
use device::{StoreId, VolumeId};
use fs::{CallerCredentials, FileKind, Fs, Ino};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{Store, StoreLayout};

const WRITE_BYTES: usize = 512;
/// All of them are dirty before the first write that counts.
const FILE_BYTES: u64 = 4 << 20;
/// Writes after which what was appended is made durable, and what the buffer needs no more is let go.
const STEP_WRITES: u64 = 1000;

/// The write that is counted.
#[inline(never)]
fn one_overwrite(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> bool {
    matches!(fs.try_write(ino, offset, bytes), Some(Ok(())))
}

fn main() {
    let writes: u64 =
        std::env::args().nth(1).map_or(200_000, |count| count.parse().expect("how many writes"));
    let (id, power) = (StoreId([7; 16]), PowerSupply::new());
    let (store, buffer) =
        (SimDisk::new("store", 1 << 16, &power, 1), SimDisk::new("buffer", 1 << 14, &power, 2));
    Store::format(&*store, &StoreLayout { id, segment_blocks: None }).expect("a disk that is large enough");
    Buffer::format(&*buffer, id).expect("a disk that is large enough");
    let clock = Arc::new(SimClock::new());
    let store = Arc::new(Store::open(store).expect("a store"));
    let cache = Cache::open(store, buffer, clock.clone(), CacheSettings::default()).expect("a cache");
    let cache = Arc::new(cache);
    Fs::create(&cache, VolumeId::MAIN, &*clock, CallerCredentials { uid: 0, gid: 0, umask: 0 }, [3; 16])
        .expect("a new file system");
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, clock.clone()).expect("a file system");

    let made = Arc::new(OnceLock::new());
    let into = made.clone();
    let done = Box::new(move |file: Result<fs::FileAttributes, _>| {
        let _ = into.set(file.expect("space").ino);
    });
    fs.make(CallerCredentials { uid: 0, gid: 0, umask: 0 }, Ino::ROOT, b"file", FileKind::File, 0o644, done);
    let ino = *made.get().expect("made at once");
    let (sender, written) = channel();
    fs.write(ino, 0, vec![1; FILE_BYTES as usize], Box::new(move |done| drop(sender.send(done))));
    written.recv().expect("an answer").expect("space");

    let bytes = [7; WRITE_BYTES];
    let mut offset = 0;
    for number in 0..writes {
        // Far from the last one, and never across the end of a page.
        offset = (offset + 4096 * 37 + WRITE_BYTES as u64) % FILE_BYTES;
        clock.advance(Duration::from_micros(10));
        assert!(one_overwrite(&fs, ino, offset, &bytes), "write {number} would have to wait");
        if number % STEP_WRITES == 0 {
            for task in [BackgroundTask::Commit, BackgroundTask::WriteBack] {
                while cache.step(task) == StepProgress::Worked {}
            }
        }
    }
    println!(
        "{writes} writes, {} pages dirty, {} stored",
        cache.status().dirty_pages,
        cache.status().counters.pages_stored
    );
}
