//! The store's pages: vectors of changes, and reads.

use crate::change::StoreChange;
use crate::delta_block::DeltaBlock;
use crate::delta_merge::DamagedPagePolicy;
use crate::error::StoreError;
use crate::log_entry::{BatchOrigin, LogEntry};
use crate::maintenance::MaintenanceState;
use crate::map::SharedDeltas;
use crate::shared::{PageRead, PageResult, StoreShared};
use crate::space::APPLY_TOGETHER_MAX;
use crate::volume::ListedPages;
use crate::writer::WriterLock;
use device::{Lsn, ObjectId, PageNo, PageTransfer};
use std::ops::Range;

/// Changes and reads the pages of a [`Store`](crate::Store).
#[derive(Clone, Copy)]
pub struct StoreData<'a> {
    shared: &'a StoreShared,
    writer: &'a WriterLock,
    maintenance: &'a MaintenanceState,
}

/// Changes.
impl<'a> StoreData<'a> {
    pub(crate) fn new(
        shared: &'a StoreShared,
        writer: &'a WriterLock,
        maintenance: &'a MaintenanceState,
    ) -> StoreData<'a> {
        StoreData { shared, writer, maintenance }
    }

    /// Applies all of `vector` or nothing; durable on return. Readers see it afterwards.
    ///
    /// After an error nothing of it is visible, but it may become durable: a crash later may leave all of it
    /// or nothing. The next call first writes both roots anew, so that the log goes on elsewhere.
    ///
    /// # Errors
    /// [`StoreError::Full`] before anything is written, where a checkpoint did not help; the device's;
    /// [`StoreError::Corrupt`] if a map node that it must change is damaged; [`StoreError::NotBegun`].
    pub fn apply(&self, vector: &[StoreChange]) -> Result<(), StoreError> {
        self.apply_as(vector, BatchOrigin::Logged)
    }

    /// As [`apply`](StoreData::apply), for changes that the buffer has not logged. Their LSNs do not count as
    /// [logged](StoreData::newest_logged_lsn), so a buffer that ends before them is not taken for an older
    /// copy.
    ///
    /// # Errors
    /// As [`apply`](StoreData::apply).
    pub fn apply_bypassed(&self, vector: &[StoreChange]) -> Result<(), StoreError> {
        self.apply_as(vector, BatchOrigin::Bypassed)
    }

    fn apply_as(&self, vector: &[StoreChange], origin: BatchOrigin) -> Result<(), StoreError> {
        self.writer.lock().apply(self.shared, vector, origin)?;
        self.maintenance.note_applied(vector.iter().filter_map(StoreChange::data).count() as u64);
        Ok(())
    }

    /// How many of a vector's first changes may be [applied](StoreData::apply) together, so that not too many
    /// nodes of the map are dirty at once. More may be refused as [`StoreError::Full`] though space is
    /// reserved for all of them. At least one.
    pub fn changes_that_fit(&self, vector: &[StoreChange]) -> usize {
        let entries: Vec<LogEntry> =
            vector.iter().take(APPLY_TOGETHER_MAX).map(StoreChange::log_entry).collect();
        self.shared.map().changes_that_fit(&entries)
    }

    /// Whether a leaf of the map has space for these blocks of deltas, which are all of one leaf.
    ///
    /// A page has at most eight deltas, a leaf at most 52 blocks of them, or eight where space is short. An
    /// object with so few pages that it needs no leaf has none. If there is no space, the pages must be
    /// [merged](StoreData::merge_deltas) or written whole. May read map nodes.
    ///
    /// # Errors
    /// Where a node cannot be read.
    pub fn takes_deltas(&self, object: ObjectId, blocks: &[DeltaBlock]) -> Result<bool, StoreError> {
        let Some(first) = blocks.first().map(DeltaBlock::first) else { return Ok(true) };
        let pages = blocks.iter().fold(0, |pages, block| pages | block.page_bits());
        self.shared.resolve(|map| map.takes_deltas(object, first, blocks.len(), pages))
    }

    /// Merges deltas and their base pages into whole pages, in every leaf in which one of `pages` lies. Where
    /// they are many, it writes all pages of the leaf. It skips pages that are damaged, and where space is tight pages
    /// that may be shared. Readers see the same bytes. Returns how many pages were written. Needs no reservation.
    ///
    /// # Errors
    /// [`StoreError::Full`]; the error of a page that cannot be read; the device's, with the effect of an
    /// error of [`apply`](StoreData::apply).
    pub fn merge_deltas(&self, pages: &[(ObjectId, PageNo)]) -> Result<u64, StoreError> {
        self.writer.lock().merge_leaves(self.shared, pages, SharedDeltas::Merge)
    }

    /// Merges the deltas of some leaves, if enough deltas were stored since the last call. Whoever stores
    /// deltas calls this, too, so that leaves are merged in long runs before each is full by itself. Returns
    /// how many whole pages were written.
    ///
    /// # Errors
    /// Those of [`merge_deltas`](StoreData::merge_deltas). Leaves that could not be merged stay as they are
    /// until they are full, or until quiet times.
    pub fn merge_due_deltas(&self) -> Result<u64, StoreError> {
        self.writer.lock().merge_due_deltas(self.shared)
    }

    /// Merges deltas at the ends of the ranges that a clone or move takes, in leaves that it takes only
    /// partly. [`apply`](StoreData::apply) does that itself: this is for callers that must know of errors
    /// before. Where a page is damaged, `apply` treats it as lost.
    ///
    /// # Errors
    /// Those of [`merge_deltas`](StoreData::merge_deltas), and a damaged page.
    pub fn merge_deltas_for_transfer(&self, transfer: &PageTransfer) -> Result<(), StoreError> {
        let entry = LogEntry::Transfer { transfer: *transfer, lsn: Lsn(0) };
        let mut writer = self.writer.lock();
        writer.make_ready(self.shared)?;
        writer.merge_for_transfers(self.shared, &[entry], DamagedPagePolicy::Fail)
    }

    /// Counts every change up to `lsn` as seen, durably on return, without applying anything. A buffer that
    /// does not have them is behind this store from then on.
    ///
    /// # Errors
    /// As [`checkpoint_twice`](crate::StoreMaintenance::checkpoint_twice): both roots say so.
    pub fn fence(&self, lsn: Lsn) -> Result<(), StoreError> {
        self.shared.map_mut().fence(lsn);
        self.writer.lock().checkpoint_twice(self.shared)
    }
}

