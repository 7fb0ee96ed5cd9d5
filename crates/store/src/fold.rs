//! Folding: pages are written whole in the place of their bases and deltas. What is in them stays as it is, and so does their page LSN.
//!
//! Leaves are folded together, and the pages of one lie behind each other afterwards: long runs are read and written. After a crash each
//! page is there as it was or whole, which is the same to whoever reads it.

use crate::bug::{PlantedBug, is_planted};
use crate::change::Change;
use crate::coalesce::GAP_BLOCKS_MAX;
use crate::counters::count;
use crate::entry::{LogEntry, Origin};
use crate::error::StoreError;
use crate::map::{FoldCursor, FoldLook};
use crate::policy::Class;
use crate::shared::{Found, Shared, Want};
use crate::writer::Writer;
use device::{ObjectId, Page, PageNo, SharedPage};
use std::sync::Arc;

/// A round of folding everything. Owned by the store, behind the writer's lock. Gone after a crash: it begins anew.
#[derive(Debug, Default)]
pub(crate) struct Folding {
    /// Where it goes on; `None` between rounds.
    cursor: Option<FoldCursor>,
    /// Blocks of deltas that had been written when the round began.
    began: u64,
    /// The same of the last round that came to its end: if there are no more, there is nothing to fold.
    ended: Option<u64>,
}

impl Folding {
    /// See [`Store::fold_step`](crate::Store::fold_step).
    pub(crate) fn step(&mut self, shared: &Shared, writer: &mut Writer) -> Result<bool, StoreError> {
        let written = shared.medium.counting().now().delta_blocks_written;
        let from = match self.cursor {
            None if self.ended == Some(written) => return Ok(false),
            None => {
                self.began = written;
                FoldCursor::default()
            }
            Some(cursor) => cursor,
        };
        let FoldLook { found, next } = shared.resolve(|map| map.next_to_fold(from))?;
        self.cursor = next;
        if next.is_none() {
            self.ended = Some(self.began);
        }
        if let Some((object, page)) = found {
            writer.fold_leaves(shared, &[(object, page)])?;
        }
        Ok(next.is_some())
    }
}

impl Writer {
    /// Folds all pages of the leaves in which these lie that nobody else shares. Returns how many.
    pub(crate) fn fold_leaves(
        &mut self,
        shared: &Shared,
        leaves: &[(ObjectId, PageNo)],
    ) -> Result<u64, StoreError> {
        self.make_ready(shared)?;
        let mut pages = Vec::new();
        for &(object, page) in leaves {
            let foldable = shared.resolve(|map| map.foldable(object, page))?;
            pages.extend(foldable.into_iter().map(|page| (object, page)));
        }
        self.fold(shared, &pages)
    }

    /// Folds those pages that a clone or a move takes out of leaves which it does not take whole: a block of deltas belongs to one leaf.
    /// Where one of several changes may bring deltas to another's source, all that they take.
    pub(crate) fn fold_for_transfers(
        &mut self,
        shared: &Shared,
        vector: &[Change],
    ) -> Result<(), StoreError> {
        for change in vector {
            let (Change::Clone { transfer, .. } | Change::Move { transfer, .. }) = change else { continue };
            let pages = shared.resolve(|map| map.deltas_taken(transfer, vector.len() > 1))?;
            let pages: Vec<_> = pages.into_iter().map(|page| (transfer.from, page)).collect();
            self.fold(shared, &pages)?;
        }
        Ok(())
    }

    fn fold(&mut self, shared: &Shared, pages: &[(ObjectId, PageNo)]) -> Result<u64, StoreError> {
        for some in pages.chunks(FOLD_PAGES) {
            let mut wants: Vec<Want> = some.iter().map(|&(object, page)| Want::new(object, page)).collect();
            shared.read_with_gaps(&mut wants, GAP_BLOCKS_MAX);
            let (mut entries, mut bytes): (Vec<LogEntry>, Vec<SharedPage>) = (Vec::new(), Vec::new());
            for Want { object, page, found } in wants {
                if let Found::Page { bytes: mut whole, page_lsn } = found? {
                    if is_planted(PlantedBug::FoldWithoutDeltas) {
                        whole = base_of(shared, object, page)?;
                    }
                    let whole: SharedPage = Arc::from(whole);
                    entries.push(Change::Write { object, page, bytes: whole.clone(), page_lsn }.log_entry());
                    bytes.push(whole);
                }
            }
            let data: Vec<Option<&Page>> = bytes.iter().map(|page| Some(page as &Page)).collect();
            // The buffer knows their LSNs since they were stored as deltas.
            self.append(shared, entries, &data, Class::Cleaner, Origin::Direct)?;
        }
        count(&shared.medium.counting().pages_folded, pages.len() as u64);
        Ok(pages.len() as u64)
    }
}

/// A page without its deltas: for a planted bug.
fn base_of(shared: &Shared, object: ObjectId, page: PageNo) -> Result<Box<Page>, StoreError> {
    let located = shared.resolve(|map| map.lookup(object, page))?;
    let mut bytes = Page::zeroed();
    if let Some(base) = located.and_then(|located| located.page.base()) {
        shared.medium.device().read(base.place, std::slice::from_mut(&mut *bytes))?;
    }
    Ok(bytes)
}

/// Pages of one batch: four MiB.
const FOLD_PAGES: usize = 1024;
