//! What `status` tells of the buffer.

/// What happened since the buffer was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferCounters {
    /// Commits that wrote something. Callers that found their data durable do not count.
    pub commits: u64,
    /// Groups written.
    pub groups: u64,
    /// Bytes of transactions appended, frames included.
    pub bytes_appended: u64,
    /// Bytes handed to the device, padding and header slots included.
    pub bytes_written: u64,
    /// Flushes of the device.
    pub flushes: u64,
    /// Header slots written.
    pub header_writes: u64,
}
