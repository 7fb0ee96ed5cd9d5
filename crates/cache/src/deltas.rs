//! How changed pages go to the store: whole ones whole, others as deltas, of which the store puts many into one block. For a delta
//! nothing is read.
//!
//! Where a page has as many deltas as it may have, or its leaf of the map has no space for more, the leaf is folded first: that is
//! paid for by all the deltas that went there since the last time. Where that does not help, since clones share what would be folded, or
//! there is no space for it, the page is read and written whole.

use crate::pages::Key;
use crate::plant::{PlantedBug, is_planted};
use crate::write_back::Content;
use device::{Lsn, ObjectId, Page, PageNo, SharedPage};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Change, DeltaBlock, DeltaPacker, PageRead, Store, StoreError, StoredPage, leaf_of};

/// A page to store. Together with others it holds every change of the page up to the newest one of all of them.
#[derive(Clone, Copy)]
pub(crate) struct ToStore<'a> {
    pub(crate) key: Key,
    pub(crate) content: &'a Content,
    pub(crate) newest: Lsn,
    /// A cut that the store may not have: what is older there is zeros.
    pub(crate) cut: Option<Lsn>,
}

/// Leaves that are folded for one write-back at most, so that it ends: their pages are 8 MiB. Where more are full, since space got short,
/// pages of the others are read and written whole.
const FOLDED_AT_ONCE: usize = 16;

/// What the store is asked for.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) vector: Vec<Change>,
    /// Which of the pages each change is about.
    of: Vec<Vec<usize>>,
    /// Pages that cannot be read, and must be.
    pub(crate) refused: BTreeMap<usize, StoreError>,
    /// All bytes of pages of which only some were in memory, where the others are zeros or were read.
    pub(crate) whole: BTreeMap<usize, SharedPage>,
    /// How many were read.
    pub(crate) pages_read: u64,
}

