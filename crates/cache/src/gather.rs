//! The pages that recovery makes, until it knows them all: found by a hash, and put into the table in order at the end,
//! which costs a fraction of an ordered look-up for each record.

use crate::page::Entry;
use crate::pages::{Index, Key, Memory, Pages};
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
pub(crate) struct Gathered {
    /// By the first page of each cluster.
    places: HashMap<Key, Place>,
    /// For each cluster, where in `entries` its pages are.
    clusters: Vec<[u32; CLUSTER_PAGES]>,
    /// In the order in which the log first names them. All are there until they are put into the table.
    entries: Vec<Option<Box<Entry>>>,
    index: Index,
}

/// What is known of a cluster without looking at it.
#[derive(Clone, Copy)]
struct Place {
    cluster: u32,
    /// Which of its pages are there, a bit for each.
    present: u32,
}

impl Place {
    fn has(self, within: usize) -> bool {
        self.present >> within & 1 == 1
    }
}

/// The first page of its cluster, and which of them it is.
fn parts(Key { object, page }: Key) -> (Key, usize) {
    let within = page.0 % CLUSTER_PAGES as u64;
    (Key { object, page: PageNo(page.0 - within) }, within as usize)
}

impl Gathered {
    pub(crate) fn contains(&self, key: Key) -> bool {
        let (first, within) = parts(key);
        self.places.get(&first).is_some_and(|place| place.has(within))
    }

    /// Makes a change, the one at `at` and in `group`, of a page that is not in the table.
    pub(crate) fn change(&mut self, key: Key, at: Lsn, group: GroupNo, with: impl FnOnce(&mut Entry)) {
        let (first, within) = parts(key);
        let place = self.places.entry(first).or_insert_with(|| {
            self.clusters.push(Default::default());
            Place { cluster: number(self.clusters.len()), present: 0 }
        });
        let slot = &mut self.clusters[place.cluster as usize][within];
        if !place.has(within) {
            place.present |= 1 << within;
            self.entries.push(None);
            *slot = number(self.entries.len());
        }
        let page = &mut self.entries[*slot as usize];
        let seen = |entry: &Entry| (Memory::of(entry), entry.is_whole());
        let (memory, was_whole) = page.as_deref().map_or((Memory::default(), false), seen);
        let entry = page.get_or_insert_with(|| {
            self.index.named.push((group, key));
            Box::new(Entry::queued_since(at))
        });
        with(entry);
        let (now, is_whole) = seen(entry);
        self.index.memory.replace(&memory, &now);
        self.index.whole.extend((is_whole && !was_whole).then_some(key));
    }

    /// Puts all of them into the table.
    pub(crate) fn settle(&mut self, into: &mut Pages) {
        if self.entries.is_empty() {
            return;
        }
        let Gathered { places, clusters, mut entries, index } = mem::take(self);
        let mut places: Vec<(Key, Place)> = places.into_iter().collect();
        places.sort_unstable_by_key(|&(first, _)| first);
        let pages = places.into_iter().flat_map(|(Key { object, page }, place)| {
            let cluster = clusters[place.cluster as usize];
            let there = (0..CLUSTER_PAGES).filter(move |&within| place.has(within));
            there.map(move |within| (Key { object, page: PageNo(page.0 + within as u64) }, cluster[within]))
        });
        let pages = pages.filter_map(|(key, at)| Some((key, entries[at as usize].take()?)));
        into.adopt(pages, index);
    }
}

/// The number of the last of `len` things.
fn number(len: usize) -> u32 {
    u32::try_from(len - 1).expect("fewer pages than bytes of a log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Dirt;
    use device::VolumeId;
    use device::{BLOCK_BYTES, SeededRng};
    use std::time::Duration;

    fn write(random: &mut SeededRng, at: Lsn, group: GroupNo) -> (Key, impl FnOnce(&mut Entry) + use<>) {
        let object = VolumeId::MAIN.object(random.below(3), 1);
        let base = [0, 1000, u64::MAX - 99][random.below(3) as usize];
        let key = Key { object, page: PageNo(base + random.below(100)) };
        let start = random.below(8) as usize * 512;
        let len = if random.once_in(4) { BLOCK_BYTES - start } else { 512 };
        let bytes = vec![at.0 as u8; len];
        let change = move |entry: &mut Entry| {
            entry.write(start, &bytes);
            entry.note(start..start + len, at, group, || Dirt::first(at, group, Duration::ZERO, true));
        };
        (key, change)
    }

    /// All that others see of them.
    fn view(mut state: Pages) -> Vec<String> {
        let mut seen = vec![format!("{:?}", state.memory())];
        seen.extend(state.iter().map(|page| format!("{page:?}")));
        seen.extend(state.by_group().map(|needed| format!("{needed:?}")));
        seen.extend(state.swept().iter().map(|key| format!("whole {key:?}")));
        let mut looks = state.queued();
        seen.extend(
            std::iter::from_fn(|| state.least_recently_written(&mut looks)).map(|key| format!("{key:?}")),
        );
        seen
    }

    #[test]
    fn pages_that_were_gathered_stand_in_the_state_as_if_each_change_had_been_made_there() {
        for settles in [u64::MAX, 700, 90] {
            let (mut random, mut gathered) = (SeededRng::new(5), Gathered::default());
            let (mut plain, mut state) = (Pages::default(), Pages::default());
            for number in 1..3000 {
                let (at, group) = (Lsn(number), GroupNo(number / 7));
                let mut again = random.clone();
                let (key, change) = write(&mut again, at, group);
                plain.change(key, change);
                let (key, change) = write(&mut random, at, group);
                match state.get(&key).is_some() {
                    true => state.change(key, change),
                    false => gathered.change(key, at, group, change),
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
