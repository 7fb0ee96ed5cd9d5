//! An attempt to checkpoint: what it took and wrote, until its root is durable or the attempt has failed.
//!
//! | it fails | what is on the medium | what becomes of its segments |
//! | --- | --- | --- |
//! | before its root is written | nothing that a root names | they are free again at once |
//! | while its root is written | its root, or not | the next checkpoint begins with this root |
//!
//! So no number of failures uses up segments.

use crate::error::StoreError;
use crate::map::{Map, NodeId};
use crate::root::Root;
use crate::segments::Use;
use crate::store::Writer;
use device::{Block, Page, StoreId};

/// What an attempt has done so far.
#[derive(Default)]
pub(crate) struct CheckpointInProgress {
    /// Nodes that have places of its own.
    pub(crate) nodes: Vec<NodeId>,
    /// Pages of the node table that have.
    pub(crate) pages: Vec<usize>,
    /// Whether `Writer::tables` is its stream.
    pub(crate) stream: bool,
    /// Segments that it opened.
    taken: Vec<u32>,
    /// Segments in which nothing was live when the tables were made.
    pub(crate) dead: Vec<u32>,
}

/// A root that is being written: what it names is durable.
pub(crate) struct Pending {
    pub(crate) generation: u64,
    pub(crate) page: Box<Page>,
    /// Blocks of log that recovery reads no more once it is durable.
    pub(crate) log_blocks: u64,
    /// And reads to follow it.
    pub(crate) log_reads: u64,
    pub(crate) in_progress: CheckpointInProgress,
}

impl Pending {
    /// A root that is on the medium already, to be written to the other slot, too.
    pub(crate) fn copy(root: &Root, id: StoreId) -> Pending {
        let (generation, page) = (root.generation, root.encode(id));
        Pending {
            generation,
            page,
            log_blocks: 0,
            log_reads: 0,
            in_progress: CheckpointInProgress::default(),
        }
    }
}

impl Map {
    /// The next block for a node.
    pub(crate) fn place_node(
        &mut self,
        at: &mut Option<(u32, u64)>,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<Block, StoreError> {
        let segment_blocks = self.segments.geometry.segment_blocks;
        let (segment, offset) = match *at {
            Some((segment, offset)) if offset < segment_blocks => (segment, offset),
            full => {
                let fresh = self.segments.take(Use::Nodes).ok_or(StoreError::Full)?;
                if let Some((segment, _)) = full {
                    self.segments.close(segment);
                }
                in_progress.taken.push(fresh);
                (fresh, 0)
            }
        };
        *at = Some((segment, offset + 1));
        Ok(self.segments.geometry.start(segment).plus(offset))
    }

    /// The attempt failed before its root was written. What it wrote has no place, as if it were new, and goes
    /// elsewhere the next time.
    pub(crate) fn give_back(&mut self, writer: &mut Writer, in_progress: CheckpointInProgress) {
        for id in in_progress.nodes {
            let place = self.table.moved(id, Block(0), 0, 0);
            place.into_iter().for_each(|place| self.segments.dec_live(place));
        }
        for number in in_progress.pages {
            let page = &mut self.table.pages[number];
            let place = std::mem::replace(&mut page.place, Block(0));
            (page.dirty, page.changed) = (true, true);
            self.segments.dec_live(place);
        }
        if in_progress.stream {
            for extent in std::mem::take(&mut writer.tables) {
                (0..extent.count).for_each(|index| self.segments.dec_live(extent.at.plus(index)));
            }
        }
        if let Some((segment, _)) = writer.nodes_at.take() {
            self.segments.close(segment);
        }
        in_progress.taken.into_iter().for_each(|segment| self.segments.untake(segment));
    }

    /// What an attempt wrote is durable, and clean unless it changed since.
    pub(crate) fn cleaned(&mut self, in_progress: &CheckpointInProgress) {
        for id in &in_progress.nodes {
            let Some(node) = self.nodes.get_mut(id).filter(|node| node.dirty && !node.changed) else {
                continue;
            };
            node.dirty = false;
            self.dirty -= 1;
        }
        for &number in &in_progress.pages {
            let Some(page) = self.table.pages.get_mut(number).filter(|page| !page.changed) else { continue };
            page.dirty = false;
        }
    }
}