impl Plan {
    /// For pages in the order of their keys.
    pub(crate) fn of<'a>(store: &Store, pages: impl Iterator<Item = ToStore<'a>>) -> Plan {
        let pages: Vec<ToStore<'a>> = pages.collect();
        let (mut plan, mut read) = (Plan::default(), Vec::new());
        let mut patches: BTreeMap<(ObjectId, PageNo), Vec<usize>> = BTreeMap::new();
        let empty = over_nothing(store, &pages);
        for (index, ToStore { key: Key { object, page }, content, .. }) in pages.iter().enumerate() {
            let delta = match content {
                Content::Patch(delta) => delta,
                Content::Whole(bytes) => {
                    plan.write(index, &pages[index], bytes.clone());
                    continue;
                }
            };
            match empty.get(&index) {
                None if object.is_metadata() => read.push(index),
                None => patches.entry((*object, leaf_of(*page))).or_default().push(index),
                Some(Ok(())) => {
                    let mut bytes = Page::zeroed();
                    delta.apply(&mut bytes);
                    plan.write_completed(index, &pages[index], bytes);
                }
                Some(Err(error)) => drop(plan.refused.insert(index, error.clone())),
            }
        }
        let mut full: Vec<((ObjectId, PageNo), Packed)> = Vec::new();
        for ((object, first), members) in patches {
            let packed = Packed::new(store, &pages, members, &mut read);
            match store.takes_deltas(object, &packed.blocks) {
                Ok(true) => plan.add_deltas(object, &pages, packed),
                _ => full.push(((object, first), packed)),
            }
        }
        let leaves: Vec<(ObjectId, PageNo)> =
            full.iter().map(|(leaf, _)| *leaf).take(FOLDED_AT_ONCE).collect();
        // An error is for the reads and writes that follow to tell.
        let folded = !leaves.is_empty() && store.merge_deltas(&leaves).is_ok();
        for ((object, _), packed) in full {
            match folded && store.takes_deltas(object, &packed.blocks) == Ok(true) {
                true => plan.add_deltas(object, &pages, packed),
                false => read.extend(packed.members),
            }
        }
        plan.read_and_write(store, &pages, &read);
        plan
    }

    fn write(&mut self, index: usize, page: &ToStore<'_>, bytes: SharedPage) {
        let Key { object, page: number } = page.key;
        self.vector.push(Change::Write { object, page: number, bytes, page_lsn: page.newest });
        self.of.push(vec![index]);
    }

    fn write_completed(&mut self, index: usize, page: &ToStore<'_>, bytes: Box<Page>) {
        let bytes: SharedPage = Arc::new(bytes);
        self.whole.insert(index, bytes.clone());
        self.write(index, page, bytes);
    }

    fn add_deltas(&mut self, object: ObjectId, pages: &[ToStore<'_>], packed: Packed) {
        for block in packed.blocks {
            let has = |index: &usize| block.pages().any(|page| page == pages[*index].key.page);
            let of: Vec<usize> = packed.members.iter().copied().filter(has).collect();
            let page_lsn = of.iter().map(|&index| pages[index].newest).max().unwrap_or_default();
            self.vector.push(Change::Deltas { object, block, page_lsn });
            self.of.push(of);
        }
    }

    /// Lays deltas over what the store has.
    fn read_and_write(&mut self, store: &Store, pages: &[ToStore<'_>], read: &[usize]) {
        let want = |&index: &usize| PageRead::new(pages[index].key.object, pages[index].key.page);
        let mut wants: Vec<PageRead> = read.iter().map(want).collect();
        store.read(&mut wants);
        for (&index, want) in read.iter().zip(wants) {
            let Content::Patch(delta) = pages[index].content else { continue };
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

    /// What was refused of the vector, and before, by pages.
    pub(crate) fn by_page(mut self, of_vector: BTreeMap<usize, StoreError>) -> BTreeMap<usize, StoreError> {
        for (change, error) in of_vector {
            self.refused.extend(self.of[change].iter().map(|&page| (page, error.clone())));
        }
        self.refused
    }
}

/// Deltas of pages in one leaf, in blocks.
struct Packed {
    blocks: Vec<DeltaBlock>,
    /// Whose they are.
    members: Vec<usize>,
}

impl Packed {
    /// Packs the deltas of pages in one leaf; one that fits into no block is to be read.
    fn new(store: &Store, pages: &[ToStore<'_>], mut members: Vec<usize>, read: &mut Vec<usize>) -> Packed {
        let mut packer = DeltaPacker::new(store.id());
        members.retain(|&index| {
            let Content::Patch(delta) = pages[index].content else { return false };
            let fits = packer.add(pages[index].key.page, delta.pieces());
            if !fits {
                read.push(index);
            }
            fits
        });
        Packed { blocks: packer.finish(), members }
    }
}

/// Which of the partly written pages are zeros where they are not in memory: the store has nothing of them, or what a pending cut takes
/// away. Only the map is asked.
fn over_nothing(store: &Store, pages: &[ToStore<'_>]) -> BTreeMap<usize, Result<(), StoreError>> {
    let is_patch = |page: &ToStore<'_>| matches!(page.content, Content::Patch(_));
    let patches: Vec<usize> = (0..pages.len()).filter(|&index| is_patch(&pages[index])).collect();
    let keys: Vec<(ObjectId, PageNo)> =
        patches.iter().map(|&index| (pages[index].key.object, pages[index].key.page)).collect();
    let found = patches.into_iter().zip(store.page_lsns(&keys));
    let empty = found.filter_map(|(index, found)| {
        let ToStore { key, cut, .. } = pages[index];
        let cut = cut.filter(|_| !is_planted(PlantedBug::DeltaOverCut));
        let stays = match (found, cut) {
            (Err(error), _) => Err(error),
            (Ok(None), _) => Ok(false),
            // A later clone or move may have brought what is older than the cut, which it came after.
            (Ok(Some(page_lsn)), Some(cut)) if page_lsn < cut => {
                store.has_applied_later_transfer(key.object, cut)
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
    use crate::delta::Delta;
    use device::{Incarnation, StoreId, VolumeId};
    use sim_disk::{Power, SimDisk};
    use store::Layout;

    const OBJECT: ObjectId = VolumeId::MAIN.object(5, 1);

    #[test]
    fn pages_that_share_a_block_of_deltas_have_no_page_lsn_below_their_own_newest_change() {
        let disk = SimDisk::new("store", 4096, &Power::new(), 1);
        let layout = Layout { id: StoreId([1; 16]), segment_blocks: Some(16) };
        Store::format(&*disk, &layout).expect("large enough");
        let store = Store::open(disk).expect("a new store");
        store.begin(Incarnation(1)).expect("the first");
        let whole = |page| Change::Write {
            object: OBJECT,
            page: PageNo(page),
            bytes: Arc::new(Page::zeroed()),
            page_lsn: Lsn(1),
        };
        // With more gaps than fit into an object's entry: without a leaf there are no deltas.
        let pages: Vec<Change> = (0..3).chain((4..40).step_by(2)).map(whole).collect();
        store.apply(&pages).expect("space");
        let mut delta = Delta::default();
        delta.write(7, &[7]);
        let (content, newest) = (Content::Patch(delta), [20, 30, 10]);
        let to_store = (0..).zip(newest).map(|(page, newest)| ToStore {
            key: Key { object: OBJECT, page: PageNo(page) },
            content: &content,
            newest: Lsn(newest),
            cut: None,
        });
        let plan = Plan::of(&store, to_store);
        assert!(matches!(plan.vector[..], [Change::Deltas { .. }]), "they share one");
        store.apply(&plan.vector).expect("space");
        for (page, newest) in (0..).zip(newest) {
            let page_lsn = store.page_lsn(OBJECT, PageNo(page)).expect("no faults");
            assert!(page_lsn >= Some(Lsn(newest)), "page {page}: {page_lsn:?}");
        }
    }
}
