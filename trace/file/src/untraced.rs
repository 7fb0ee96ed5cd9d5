//! I/O of a program that a trace of system calls does not show.

use serde::{Deserialize, Serialize};

/// Counts of I/O whose existence a trace shows, but not its contents. A replay leaves such I/O out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UntracedIo {
    /// io_uring rings, whose requests are in shared memory.
    pub rings: u64,
    /// Writable shared mappings of files.
    pub shared_mappings: u64,
}

impl UntracedIo {
    /// The warnings for users, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let UntracedIo { rings, shared_mappings } = self;
        let ring = (*rings > 0).then(|| {
            format!("{rings} io_uring rings: a trace does not show their requests; switch io_uring off in the program")
        });
        let mapping = (*shared_mappings > 0).then(|| {
            format!(
                "{shared_mappings} writable shared mappings of files: stores to them are not in the trace"
            )
        });
        ring.into_iter().chain(mapping).collect()
    }
}
