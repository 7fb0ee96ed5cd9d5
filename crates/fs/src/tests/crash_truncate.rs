//! Sequential writes that a crash cut short in a damaged volume: other volumes stay usable.

use super::in_memory::{OWNER, SECRET};
use crate::Fs;
use crate::error::FsError;
use crate::types::{FileKind, FsCompletion, Ino};
use cache::{BackgroundTask, Cache, CacheSettings};
use device::{BLOCK_BYTES, Block, Clock, Device, Page, StoreId, VolumeId};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, Store, StoreLayout, VolumeMode};

pub(super) const STREAM: usize = 4 * BLOCK_BYTES;

pub(super) struct Media {
    power: Arc<PowerSupply>,
    store: Arc<SimDisk>,
    buffer: Arc<SimDisk>,
    pub(super) clock: Arc<SimClock>,
}

impl Media {
    pub(super) fn new() -> Media {
        let power = PowerSupply::new();
        let (store, buffer) =
            (SimDisk::new("store", 1 << 14, &power, 1), SimDisk::new("buffer", 1 << 10, &power, 2));
        let id = StoreId([7; 16]);
        Store::format(&*store, &StoreLayout { id, segment_blocks: Some(64) }).expect("a format");
        buffer::Buffer::format(&*buffer, id).expect("a format");
        Media { power, store, buffer, clock: Arc::new(SimClock::new()) }
    }

    fn fork(&self) -> Media {
        let power = PowerSupply::new();
        let store = self.store.fork(&power, 3);
        let buffer = self.buffer.fork(&power, 4);
        Media { power, store, buffer, clock: self.clock.clone() }
    }

    pub(super) fn open(&self) -> Option<Arc<Cache>> {
        let settings = CacheSettings {
            bypass_after: 0,
            commit_inline_below: Duration::ZERO,
            ..CacheSettings::default()
        };
        let store = Arc::new(Store::open(self.store.clone()).ok()?);
        Cache::open(store, self.buffer.clone(), self.clock.clone(), settings).ok().map(Arc::new)
    }

    pub(super) fn crash(&self) {
        self.power.cut();
        self.store.crash();
        self.buffer.crash();
        self.power.restore();
    }

    /// The two copies of each block of the store's metadata.
    fn pairs(&self) -> Vec<[Block; 2]> {
        let mut same: BTreeMap<[u8; BLOCK_BYTES], Vec<Block>> = BTreeMap::new();
        for at in self.store.written_blocks() {
            let mut page = [Page([0; BLOCK_BYTES])];
            self.store.read(at, &mut page).expect("a sound disk");
            same.entry(page[0].0).or_default().push(at);
        }
        same.into_values().filter_map(|blocks| blocks.try_into().ok()).collect()
    }

    /// Damages both copies, or repairs both if they are damaged.
    fn rot(&self, pair: [Block; 2]) {
        pair.into_iter().for_each(|at| self.store.rot(at, 77));
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}

pub(super) fn wait<T: Send + 'static>(
    cache: &Cache,
    start: impl FnOnce(FsCompletion<T>),
) -> Result<T, FsError> {
    let answer = Arc::new(Mutex::new(None));
    let into = answer.clone();
    start(Box::new(move |result| *into.lock().expect("no panic") = Some(result)));
    for _ in 0..10_000 {
        if let Some(result) = answer.lock().expect("no panic").take() {
            return result;
        }
        BackgroundTask::ALL.iter().for_each(|&task| _ = cache.step(task));
    }
    panic!("an operation never completed");
}

/// A store after a power failure in which its volume `work` lost the end of a sequential write; and the
/// metadata blocks that only this volume has.
fn cut_short() -> (Media, VolumeId, Vec<[Block; 2]>) {
    let media = Media::new();
    let cache = media.open().expect("sound media");
    let pages = Fs::create(&*media.clock, OWNER, SECRET).expect("a new file system");
    cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &pages).expect("space");
    let new = NewVolume { name: "work", mode: VolumeMode::Writable, created: 0 };
    let work = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    cache.drain().expect("sound media");
    let before = media.pairs();
    let fs = Fs::open(cache.clone(), work, media.clock()).expect("a file system");
    let made = wait(&cache, |done| fs.make(OWNER, Ino::ROOT, b"file", FileKind::File, 0o600, done));
    cache.drain().expect("sound media");
    let of_work = media.pairs().into_iter().filter(|pair| !before.contains(pair)).collect();
    let file = made.expect("a file").ino;
    wait(&cache, |done| fs.write(file, 0, vec![7; STREAM], done)).expect("space");
    wait(&cache, |done| fs.sync_names(done)).expect("a buffer that works");
    drop((fs, cache));
    media.crash();
    (media, work, of_work)
}

