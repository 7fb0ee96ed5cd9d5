//! Decides which writes bypass the buffer: whole pages of files that are written sequentially. The buffer
//! would not make these faster, since it is emptied at the store's speed, and would have less space for
//! writes on which clients wait.

use crate::types::Ino;
use device::BLOCK_BYTES;
use std::sync::{Mutex, PoisonError};

/// Files that are remembered. More are hardly ever written sequentially at the same time.
const FILES_REMEMBERED: usize = 32;

/// Recently written files. In memory only.
#[derive(Default)]
pub(crate) struct SequentialWrites {
    /// The last one was written most recently.
    lately: Mutex<Vec<WrittenFile>>,
}

#[derive(Clone, Copy)]
struct WrittenFile {
    ino: Ino,
    /// The end of the last write.
    next: u64,
    /// Bytes written sequentially before that.
    bytes: u64,
}

impl SequentialWrites {
    /// Notes a write. Returns whether it bypasses the buffer: it is of whole pages, and the file was written
    /// sequentially for more than `after` bytes. `u64::MAX` means that no write ever does.
    pub(crate) fn note_write(&self, ino: Ino, offset: u64, len: usize, after: u64) -> bool {
        let page = BLOCK_BYTES as u64;
        if after == u64::MAX || len == 0 || !(offset | len as u64).is_multiple_of(page) {
            return false;
        }
        // The list is only a hint, so a panic that left it half changed does no harm.
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        let at = lately.iter().rposition(|known| known.ino == ino);
        let next = offset.saturating_add(len as u64);
        let bytes = match at.map(|at| lately.remove(at)) {
            Some(known) if known.next == offset => known.bytes.saturating_add(len as u64),
            // The same write again, because it had to wait.
            Some(known) if known.next == next && known.bytes >= len as u64 => known.bytes,
            _ => len as u64,
        };
        if lately.len() == FILES_REMEMBERED {
            lately.remove(0);
        }
        lately.push(WrittenFile { ino, next, bytes });
        bytes > after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_in_order_goes_directly_after_a_while_and_one_at_random_does_not() {
        let streams = SequentialWrites::default();
        let of = |ino, offset| streams.note_write(Ino(ino), offset, 4096, 8192);
        assert_eq!([0, 4096, 8192, 12288].map(|offset| of(7, offset)), [false, false, true, true]);
        // Others meanwhile do not matter, a jump does.
        assert_eq!([0, 409_600, 8192, 4096].map(|offset| of(8, offset)), [false; 4]);
        assert_eq!([16384, 0, 4096].map(|offset| of(7, offset)), [true, false, false]);
        assert!(of(7, 4096) == of(7, 4096) && of(7, 8192), "one that had to wait comes twice");
        for ino in 100..100 + FILES_REMEMBERED as u64 {
            of(ino, 0);
        }
        assert!(!of(7, 12288), "it was forgotten");
    }

    #[test]
    fn parts_of_pages_never_go_directly_and_where_none_must_be_written_before_whole_ones_always_do() {
        let streams = SequentialWrites::default();
        let of = |(offset, len)| streams.note_write(Ino(7), offset, len, 0);
        assert_eq!([(0, 4095), (1, 4096), (4096, 0)].map(of), [false; 3]);
        assert_eq!([(8192, 4096), (0, 8192)].map(of), [true; 2]);
        assert!(!streams.note_write(Ino(7), 0, 4096, u64::MAX));
    }
}
