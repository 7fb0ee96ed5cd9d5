//! Files whose short writes stay whole, in a stack in which all whole pages bypass the buffer.

use super::crash_truncate::{Media, wait};
use super::in_memory::{OWNER, SECRET};
use crate::types::{FileKind, Ino, SetXattrMode};
use crate::{ATOMIC_WRITES_MARK, Fs, FsError};
use cache::{BackgroundTask, Cache};
use device::{SeededRng, VolumeId};
use std::sync::Arc;
use store::NewVolume;

/// Bytes of a program's page: two pages of weir.
const PAGE: usize = 8192;
const PAGES: u64 = 16;

fn make(cache: &Cache, fs: &Fs, name: &[u8]) -> Ino {
    let made = wait(cache, |done| fs.make(OWNER, Ino::ROOT, name, FileKind::File, 0o600, done));
    made.expect("space").ino
}

fn mark(cache: &Cache, fs: &Fs, ino: Ino, value: &[u8]) -> Result<(), FsError> {
    wait(cache, |done| fs.set_xattr(ino, ATOMIC_WRITES_MARK, value, SetXattrMode::Any, done))
}

/// A new file system with a file that is not marked and one that is, both full of zeros.
fn start(media: &Media) -> (Ino, Ino) {
    let cache = media.open().expect("sound media");
    let pages = Fs::create(&*media.clock(), OWNER, SECRET).expect("a new file system");
    cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &pages).expect("space");
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, media.clock()).expect("a file system");
    let files = (make(&cache, &fs, b"unmarked"), make(&cache, &fs, b"marked"));
    assert!(matches!(mark(&cache, &fs, files.1, b"8192"), Err(FsError::Unsupported)), "the root has no mark");
    mark(&cache, &fs, Ino::ROOT, b"off").expect("a mark");
    mark(&cache, &fs, files.1, b"8192").expect("a mark");
    for ino in [files.0, files.1] {
        wait(&cache, |done| fs.write(ino, 0, vec![0; PAGE * PAGES as usize], done)).expect("space");
    }
    cache.drain().expect("sound media");
    files
}

/// How many pages of a file have bytes of two writes.
fn torn_pages(cache: &Cache, fs: &Fs, ino: Ino) -> usize {
    let is_torn = |page: &u64| {
        let bytes = wait(cache, |done| fs.read(ino, page * PAGE as u64, PAGE, done)).expect("a file");
        bytes.iter().any(|byte| *byte != bytes[0])
    };
    (0..PAGES).filter(is_torn).count()
}

#[test]
fn a_crash_tears_pages_of_unmarked_files_only() {
    let media = Media::new();
    let (unmarked, marked) = start(&media);
    let mut random = SeededRng::new(7);
    let mut torn = 0;
    for round in 1..=60 {
        let cache: Arc<Cache> = media.open().expect("sound media");
        let fs = Fs::open(cache.clone(), VolumeId::MAIN, media.clock()).expect("a file system");
        assert_eq!(torn_pages(&cache, &fs, marked), 0, "before round {round}");
        torn += torn_pages(&cache, &fs, unmarked);
        for _ in 0..random.below(20) {
            let at = random.below(PAGES) * PAGE as u64;
            for ino in [unmarked, marked] {
                // The second write has the cache log the half that it is in, if the half has bypassed the buffer.
                for bytes in [vec![round; PAGE], vec![round; 100]] {
                    if fs.try_write(ino, at, &bytes).is_none() {
                        wait(&cache, |done| fs.write(ino, at, bytes, done)).expect("space");
                    }
                }
            }
            match random.below(8) {
                // Covers the logged halves of the other file, too, and not its halves that bypassed the buffer.
                0 => wait(&cache, |done| fs.sync_file(marked, done)).expect("sound media"),
                1 => wait(&cache, |done| fs.sync_file(unmarked, done)).expect("sound media"),
                2 => drop(cache.step(BackgroundTask::WriteBack)),
                _ => {}
            }
        }
        drop((fs, cache));
        media.crash();
    }
    assert!(torn > 0, "no page of the unmarked file is torn, so this test shows nothing");
}

#[test]
fn a_mark_is_a_size_of_pages_or_off() {
    let media = Media::new();
    let (unmarked, marked) = start(&media);
    let cache = media.open().expect("sound media");
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, media.clock()).expect("a file system");
    for wrong in [&b""[..], b"on", b"2048", b"12288", b"131072", b"+8192", b"08192"] {
        assert!(matches!(mark(&cache, &fs, unmarked, wrong), Err(FsError::Invalid)), "{wrong:?}");
    }
    assert_eq!(fs.atomic_page_bytes(unmarked).expect("a file"), None);
    assert_eq!(fs.atomic_page_bytes(marked).expect("a file"), Some(8192));
    mark(&cache, &fs, marked, b"off").expect("a mark");
    assert_eq!(fs.atomic_page_bytes(marked).expect("a file"), None);
    let removed = wait(&cache, |done| fs.remove_xattr(Ino::ROOT, ATOMIC_WRITES_MARK, done));
    assert!(matches!(removed, Err(FsError::NotPermitted)), "nobody would look at the other marks");
    mark(&cache, &fs, Ino::ROOT, b"65536").expect("a mark");
    let below = make(&cache, &fs, b"below");
    assert_eq!(fs.atomic_page_bytes(below).expect("a file"), Some(65536));
    let link = wait(&cache, |done| fs.symlink(OWNER, Ino::ROOT, b"link", b"below", done)).expect("space").ino;
    assert_eq!(fs.atomic_page_bytes(link).expect("a link"), None, "a link has no attribute of a user");
}

