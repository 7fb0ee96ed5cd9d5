//! Plans how dirty pages are stored: whole ones whole, others as deltas, many of which the store puts into
//! one block. For a delta nothing is read.
//!
//! If a page has as many deltas as it may have, or its leaf of the map has no space for more, the deltas of
//! the leaf are merged first: all deltas that went there since the last merge pay for that. If that does not
//! help, because clones share what would be merged or there is no space for it, the page is read and written
//! whole.

use crate::page_table::PageKey;
use crate::planted_bug::{CacheBug, is_planted};
use crate::write_back::PageContent;
use device::{Lsn, ObjectId, Page, PageNo, SharedPage};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{DeltaBlock, DeltaPacker, PageRead, Store, StoreChange, StoreError, StoredPage, leaf_first_page};

/// A page to store. With the others of its plan it holds every change of the page up to their newest.
#[derive(Clone, Copy)]
pub(crate) struct PageToStore<'a> {
    pub(crate) key: PageKey,
    pub(crate) content: &'a PageContent,
    pub(crate) newest: Lsn,
    /// A punch that the store may lack: what is older there reads as zeros.
    pub(crate) punch: Option<Lsn>,
}

/// Leaves whose deltas are merged for one write-back at most, so that it ends: their pages are 8 MiB. If more
/// leaves are full, since space became short, pages of the others are read and written whole.
const MERGED_LEAVES_MAX: usize = 16;

/// The changes for the store.
#[derive(Default)]
pub(crate) struct StorePlan {
    pub(crate) vector: Vec<StoreChange>,
    /// For each change, its pages.
    pages_of_change: Vec<Vec<usize>>,
    /// Pages that must be read and cannot be.
    pub(crate) refused: BTreeMap<usize, StoreError>,
    /// All bytes of pages that were partial in memory: the missing bytes are zeros, or were read.
    pub(crate) whole: BTreeMap<usize, SharedPage>,
    /// Number of pages read.
    pub(crate) pages_read: u64,
}

