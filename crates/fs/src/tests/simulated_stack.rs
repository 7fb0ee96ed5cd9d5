//! The file system on the real cache, buffer and store, on simulated disks.

use super::in_memory::{OWNER, SECRET};
use super::model::{ModelListing, ModelOperation, ModelSubject};
use super::random::run;
use crate::check::FsFinding;
use crate::deferred_free::FREED_TOGETHER;
use crate::error::FsError;
use crate::types::{FileAttributes, FileKind, FsCompletion, Ino};
use crate::{Fs, IfExists};
use cache::{BackgroundTask, Cache, CacheError, CacheSettings, FetchMode, RecoveredBuffer};
use device::{BLOCK_BYTES, Clock, StoreId};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, Store, StoreLayout, VolumeId, VolumeMode};

/// Steps of background work after which an operation that has not completed never will.
const STEPS_MAX: u32 = 100_000;

pub(crate) struct SimulatedStack {
    store: Arc<SimDisk>,
    buffer: Arc<SimDisk>,
    clock: Arc<SimClock>,
    fetch: FetchMode,
    /// Memory for pages, in bytes; half of it may be dirty.
    memory: u64,
    open: Option<(Arc<Cache>, Fs)>,
    operations: u32,
    opened: u32,
}

impl SimulatedStack {
    /// A stack with a small buffer and little memory, so that both are reused.
    pub(crate) fn new(seed: u64, fetch: FetchMode, store_blocks: u64) -> SimulatedStack {
        SimulatedStack::of(seed, fetch, store_blocks, 1024, 200 * BLOCK_BYTES as u64)
    }

    /// A stack whose buffer and memory hold everything.
    pub(crate) fn roomy(seed: u64, store_blocks: u64) -> SimulatedStack {
        SimulatedStack::of(seed, FetchMode::Lazy, store_blocks, 16384, 256 << 20)
    }

    fn of(seed: u64, fetch: FetchMode, store_blocks: u64, buffer_blocks: u64, memory: u64) -> SimulatedStack {
        let power = PowerSupply::new();
        let store = SimDisk::new("store", store_blocks, &power, seed);
        let buffer = SimDisk::new("buffer", buffer_blocks, &power, seed + 1);
        let id = StoreId([7; 16]);
        Store::format(&*store, &StoreLayout { id, segment_blocks: Some(64) }).expect("a format");
        buffer::Buffer::format(&*buffer, id).expect("a format");
        let clock = Arc::new(SimClock::new());
        let mut stack =
            SimulatedStack { store, buffer, clock, fetch, memory, open: None, operations: 0, opened: 0 };
        let cache = stack.cache();
        let pages = Fs::create(&*stack.clock, OWNER, SECRET).expect("a new file system");
        cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &pages).expect("space");
        drop(cache);
        stack.start();
        stack
    }

    fn cache(&self) -> Arc<Cache> {
        let settings = CacheSettings {
            fetch: self.fetch,
            memory_bytes_max: self.memory,
            dirty_bytes_max: self.memory / 2,
            commit_inline_below: Duration::ZERO,
            ..CacheSettings::default()
        };
        let store = Arc::new(Store::open(self.store.clone()).expect("a store"));
        let recovered =
            RecoveredBuffer::read(self.buffer.clone(), store.id(), &*self.clock).expect("a buffer");
        let cache = Cache::begin(store, recovered, self.clock.clone(), settings).expect("a cache");
        Arc::new(cache)
    }

    fn start(&mut self) {
        let cache = self.cache();
        let fs = Fs::open(cache.clone(), VolumeId::MAIN, self.clock.clone()).expect("a file system");
        self.open = Some((cache, fs));
    }

    pub(crate) fn fs(&self) -> &Fs {
        &self.open.as_ref().expect("it is open").1
    }

    pub(crate) fn store(&self) -> &Store {
        self.open.as_ref().expect("it is open").0.store_without_spare()
    }

    /// Writes everything back.
    pub(crate) fn drain(&self) {
        self.open.as_ref().expect("it is open").0.drain().expect("disks that work");
    }

    pub(crate) fn step(&self) {
        let (cache, _) = self.open.as_ref().expect("it is open");
        for task in [
            BackgroundTask::Commit,
            BackgroundTask::Fetch,
            BackgroundTask::WriteBack,
            BackgroundTask::Checkpoint,
        ] {
            cache.step(task);
        }
    }

    /// Does the workers' work for a while.
    pub(crate) fn work_for(&self, time: Duration) {
        let until = self.clock.monotonic() + time;
        while self.clock.monotonic() < until {
            self.step();
            self.clock.advance(Duration::from_millis(10));
        }
    }

    /// Waits for an operation, doing the workers' work.
    pub(crate) fn wait<T: Send + 'static>(&self, start: impl FnOnce(FsCompletion<T>)) -> Result<T, FsError> {
        let answer = Arc::new(Mutex::new(None));
        let into = answer.clone();
        start(Box::new(move |result| *into.lock().expect("no panic") = Some(result)));
        for _ in 0..STEPS_MAX {
            if let Some(result) = answer.lock().expect("no panic").take() {
                return result;
            }
            self.step();
        }
        panic!("an operation never completed");
    }
}

