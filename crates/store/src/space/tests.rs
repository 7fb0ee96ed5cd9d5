//! What is counted before a vector is let in, beside what the vector does.

use crate::entry::LogEntry;
use crate::map::{Map, NodeTable};
use crate::policy::{Class, low_mark};
use crate::segments::{SegmentEntry, Segments, Use};
use crate::superblock::Geometry;
use crate::volume::{Volume, VolumeId, VolumeMode};
use device::{Block, Lsn, ObjectId, PageNo, Random, StoreId};
use std::collections::BTreeMap;

/// Two pages in each of some leaves, of which the second stays: trees keep their height, with one node above the leaves. Those
/// further up, and what a tree grows by, are counted in the margin of reservations only.
const PAGES: [u64; 8] = [0, 1, 256, 257, 9984, 9985, 32_640, 32_641];
const SLOTS: [u64; 6] = [0, 1, 2, 130, 260, 399];

/// A life of some volumes on a map without a medium.
struct Life {
    map: Map,
    random: Random,
    lsn: u64,
}

impl Life {
    fn new(seed: u64) -> Life {
        let segments = 4096;
        let total_blocks = 4 + u64::from(segments) * 16;
        let geometry =
            Geometry { id: StoreId([1; 16]), total_blocks, segment_blocks: 16, segments, has_names: true };
        let used = vec![SegmentEntry { usage: Use::Log, live: 0, age: 0 }; segments as usize];
        let volumes = BTreeMap::from([(VolumeId::MAIN, Volume::default())]);
        let map = Map::new(NodeTable::new(), volumes, Segments::new(geometry, used));
        let mut life = Life { map, random: Random::new(seed), lsn: 3 };
        for (slot, page) in SLOTS.into_iter().flat_map(|slot| PAGES.map(|page| (slot, page))) {
            let entry = life.write(slot, page);
            life.map.change(VolumeId::MAIN, &entry);
        }
        life
    }

    fn write(&mut self, slot: u64, page: u64) -> LogEntry {
        self.lsn += 1;
        let (object, place) = (ObjectId { slot, generation: 1 }, Block(4 + self.lsn));
        self.map.segments.inc_live(place);
        LogEntry::Write { object, page: PageNo(page), page_lsn: Lsn(self.lsn), place, crc: 7 }
    }

    fn volume(&mut self) -> VolumeId {
        let all: Vec<VolumeId> = self.map.volumes.keys().copied().collect();
        all[self.random.below(all.len() as u64) as usize]
    }

    fn log_entry(&mut self) -> LogEntry {
        let slot = SLOTS[self.random.below(6) as usize];
        let page = PAGES[self.random.below(8) as usize];
        if !self.random.once_in(4) {
            return self.write(slot, page);
        }
        self.lsn += 1;
        // To the first page of a leaf, from that page or from some leaves before it.
        let (first, object) = (page & !1, ObjectId { slot, generation: 1 });
        let from = if first == 256 && self.random.once_in(2) { 100 } else { first };
        LogEntry::Cut { object, pages: PageNo(from)..PageNo(first + 1), lsn: Lsn(self.lsn) }
    }

    /// What a checkpoint does to nodes.
    fn clean(&mut self) {
        self.map.nodes.values_mut().for_each(|node| node.dirty = false);
        self.map.dirty = 0;
    }
}

#[test]
fn a_vector_makes_no_more_nodes_dirty_than_were_counted_for_it_also_in_volumes_that_share() {
    let (mut most, mut shared) = (0, 0);
    for seed in 0..60 {
        let mut life = Life::new(seed);
        for step in 0..300 {
            let volume = life.volume();
            if life.random.once_in(15) && life.map.volumes.len() < 6 {
                let (to, mode, lsn) = (VolumeId(100 + step), VolumeMode::Writable, Lsn(life.lsn));
                life.map.change(volume, &LogEntry::CloneVolume { to, mode, lsn, created: 0 });
            } else if life.random.once_in(40) && volume != VolumeId::MAIN {
                life.map.change(volume, &LogEntry::DeleteVolume { lsn: Lsn(life.lsn) });
            }
            if life.random.once_in(3) {
                life.clean();
            }
            let volume = life.volume();
            let entries: Vec<LogEntry> = (0..1 + life.random.below(6)).map(|_| life.log_entry()).collect();
            let (before, counted) = (life.map.dirty, life.map.nodes_for(volume, &entries));
            entries.iter().for_each(|entry| life.map.change(volume, entry));
            let made = life.map.dirty.saturating_sub(before);
            assert!(
                made <= counted,
                "seed {seed}, step {step}: {made} nodes, {counted} counted: {entries:?}"
            );
            most = most.max(made);
            shared += u64::from(life.map.table.has_shared());
        }
    }
    assert!(most > 10 && shared > 1000, "{most}, {shared}: the test tests little");
}

#[test]
fn cleaning_starts_where_the_reserve_begins_at_the_latest_however_many_segments_wait_for_checkpoints() {
    let mut map = Life::new(1).map;
    let (missing, low) = (map.missing(), low_mark(4096));
    assert_eq!(missing, map.floor(Class::Reservation) + low, "none is free");
    (0..10).for_each(|number| map.segments.emptied(number));
    assert_eq!(map.missing(), missing - 10);
    (10..1000).for_each(|number| map.segments.emptied(number));
    assert_eq!(map.missing(), missing - low);
}
