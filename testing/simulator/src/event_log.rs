//! Folds all events into one hash. Two runs that do the same have the same hash.

use device::{Block, DeviceOperation};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// The run's event log. The log keeps only the hash, and the newest events that reports need.
pub(crate) struct EventLog(Mutex<EventLogState>);

struct EventLogState {
    hash: u64,
    newest: Option<(MediumRole, DeviceOperation)>,
    errors_made_up: u64,
    verbose: bool,
    writes: [RecentLogWrites; 2],
}

/// One of the two media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MediumRole {
    Store,
    Buffer,
}

impl EventLog {
    pub(crate) fn new(verbose: bool) -> Arc<EventLog> {
        // The offset basis of 64-bit FNV-1a.
        let state = EventLogState {
            hash: 0xcbf2_9ce4_8422_2325,
            newest: None,
            errors_made_up: 0,
            verbose,
            writes: Default::default(),
        };
        Arc::new(EventLog(Mutex::new(state)))
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

    /// Records an operation on a medium.
    pub(crate) fn asked(&self, role: MediumRole, operation: DeviceOperation, succeeded: bool) {
        if operation == DeviceOperation::Read {
            return;
        }
        let mut state = self.state();
        state.newest = Some((role, operation));
        if operation == DeviceOperation::Flush && succeeded {
            state.writes[role as usize].flushed();
        }
    }

    /// Records a write to the log of a medium.
    pub(crate) fn wrote(&self, role: MediumRole, at: Block, count: u64) {
        self.state().writes[role as usize].wrote(at, count);
    }

    /// Forgets a medium's log, because a new medium replaced the old one.
    pub(crate) fn forget(&self, role: MediumRole) {
        self.state().writes[role as usize] = RecentLogWrites::default();
    }

    /// Blocks of a medium's log that later log blocks prove to have been durable.
    pub(crate) fn known_durable(&self, role: MediumRole) -> Vec<Block> {
        self.state().writes[role as usize].known_durable()
    }

    /// Records errors that a disk made up.
    pub(crate) fn made_up(&self, errors: u64) {
        self.state().errors_made_up += errors;
    }

    /// Folds an event into the hash and, in verbose runs, prints the event.
    pub(crate) fn event(&self, text: impl FnOnce() -> String, words: &[u64]) {
        self.words(words);
        if self.state().verbose {
            eprintln!("{}", text());
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.state().hash
    }

    /// The newest operation on a medium, except reads. A power failure hit this operation.
    pub(crate) fn newest(&self) -> Option<(MediumRole, DeviceOperation)> {
        self.state().newest
    }

    /// Errors that the disks made up since the start.
    pub(crate) fn errors_made_up(&self) -> u64 {
        self.state().errors_made_up
    }

    fn state(&self) -> MutexGuard<'_, EventLogState> {
        // A panic in a crate is a finding. Its report still needs the log.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The newest writes to a medium's log.
#[derive(Default)]
struct RecentLogWrites {
    /// The first block, the number of blocks, and the flushes before the write.
    newest: VecDeque<(Block, u64, u64)>,
    flushes: u64,
}

/// The number of writes to remember. Older ones are hardly ever needed again.
const WRITES_MAX: usize = 48;

impl RecentLogWrites {
    fn wrote(&mut self, at: Block, count: u64) {
        self.newest.retain(|&(old, blocks, _)| old.0 + blocks <= at.0 || at.0 + count <= old.0);
        self.newest.push_back((at, count, self.flushes));
        if self.newest.len() > WRITES_MAX {
            self.newest.pop_front();
        }
    }

    fn flushed(&mut self) {
        self.flushes += 1;
    }

    /// All blocks of writes that were durable before another durable write was made.
    fn known_durable(&self) -> Vec<Block> {
        let durable = |&&(.., flushes): &&(Block, u64, u64)| flushes < self.flushes;
        let last = self.newest.iter().rev().find(durable).map_or(0, |&(.., flushes)| flushes);
        let known = self.newest.iter().filter(|&&(.., flushes)| flushes < last);
        known.flat_map(|&(at, count, _)| (at.0..at.0 + count).map(Block)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_every_byte_and_on_the_order() {
        let hash = |parts: &[&[u8]]| {
            let log = EventLog::new(false);
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
