//! What a program does behind the back of a trace of system calls.

use serde::{Deserialize, Serialize};

/// Work that a trace shows to exist, and not what it is. A replay leaves it out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// io_uring rings: their requests are in shared memory.
    pub rings: u64,
    /// Mappings of files that may be stored to, and that others see.
    pub shared_mappings: u64,
}

impl Unseen {
    /// For people, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let Unseen { rings, shared_mappings } = self;
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
