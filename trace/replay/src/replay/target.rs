//! The targets that execute a replay's operations.

use trace_file::{Op, Outcome};

/// A target that executes operations: the kernel, or a null target to measure the engine.
pub(crate) trait Target: Sync {
    /// Executes one operation and returns its result.
    fn execute(&self, op: &Op<u32>, buffer: &mut CallBuffer) -> Outcome;
}

/// Answers every operation with success at once.
#[derive(Debug)]
pub(crate) struct NullTarget;

impl Target for NullTarget {
    fn execute(&self, _: &Op<u32>, _: &mut CallBuffer) -> Outcome {
        Outcome::Value(0)
    }
}

/// A thread's memory for reads and writes, aligned for direct I/O.
#[derive(Debug, Default)]
pub(crate) struct CallBuffer {
    bytes: Vec<u8>,
}

/// O_DIRECT needs at most the alignment of a page.
const ALIGN: usize = 4096;
/// Maximum size of a read or write. A larger one becomes one call of this size, because hostile sizes must
/// not use up memory.
const BUFFER_BYTES_MAX: u64 = 64 << 20;

impl CallBuffer {
    /// Returns at least `bytes` of memory, up to the limit.
    pub(crate) fn take(&mut self, bytes: u64) -> &mut [u8] {
        let bytes = bytes.min(BUFFER_BYTES_MAX) as usize;
        if self.bytes.len() < bytes + ALIGN {
            self.bytes.resize(bytes + ALIGN, 0xa5);
        }
        let skip = self.bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        &mut self.bytes[skip..skip + bytes]
    }
}
