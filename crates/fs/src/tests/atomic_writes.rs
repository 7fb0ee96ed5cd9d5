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
    for wrong in [&b""[..], b"on", b"2048", b"12288", b"131072", b"+8192 "] {
        assert!(matches!(mark(&cache, &fs, unmarked, wrong), Err(FsError::Invalid)), "{wrong:?}");
    }
    assert_eq!(fs.atomic_page_bytes(unmarked).expect("a file"), None);
    assert_eq!(fs.atomic_page_bytes(marked).expect("a file"), Some(8192));
    mark(&cache, &fs, marked, b"off").expect("a mark");
    assert_eq!(fs.atomic_page_bytes(marked).expect("a file"), None);
    mark(&cache, &fs, Ino::ROOT, b"65536").expect("a mark");
    let below = make(&cache, &fs, b"below");
    assert_eq!(fs.atomic_page_bytes(below).expect("a file"), Some(65536));
    let link = wait(&cache, |done| fs.symlink(OWNER, Ino::ROOT, b"link", b"below", done)).expect("space").ino;
    assert_eq!(fs.atomic_page_bytes(link).expect("a link"), None, "a link has no attribute of a user");
}