impl ModelSubject for SimulatedStack {
    fn now(&self) -> i64 {
        self.clock.wall_nanos()
    }

    fn set_now(&mut self, now: i64) {
        let ahead = now - self.clock.wall_nanos();
        self.clock.advance(Duration::from_nanos(ahead as u64));
    }

    fn apply(&mut self, operation: &ModelOperation) -> Result<Option<FileAttributes>, FsError> {
        self.operations += 1;
        if self.operations.is_multiple_of(7) {
            self.step();
        }
        let fs = self.fs();
        match operation.clone() {
            ModelOperation::Make {
                caller,
                parent,
                name,
                kind: kind @ (FileKind::CharDevice | FileKind::BlockDevice),
                mode,
                device,
            } => {
                self.wait(|done| fs.make_device(caller, parent, &name, (kind, device), mode, done)).map(Some)
            }
            ModelOperation::Make { caller, parent, name, kind, mode, .. } => {
                self.wait(|done| fs.make(caller, parent, &name, kind, mode, done)).map(Some)
            }
            ModelOperation::Symlink { caller, parent, name, target } => {
                self.wait(|done| fs.symlink(caller, parent, &name, &target, done)).map(Some)
            }
            ModelOperation::Link { ino, parent, name } => {
                self.wait(|done| fs.link(ino, parent, &name, done)).map(Some)
            }
            ModelOperation::Unlink { parent, name } => {
                self.wait(|done| fs.unlink(parent, &name, done)).map(|()| None)
            }
            ModelOperation::RemoveDirectory { parent, name } => {
                self.wait(|done| fs.remove_directory(parent, &name, done)).map(|()| None)
            }
            ModelOperation::Rename { from, to, if_exists, whiteout } => {
                let from = (from.0, &from.1[..]);
                let to = (to.0, &to.1[..]);
                match whiteout {
                    Some(caller) => {
                        self.wait(|done| fs.rename_leaving_whiteout(caller, from, to, if_exists, done))
                    }
                    None => self.wait(|done| fs.rename(from, to, if_exists, done)).map(|()| None),
                }
            }
            ModelOperation::Exchange { one, other } => {
                let one = (one.0, &one.1[..]);
                let other = (other.0, &other.1[..]);
                self.wait(|done| fs.exchange(one, other, done)).map(|()| None)
            }
            ModelOperation::SetXattr { ino, name, value, how } => {
                self.wait(|done| fs.set_xattr(ino, &name, &value, how, done)).map(|()| None)
            }
            ModelOperation::RemoveXattr { ino, name } => {
                self.wait(|done| fs.remove_xattr(ino, &name, done)).map(|()| None)
            }
            ModelOperation::Write { ino, offset, bytes } => {
                self.wait(|done| fs.write(ino, offset, bytes, done)).map(|()| None)
            }
            ModelOperation::Set { ino, set } => self.wait(|done| fs.set_attributes(ino, set, done)).map(Some),
            ModelOperation::Allocate { ino, what, range, size } => {
                self.wait(|done| fs.allocate(ino, what, range, size, done)).map(|()| None)
            }
            ModelOperation::Hold { ino } => fs.hold(ino).map(|()| None),
            ModelOperation::Unhold { ino } => {
                fs.unhold(ino, 1);
                Ok(None)
            }
        }
    }

    fn attributes(&self, ino: Ino) -> Result<FileAttributes, FsError> {
        self.fs().attributes(ino)
    }

    fn read(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.wait(|done| self.fs().read(ino, 0, 1 << 30, done))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.fs().read_link(ino)
    }

    fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, FsError> {
        let names = self.fs().xattr_names(ino)?;
        names.into_iter().map(|name| self.fs().xattr(ino, &name).map(|value| (name, value))).collect()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        self.fs().lookup(parent, name).map(|found| found.ino)
    }

    fn list(&self, ino: Ino) -> Result<Vec<ModelListing>, FsError> {
        let mut all: Vec<ModelListing> = Vec::new();
        loop {
            // A few at a time, going on from the cookie, as the kernel does.
            let cookie = all.last().map_or(0, |&(cookie, _, _, _)| cookie);
            let before = all.len();
            self.fs().read_directory(ino, cookie, &mut |entry| {
                all.push((entry.cookie, entry.name.to_vec(), entry.ino, entry.kind));
                all.len() < before + 10
            })?;
            if all.len() == before {
                return Ok(all);
            }
        }
    }

    /// Every other time with all of it in the store, else with what came last in the buffer.
    fn reopen(&mut self) {
        self.opened += 1;
        match self.opened % 2 {
            0 => self.drain(),
            _ => self.wait(|done| self.fs().sync(done)).expect("durable"),
        }
        self.open = None;
        self.start();
        // Orphans may wait for space.
        (0..10).for_each(|_| self.step());
    }

    fn findings(&self) -> Vec<FsFinding> {
        let mut findings = Vec::new();
        self.fs().check(&mut |finding| findings.push(finding));
        findings
    }
}

#[test]
fn random_operations_through_the_whole_stack_do_what_a_plain_model_does() {
    run(&mut SimulatedStack::new(1, FetchMode::Lazy, 16384), 1, 30, 2000, 500);
    run(&mut SimulatedStack::new(2, FetchMode::Blocking, 16384), 2, 500, 2000, 500);
}

#[test]
fn a_listing_that_is_taken_holds_what_was_taken_and_nothing_else() {
    let stack = SimulatedStack::new(4, FetchMode::Lazy, 16384);
    let fs = stack.fs();
    for name in 0..300 {
        let name = format!("file-{name}").into_bytes();
        stack.wait(|done| fs.make(OWNER, Ino::ROOT, &name, FileKind::File, 0o600, done)).expect("a file");
    }
    let mut taken = Vec::new();
    let mut left = None;
    fs.read_directory_and_hold(Ino::ROOT, 0, &mut |entry, found| {
        assert_eq!((entry.ino, entry.kind), (found.ino, found.kind));
        if taken.len() == 200 {
            left = Some((entry.name.to_vec(), entry.ino));
            return false;
        }
        taken.push((entry.name.to_vec(), entry.ino));
        true
    })
    .expect("a listing");
    let (name, ino) = left.expect("there are more than 200");
    stack.wait(|done| fs.unlink(Ino::ROOT, &name, done)).expect("removed");
    assert!(matches!(fs.attributes(ino), Err(FsError::Stale)), "nobody holds it");
    for (name, ino) in taken {
        stack.wait(|done| fs.unlink(Ino::ROOT, &name, done)).expect("removed");
        assert_eq!(fs.attributes(ino).expect("it is held").links, 0);
        fs.unhold(ino, 1);
        assert!(matches!(fs.attributes(ino), Err(FsError::Stale)), "it was held once");
    }
}

#[test]
fn small_files_that_nobody_holds_any_more_go_together_and_large_ones_at_once() {
    let mut stack = SimulatedStack::new(5, FetchMode::Lazy, 16384);
    let fs = stack.fs().clone();
    let gone = |name: &str, bytes: usize| {
        let make = |done| fs.make(OWNER, Ino::ROOT, name.as_bytes(), FileKind::File, 0o600, done);
        let ino = stack.wait(make).expect("a file").ino;
        stack.wait(|done| fs.write(ino, 0, vec![7; bytes], done)).expect("a write");
        fs.hold(ino).expect("held");
        stack.wait(|done| fs.unlink(Ino::ROOT, name.as_bytes(), done)).expect("removed");
        fs.forget(ino, 1);
        ino
    };
    let is_there = |ino: &Ino| fs.attributes(*ino).is_ok();
    let mut small: Vec<Ino> = (0..FREED_TOGETHER - 1).map(|at| gone(&at.to_string(), 100)).collect();
    assert!(small.iter().all(is_there), "they wait");
    small.push(gone("the sixteenth", 100));
    assert!(!small.iter().any(is_there), "they went together");
    let waits = gone("one more", 100);
    assert!(is_there(&waits));
    let large = gone("large", 1 << 20);
    assert!(!is_there(&large) && !is_there(&waits), "what is large does not wait");
    let last = gone("the last", 100);
    let before = fs.usage();
    let after = fs.usage();
    assert!(!is_there(&last), "whoever asks for the usage is told the truth");
    assert_eq!(before, after);
    let orphan = gone("an orphan at the stop", 100);
    drop(fs);
    stack.reopen();
    assert!(stack.fs().attributes(orphan).is_err(), "the next opening frees it");
    assert!(stack.findings().is_empty());
}

