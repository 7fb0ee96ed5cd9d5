//! Compares the estimates before a vector is admitted with the vector's effects.

use crate::cleaner::tests::{half_dead, walked};
use crate::format::DRAFT;
use crate::log_entry::LogEntry;
use crate::map::{MapNodes, MapVolumes, NodeTable, PageMap};
use crate::policy::{SpaceClass, low_mark};
use crate::segments::{SegmentEntry, SegmentTable, SegmentUse};
use crate::store::Store;
use crate::superblock::StoreGeometry;
use crate::volume::{VolumeId, VolumeMode};
use device::{Block, Lsn, PageNo, SeededRng, StoreId};

/// Two pages in each of some leaves. The second page stays, so trees keep their height, with one node above
/// the leaves. Nodes further up, and the growth of a tree, are counted in the margin of reservations only.
const PAGES: [u64; 8] = [0, 1, 256, 257, 9984, 9985, 32_640, 32_641];
const SLOTS: [u64; 6] = [0, 1, 2, 130, 260, 399];

/// A life of some volumes on a map without a medium.
struct Life {
    map: PageMap,
    random: SeededRng,
    lsn: u64,
}

impl Life {
    fn new(seed: u64) -> Life {
        let segments = 4096;
        let total_blocks = 4 + u64::from(segments) * 16;
        let geometry =
            StoreGeometry { id: StoreId([1; 16]), total_blocks, segment_blocks: 16, segments, draft: DRAFT };
        let used =
            vec![SegmentEntry { usage: SegmentUse::Log, ..SegmentEntry::default() }; segments as usize];
        let map = PageMap::new(
            MapNodes::new(NodeTable::new(), SegmentTable::new(geometry, used)),
            MapVolumes::default(),
            crate::checkpoint_root::NewestLsns::default(),
        );
        let mut life = Life { map, random: SeededRng::new(seed), lsn: 3 };
        let (volume, mode) = (VolumeId::MAIN, VolumeMode::Writable);
        life.map.apply_entry(&LogEntry::CreateVolume { volume, mode, lsn: Lsn(0), created: 0, size: 0 });
        for (slot, page) in SLOTS.into_iter().flat_map(|slot| PAGES.map(|page| (slot, page))) {
            let entry = life.write(VolumeId::MAIN, slot, page);
            life.map.apply_entry(&entry);
        }
        life
    }

    fn write(&mut self, volume: VolumeId, slot: u64, page: u64) -> LogEntry {
        self.lsn += 1;
        let (object, place) = (volume.object(slot, 1), Block(4 + self.lsn));
        self.map.nodes.segments.inc_live(place);
        LogEntry::Write { object, page: PageNo(page), page_lsn: Lsn(self.lsn), place, copy: None, crc: 7 }
    }

    fn volume(&mut self) -> VolumeId {
        let all: Vec<VolumeId> = self.map.volumes.iter().map(|(id, _)| id).collect();
        all[self.random.below(all.len() as u64) as usize]
    }

    fn log_entry(&mut self, volume: VolumeId) -> LogEntry {
        let slot = SLOTS[self.random.below(6) as usize];
        let page = PAGES[self.random.below(8) as usize];
        if !self.random.once_in(4) {
            return self.write(volume, slot, page);
        }
        self.lsn += 1;
        // To the first page of a leaf, from that page or from some leaves before it.
        let (first, object) = (page & !1, volume.object(slot, 1));
        let from = if first == 256 && self.random.once_in(2) { 100 } else { first };
        LogEntry::Punch { object, pages: PageNo(from)..PageNo(first + 1), lsn: Lsn(self.lsn) }
    }

    /// Marks all nodes as written, as a checkpoint does.
    fn clean(&mut self) {
        self.map.nodes.mark_all_written();
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
                life.map.apply_entry(&LogEntry::CloneVolume { from: volume, to, mode, lsn, created: 0 });
            } else if life.random.once_in(40) && volume != VolumeId::MAIN {
                life.map.apply_entry(&LogEntry::DeleteVolume { volume, lsn: Lsn(life.lsn) });
            }
            if life.random.once_in(3) {
                life.clean();
            }
            let entries: Vec<LogEntry> = (0..1 + life.random.below(6))
                .map(|_| {
                    let volume = life.volume();
                    life.log_entry(volume)
                })
                .collect();
            let (before, counted) = (life.map.nodes.dirty(), life.map.nodes_dirtied_by(&entries));
            entries.iter().for_each(|entry| life.map.apply_entry(entry));
            let made = life.map.nodes.dirty().saturating_sub(before);
            assert!(
                made <= counted,
                "seed {seed}, step {step}: {made} nodes, {counted} counted: {entries:?}"
            );
            most = most.max(made);
            shared += u64::from(life.map.nodes.table.has_shared());
        }
    }
    assert!(most > 10 && shared > 1000, "{most}, {shared}: the test tests little");
}

#[test]
fn cleaning_starts_before_writers_find_no_segment_however_many_wait_for_checkpoints() {
    let mut map = Life::new(1).map;
    let (missing, low) = (map.cleaning_shortfall(), low_mark(4096));
    assert_eq!(missing, map.floor(SpaceClass::Writer) + low, "none is free");
    assert_eq!((0..10).map(|number| map.nodes.segments.mark_emptied(number)).sum::<u64>(), 10);
    assert_eq!(map.cleaning_shortfall(), missing - 10);
    assert_eq!((10..1000).map(|number| map.nodes.segments.mark_emptied(number)).sum::<u64>(), 990);
    assert_eq!(map.cleaning_shortfall(), missing - low);
}

#[test]
fn what_is_left_of_a_round_are_nodes_to_visit_and_live_blocks_of_its_victims() {
    let left = |store: &Store| {
        let map = store.shared.map();
        let victims: Vec<u32> = map.nodes.cleaning_scan().expect("a round").victims().collect();
        assert_eq!(victims.len(), 4);
        let live: u64 = victims.iter().map(|&victim| u64::from(map.nodes.segments.get(victim).live)).sum();
        (map.cleaning_left().expect("a round"), map.nodes.table.used_count(), live)
    };
    let store = half_dead();
    assert_eq!(store.shared.map().cleaning_left(), None);
    store.maintenance().clean_step().expect("it begins");
    let (all, nodes, live) = left(&store);
    assert!(nodes > 1 && live > 1 && all == nodes + live, "{all} of {nodes} nodes, {live} blocks");
    let (all, _, live) = left(&walked());
    assert_eq!(all, live);
}
