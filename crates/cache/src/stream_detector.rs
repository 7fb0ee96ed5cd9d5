//! Finds streams: files that are written sequentially. Their writes of whole pages bypass the buffer. The
//! buffer is emptied at the store's speed, so it would not make a stream faster, and writes on which clients
//! wait would have less of it.

use device::ObjectId;

/// Files that are remembered. More are hardly ever written sequentially at the same time.
const FILES_REMEMBERED: usize = 32;

/// Recently written files. In memory only.
#[derive(Default)]
pub(crate) struct StreamDetector {
    /// The last one was written most recently.
    lately: Vec<WrittenFile>,
}

#[derive(Clone, Copy)]
struct WrittenFile {
    object: ObjectId,
    /// The end of the last write.
    next: u64,
    /// Bytes written sequentially up to `next`.
    bytes: u64,
}

impl StreamDetector {
    /// Notes a write of whole pages. Returns whether it belongs to a stream: its file was written
    /// sequentially for more than `after` bytes. `u64::MAX` means that no write ever does.
    pub(crate) fn note_write(&mut self, object: ObjectId, offset: u64, len: u64, after: u64) -> bool {
        if after == u64::MAX {
            return false;
        }
        let at = self.lately.iter().rposition(|known| known.object == object);
        let next = offset.saturating_add(len);
        let bytes = match at.map(|at| self.lately.remove(at)) {
            Some(known) if known.next == offset => known.bytes.saturating_add(len),
            // A write that had to wait is noted twice.
            Some(known) if known.next == next && known.bytes >= len => known.bytes,
            _ => len,
        };
        if self.lately.len() == FILES_REMEMBERED {
            self.lately.remove(0);
        }
        self.lately.push(WrittenFile { object, next, bytes });
        bytes > after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::VolumeId;

    fn file(number: u64) -> ObjectId {
        VolumeId::MAIN.object(number, 1)
    }

    #[test]
    fn file_written_in_order_is_a_stream_after_a_while() {
        let mut streams = StreamDetector::default();
        let mut of = |number, offset| streams.note_write(file(number), offset, 4096, 8192);
        assert_eq!([0, 4096, 8192, 12288].map(|offset| of(7, offset)), [false, false, true, true]);
        // Others meanwhile do not matter, a jump does.
        assert_eq!([0, 409_600, 8192, 4096].map(|offset| of(8, offset)), [false; 4]);
        assert_eq!([16384, 0, 4096].map(|offset| of(7, offset)), [true, false, false]);
        assert!(of(7, 4096) == of(7, 4096) && of(7, 8192), "one that had to wait comes twice");
        for number in 100..100 + FILES_REMEMBERED as u64 {
            of(number, 0);
        }
        assert!(!of(7, 12288), "it was forgotten");
    }

    #[test]
    fn limits_of_nothing_and_everything_are_obeyed() {
        let mut streams = StreamDetector::default();
        assert!(streams.note_write(file(7), 8192, 4096, 0));
        assert!(!streams.note_write(file(7), 12288, 4096, u64::MAX));
    }
}
