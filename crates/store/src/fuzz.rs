//! Entrances for the targets in `fuzz/`, and compiled for them only. Each puts magic, version and checksum right first:
//! otherwise hardly an input gets past them.

use crate::checkpoint_root::CheckpointRoot;
use crate::format::{
    MAGIC_CHUNK, MAGIC_DELTAS, MAGIC_NODE, MAGIC_OWNERS, MAGIC_ROOT, MAGIC_TABLE, MagicBytes, StructureHead,
    seal,
};
use crate::log_entry::decode_chunk;
use crate::map::{NodeId, decode_node, decode_table_page};
use crate::segment_summary::SummaryBlock;
use crate::settings::StoreSettings;
use device::{BLOCK_BYTES, Page, StoreId};
use zerocopy::IntoBytes;

const STORE: StoreId = StoreId(*b"0123456789abcdef");

/// A block of this kind, of which `bytes` are the first but for its head.
fn block(magic: MagicBytes, bytes: &[u8]) -> Box<Page> {
    let mut page = Page::zeroed();
    let len = bytes.len().min(BLOCK_BYTES);
    page.0[..len].copy_from_slice(&bytes[..len]);
    let head = StructureHead::new(magic, STORE);
    page.0[..size_of::<StructureHead>()].copy_from_slice(head.as_bytes());
    seal(&mut page.0);
    page
}

/// Decodes `bytes` as each structure of one block.
pub fn block_structures(bytes: &[u8]) {
    let _ = decode_chunk(std::slice::from_ref(&*block(MAGIC_CHUNK, bytes)), STORE);
    let _ = decode_table_page(&block(MAGIC_TABLE, bytes), 0, STORE);
    let _ = CheckpointRoot::decode(&block(MAGIC_ROOT, bytes), STORE);
    let _ = SummaryBlock::decode(&block(MAGIC_OWNERS, bytes), STORE);
    let _ = decode_node(&block(MAGIC_NODE, bytes), NodeId(1), STORE);
    let deltas = block(MAGIC_DELTAS, bytes);
    for index in 0..4 {
        let mut page = Page::zeroed();
        let _ = crate::delta_block::overlay_delta(&deltas, index, STORE, &mut page);
    }
}

/// Decodes `bytes` as the record of a store's settings.
pub fn settings(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 4 {
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
    let _ = StoreSettings::decode(&bytes);
}
