//! Changes pages in memory as the records of one transaction say.

use crate::page::DirtyState;
use crate::page_table::{PageChange, PageKey, PageTable, PendingPunch};
use crate::range_ops::{PendingRangeOp, RangeOp, reserved_pages};
use crate::read::waiting::WaitingReads;
use crate::settings::FetchMode;
use crate::space::ReservedSpace;
use crate::status::CacheCounters;
use buffer::{GroupNo, LogRecord};
use device::{BLOCK_BYTES, Clock, Lsn, ObjectId, PageNo, TransferKind};
use std::cell::OnceCell;
use std::ops::Range;
use std::time::Duration;

/// The parts of the state that a transaction's records change, borrowed under the lock.
pub(crate) struct RecordApplier<'a> {
    pub(crate) pages: &'a mut PageTable,
    pub(crate) reads: &'a mut WaitingReads,
    pub(crate) counters: &'a mut CacheCounters,
    /// Pages that become dirty take from it.
    pub(crate) reserved: &'a mut ReservedSpace,
    pub(crate) now: &'a LazyNow<'a>,
    pub(crate) group: GroupNo,
    pub(crate) fetch: FetchMode,
    pub(crate) effects: RecordEffects,
}

/// The effects of a transaction's records, beside the changes of pages.
#[derive(Default)]
pub(crate) struct RecordEffects {
    /// A read that waited is to be retried.
    pub(crate) readers_may_go_on: bool,
    /// There is a clone or a move, which the store gets next.
    pub(crate) has_range_op: bool,
    /// Pages were removed, so that there may be space now.
    pub(crate) has_removed: bool,
    /// Reservations of removed pages, which the store must hear of.
    pub(crate) released_pages: u64,
}

impl RecordApplier<'_> {
    /// Applies a record that has its bytes.
    pub(crate) fn apply(&mut self, record: &LogRecord<'_>, lsn: Lsn) {
        let (key, start, len, bytes) = match *record {
            LogRecord::Write { object, page, start, bytes } => {
                (PageKey { object, page }, usize::from(start), bytes.len(), Some(bytes))
            }
            LogRecord::Zero { object, page, start, len } => {
                (PageKey { object, page }, usize::from(start), usize::from(len), None)
            }
            LogRecord::Punch { object, from, to } => return self.punch(object, from..to, lsn, false),
            LogRecord::Delete { object } => {
                return self.punch(object, PageNo(0)..PageNo(u64::MAX), lsn, true);
            }
            LogRecord::Transfer(transfer) => {
                let op = RangeOp::of(record, lsn).expect("it is one");
                self.reserved.take_pages(reserved_pages(&transfer));
                return self.begin_range_op(PendingRangeOp::new(op, self.group, self.now.get(), false));
            }
            LogRecord::Bypassed { .. } => unreachable!("its bytes are not in it"),
        };
        self.change_page(PageChange {
            key,
            range: start..start + len,
            bytes,
            newest: lsn,
            group: self.group,
            is_bypassing: false,
        });
    }

    /// Applies a bypassing write: whole pages, whose bytes the buffer lacks.
    pub(crate) fn write_bypassing(&mut self, object: ObjectId, from: PageNo, bytes: &[u8], lsn: Lsn) {
        for (page, bytes) in (from.0..).map(PageNo).zip(bytes.chunks(BLOCK_BYTES)) {
            self.change_page(PageChange {
                key: PageKey { object, page },
                range: 0..BLOCK_BYTES,
                bytes: Some(bytes),
                newest: lsn,
                group: self.group,
                is_bypassing: true,
            });
            self.counters.pages_bypassed += 1;
        }
        let end = PageNo(from.0 + (bytes.len() / BLOCK_BYTES) as u64);
        self.pages.note_bypassed_write(self.now.get(), object, from..end);
    }

    fn change_page(&mut self, change: PageChange<'_>) {
        let newest = change.newest;
        let group = change.group;
        let key = change.key;
        let is_part = change.range.len() < BLOCK_BYTES;
        let now = self.now;
        let space = &mut *self.reserved;
        let changed = self.pages.write(change, || {
            space.take_pages(1);
            DirtyState::new(newest, group, now.get(), false)
        });
        self.counters.writes_to_absent_pages += u64::from(changed.was_absent);
        if changed.was_absent && is_part {
            self.reads.left_partial(self.fetch, key);
        }
        self.retry(changed.waiters);
    }

    /// Lets reads that waited for a changed page be retried.
    fn retry(&mut self, waiters: Vec<u64>) {
        if !waiters.is_empty() {
            self.effects.readers_may_go_on = true;
            self.reads.retry(waiters);
        }
    }

    fn begin_range_op(&mut self, pending: PendingRangeOp) {
        let transfer = pending.op.transfer;
        self.reads.note_punch(transfer.to, transfer.target());
        if transfer.kind == TransferKind::Move {
            self.reads.note_punch(transfer.from, transfer.source());
        }
        let taken = self.pages.begin_range_op(pending);
        self.effects.has_range_op = true;
        self.note_removed(taken);
    }

    fn punch(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn, whole_object: bool) {
        self.reads.note_punch(object, pages.clone());
        let punch = PendingPunch {
            from: pages.start,
            to: pages.end,
            lsn,
            group: self.group,
            whole_object,
            since: self.now.get(),
            is_relogged: false,
        };
        let taken = self.pages.punch(object, punch);
        self.note_removed(taken);
    }

    /// Notes the reservations of removed pages, and retries the reads that waited for them.
    fn note_removed(&mut self, (reservations, waiters): (u64, Vec<u64>)) {
        self.effects.has_removed = true;
        self.effects.released_pages += reservations;
        self.retry(waiters);
    }
}

/// The time, read when it is first needed: most writes go to dirty pages and do not need it.
pub(crate) struct LazyNow<'a> {
    clock: &'a dyn Clock,
    read: OnceCell<Duration>,
}

impl LazyNow<'_> {
    pub(crate) fn new(clock: &dyn Clock) -> LazyNow<'_> {
        LazyNow { clock, read: OnceCell::new() }
    }

    pub(crate) fn get(&self) -> Duration {
        *self.read.get_or_init(|| self.clock.monotonic())
    }
}
