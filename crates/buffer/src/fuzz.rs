//! Entrances for the targets in `fuzz/`, and compiled for them only. Each puts the checksum right first:
//! otherwise only one input in four billion gets past it.

use crate::decode;
use crate::format::{HeaderSlot, seal};
use crate::record::{TRANSACTION_HEADER_BYTES, TransactionHeader};
use device::{BLOCK_BYTES, Block, Page, StoreId};

/// Decodes `bytes` as a transaction.
pub fn transaction(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= TRANSACTION_HEADER_BYTES {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        let sum = TransactionHeader::checksum(&bytes);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    }
    let _ = decode::decode_transaction(&mut &bytes[..]);
    let _ = decode::decode_transaction_unchecked(&mut &bytes[..]);
}

/// Decodes `bytes` as each of the two slots that say where the log begins.
pub fn slot(bytes: &[u8]) {
    let mut page = Page::zeroed();
    let len = bytes.len().min(BLOCK_BYTES);
    page.0[..len].copy_from_slice(&bytes[..len]);
    seal(&mut page.0);
    for block in [1, 2] {
        let _ = HeaderSlot::read_from(&page, Block(block), StoreId(*b"0123456789abcdef"));
    }
}