/// Bytes of a page of weir.
const HALF: u64 = 4096;
/// Pages of weir in the file of the mixed test.
const HALVES: u64 = 96;

/// A write of the mixed test.
struct NotedWrite {
    version: u32,
    halves: std::ops::Range<u64>,
    stays_whole: bool,
}

/// The version in each page of weir; 0 for zeros, `None` behind the end.
fn versions(cache: &Cache, fs: &Fs, ino: Ino) -> Vec<Option<u32>> {
    let size = fs.attributes(ino).expect("a file").size;
    let version = |half: u64| {
        let bytes = wait(cache, |done| fs.read(ino, half * HALF, HALF as usize, done)).expect("a file");
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect();
        assert!(words.iter().all(|word| *word == words[0]), "half {half} is torn");
        words[0]
    };
    (0..HALVES).map(|half| (half * HALF < size).then(|| version(half))).collect()
}

/// Long writes of the same file bypass the buffer, and grow it, also from the middle of a page on.
#[test]
fn short_writes_between_long_ones_stay_whole() {
    for seed in 0..40 {
        let media = Media::new();
        let (_, marked) = start(&media);
        let mut random = SeededRng::new(seed);
        let mut writes: Vec<NotedWrite> = Vec::new();
        let mut version = 0;
        let mut cut_to = HALVES;
        for round in 0..25 {
            let cache: Arc<Cache> = media.open().expect("sound media");
            let fs = Fs::open(cache.clone(), VolumeId::MAIN, media.clock()).expect("a file system");
            let found = versions(&cache, &fs, marked);
            for write in writes.iter().filter(|write| write.stays_whole) {
                let shows = |half: &u64| found[*half as usize] == Some(write.version);
                let is_explained = |half: &u64| {
                    let is_later = |other: &NotedWrite| {
                        other.version > write.version
                            && other.halves.contains(half)
                            && found[*half as usize] == Some(other.version)
                    };
                    shows(half) || *half >= cut_to || writes.iter().any(is_later)
                };
                if write.halves.clone().any(|half| shows(&half)) {
                    let halves: Vec<_> = write.halves.clone().map(|half| found[half as usize]).collect();
                    assert!(
                        write.halves.clone().all(|half| is_explained(&half)),
                        "seed {seed}, round {round}: version {} in {:?}: {halves:?}",
                        write.version,
                        write.halves
                    );
                }
            }
            // A write of which a cut or a later write took a part is explained, and is not looked at again.
            writes
                .retain(|write| write.halves.clone().all(|half| found[half as usize] == Some(write.version)));
            cut_to = HALVES;
            for _ in 0..random.below(30) {
                version += 1;
                let size = fs.attributes(marked).expect("a file").size / HALF;
                let (at, halves, stays_whole) = match random.below(4) {
                    0 => (random.below(HALVES / 2) * 2, 2, true),
                    1 => (random.below(HALVES / 16) * 16, 16, true),
                    2 => (random.below(size + 1), 17 + random.below(8), false),
                    _ => (size, 17 + random.below(8), false),
                };
                if at + halves > HALVES {
                    let size = random.below(HALVES);
                    cut_to = cut_to.min(size);
                    let set = crate::types::SetAttributes { size: Some(size * HALF), ..Default::default() };
                    wait(&cache, |done| fs.set_attributes(marked, set, done)).expect("space");
                    continue;
                }
                let bytes = u32::to_le_bytes(version).repeat((halves * HALF / 4) as usize);
                if fs.try_write(marked, at * HALF, &bytes).is_none() {
                    wait(&cache, |done| fs.write(marked, at * HALF, bytes, done)).expect("space");
                }
                writes.push(NotedWrite { version, halves: at..at + halves, stays_whole });
                match random.below(10) {
                    0 => wait(&cache, |done| fs.sync_file(marked, done)).expect("sound media"),
                    1 => wait(&cache, |done| fs.sync_names(done)).expect("sound media"),
                    2 | 3 => drop(cache.step(BackgroundTask::WriteBack)),
                    4 => drop(cache.step(BackgroundTask::Commit)),
                    5 => drop(cache.step(BackgroundTask::Checkpoint)),
                    _ => {}
                }
            }
            drop((fs, cache));
            media.crash();
        }
    }
}
