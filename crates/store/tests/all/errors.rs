//! One device error at each call in turn: acknowledged changes survive, and a retry succeeds.

use crate::common::*;
use device::{Block, Device, DeviceError, DeviceOperation, Incarnation, Page};
use sim_disk::{DiskFaults, DiskHooks, HookedDisk, PowerSupply, SimDisk};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{Store, StoreError};

/// The kind of device error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A read fails.
    Read,
    /// A write fails, and a part of it arrives.
    ShortWrite,
    /// A write fails because the host file system is full, as on a sparse file. No block is written.
    NoSpace,
    /// A flush fails, and some of the pending writes are dropped for good.
    Flush,
    /// The device fails for twenty calls, and then works again.
    Gone,
}

/// ENOSPC on every Linux.
const ENOSPC: i32 = 28;
/// Calls during which a [`Fault::Gone`] device fails.
const AWAY: u64 = 20;

/// A disk whose calls of one kind fail once, at one of them.
struct Failing {
    fault: Fault,
    at: u64,
    calls: AtomicU64,
    failed: AtomicU64,
}

impl Failing {
    fn fails(&self, faults: &[Fault]) -> bool {
        if !faults.contains(&self.fault) {
            return false;
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let length = if self.fault == Fault::Gone { AWAY } else { 1 };
        let fails = (self.at..self.at + length).contains(&call);
        self.failed.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }

    fn error(operation: DeviceOperation, at: Block, count: u64, errno: i32) -> DeviceError {
        let (device, reason) = ("disk".to_owned(), "made-up error".to_owned());
        DeviceError { device, operation, at, count, errno, reason }
    }
}

impl DiskHooks for Failing {
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        if self.fails(&[Fault::Read, Fault::Gone]) {
            return Err(Failing::error(DeviceOperation::Read, at, into.len() as u64, 5));
        }
        disk.read(at, into)
    }

    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        if !self.fails(&[Fault::ShortWrite, Fault::NoSpace, Fault::Gone]) {
            return disk.write(at, from);
        }
        if self.fault == Fault::ShortWrite {
            disk.write(at, &from[..from.len() / 2])?;
        }
        let errno = if self.fault == Fault::NoSpace { ENOSPC } else { 5 };
        Err(Failing::error(DeviceOperation::Write, at, from.len() as u64, errno))
    }

    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        if !self.fails(&[Fault::Flush, Fault::Gone]) {
            return disk.flush();
        }
        disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
        let failed = disk.flush();
        disk.set_faults(DiskFaults::default());
        failed
    }
}

/// Retries until the operation succeeds. A device that is gone comes back after some calls.
fn again<T>(when: &str, mut try_it: impl FnMut() -> Result<T, StoreError>) -> T {
    for _ in 0..AWAY + 2 {
        match try_it() {
            Ok(done) => return done,
            // A superblock that cannot be read counts as damaged where a root can be read after it.
            Err(
                StoreError::Device(_) | StoreError::Corrupt { .. } | StoreError::SuperblockDamaged { .. },
            ) => {}
            Err(error) => panic!("{when}: {error}"),
        }
    }
    panic!("{when}: it never succeeds")
}

/// Works on a store whose device fails at one call. Returns whether it came to that call.
fn live(fault: Fault, at: u64, seed: u64) -> bool {
    let when = format!("{fault:?} at call {at}, seed {seed}");
    let (power, disk, store) = fresh(120, seed);
    drop(store);
    let (calls, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let failing = HookedDisk::new(&disk, Failing { fault, at, calls, failed });
    let store = again(&when, || Store::open(failing.clone() as Arc<dyn Device>));
    store.set_cached_nodes_max(1);
    again(&when, || match store.begin(Incarnation(5)) {
        // An earlier attempt had succeeded although it returned an error.
        Err(StoreError::OldIncarnation { .. }) => Ok(()),
        outcome => outcome,
    });
    let (mut model, mut work) = (Model::default(), Work::new(seed));
    for step in 0..30 {
        let vector = work.vector(&model);
        again(&when, || store.data().apply(&vector));
        model.apply(&vector);
        match step % 6 {
            1 => again(&when, || store.maintenance().checkpoint()),
            2 => drop(again(&when, || store.maintenance().clean_round())),
            _ => drop(again(&when, || store.maintenance().clean_step())),
        }
        if step % 10 == 9 {
            let difference = again(&when, || match model.difference(&store) {
                // A read that fails is an error of that read only.
                Some(text) if text.contains("made-up") => {
                    Err(Failing::error(DeviceOperation::Read, Block(0), 0, 5).into())
                }
                other => Ok(other),
            });
            assert_eq!(difference, None, "{when} step {step}");
        }
    }
    drop(store);
    power.cut();
    disk.crash();
    power.restore();
    let store = open(&disk).unwrap_or_else(|error| panic!("{when}: {error}"));
    assert_sound(&store, &model, &when);
    failing.failed.load(Ordering::Relaxed) > 0
}

/// Fails at each call in turn, until a run has fewer calls.
fn at_every_call(fault: Fault, step: u64) {
    let mut runs = 0;
    while live(fault, runs * step, runs % 3) {
        runs += 1;
    }
    println!("{fault:?}: {runs} runs");
    assert!(runs > 20, "{fault:?}: only {runs} runs");
}

#[test]
fn a_read_that_fails_at_any_call_costs_nothing_that_was_acknowledged() {
    at_every_call(Fault::Read, 1);
}

#[test]
fn a_short_write_at_any_call_costs_nothing_that_was_acknowledged() {
    at_every_call(Fault::ShortWrite, 1);
}

#[test]
fn no_space_below_at_any_write_costs_nothing_that_was_acknowledged() {
    at_every_call(Fault::NoSpace, 1);
}

#[test]
fn a_flush_that_fails_at_any_call_costs_nothing_that_was_acknowledged() {
    at_every_call(Fault::Flush, 1);
}

#[test]
fn a_device_that_vanishes_at_any_call_and_comes_back_costs_nothing_that_was_acknowledged() {
    at_every_call(Fault::Gone, 3);
}

#[test]
fn the_disk_of_these_tests_does_fail() {
    let disk = disk(64, &PowerSupply::new(), 1);
    let (calls, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let failing = HookedDisk::new(&disk, Failing { fault: Fault::NoSpace, at: 1, calls, failed });
    let page = [Page::clone(&page(1))];
    assert!(failing.write(Block(0), &page).is_ok());
    assert_eq!(failing.write(Block(0), &page).expect_err("the second").errno, ENOSPC);
    assert!(failing.write(Block(0), &page).is_ok() && failing.flush().is_ok());
}
