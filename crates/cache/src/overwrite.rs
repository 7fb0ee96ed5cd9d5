//! Short overwrites: a write within one page that is whole in memory and waits to be stored. It needs neither
//! memory nor space in the store, so all that remains is one record in the log, and the bytes in memory.
//!
//! The page is changed as by any other write, under the same hold of the lock. A clone or a move that is not
//! stored has taken the older changes of its pages out of the page table, so a page that is found there is newer.

use crate::apply::TransactionApplier;
use crate::change::{COMPARED_BYTES_MIN, differing_bytes};
use crate::page_table::PageKey;
use crate::record_applier::LazyNow;
use crate::state::CacheState;
use crate::task::BackgroundTask;
use buffer::LogRecord;
use device::{BLOCK_BYTES, ObjectId, PageNo};
use request::Origin;

impl TransactionApplier {
    /// See [`Cache::try_overwrite`](crate::Cache::try_overwrite).
    pub(crate) fn try_overwrite(&self, origin: Origin, object: ObjectId, offset: u64, bytes: &[u8]) -> bool {
        let page = PageNo::of(offset);
        let start = (offset % BLOCK_BYTES as u64) as usize;
        if bytes.is_empty() || bytes.len() > BLOCK_BYTES - start {
            return false;
        }
        let mut state = self.shared.state();
        if state.refuses_changes
            || !state.writable.contains(&object.volume)
            || !self.admission.may_append_now(&state.for_admission(), origin.class, bytes.len() as u64)
        {
            return false;
        }
        let CacheState { pages, log, streams, counters, .. } = &mut *state;
        let Some(entry) = pages.overwritable(&PageKey { object, page }) else { return false };
        let is_whole_page = bytes.len() == BLOCK_BYTES;
        // A whole page of a stream bypasses the buffer.
        if is_whole_page
            && !origin.logs_at_once
            && streams.note_write(object, offset, bytes.len() as u64, self.shared.bypass_after())
        {
            return false;
        }
        let compared = if bytes.len() >= COMPARED_BYTES_MIN { entry.logged_bytes() } else { None };
        let (start, bytes) = match compared {
            Some(before) => differing_bytes(before, start, bytes),
            None => (start, bytes),
        };
        let record = LogRecord::Write { object, page, start: start as u16, bytes };
        let now = LazyNow::new(self.shared.clock());
        let Ok(appended) = log.append_overwrite(origin, record, is_whole_page, || now.get()) else {
            // The buffer failed. The longer way tells the caller so.
            return false;
        };
        counters.transactions += 1;
        entry.overwrite(start, bytes, appended.last_lsn, appended.group);
        let wakes_committer = self.committer.is_requested(log);
        let wakes_write_back = log.is_half_full();
        drop(state);
        if wakes_committer {
            self.shared.wake(BackgroundTask::Commit);
        }
        if wakes_write_back {
            self.shared.wake(BackgroundTask::WriteBack);
        }
        true
    }
}
