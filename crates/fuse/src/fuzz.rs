//! Entrances for the targets in `fuzz/`, and compiled for them only.

use crate::protocol::{FuseOp, RequestHeader};

/// Decodes `bytes` as a request of the kernel.
pub fn request(bytes: &[u8]) {
    if let Some((header, body)) = RequestHeader::split(bytes) {
        let _ = FuseOp::decode(&header, body);
    }
}
