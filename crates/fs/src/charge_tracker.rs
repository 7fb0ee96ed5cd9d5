//! How far the charges of files may be off; [`charge`](crate::charge) explains charges.

use crate::format::{InodeSlot, PAGE_BYTES};
use device::PageNo;
use std::collections::HashMap;
use std::ops::Range;

/// A file is counted again when its unsure pages exceed this number plus this part of its charge, so that
/// counting costs little beside writing.
const UNSURE_MIN: u64 = 64;
const UNSURE_PART: u64 = 8;

/// Counters of removals, of 8 bytes each. Files that share a counter invalidate each other's counts.
const REMOVALS: usize = 1024;

/// How far the charges of files may be off. In memory only.
pub(crate) struct ChargeTracker {
    drifts: HashMap<InodeSlot, ChargeDrift>,
    /// How often pages were removed from files, by a hash of their slots.
    removals: [u64; REMOVALS],
    /// A file whose pages are to be counted again.
    recount_due: Option<InodeSlot>,
}

/// A note of an operation to the tracker. The tracker gets it when the operation's changes are final.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChargeNote {
    /// A file was charged for `pages` more pages; now it has `charge`. Of that charge, `unsure` more pages
    /// may have been added twice, or not taken off.
    Charged { slot: InodeSlot, pages: u64, unsure: u64, charge: u64 },
    /// Pages may be removed from a file, which invalidates earlier counts.
    Removed(InodeSlot),
    /// The count of a file has ended.
    Counted(InodeSlot),
    /// A file is freed.
    Freed(InodeSlot),
}

/// How far the charge of a sparse file may be off.
#[derive(Default)]
struct ChargeDrift {
    unsure: u64,
    /// Pages charged since a count of the file began; `None` if none is under way.
    added: Option<u64>,
}

/// The number of pages that a file had in a range.
#[derive(Clone)]
pub(crate) struct CountedRange {
    slot: InodeSlot,
    pages: Range<PageNo>,
    data: u64,
    /// The file's counter of removals before the count.
    removals: u64,
}

impl CountedRange {
    pub(crate) fn new(slot: InodeSlot, pages: Range<PageNo>, data: u64, removals: u64) -> CountedRange {
        CountedRange { slot, pages, data, removals }
    }

    /// The counted pages, if the count is of this range and nothing was removed since.
    pub(crate) fn pages_if_current(
        &self,
        slot: InodeSlot,
        pages: &Range<PageNo>,
        removals: u64,
    ) -> Option<u64> {
        let is_of = self.slot == slot && self.pages == *pages && self.removals == removals;
        is_of.then_some(self.data)
    }
}

impl Default for ChargeTracker {
    fn default() -> ChargeTracker {
        ChargeTracker { drifts: HashMap::new(), removals: [0; REMOVALS], recount_due: None }
    }
}

impl ChargeTracker {
    /// A counter that grows when pages are removed from the file. Some other files share it.
    pub(crate) fn removals(&self, slot: InodeSlot) -> u64 {
        self.removals[slot.0 as usize % REMOVALS]
    }

    pub(crate) fn note(&mut self, note: ChargeNote) {
        match note {
            ChargeNote::Charged { slot, pages, unsure, charge } => {
                self.add_charge(slot, pages, unsure, charge)
            }
            ChargeNote::Removed(slot) => self.add_removal(slot),
            ChargeNote::Counted(slot) => self.end_recount(slot),
            ChargeNote::Freed(slot) => {
                self.add_removal(slot);
                self.drifts.remove(&slot);
            }
        }
    }

    fn add_removal(&mut self, slot: InodeSlot) {
        self.removals[slot.0 as usize % REMOVALS] += 1;
    }

    fn add_charge(&mut self, slot: InodeSlot, pages: u64, unsure: u64, charge: u64) {
        if unsure == 0 && !self.drifts.contains_key(&slot) {
            return;
        }
        let drift = self.drifts.entry(slot).or_default();
        drift.unsure += unsure;
        match &mut drift.added {
            Some(added) => *added += pages,
            None if drift.unsure >= UNSURE_MIN + charge / UNSURE_PART => self.recount_due = Some(slot),
            None => {}
        }
    }

    /// Takes the file whose pages are to be counted, and begins its count.
    pub(crate) fn take_recount(&mut self) -> Option<InodeSlot> {
        let slot = self.recount_due.take()?;
        self.drifts.insert(slot, ChargeDrift { unsure: 0, added: Some(0) });
        Some(slot)
    }

    /// The pages that a file was charged for since a count of it began; `None` if none is under way.
    pub(crate) fn added_since_count_began(&self, slot: InodeSlot) -> Option<u64> {
        self.drifts.get(&slot)?.added
    }

    fn end_recount(&mut self, slot: InodeSlot) {
        if let Some(drift) = self.drifts.get_mut(&slot) {
            drift.added = None;
            if drift.unsure == 0 {
                self.drifts.remove(&slot);
            }
        }
    }
}

/// The pages that a range touches.
pub(crate) fn touched_pages(range: Range<u64>) -> Range<PageNo> {
    PageNo(range.start / PAGE_BYTES)..PageNo(range.end.div_ceil(PAGE_BYTES))
}

/// The whole pages within a range.
pub(crate) fn whole_pages(range: Range<u64>) -> Range<PageNo> {
    let start = range.start.div_ceil(PAGE_BYTES);
    PageNo(start)..PageNo((range.end / PAGE_BYTES).max(start))
}

pub(crate) fn page_count(pages: &Range<PageNo>) -> u64 {
    pages.end.0 - pages.start.0
}
