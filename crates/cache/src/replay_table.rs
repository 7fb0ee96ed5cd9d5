//! The pages that recovery makes, until it knows them all: found by a hash, and put into the table in order at the end,
//! which costs a fraction of an ordered look-up for each record.

use crate::page::PageEntry;
use crate::page_table::{PageKey, PageMemory, PageTable, TableIndex};
use buffer::GroupNo;
use device::{Lsn, PageNo};
use std::collections::HashMap;
use std::mem;

/// Pages that have one place in the hash, so that it stays in the processor's caches though a large file is written to at
/// random: whether a page is there is a bit of that place. A page that is alone in its file takes 128 bytes more for that,
/// until all are in the table.
const CLUSTER_PAGES: usize = 32;

/// Pages that are not in the table yet.
#[derive(Default)]
pub(crate) struct ReplayTable {
    /// By the first page of each cluster.
    places: HashMap<PageKey, ClusterPlace>,
    /// For each cluster, where in `entries` its pages are.
    clusters: Vec<[u32; CLUSTER_PAGES]>,
    /// In the order in which the log first names them. All are there until they are put into the table.
    entries: Vec<Option<Box<PageEntry>>>,
    index: TableIndex,
}

/// What is known of a cluster without looking at it.
#[derive(Clone, Copy)]
struct ClusterPlace {
    cluster: u32,
    /// Which of its pages are there, a bit for each.
    present: u32,
}

impl ClusterPlace {
    fn has(self, within: usize) -> bool {
        self.present >> within & 1 == 1
    }
}

/// The first page of a page's cluster, and its place there.
fn parts(PageKey { object, page }: PageKey) -> (PageKey, usize) {
    let within = page.0 % CLUSTER_PAGES as u64;
    (PageKey { object, page: PageNo(page.0 - within) }, within as usize)
}

impl ReplayTable {
    pub(crate) fn contains(&self, key: PageKey) -> bool {
        let (first, within) = parts(key);
        self.places.get(&first).is_some_and(|place| place.has(within))
    }

    /// Makes a change, the one at `at` and in `group`, of a page that is not in the table.
    pub(crate) fn change(
        &mut self,
        key: PageKey,
        at: Lsn,
        group: GroupNo,
        with: impl FnOnce(&mut PageEntry),
    ) {
        let (first, within) = parts(key);
        let place = self.places.entry(first).or_insert_with(|| {
            self.clusters.push(Default::default());
            ClusterPlace { cluster: number(self.clusters.len()), present: 0 }
        });
        let slot = &mut self.clusters[place.cluster as usize][within];
        if !place.has(within) {
            place.present |= 1 << within;
            self.entries.push(None);
            *slot = number(self.entries.len());
        }
        let page = &mut self.entries[*slot as usize];
        let seen = |entry: &PageEntry| (PageMemory::of(entry), entry.is_whole());
        let (memory, was_whole) = page.as_deref().map_or((PageMemory::default(), false), seen);
        let entry = page.get_or_insert_with(|| {
            self.index.named.push((group, key));
            Box::new(PageEntry::queued_since(at))
        });
        with(entry);
        let (now, is_whole) = seen(entry);
        self.index.memory.replace(&memory, &now);
        self.index.whole.extend((is_whole && !was_whole).then_some(key));
    }

    /// Puts all of them into the table.
    pub(crate) fn settle(&mut self, into: &mut PageTable) {
        if self.entries.is_empty() {
            return;
        }
        let ReplayTable { places, clusters, mut entries, index } = mem::take(self);
        let mut places: Vec<(PageKey, ClusterPlace)> = places.into_iter().collect();
        places.sort_unstable_by_key(|&(first, _)| first);
        let pages = places.into_iter().flat_map(|(PageKey { object, page }, place)| {
            let cluster = clusters[place.cluster as usize];
            let there = (0..CLUSTER_PAGES).filter(move |&within| place.has(within));
            there.map(move |within| {
                (PageKey { object, page: PageNo(page.0 + within as u64) }, cluster[within])
            })
        });
        let pages = pages.filter_map(|(key, at)| Some((key, entries[at as usize].take()?)));
        into.insert_replayed(pages, index);
    }
}

/// The number of the last of `len` things.
fn number(len: usize) -> u32 {
    u32::try_from(len - 1).expect("fewer pages than bytes of a log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::DirtyState;
    use device::VolumeId;
    use device::{BLOCK_BYTES, SeededRng};
    use std::time::Duration;

    fn write(
        random: &mut SeededRng,
        at: Lsn,
        group: GroupNo,
    ) -> (PageKey, impl FnOnce(&mut PageEntry) + use<>) {
        let object = VolumeId::MAIN.object(random.below(3), 1);
        let base = [0, 1000, u64::MAX - 99][random.below(3) as usize];
        let key = PageKey { object, page: PageNo(base + random.below(100)) };
        let start = random.below(8) as usize * 512;
        let len = if random.once_in(4) { BLOCK_BYTES - start } else { 512 };
        let bytes = vec![at.0 as u8; len];
        let change = move |entry: &mut PageEntry| {
            entry.write(start, &bytes);
            entry.mark_dirty(start..start + len, at, group, || {
                DirtyState::new(at, group, Duration::ZERO, true)
            });
        };
        (key, change)
    }

    /// Everything that is visible of a table.
    fn view(mut state: PageTable) -> Vec<String> {
        let mut seen = vec![format!("{:?}", state.memory())];
        seen.extend(state.iter().map(|page| format!("{page:?}")));
        seen.extend(state.by_group().map(|needed| format!("{needed:?}")));
        seen.extend(state.evictable().iter().map(|key| format!("whole {key:?}")));
        let mut looks = state.queued();
        seen.extend(
            std::iter::from_fn(|| state.least_recently_written(&mut looks)).map(|key| format!("{key:?}")),
        );
        seen
    }

    #[test]
    fn pages_that_were_gathered_stand_in_the_state_as_if_each_change_had_been_made_there() {
        for settles in [u64::MAX, 700, 90] {
            let mut random = SeededRng::new(5);
            let mut gathered = ReplayTable::default();
            let mut plain = PageTable::default();
            let mut state = PageTable::default();
            for number in 1..3000 {
                let at = Lsn(number);
                let group = GroupNo(number / 7);
                let mut again = random.clone();
                let (key, change) = write(&mut again, at, group);
                plain.change(key, change);
                let (key, change) = write(&mut random, at, group);
                if state.get(&key).is_some() {
                    state.change(key, change)
                } else {
                    gathered.change(key, at, group, change)
                }
                if number % settles == 0 {
                    gathered.settle(&mut state);
                }
            }
            gathered.settle(&mut state);
            assert_eq!(view(state), view(plain), "put into the table after each {settles}");
        }
    }
}
