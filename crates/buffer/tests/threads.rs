//! The buffer as it ships, with `shuttle`'s locks and atomics in place of the standard library's: it runs one thread at a time and
//! draws which goes on at each lock, atomic and call of the device. Every access is sequentially consistent there: what weaker orders
//! of memory may show is not tried.

/// In place of `src/sync.rs`.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
}

/// Linted where they belong.
#[path = "../src"]
#[allow(clippy::all, dead_code, missing_docs, unreachable_pub, unused_imports)]
mod shipped {
    pub(crate) mod buffer;
    pub(crate) mod counters;
    pub(crate) mod decode;
    pub(crate) mod error;
    pub(crate) mod format;
    pub(crate) mod groups;
    pub(crate) mod layout;
    pub(crate) mod planted_bug;
    pub(crate) mod record;
    pub(crate) mod recover;
    pub(crate) mod ring;
}
use shipped::*;

use crate::buffer::Buffer;
use crate::error::BufferError;
use crate::record::LogRecord;
use device::{Block, Device, DeviceError, Incarnation, Lsn, Page, PageNo, StoreId, VolumeId};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner, thread};
use sim_disk::{DiskFaults, PowerSupply, SimDisk};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

const ID: StoreId = StoreId([7; 16]);
const COMMITTERS: u64 = 3;
const COMMITS_EACH: u64 = 2;
/// The least that a buffer may have.
const BLOCKS: u64 = 256;

/// Runs a model in 2,000 orders of its threads. What repeats one that fails is printed.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    // Recovery's frames are larger than what shuttle gives a thread.
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(19, 2_000), config).run(model);
}

/// What a model of a wrong way fails with in one of as many orders.
fn failure(model: impl Fn() + Send + Sync + 'static) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| check(model))).expect_err("the wrong way was not found");
    let message = failed.downcast_ref::<String>().cloned();
    message.or_else(|| failed.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

/// A disk whose writes and flushes take time, in which others go on.
struct Slow(Arc<SimDisk>);

fn slowly<T>(work: impl FnOnce() -> T) -> T {
    thread::yield_now();
    let done = work();
    thread::yield_now();
    done
}

impl Device for Slow {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.0.read(at, into)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        slowly(|| self.0.write(at, from))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        slowly(|| self.0.flush())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.0.trim(at, count)
    }
}

/// An empty buffer, of which every order gets a copy.
static FORMATTED: LazyLock<Arc<SimDisk>> = LazyLock::new(|| {
    let disk = SimDisk::new("buffer", BLOCKS, &PowerSupply::new(), 7);
    Buffer::format(&*disk, ID).expect("a disk that is large enough");
    disk
});

fn begun() -> (Arc<SimDisk>, Arc<Buffer>) {
    let disk = FORMATTED.fork(&PowerSupply::new(), 7);
    let buffer = Buffer::open(Arc::new(Slow(disk.clone())), ID, &mut |_| {}).expect("an empty buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("a sound disk");
    (disk, Arc::new(buffer))
}

/// Whether a buffer would have this LSN if the power failed now.
fn survives(disk: &SimDisk, lsn: Lsn) -> bool {
    let left = disk.fork(&PowerSupply::new(), thread_rng().r#gen());
    left.set_faults(DiskFaults::default());
    left.crash();
    let mut found = false;
    let recovered = Buffer::open(left, ID, &mut |group| {
        found |= group.iter().any(|one| one.first_lsn == lsn);
    });
    recovered.expect("what a crash leaves is a buffer");
    found
}

fn record(committer: u64) -> LogRecord<'static> {
    let object = VolumeId::MAIN.object(committer, 1);
    LogRecord::Write { object, page: PageNo(0), start: 0, bytes: b"what was written" }
}

type Commit = fn(&Buffer) -> Result<Lsn, BufferError>;

/// The wrong way: what another has taken to write it counts as written.
fn hasty(buffer: &Buffer) -> Result<Lsn, BufferError> {
    if buffer.open_bytes() == 0 { Ok(buffer.appended_lsn()) } else { buffer.commit() }
}

/// Each appends and commits while the others do. A device's error may come at any moment; from then on all are told so.
fn committers(commit: Commit) {
    let (disk, buffer) = begun();
    if thread_rng().gen_bool(0.5) {
        disk.set_faults(DiskFaults {
            once_after: Some(thread_rng().gen_range(0..12)),
            ..DiskFaults::default()
        });
    }
    let committer = |number: u64| {
        let (disk, buffer) = (disk.clone(), buffer.clone());
        move || {
            for _ in 0..COMMITS_EACH {
                let Ok(appended) = buffer.append(&[record(number)]) else { return };
                match commit(&buffer) {
                    Ok(durable) => {
                        assert!(durable >= appended.last_lsn, "less is durable than was appended before");
                        assert!(survives(&disk, appended.last_lsn), "it counts as durable and is lost");
                    }
                    Err(_) => assert!(buffer.append(&[record(number)]).is_err(), "a failed device is used"),
                }
            }
        }
    };
    let threads: Vec<_> = (0..COMMITTERS).map(|number| thread::spawn(committer(number))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let commits = buffer.counters().commits;
    assert!(commits <= COMMITTERS * COMMITS_EACH, "{commits} commits, though callers share them");
}

#[test]
fn whoever_has_committed_finds_it_durable_whoever_wrote_it() {
    check(|| committers(Buffer::commit));
}

#[test]
fn a_commit_that_does_not_wait_for_anothers_loses_something_in_some_order() {
    let found = failure(|| committers(hasty));
    assert!(found.contains("it counts as durable and is lost"), "{found}");
}

/// As long as a commit takes, at most.
fn pause() {
    (0..thread_rng().gen_range(0..60)).for_each(|_| thread::yield_now());
}

/// Asks what is durable and what was appended while others append and commit.
fn gauges(ask: fn(&Buffer) -> (Lsn, Lsn)) {
    let (_disk, buffer) = begun();
    let committer = {
        let buffer = buffer.clone();
        move || {
            for _ in 0..COMMITS_EACH {
                buffer.append(&[record(1)]).expect("space");
                buffer.commit().expect("a sound disk");
            }
        }
    };
    let threads = [thread::spawn(committer.clone()), thread::spawn(committer)];
    for _ in 0..4 {
        let (durable, appended) = ask(&buffer);
        assert!(durable <= appended, "durable up to {durable}, appended up to {appended}");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_is_durable_never_looks_newer_than_what_is_appended_when_it_is_asked_first() {
    check(|| {
        gauges(|buffer| {
            let durable = buffer.durable_lsn();
            pause();
            (durable, buffer.appended_lsn())
        });
    });
    let found = failure(|| {
        gauges(|buffer| {
            let appended = buffer.appended_lsn();
            pause();
            (buffer.durable_lsn(), appended)
        });
    });
    assert!(found.contains("durable up to"), "{found}");
}