#[test]
fn metadata_that_became_less_since_they_were_stored_are_less() {
    let mut stack = SimulatedStack::new(8, FetchMode::Lazy, 4096);
    let fs = stack.fs().clone();
    let make = |done| fs.make(OWNER, Ino::ROOT, b"held", FileKind::File, 0o600, done);
    let ino = stack.wait(make).expect("a file").ino;
    fs.hold(ino).expect("held");
    stack.wait(|done| fs.unlink(Ino::ROOT, b"held", done)).expect("removed");
    stack.drain();
    fs.forget(ino, 1);
    fs.usage();
    assert!(matches!(fs.attributes(ino), Err(FsError::Stale)), "it is in no list any more");
    drop(fs);
    stack.reopen();
    assert!(stack.findings().is_empty());
}

#[test]
fn a_long_write_is_read_back_whole() {
    let mut stack = SimulatedStack::new(3, FetchMode::Lazy, 16384);
    let file = stack.wait(|done| stack.fs().make(OWNER, Ino::ROOT, b"long", FileKind::File, 0o600, done));
    let ino = file.expect("a file").ino;
    let bytes: Vec<u8> = (0..5_000_123u32).map(|at| (at / 7) as u8).collect();
    stack.wait(|done| stack.fs().write(ino, 777, bytes.clone(), done)).expect("a write");
    stack.wait(|done| stack.fs().sync(done)).expect("a sync");
    stack.reopen();
    let mut read = Vec::new();
    loop {
        let piece = stack.wait(|done| stack.fs().read(ino, read.len() as u64, 100_000, done));
        match piece.expect("a read") {
            piece if piece.is_empty() => break,
            piece => read.extend(piece),
        }
    }
    assert!(read[..777].iter().all(|&byte| byte == 0));
    assert!(read[777..] == bytes, "other bytes");
    assert_eq!(stack.wait(|done| stack.fs().read(ino, 5_000_900, 10, done)).expect("a read").len(), 0);
}

#[test]
fn a_full_store_refuses_writes_and_takes_them_again_after_deletions() {
    let mut stack = SimulatedStack::new(4, FetchMode::Lazy, 8192);
    let mut written = 0;
    let error = loop {
        let name = format!("file{written}").into_bytes();
        let step = || {
            let made =
                stack.wait(|done| stack.fs().make(OWNER, Ino::ROOT, &name, FileKind::File, 0o600, done))?;
            stack.wait(|done| stack.fs().write(made.ino, 0, vec![7; 100_000], done))
        };
        match step() {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 400, "40 MB went into 32 MiB");
    };
    assert!(matches!(error, FsError::NoSpace), "{error:?}");
    assert!(written > 120, "only {written} files of 100 KB fit into 32 MiB");
    assert_eq!(stack.findings(), []);
    for at in 0..written {
        let name = format!("file{at}").into_bytes();
        stack.wait(|done| stack.fs().unlink(Ino::ROOT, &name, done)).expect("deletions proceed");
    }
    stack.reopen();
    let made = stack.wait(|done| stack.fs().make(OWNER, Ino::ROOT, b"after", FileKind::File, 0o600, done));
    let ino = made.expect("space again").ino;
    stack.wait(|done| stack.fs().write(ino, 0, vec![9; 100_000], done)).expect("space again");
    let to = (Ino::ROOT, &b"moved"[..]);
    stack.wait(|done| stack.fs().rename((Ino::ROOT, b"after"), to, IfExists::Refuse, done)).expect("a move");
    assert_eq!(stack.read(ino).expect("a read"), vec![9; 100_000]);
}