/// Reads.
impl StoreData<'_> {
    /// Reads many pages with many reads in flight; each gets its own result. Never returns other bytes than
    /// were written: the result is [`StoreError::Corrupt`] then, with object, page and place.
    ///
    /// Waits only for its own reads, never for a write, a flush or a checkpoint.
    pub fn read(&self, wants: &mut [PageRead]) {
        self.shared.read(wants);
    }

    /// Reads many pages in the order in which they lie on the device, with few reads, and passes each to
    /// `take` with its index. As [`read`](StoreData::read), for callers that read much and keep the bytes
    /// elsewhere.
    pub fn read_in_device_order(
        &self,
        pages: &[(ObjectId, PageNo)],
        take: &mut dyn FnMut(usize, PageResult<'_>),
    ) {
        self.shared.read_in_device_order(pages, take);
    }

    /// The page LSN of a page; `None` for a hole. May read map nodes.
    pub fn page_lsn(&self, object: ObjectId, page: PageNo) -> Result<Option<Lsn>, StoreError> {
        self.shared.page_lsn(object, page)
    }

    /// The page LSN of each of many pages, with many reads of map nodes in flight.
    pub fn page_lsns(&self, pages: &[(ObjectId, PageNo)]) -> Vec<Result<Option<Lsn>, StoreError>> {
        self.shared.page_lsns(pages)
    }

    /// Whether one of a clone's or a move's objects has had this transfer or a later one: then everything
    /// before it is stored, too. May read map nodes.
    ///
    /// # Errors
    /// Where one of those cannot be read, and the other object does not say that it has.
    pub fn has_applied_transfer(&self, transfer: &PageTransfer, lsn: Lsn) -> Result<bool, StoreError> {
        let target = self.shared.resolve(|map| map.has_applied_transfer(transfer.to, lsn));
        match target {
            Ok(true) => target,
            _ => Ok(self.shared.resolve(|map| map.has_applied_transfer(transfer.from, lsn))? || target?),
        }
    }

    /// Whether an object has had a clone or a move later than `lsn`: then it has had every punch before that.
    /// May read map nodes.
    ///
    /// # Errors
    /// Where one of those cannot be read.
    pub fn has_applied_later_transfer(&self, object: ObjectId, lsn: Lsn) -> Result<bool, StoreError> {
        self.shared.resolve(|map| map.has_applied_transfer(object, lsn.plus(1)))
    }

    /// Lists the pages that the store holds of `object` within `range`, from at most `leaves_max` leaves of
    /// its map (128 pages each). Holes cost nothing, however large they are. May read map nodes.
    ///
    /// # Errors
    /// A map node that cannot be read, or is damaged.
    pub fn list(
        &self,
        object: ObjectId,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<ListedPages, StoreError> {
        self.shared.list(object, range, leaves_max)
    }

    /// The highest LSN that the store has seen.
    pub fn newest_lsn(&self) -> Lsn {
        self.shared.map().newest().any
    }

    /// The highest LSN that the store has seen of a change that is, or was, in the buffer, or of a
    /// [fence](StoreData::fence). A buffer that ends before it is an older copy.
    pub fn newest_logged_lsn(&self) -> Lsn {
        self.shared.map().newest().logged
    }

    /// The number of the last batch of the log that was found, or made durable since. Numbers only grow in
    /// the life of a store.
    pub fn durable_batch(&self) -> u64 {
        self.shared.progress.durable_batch()
    }
}