impl StorePlan {
    /// Plans for pages that are sorted by key.
    pub(crate) fn of<'a>(store: &Store, pages: impl Iterator<Item = PageToStore<'a>>) -> StorePlan {
        let pages: Vec<PageToStore<'a>> = pages.collect();
        let mut plan = StorePlan::default();
        let mut read = Vec::new();
        let mut patches: BTreeMap<(ObjectId, PageNo), Vec<usize>> = BTreeMap::new();
        let empty = pages_without_base(store, &pages);
        for (index, PageToStore { key: PageKey { object, page }, content, .. }) in pages.iter().enumerate() {
            let delta = match content {
                PageContent::Patch(delta) => delta,
                PageContent::Whole(bytes) => {
                    plan.write(index, &pages[index], bytes.clone());
                    continue;
                }
            };
            match empty.get(&index) {
                None if object.is_metadata() => read.push(index),
                None => patches.entry((*object, leaf_first_page(*page))).or_default().push(index),
                Some(Ok(())) => {
                    let mut bytes = Page::zeroed();
                    delta.apply(&mut bytes);
                    plan.write_completed(index, &pages[index], bytes);
                }
                Some(Err(error)) => drop(plan.refused.insert(index, error.clone())),
            }
        }
        let mut full: Vec<((ObjectId, PageNo), PackedDeltas)> = Vec::new();
        for ((object, first), members) in patches {
            let packed = PackedDeltas::new(store, &pages, members, &mut read);
            match store.data().takes_deltas(object, &packed.blocks) {
                Ok(true) => plan.add_deltas(object, &pages, packed),
                _ => full.push(((object, first), packed)),
            }
        }
        let leaves: Vec<(ObjectId, PageNo)> =
            full.iter().map(|(leaf, _)| *leaf).take(MERGED_LEAVES_MAX).collect();
        // The reads and writes that follow report an error.
        let merged = !leaves.is_empty() && store.data().merge_deltas(&leaves).is_ok();
        for ((object, _), packed) in full {
            if merged && store.data().takes_deltas(object, &packed.blocks) == Ok(true) {
                plan.add_deltas(object, &pages, packed)
            } else {
                read.extend(packed.members)
            }
        }
        plan.read_and_write(store, &pages, &read);
        plan
    }

    fn write(&mut self, index: usize, page: &PageToStore<'_>, bytes: SharedPage) {
        let PageKey { object, page: number } = page.key;
        self.vector.push(StoreChange::Write { object, page: number, bytes, page_lsn: page.newest });
        self.pages_of_change.push(vec![index]);
    }

    fn write_completed(&mut self, index: usize, page: &PageToStore<'_>, bytes: Box<Page>) {
        let bytes: SharedPage = Arc::new(bytes);
        self.whole.insert(index, bytes.clone());
        self.write(index, page, bytes);
    }

    fn add_deltas(&mut self, object: ObjectId, pages: &[PageToStore<'_>], packed: PackedDeltas) {
        for block in packed.blocks {
            let has = |index: &usize| block.pages().any(|page| page == pages[*index].key.page);
            let of: Vec<usize> = packed.members.iter().copied().filter(has).collect();
            let page_lsn = of.iter().map(|&index| pages[index].newest).max().unwrap_or_default();
            self.vector.push(StoreChange::Deltas { object, block, page_lsn });
            self.pages_of_change.push(of);
        }
    }

    /// Merges deltas with what the store has.
    fn read_and_write(&mut self, store: &Store, pages: &[PageToStore<'_>], read: &[usize]) {
        let want = |&index: &usize| PageRead::new(pages[index].key.object, pages[index].key.page);
        let mut wants: Vec<PageRead> = read.iter().map(want).collect();
        store.data().read(&mut wants);
        for (&index, want) in read.iter().zip(wants) {
            let PageContent::Patch(delta) = pages[index].content else { continue };
            let mut bytes = match want.result {
                Ok(StoredPage::Page { bytes, .. }) => {
                    self.pages_read += 1;
                    bytes
                }
                Ok(StoredPage::Hole) => Page::zeroed(),
                Err(error) => {
                    self.refused.insert(index, error);
                    continue;
                }
            };
            delta.apply(&mut bytes);
            self.write_completed(index, &pages[index], bytes);
        }
    }

    /// Everything that was refused, in the plan or by the store, by page.
    pub(crate) fn refused_by_page(
        mut self,
        of_vector: BTreeMap<usize, StoreError>,
    ) -> BTreeMap<usize, StoreError> {
        for (change, error) in of_vector {
            self.refused.extend(self.pages_of_change[change].iter().map(|&page| (page, error.clone())));
        }
        self.refused
    }
}

/// The deltas of pages in one leaf, in blocks.
struct PackedDeltas {
    blocks: Vec<DeltaBlock>,
    /// The pages whose deltas these are.
    members: Vec<usize>,
}

impl PackedDeltas {
    /// Packs the deltas of pages in one leaf. Adds pages whose delta fits into no block to `read`.
    fn new(
        store: &Store,
        pages: &[PageToStore<'_>],
        mut members: Vec<usize>,
        read: &mut Vec<usize>,
    ) -> PackedDeltas {
        let mut packer = DeltaPacker::new(store.id());
        members.retain(|&index| {
            let PageContent::Patch(delta) = pages[index].content else { return false };
            let fits = packer.add(pages[index].key.page, delta.pieces());
            if !fits {
                read.push(index);
            }
            fits
        });
        PackedDeltas { blocks: packer.finish(), members }
    }
}

/// Which partial pages have zeros as their missing bytes: the store has no such page, or a pending punch
/// removes what it has. Only the map is asked.
fn pages_without_base(store: &Store, pages: &[PageToStore<'_>]) -> BTreeMap<usize, Result<(), StoreError>> {
    let is_patch = |page: &PageToStore<'_>| matches!(page.content, PageContent::Patch(_));
    let patches: Vec<usize> = (0..pages.len()).filter(|&index| is_patch(&pages[index])).collect();
    let keys: Vec<(ObjectId, PageNo)> =
        patches.iter().map(|&index| (pages[index].key.object, pages[index].key.page)).collect();
    let found = patches.into_iter().zip(store.data().page_lsns(&keys));
    let empty = found.filter_map(|(index, found)| {
        let PageToStore { key, punch, .. } = pages[index];
        let punch = punch.filter(|_| !is_planted(CacheBug::DeltaOverCut));
        let stays = match (found, punch) {
            (Err(error), _) => Err(error),
            (Ok(None), _) => Ok(false),
            // A later range operation may have brought pages that are older than the punch.
            (Ok(Some(page_lsn)), Some(punch)) if page_lsn < punch => {
                store.data().has_applied_later_transfer(key.object, punch)
            }
            (Ok(Some(_)), _) => Ok(true),
        };
        match stays {
            Ok(true) => None,
            Ok(false) => Some((index, Ok(()))),
            Err(error) => Some((index, Err(error))),
        }
    });
    empty.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::PageDelta;
    use device::{Incarnation, StoreId, VolumeId};
    use sim_disk::{PowerSupply, SimDisk};
    use store::{NewVolume, StoreLayout};

    const OBJECT: ObjectId = VolumeId::MAIN.object(5, 1);

    #[test]
    fn pages_that_share_a_block_of_deltas_have_no_page_lsn_below_their_own_newest_change() {
        let disk = SimDisk::new("store", 4096, &PowerSupply::new(), 1);
        let layout = StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(16) };
        Store::format(&*disk, &layout).expect("large enough");
        let store = Store::open(disk).expect("a new store");
        store.begin(Incarnation(1)).expect("the first");
        store
            .volumes()
            .create(&NewVolume { name: "main", ..NewVolume::default() }, &[], Lsn(0))
            .expect("space");
        let whole = |page| StoreChange::Write {
            object: OBJECT,
            page: PageNo(page),
            bytes: Arc::new(Page::zeroed()),
            page_lsn: Lsn(1),
        };
        // With more gaps than fit into an object's entry: without a leaf there are no deltas.
        let pages: Vec<StoreChange> = (0..3).chain((4..40).step_by(2)).map(whole).collect();
        store.data().apply(&pages).expect("space");
        let mut delta = PageDelta::default();
        delta.write(7, &[7]);
        let content = PageContent::Patch(delta);
        let newest = [20, 30, 10];
        let to_store = (0..).zip(newest).map(|(page, newest)| PageToStore {
            key: PageKey { object: OBJECT, page: PageNo(page) },
            content: &content,
            newest: Lsn(newest),
            punch: None,
        });
        let plan = StorePlan::of(&store, to_store);
        assert!(matches!(plan.vector[..], [StoreChange::Deltas { .. }]), "they share one");
        store.data().apply(&plan.vector).expect("space");
        for (page, newest) in (0..).zip(newest) {
            let page_lsn = store.data().page_lsn(OBJECT, PageNo(page)).expect("no faults");
            assert!(page_lsn >= Some(Lsn(newest)), "page {page}: {page_lsn:?}");
        }
    }
}
