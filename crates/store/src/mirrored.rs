//! Pages of metadata, which are mirrored: they lie in pairs of segments, outside the log's chunks.
//!
//! | open pair | owner | changed under | after a crash |
//! | --- | --- | --- | --- |
//! | for what vectors write | the writer | the writer's lock | closed; log entries name the blocks that count |
//! | for what the cleaner moves | the cleaner | the cleaner's lock | closed; the newest root has the blocks that count |

use crate::bug::{StoreBug, is_planted};
use crate::error::StoreError;
use crate::policy::METADATA_COPIES;
use crate::segments::{SegmentTable, SegmentUse};
use crate::shared::StoreShared;
use device::{Block, Page};

/// The pair of segments that is being filled.
#[derive(Debug, Default)]
pub(crate) struct OpenMirroredPair {
    /// Its first segment, and the next block in both.
    at: Option<(u32, u64)>,
}

impl OpenMirroredPair {
    /// Segments that `blocks` more blocks take.
    pub(crate) fn segments_for(&self, blocks: u64, segment_blocks: u64) -> u64 {
        let left = self.at.map_or(0, |(_, offset)| segment_blocks - offset);
        METADATA_COPIES * blocks.saturating_sub(left).div_ceil(segment_blocks)
    }

    /// Places for `wanted` blocks, or for as many as there is space for while `floor` free segments are left
    /// alone. Also returns the pairs that are full then, to be [closed](SegmentTable::close).
    pub(crate) fn allocate_blocks(
        &mut self,
        wanted: usize,
        segments: &mut SegmentTable,
        floor: u64,
    ) -> (Vec<Block>, Vec<u32>) {
        let segment_blocks = segments.geometry().segment_blocks;
        let mut places = Vec::new();
        let mut filled = Vec::new();
        while places.len() < wanted {
            let (segment, offset) = match self.at {
                Some((segment, offset)) if offset < segment_blocks => (segment, offset),
                full => {
                    if segments.free_count() < floor + METADATA_COPIES {
                        break;
                    }
                    let Some(fresh) = segments.take_mirrored_pair(SegmentUse::Arena) else { break };
                    filled.extend(full.map(|(segment, _)| segment));
                    (fresh, 0)
                }
            };
            self.at = Some((segment, offset + 1));
            places.push(segments.geometry().segment_start(segment).plus(offset));
        }
        (places, filled)
    }

    /// Closes the open pair, so that blocks go elsewhere.
    pub(crate) fn abandon(&mut self, segments: &mut SegmentTable) {
        if let Some((segment, _)) = self.at.take() {
            segments.close(segment);
        }
    }
}

/// Writes blocks to both segments of their pairs. The caller flushes.
pub(crate) fn write_mirrored(shared: &StoreShared, blocks: &[(Block, Box<Page>)]) -> Result<(), StoreError> {
    shared.medium.write_blocks(blocks)?;
    if is_planted(StoreBug::PageCopyForgotten) {
        return Ok(());
    }
    let copies: Vec<(Block, Box<Page>)> = {
        let map = shared.map();
        let copy = |at: Block| map.nodes.segments.mirror_of(at).expect("a pair");
        blocks.iter().map(|(at, page)| (copy(*at), page.clone())).collect()
    };
    shared.medium.write_blocks(&copies)
}