#[test]
fn read_only_volume_is_opened_without_a_change() {
    let mut stack = SimulatedStack::new(6, FetchMode::Lazy, 4096);
    let make = |name: &'static [u8]| {
        stack.wait(|done| stack.fs().make(OWNER, Ino::ROOT, name, FileKind::File, 0o600, done))
    };
    let ino = make(b"held").expect("a file").ino;
    make(b"kept").expect("a file");
    stack.fs().hold(ino).expect("it is there");
    stack.wait(|done| stack.fs().unlink(Ino::ROOT, b"held", done)).expect("a removal");
    let (cache, _) = stack.open.take().expect("it is open");
    let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 1 };
    let copy = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    let before = cache.status();
    let fs = Fs::open(cache.clone(), copy, stack.clock.clone()).expect("a file system");
    assert_eq!(fs.attributes(ino).expect("the unlinked file").links, 0);
    let (sender, answer) = std::sync::mpsc::channel();
    let refused = sender.clone();
    fs.unlink(Ino::ROOT, b"kept", Box::new(move |done| drop(refused.send(done.map(drop)))));
    fs.make(
        OWNER,
        Ino::ROOT,
        b"new",
        FileKind::File,
        0o600,
        Box::new(move |done| drop(sender.send(done.map(drop)))),
    );
    for answer in answer.iter() {
        assert!(matches!(answer, Err(FsError::Cache(CacheError::ReadOnlyVolume { .. }))), "{answer:?}");
    }
    assert!(fs.lookup(Ino::ROOT, b"kept").is_ok() && fs.lookup(Ino::ROOT, b"new").is_err());
    fs.check(&mut |finding| panic!("{finding:?}"));
    let after = cache.status();
    assert_eq!((after.applied, after.dirty_pages), (before.applied, before.dirty_pages));
}

#[test]
fn a_volume_without_a_file_system_is_refused() {
    let stack = SimulatedStack::new(5, FetchMode::Lazy, 4096);
    let power = PowerSupply::new();
    let store = SimDisk::new("store", 4096, &power, 1);
    let buffer = SimDisk::new("buffer", 256, &power, 2);
    let id = StoreId([8; 16]);
    Store::format(&*store, &StoreLayout { id, segment_blocks: Some(64) }).expect("a format");
    buffer::Buffer::format(&*buffer, id).expect("a format");
    let store = Arc::new(Store::open(store).expect("a store"));
    let cache = Cache::open(store, buffer, stack.clock.clone(), CacheSettings::default()).expect("a cache");
    cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &[]).expect("space");
    let error = Fs::open(Arc::new(cache), VolumeId::MAIN, stack.clock).err().expect("refused");
    assert!(error.to_string().contains("no file system"), "{error}");
}

#[test]
fn volume_is_open_once_at_a_time() {
    let mut stack = SimulatedStack::new(1, FetchMode::Lazy, 16384);
    let (cache, fs) = stack.open.take().expect("it is open");
    let open = || Fs::open(cache.clone(), VolumeId::MAIN, stack.clock.clone());
    assert!(matches!(open(), Err(FsError::Cache(CacheError::InUse { volume: VolumeId::MAIN }))));
    drop(fs);
    open().expect("it is not open any more");
}

#[test]
fn waiting_deletion_does_not_keep_its_volume_open() {
    let mut stack = SimulatedStack::roomy(1, 16384);
    let make = |name: &[u8]| {
        let made = stack.wait(|done| stack.fs().make(OWNER, Ino::ROOT, name, FileKind::File, 0o600, done));
        made.expect("a file").ino
    };
    let (gone, other) = (make(b"gone"), make(b"other"));
    stack.fs().hold(gone).expect("a file");
    stack.wait(|done| stack.fs().unlink(Ino::ROOT, b"gone", done)).expect("a name");
    // Until the next commit no change is admitted any more.
    let mut end = 0;
    while stack.fs().try_write(other, end, &[7; 1 << 16]).transpose().expect("no error").is_some() {
        end += 1 << 16;
    }
    let (cache, fs) = stack.open.take().expect("it is open");
    fs.unhold(gone, 1);
    assert_eq!(cache.status().parked_admissions, 1, "the deletion waits for space");
    drop(fs);
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, stack.clock.clone()).expect("it is not open");
    assert_eq!(fs.attributes(other).expect("a file").size, end);
    stack.open = Some((cache, fs));
    stack.work_for(Duration::from_secs(60));
    stack.fs().check(&mut |finding| panic!("{finding:?}"));
    assert_eq!(stack.fs().core().read_state().orphans().expect("a list"), []);
}
