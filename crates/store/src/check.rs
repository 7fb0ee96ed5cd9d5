//! Checking a whole store: every checksum, every count.

use crate::audit::{Blocks, Met};
use crate::error::StoreError;
use crate::map::{NodeId, PageEntry};
use crate::segments::Use;
use crate::store::{Store, Writer};
use device::{Block, ObjectId, PageNo, Read};
use std::collections::BTreeMap;
use std::fmt;

/// Something wrong in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The object that it concerns, where it is one.
    pub object: Option<ObjectId>,
    /// The page that it concerns, where it is one.
    pub page: Option<PageNo>,
    /// Where it lies, where that is one block.
    pub place: Option<Block>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(object) = self.object {
            write!(f, "object {object}: ")?;
        }
        if let Some(page) = self.page {
            write!(f, "page {page}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Data blocks read at once: 4 MiB.
const BLOCKS_AT_ONCE: usize = 1024;

type Entry = (ObjectId, PageNo, PageEntry);

impl Store {
    /// Walks the whole map and reads every block that it refers to; `report` gets what is wrong: nodes and pages
    /// whose bytes are not what was written, wrong reference counts, wrong live counts. Changes wait meanwhile.
    pub fn check(&self, report: &mut dyn FnMut(Finding)) {
        let writer = self.lock_writer();
        let mut live = Blocks::none(&self.geometry);
        let mut batch: Vec<Entry> = Vec::new();
        let mut lost = false;
        let references = self.walk(&mut |met| match met {
            Met::Lost(object, error) => {
                lost = true;
                report(Finding { object, page: None, place: None, what: error.to_string() });
            }
            Met::Page(object, page, entry) => {
                if self.geometry.segment(entry.place).is_none() {
                    let what = format!("block {} is outside all segments", entry.place);
                    report(Finding {
                        object: Some(object),
                        page: Some(page),
                        place: Some(entry.place),
                        what,
                    });
                } else if live.add(entry.place) {
                    batch.push((object, page, *entry));
                }
                if batch.len() == BLOCKS_AT_ONCE {
                    self.check_data(&mut batch, report);
                }
            }
        });
        self.check_data(&mut batch, report);
        // With a node lost, what is below it cannot be counted.
        if !lost {
            self.check_references(&references, report);
            self.check_live(&writer, &live, report);
        }
    }

    fn check_data(&self, batch: &mut Vec<Entry>, report: &mut dyn FnMut(Finding)) {
        batch.sort_by_key(|(_, _, entry)| entry.place);
        let mut reads: Vec<Read> = batch.iter().map(|(_, _, entry)| Read::new(entry.place, 1)).collect();
        self.device.read_batch(&mut reads);
        for ((object, page, entry), read) in batch.drain(..).zip(reads) {
            let found = crc32c::crc32c(&read.pages[0].0);
            let error = match read.result {
                Err(error) => StoreError::from(error),
                Ok(()) if found == entry.crc => continue,
                Ok(()) => self.corrupt(entry.place, "data".to_owned(), entry.crc, found),
            };
            let (place, what) = (Some(entry.place), error.to_string());
            report(Finding { object: Some(object), page: Some(page), place, what });
        }
    }

    fn check_references(&self, counted: &BTreeMap<NodeId, u32>, report: &mut dyn FnMut(Finding)) {
        let map = self.map();
        for (id, entry) in map.table.iter() {
            let found = counted.get(&id).copied().unwrap_or(0);
            if found != entry.references {
                let what = format!("node {}: {found} references, the table says {}", id.0, entry.references);
                report(Finding { object: None, page: None, place: None, what });
            }
        }
    }

    fn check_live(&self, writer: &Writer, data: &Blocks, report: &mut dyn FnMut(Finding)) {
        let map = self.map();
        let nodes = map.node_blocks(writer);
        for (number, segment) in map.segments.iter() {
            let found = data.in_segment(&self.geometry, number) + nodes.in_segment(&self.geometry, number);
            // Shared blocks that were overwritten still count until the next recount.
            let too_high_is_right = matches!(segment.usage, Use::Log | Use::Moved);
            if found > segment.live || found < segment.live && !too_high_is_right {
                let what = format!("segment {number}: {found} live blocks, the table says {}", segment.live);
                report(Finding { object: None, page: None, place: None, what });
            }
        }
    }
}
