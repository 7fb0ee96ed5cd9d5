//! The cleaner: empties segments of the log that are mostly dead, so that they die.
//!
//! It copies forward through the ordinary log, under the writer's lock, so the entry that it read is still the
//! entry that it replaces. Blocks that clones share stay where they are: moving one reference would double them.

use crate::change::Change;
use crate::counters::count;
use crate::error::StoreError;
use crate::log::chunk_at;
use crate::map::PageEntry;
use crate::note::Note;
use crate::segments::Use;
use crate::space::Class;
use crate::store::{Store, Writer};
use device::{ObjectId, Page, PageNo, Read};
use std::sync::Arc;

/// Pages moved in one call: 4 MiB, so that nobody waits long for the writer's lock.
const PAGES_MAX: usize = 1024;

/// A page that is still where the cleaner found it.
struct Live {
    object: ObjectId,
    page: PageNo,
    entry: PageEntry,
}

impl Store {
    /// Moves what is live in the emptiest closed segment of the log: at most 4 MiB, and at most three quarters
    /// of a segment, beyond which moving costs more than it frees. The segment is free after two checkpoints.
    ///
    /// Returns whether it moved something, or found out that something thought to be live is not.
    ///
    /// # Errors
    /// Those of [`apply`](Store::apply). A page that cannot be read keeps its segment, and is no error here.
    pub fn clean(&self) -> Result<bool, StoreError> {
        let mut writer = self.lock_writer();
        self.make_ready(&mut writer)?;
        let unsure = self.map().segments.unsure;
        if unsure && self.is_short_of_space() && self.recount() {
            return Ok(true);
        }
        while let Some(segment) = self.emptiest() {
            let live = self.live_in(segment)?;
            let moved = self.move_pages(&mut writer, &live)?;
            let mut map = self.map_mut();
            let left = map.segments.get(segment).live;
            if left == 0 {
                count(&self.counting.segments_cleaned, 1);
            }
            if moved > 0 {
                return Ok(true);
            }
            map.segments.skip(segment);
        }
        Ok(false)
    }

    /// True if [`clean`](Store::clean) might find something to do.
    pub fn can_clean(&self) -> bool {
        self.map().segments.unsure || self.emptiest().is_some()
    }

    /// The closed log segment with the least live blocks that is worth cleaning.
    fn emptiest(&self) -> Option<u32> {
        let map = self.map();
        let worth_it = self.geometry.segment_blocks * 3 / 4;
        let candidates = map.segments.iter().filter(|(_, segment)| {
            segment.usage == Use::Log
                && !segment.open
                && !segment.skip
                && segment.live > 0
                && u64::from(segment.live) <= worth_it
        });
        candidates.min_by_key(|(_, segment)| segment.live).map(|(number, _)| number)
    }

    /// The pages that the segment's notes name, and that are still there and nobody else's.
    fn live_in(&self, segment: u32) -> Result<Vec<Live>, StoreError> {
        let (mut live, mut offset) = (Vec::new(), 0);
        while let Some(chunk) = chunk_at(&*self.device, &self.geometry, segment, offset)? {
            offset += chunk.blocks();
            for note in &chunk.notes {
                let Note::Write { object, page, place, .. } = *note else { continue };
                let look = self.resolve(|map| map.look(object, page))?;
                let here = look.filter(|look| look.entry.place == place && !look.shared);
                live.extend(here.map(|look| Live { object, page, entry: look.entry }));
                if live.len() == PAGES_MAX {
                    return Ok(live);
                }
            }
        }
        Ok(live)
    }

    /// Writes pages again, with the same home. Returns how many.
    fn move_pages(&self, writer: &mut Writer, live: &[Live]) -> Result<u64, StoreError> {
        let mut reads: Vec<Read> = live.iter().map(|live| Read::new(live.entry.place, 1)).collect();
        self.device.read_batch(&mut reads);
        let mut vector = Vec::new();
        for (live, read) in live.iter().zip(reads) {
            let bytes: Option<Page> = read.pages.into_iter().next();
            let intact = |page: &Page| read.result.is_ok() && crc32c::crc32c(&page.0) == live.entry.crc;
            let Some(bytes) = bytes.filter(intact).map(Box::new).map(Arc::new) else { continue };
            let Live { object, page, entry } = *live;
            vector.push(Change::Write { object, page, bytes, home: entry.home });
        }
        self.append(writer, &vector, Class::Cleaner)?;
        count(&self.counting.pages_cleaned, vector.len() as u64);
        Ok(vector.len() as u64)
    }
}
