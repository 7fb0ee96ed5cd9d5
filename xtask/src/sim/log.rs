//! What happened, folded into one number: two runs of one seed that do the same have the same hash.

use device::{Block, Device, DeviceError, Operation, Page};
use sim::SimDisk;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// The run's event log. Only its hash is kept, and what the reports need of the newest events.
pub(crate) struct Log(Mutex<State>);

struct State {
    hash: u64,
    newest: Option<(Role, Operation)>,
    errors_made_up: u64,
    verbose: bool,
}

/// Which of the two media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Store,
    Buffer,
}

impl Log {
    pub(crate) fn new(verbose: bool) -> Arc<Log> {
        // The offset basis of 64-bit FNV-1a.
        let state = State { hash: 0xcbf2_9ce4_8422_2325, newest: None, errors_made_up: 0, verbose };
        Arc::new(Log(Mutex::new(state)))
    }

    /// Folds `words` in.
    pub(crate) fn words(&self, words: &[u64]) {
        let mut state = self.state();
        for &word in words {
            state.hash = fold(state.hash, word);
        }
    }

    /// Folds `bytes` and their number in.
    pub(crate) fn bytes(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.hash = fold_bytes(state.hash, bytes);
    }

    /// Folds an event in and, if asked to, prints it.
    pub(crate) fn event(&self, text: impl FnOnce() -> String, words: &[u64]) {
        self.words(words);
        if self.state().verbose {
            eprintln!("{}", text());
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.state().hash
    }

    /// What was last asked of which medium, reads apart: at a power failure, what it hit.
    pub(crate) fn newest(&self) -> Option<(Role, Operation)> {
        self.state().newest
    }

    /// Errors that the disks made up since the start.
    pub(crate) fn errors_made_up(&self) -> u64 {
        self.state().errors_made_up
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A room that panics is a finding: the report still needs the log.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// FNV-1a by words instead of bytes, rotated so that high bits come back down.
fn fold(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
}

fn fold_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut hash = fold(hash, bytes.len() as u64);
    for word in &mut words {
        hash = fold(hash, u64::from_le_bytes(word.try_into().expect("8 bytes")));
    }
    words.remainder().iter().fold(hash, |hash, &byte| fold(hash, u64::from(byte)))
}

/// A request that comes in while background work waits for a device, as other threads' requests do.
#[derive(Default)]
pub(crate) struct Intruder(Mutex<Slot>);

/// The device operations to wait for, and the request.
type Slot = Option<(u64, Box<dyn FnOnce() + Send>)>;

impl Intruder {
    /// Lets `request` come in before the device operation after the next `operations`.
    pub(crate) fn comes_after(&self, operations: u64, request: Box<dyn FnOnce() + Send>) {
        *self.slot() = Some((operations, request));
    }

    /// A device operation begins: the request comes in if its time has come.
    fn device_operation(&self) {
        let mut slot = self.slot();
        let due = match slot.as_mut() {
            Some((0, _)) => slot.take(),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        drop(slot);
        if let Some((_, request)) = due {
            request();
        }
    }

    /// Whether a request has not come in yet.
    pub(crate) fn waits(&self) -> bool {
        self.slot().is_some()
    }

    /// A request that has not come in yet does so now.
    pub(crate) fn comes_now(&self) {
        let late = self.slot().take();
        if let Some((_, request)) = late {
            request();
        }
    }

    /// A request that has not come in yet never will: its client is gone.
    pub(crate) fn never_comes(&self) {
        self.slot().take();
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().expect("nobody panics with the intruder's slot")
    }
}

/// A disk whose every operation is logged, and lets intruders in.
pub(crate) struct Watched {
    disk: Arc<SimDisk>,
    role: Role,
    log: Arc<Log>,
    intruder: Arc<Intruder>,
}

impl Watched {
    pub(crate) fn new(
        disk: &Arc<SimDisk>,
        role: Role,
        log: &Arc<Log>,
        intruder: &Arc<Intruder>,
    ) -> Arc<Watched> {
        Arc::new(Watched { disk: disk.clone(), role, log: log.clone(), intruder: intruder.clone() })
    }

    fn note(
        &self,
        operation: Operation,
        at: Block,
        count: u64,
        result: Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let words = [self.role as u64, operation as u64, at.0, count, u64::from(result.is_ok())];
        let text = || format!("    {:?}: {operation:?} {count} at {at}: {result:?}", self.role);
        self.log.event(text, &words);
        let mut state = self.log.state();
        if operation != Operation::Read {
            state.newest = Some((self.role, operation));
        }
        if result.as_ref().is_err_and(|error| error.reason.starts_with("made-up")) {
            state.errors_made_up += 1;
        }
        result
    }
}

impl Device for Watched {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.intruder.device_operation();
        let count = into.len() as u64;
        let result = self.disk.read(at, into);
        self.note(Operation::Read, at, count, result)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.intruder.device_operation();
        self.log.bytes(Page::bytes(from));
        self.note(Operation::Write, at, from.len() as u64, self.disk.write(at, from))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.intruder.device_operation();
        self.note(Operation::Flush, Block(0), 0, self.disk.flush())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.intruder.device_operation();
        self.note(Operation::Trim, at, count, self.disk.trim(at, count))
    }

    fn allocate(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.intruder.device_operation();
        self.note(Operation::Allocate, at, count, self.disk.allocate(at, count))
    }

    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        self.disk.allocated()
    }

    fn spare_blocks(&self) -> Option<u64> {
        self.disk.spare_blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_every_byte_and_on_the_order() {
        let hash = |parts: &[&[u8]]| {
            let log = Log::new(false);
            parts.iter().for_each(|part| log.bytes(part));
            log.hash()
        };
        let whole = hash(&[b"0123456789"]);
        assert_eq!(whole, hash(&[b"0123456789"]));
        assert_ne!(whole, hash(&[b"012345678a"]));
        assert_ne!(whole, hash(&[b"1123456789"]));
        assert_ne!(whole, hash(&[b"01234", b"56789"]));
        assert_ne!(hash(&[b"a", b"b"]), hash(&[b"b", b"a"]));
    }
}