/// Writes ten times what the log holds.
fn use_other(cache: &Arc<Cache>, media: &Media) {
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, media.clock()).expect("it is whole");
    let file = wait(cache, |done| fs.make(OWNER, Ino::ROOT, b"other", FileKind::File, 0o600, done));
    let file = file.or_else(|_| fs.lookup(Ino::ROOT, b"other")).expect("a file").ino;
    for round in 0..1000_u64 {
        let at = round % 40 * 10 * BLOCK_BYTES as u64 + 1;
        wait(cache, |done| fs.write(file, at, vec![round as u8; 10 * BLOCK_BYTES], done)).expect("space");
    }
    wait(cache, |done| fs.sync(done)).expect("a buffer that works");
}

#[test]
fn a_damaged_volume_keeps_no_other_from_being_used_and_is_refused_until_it_can_be_read() {
    let (media, work, of_work) = cut_short();
    let mut refused = 0;
    for pair in of_work {
        let media = media.fork();
        media.rot(pair);
        let Some(cache) = media.open() else { continue };
        let lost = cache.lost_tails();
        let not_ended = Fs::truncate_lost(&cache, &media.clock());
        if lost.is_empty() || not_ended.is_empty() {
            continue;
        }
        refused += 1;
        assert_eq!(not_ended.iter().map(|(volume, _)| *volume).collect::<Vec<_>>(), [work]);
        use_other(&cache, &media);
        assert_eq!(cache.lost_tails(), lost, "nothing was settled");
        assert!(Fs::open(cache.clone(), work, media.clock()).is_err());
        drop(cache);
        media.crash();
        let cache = media.open().expect("only that volume is damaged");
        assert_eq!(cache.lost_tails(), lost, "the log has kept it");
        drop(cache);
        media.rot(pair);
        let cache = media.open().expect("sound media");
        let fs = Fs::open(cache.clone(), work, media.clock()).expect("it is whole again");
        assert_eq!(fs.lookup(Ino::ROOT, b"file").expect("it was made before").size, 0);
        wait(&cache, |done| fs.sync(done)).expect("a buffer that works");
        assert_eq!(cache.lost_tails(), []);
    }
    assert!(refused > 0, "no block kept the volume from being opened");
}

#[test]
fn a_volume_that_holds_no_file_system_keeps_what_was_lost_in_it() {
    let media = Media::new();
    let cache = media.open().expect("sound media");
    let pages = Fs::create(&*media.clock, OWNER, SECRET).expect("a new file system");
    cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &pages).expect("space");
    let new = NewVolume { name: "work", mode: VolumeMode::Writable, created: 0 };
    let work = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    let stream =
        cache::ObjectChange::FileWrite { object: work.object(2, 1), offset: 0, bytes: &[7; STREAM], size: 0 };
    let magic = cache::ObjectChange::Write { object: work.object(0, 0), offset: 0, bytes: b"another " };
    let changes = [stream, magic];
    let reservation = wait(&cache, |done| {
        cache.admit(
            cache::TransactionCost::of(&changes),
            Box::new(|admitted| done(admitted.map_err(FsError::from))),
        )
    });
    cache.apply(&mut reservation.expect("space"), &changes).expect("a buffer that works");
    wait(&cache, |done| cache.sync_logged(Box::new(|synced| done(synced.map_err(FsError::from)))))
        .expect("a buffer that works");
    drop(cache);
    media.crash();
    let cache = media.open().expect("sound media");
    let lost = cache.lost_tails();
    assert_eq!(lost.len(), 1);
    let not_ended = Fs::truncate_lost(&cache, &media.clock());
    assert!(matches!(not_ended[..], [(volume, FsError::Corrupt { .. })] if volume == work), "{not_ended:?}");
    assert_eq!(cache.lost_tails(), lost);
}
