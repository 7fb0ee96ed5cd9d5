//! Trees, walks and repointing on a map that has no medium below it.

use super::node_tree::LeafRef;
use super::scan::MapScan;
use super::*;
use crate::checkpoint_root::NewestLsns;
use crate::format::{DRAFT, LEAF_PAGES};
use crate::log_entry::LogEntry;
use crate::segments::{SegmentEntry, SegmentTable, SegmentUse};
use crate::superblock::StoreGeometry;
use crate::volume::{VolumeId, VolumeMode};
use device::{Block, Lsn, ObjectId, PageNo, PageTransfer, StoreId};
use std::collections::{BTreeMap, BTreeSet};

/// Segments of 16 blocks from block 4 on, all of them data's.
fn map() -> PageMap {
    let id = StoreId([1; 16]);
    let geometry =
        StoreGeometry { id, total_blocks: 4 + 32 * 16, segment_blocks: 16, segments: 32, draft: DRAFT };
    let used = vec![SegmentEntry { usage: SegmentUse::Log, ..SegmentEntry::default() }; 32];
    PageMap::new(
        MapNodes::new(NodeTable::new(), SegmentTable::new(geometry, used)),
        MapVolumes::default(),
        NewestLsns::default(),
    )
}

fn entry(place: u64) -> PageMapEntry {
    PageMapEntry { place: Block(place), page_lsn: Lsn(place * 2), crc: place as u32 * 7, shared: false }
}

/// Leaves that lie in trees of every height.
const INDEXES: [u64; 9] = [0, 1, 255, 256, 65_535, 65_536, 1 << 24, 1 << 40, (1 << 57) - 1];

/// A tree of leaves, each with one page, whose blocks count up from 4.
fn tree_of(map: &mut PageMap, indexes: &[u64]) -> NodeTree {
    let mut tree = NodeTree::default();
    for (&index, place) in indexes.iter().zip(4..) {
        let leaf = tree.leaf_for_change(&mut map.nodes, index, NodeBody::pages);
        let NodeBody::Pages(pages) = &mut map.nodes.node_mut(leaf).body else { panic!("a leaf of pages") };
        pages.set(3, entry(place));
        map.nodes.segments.inc_live(Block(place));
    }
    tree
}

/// Every node below these roots.
fn reachable(map: &PageMap, roots: &[NodeId]) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut next = roots.to_vec();
    while let Some(id) = next.pop().filter(|id| id.is_some()) {
        found.insert(id);
        if let NodeBody::Inner(children) = &map.nodes.node(id).expect("in memory").body {
            next.extend(children.iter().filter(|child| child.is_some()));
        }
    }
    found
}

fn indexes(leaves: Vec<LeafRef>) -> Vec<u64> {
    leaves.into_iter().map(|leaf| leaf.index).collect()
}

#[test]
fn tree_height_fits_its_last_leaf() {
    let mut map = map();
    let mut tree = NodeTree::default();
    let mut leaves = Vec::new();
    for (&index, height) in INDEXES.iter().zip([0, 1, 1, 2, 2, 3, 4, 6, 8]) {
        assert!(tree.leaf(&map.nodes, index).expect("in memory").is_none());
        leaves.push(tree.leaf_for_change(&mut map.nodes, index, NodeBody::pages));
        assert_eq!(tree.height, height, "with leaf {index}");
        let alone = tree_of(&mut map, &[index]);
        assert_eq!(alone.height, height, "leaf {index} alone");
        map.nodes.release(alone.root);
    }
    for (&index, &id) in INDEXES.iter().zip(&leaves) {
        let found = tree.leaf(&map.nodes, index).expect("in memory").expect("it is there");
        assert_eq!((found.index, found.id), (index, id));
        assert!(tree.leaf(&map.nodes, index + 2).expect("in memory").is_none(), "{index}");
    }
    assert_eq!(reachable(&map, &[tree.root]).len() as u64, map.nodes.table.used_count(), "no node is lost");
    assert_eq!(map.nodes.dirty(), map.nodes.table.used_count());
}

#[test]
fn leaves_of_a_range() {
    let mut map = map();
    let tree = tree_of(&mut map, &INDEXES);
    let ends: Vec<u64> = INDEXES.iter().flat_map(|&at| [at, at + 1]).collect();
    for &start in &ends {
        for &end in ends.iter().filter(|&&end| end >= start) {
            let expected: Vec<u64> =
                INDEXES.iter().copied().filter(|index| (start..end).contains(index)).collect();
            assert_eq!(
                indexes(tree.leaves(&map.nodes, start..end).expect("in memory")),
                expected,
                "{start}..{end}"
            );
        }
    }
    assert!(NodeTree::default().leaves(&map.nodes, 0..9).expect("nothing to read").is_empty());
}

#[test]
fn missing_nodes_are_reported_together() {
    let mut map = map();
    let tree = tree_of(&mut map, &INDEXES);
    let NodeBody::Inner(children) = map.nodes.cached(tree.root).clone() else { panic!("a high tree") };
    let below: Vec<NodeId> = children.iter().copied().filter(|child| child.is_some()).collect();
    below.iter().for_each(|&id| map.nodes.drop_cached(id));
    let MissingNodes(missing) = tree.leaves(&map.nodes, 0..u64::MAX).expect_err("they are not in memory");
    assert_eq!(missing, below);
    let MissingNodes(missing) = tree.leaf(&map.nodes, INDEXES[8]).expect_err("it is not in memory");
    assert_eq!(missing, below[1..]);
}

#[test]
fn empty_tree_has_no_nodes() {
    let mut map = map();
    let mut tree = tree_of(&mut map, &INDEXES);
    let mut left = INDEXES.to_vec();
    for at in [4, 0, 5, 1, 4, 0, 2, 0, 0] {
        tree.remove_leaf(&mut map.nodes, left.remove(at));
        assert_eq!(indexes(tree.leaves(&map.nodes, 0..u64::MAX).expect("in memory")), left);
        assert_eq!(reachable(&map, &[tree.root]).len() as u64, map.nodes.table.used_count());
        assert_eq!(map.nodes.segments.get(0).live as usize, left.len(), "its block is dead");
    }
    assert_eq!((tree, map.nodes.dirty(), map.nodes.cached_len()), (NodeTree::default(), 0, 0));
}

#[test]
fn shared_tree_is_copied_on_write() {
    let mut map = map();
    let mut copy = tree_of(&mut map, &INDEXES[..4]);
    let tree = copy;
    assert!(!tree.is_shared(&map.nodes, 255).expect("in memory"));
    map.nodes.add_reference(tree.root);
    for index in [0, 1, 255, 256] {
        assert!(tree.is_shared(&map.nodes, index).expect("in memory"), "by the root's second reference");
    }
    assert!(!tree.is_shared(&map.nodes, 7).expect("in memory"), "there is no such leaf");
    let leaf = copy.leaf_for_change(&mut map.nodes, 255, NodeBody::pages);
    assert!(
        !copy.is_shared(&map.nodes, 255).expect("in memory")
            && !tree.is_shared(&map.nodes, 255).expect("in memory")
    );
    assert!(copy.is_shared(&map.nodes, 0).expect("in memory"), "by the leaf's second reference");
    assert!(
        copy.is_shared(&map.nodes, 256).expect("in memory"),
        "by the second reference of a node above it"
    );
    // Root, node and leaf on the way.
    assert_eq!(map.nodes.table.used_count(), 3 + 7);
    assert_eq!(reachable(&map, &[tree.root, copy.root]).len(), 10);
    let old = tree.leaf(&map.nodes, 255).expect("in memory").expect("it is there").id;
    for id in [old, leaf] {
        let NodeBody::Pages(leaf) = map.nodes.cached(id) else { panic!("a leaf of pages") };
        let entries = leaf.pages();
        assert_eq!(entries[3], PageMapEntry { shared: true, ..entry(6) }, "its block has two entries now");
        assert_eq!(entries[4], PageMapEntry::default(), "a hole is nobody's");
    }
    map.nodes.release(tree.root);
    assert_eq!(reachable(&map, &[copy.root]).len() as u64, map.nodes.table.used_count());
    assert!(
        map.nodes.segments.counts_may_be_high(),
        "a shared block lost an entry, but perhaps not the last"
    );
    assert_eq!(map.nodes.segments.get(0).live, 4);
}

#[test]
fn eviction_keeps_dirty_and_pinned_nodes() {
    let mut map = map();
    map.nodes.set_clean_max_exactly(2);
    let ids: Vec<NodeId> = (0..6).map(|_| map.nodes.table.add()).collect();
    map.nodes.pin_nodes();
    ids[..5].iter().for_each(|&id| map.nodes.add_loaded(id, NodeBody::pages()));
    assert_eq!(map.nodes.cached_len(), 5);
    map.nodes.node_mut(ids[0]);
    map.nodes.node_mut(ids[0]);
    map.nodes.node_mut(ids[1]);
    assert_eq!(map.nodes.dirty(), 2);
    map.nodes.add_loaded(ids[5], NodeBody::pages());
    map.nodes.unpin_nodes();
    assert_eq!(map.nodes.cached_len(), 4);
    assert!(!map.nodes.is_clean(ids[0]) && !map.nodes.is_clean(ids[1]));
    map.nodes.evict();
    assert_eq!(map.nodes.cached_len(), 4, "there are not too many");
}

/// Walks to the end, `max` nodes at a time, with nothing to be read.
fn walk(map: &mut PageMap, purpose: ScanPurpose, max: usize) {
    loop {
        let taken = map.nodes.take_grey(purpose, max);
        assert!(taken.len() <= max);
        if taken.is_empty() {
            return;
        }
        taken.into_iter().for_each(|id| map.nodes.visit(purpose, id, None));
    }
}

fn scan(map: &mut PageMap) -> &mut MapScan {
    map.nodes.scan_mut(ScanPurpose::Clean).as_mut().expect("a walk is under way")
}

fn held(map: &mut PageMap) -> Vec<u64> {
    scan(map).holders.keys().map(|at| at.0).collect()
}

#[test]
fn scan_visits_each_node_once() {
    for max in [1, 2, 100] {
        let mut map = map();
        let tree = tree_of(&mut map, &INDEXES);
        map.nodes.add_reference(tree.root);
        [tree.root, tree.root, NodeId::NONE].into_iter().for_each(|id| map.volumes.push_dying(id));
        map.begin_scan(ScanPurpose::Clean, ScanTarget::All);
        assert!(!scan(&mut map).is_complete());
        walk(&mut map, ScanPurpose::Clean, max);
        let nodes = map.nodes.table.used_count();
        let scan = scan(&mut map);
        assert!(scan.is_complete() && scan.lost.is_empty());
        assert_eq!((scan.visited, scan.holder_count), (nodes, INDEXES.len()));
        for (&index, place) in INDEXES.iter().zip(4..) {
            let node = tree.leaf(&map.nodes, index).expect("in memory").expect("it is there").id;
            let holder = BlockHolder { node, crc: place as u32 * 7, index: 3 };
            let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_mut().expect("a walk");
            assert_eq!(scan.holders[&Block(place)], [holder]);
        }
    }
}

#[test]
fn scan_of_segments_forgets_dropped_blocks() {
    let mut map = map();
    let mut tree = tree_of(&mut map, &INDEXES);
    // Two blocks in segment 2, of which one has two entries.
    for index in [0, 1, 255] {
        let leaf = tree.leaf_for_change(&mut map.nodes, index, NodeBody::pages);
        let NodeBody::Pages(pages) = &mut map.nodes.node_mut(leaf).body else { panic!("a leaf of pages") };
        pages.set(9, entry(4 + 2 * 16 + index % 255));
    }
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(ScanPurpose::Clean, ScanTarget::Segments([2].into()));
    walk(&mut map, ScanPurpose::Clean, 3);
    assert_eq!((held(&mut map), scan(&mut map).holder_count), (vec![36, 37], 3));
    scan(&mut map).drop_block(Block(36));
    scan(&mut map).drop_block(Block(36));
    assert_eq!((held(&mut map), scan(&mut map).holder_count), (vec![37], 1));
    scan(&mut map).drop_segment(2, Block(36)..Block(52));
    assert_eq!((held(&mut map), scan(&mut map).holder_count), (vec![], 0));
    let leaf = tree.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    map.nodes.revisit(leaf);
    walk(&mut map, ScanPurpose::Clean, 3);
    assert_eq!(held(&mut map), [], "nobody wants them any more");
}

#[test]
fn scan_visits_changed_nodes_again() {
    let mut map = map();
    let mut tree = tree_of(&mut map, &[0, 1]);
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(ScanPurpose::Clean, ScanTarget::All);
    map.begin_scan(ScanPurpose::StoreScrub, ScanTarget::All);
    for purpose in [ScanPurpose::Clean, ScanPurpose::StoreScrub] {
        walk(&mut map, purpose, 1);
    }
    map.nodes.add_reference(tree.root);
    assert!(scan(&mut map).is_complete(), "it has been visited");
    map.nodes.table.drop_reference(tree.root);
    let new = tree.leaf_for_change(&mut map.nodes, 2, NodeBody::pages);
    for purpose in [ScanPurpose::Clean, ScanPurpose::StoreScrub] {
        assert!(!map.nodes.scan_mut(purpose).as_ref().expect("a walk").is_complete(), "a node is new");
    }
    assert_eq!(map.nodes.take_grey(ScanPurpose::Clean, 9), [new]);
    tree.remove_leaf(&mut map.nodes, 2);
    map.nodes.visit(ScanPurpose::Clean, new, None);
    walk(&mut map, ScanPurpose::StoreScrub, 9);
    assert_eq!((scan(&mut map).visited, scan(&mut map).lost.len()), (3, 0), "it went before it was visited");
    let again = tree.leaf_for_change(&mut map.nodes, 3, NodeBody::pages);
    assert_eq!(again, new, "its id is used again");
    walk(&mut map, ScanPurpose::Clean, 9);
    assert_eq!(scan(&mut map).visited, 4);
    map.nodes.end_scan(ScanPurpose::Clean);
    assert!(
        map.nodes.scan_mut(ScanPurpose::Clean).is_none()
            && map.nodes.scan_mut(ScanPurpose::StoreScrub).is_some()
    );
}

#[test]
fn scan_ignores_nodes_that_moved_since_the_read() {
    let mut map = map();
    let tree = tree_of(&mut map, &[0, 1]);
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    let leaf = tree.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    map.nodes.table.set_place(leaf, Block(100), 1);
    let body = map.nodes.cached(leaf).clone();
    map.nodes.drop_cached(leaf);
    map.begin_scan(ScanPurpose::Clean, ScanTarget::All);
    map.nodes.take_grey(ScanPurpose::Clean, 1);
    map.nodes.visit(ScanPurpose::Clean, tree.root, None);
    for stale in [None, Some((Block(99), Some(body.clone()))), Some((Block(99), None))] {
        assert!(map.nodes.take_grey(ScanPurpose::Clean, 9).contains(&leaf));
        map.nodes.visit(ScanPurpose::Clean, leaf, stale);
        assert!(!scan(&mut map).holders.contains_key(&Block(5)) && scan(&mut map).lost.is_empty());
    }
    map.nodes.take_grey(ScanPurpose::Clean, 9);
    map.nodes.visit(ScanPurpose::Clean, leaf, Some((Block(100), Some(body))));
    assert!(scan(&mut map).holders.contains_key(&Block(5)) && scan(&mut map).lost.is_empty());
    map.nodes.revisit(leaf);
    map.nodes.take_grey(ScanPurpose::Clean, 9);
    map.nodes.visit(ScanPurpose::Clean, leaf, Some((Block(100), None)));
    assert_eq!(scan(&mut map).lost, [leaf], "it cannot be read");
}

#[test]
fn only_the_cleaner_s_scan_marks_live_blocks() {
    let mut map = map();
    let tree = tree_of(&mut map, &INDEXES);
    // Two more than there are entries for.
    map.nodes.segments.inc_live(Block(14));
    map.nodes.segments.inc_live(Block(15));
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(ScanPurpose::StoreScrub, ScanTarget::All);
    walk(&mut map, ScanPurpose::StoreScrub, 9);
    assert_eq!((map.nodes.segments.apply_recount(), map.nodes.segments.get(0).live), (0, 11));
    map.begin_scan(ScanPurpose::Clean, ScanTarget::Segments(BTreeSet::new()));
    walk(&mut map, ScanPurpose::Clean, 9);
    map.nodes.end_scan(ScanPurpose::StoreScrub);
    map.begin_scan(ScanPurpose::StoreScrub, ScanTarget::All);
    assert_eq!((map.nodes.segments.apply_recount(), map.nodes.segments.get(0).live), (1, 9));
    map.nodes.end_scan(ScanPurpose::Clean);
    assert_eq!(map.nodes.segments.apply_recount(), 0, "the walk has ended");
}

fn moved(from: u64, to: u64, sole: bool) -> MovedBlock {
    MovedBlock { from: Block(from), to: Block(to), crc: entry(from).crc, sole }
}

#[test]
fn repointing_compares_block_and_bytes() {
    let mut map = map();
    let tree = tree_of(&mut map, &[0]);
    let node = tree.root;
    let holder = BlockHolder { node, crc: entry(4).crc, index: 3 };
    let now = |map: &PageMap| map.nodes.entry_of_holder(holder, Block(36));
    assert!(!map.nodes.repoint(&MovedBlock { crc: 1, ..moved(4, 36, true) }, holder), "other bytes");
    assert!(!map.nodes.repoint(&moved(5, 36, true), holder), "another block");
    assert!(!map.nodes.repoint(&moved(4, 36, true), BlockHolder { index: 4, ..holder }), "another entry");
    assert!(!map.nodes.repoint(&moved(4, 36, true), BlockHolder { index: 999, ..holder }), "no entry");
    assert_eq!((now(&map), map.nodes.segments.get(0).live), (None, 1));
    assert!(map.nodes.repoint(&moved(4, 36, false), holder));
    assert_eq!(now(&map), Some(BlockEntry { place: Block(36), crc: entry(4).crc, shared: false }));
    assert_eq!(map.nodes.segments.get(0).live, 0, "the block that it had is dead");
}

#[test]
fn shared_flag_stays_unless_the_holder_is_alone() {
    for sole in [false, true] {
        let mut map = map();
        let tree = tree_of(&mut map, &[0]);
        let NodeBody::Pages(leaf) = &mut map.nodes.node_mut(tree.root).body else {
            panic!("a leaf of pages")
        };
        leaf.share(3);
        let holder = BlockHolder { node: tree.root, crc: entry(4).crc, index: 3 };
        assert!(map.nodes.repoint(&moved(4, 36, sole), holder));
        let found = map.nodes.entry_of_holder(holder, Block(36)).expect("it was repointed");
        assert_eq!((found.shared, map.nodes.segments.get(0).live), (!sole, 1), "a walk counts the old block");
    }
}

#[test]
fn inline_pages_that_moved_apart_become_a_tree() {
    let mut map = map();
    let inline: Vec<(PageNo, PageMapEntry)> = (0..8)
        .map(|at| (PageNo(LEAF_PAGES - 4 + at), PageMapEntry { page_lsn: Lsn(9), ..entry(4 + at) }))
        .collect();
    inline.iter().for_each(|(_, entry)| map.nodes.segments.inc_live(entry.place));
    let mut body = NodeBody::objects();
    let NodeBody::Objects(objects) = &mut body else { panic!("a leaf of objects") };
    objects[5] = Some(ObjectEntry {
        generation: 2,
        transfer_lsn: Lsn(0),
        pages: ObjectPageEntries::Inline(inline.clone()),
    });
    let node = map.nodes.add_node(body);
    let repoint = |map: &mut PageMap, at: u64, to: u64| {
        let holder = BlockHolder { node, crc: entry(4 + at).crc, index: 5 };
        assert!(
            !map.nodes.repoint(&moved(4 + at, to, true), BlockHolder { index: 6, ..holder }),
            "no object's"
        );
        assert!(map.nodes.repoint(&moved(4 + at, to, true), holder));
    };
    let pages = |map: &PageMap| {
        let NodeBody::Objects(objects) = map.nodes.cached(node) else { panic!("a leaf of objects") };
        objects[5].clone().expect("the object").pages
    };
    let mut expected = inline;
    repoint(&mut map, 1, 100);
    expected[1].1.place = Block(100);
    assert_eq!(pages(&map), ObjectPageEntries::Inline(expected.clone()), "three runs fit");
    repoint(&mut map, 3, 200);
    expected[3].1.place = Block(200);
    let ObjectPageEntries::Tree(tree) = pages(&map) else { panic!("five runs do not fit") };
    let leaves = tree.leaves(&map.nodes, 0..9).expect("in memory");
    let found: Vec<(PageNo, PageMapEntry)> =
        leaves.iter().flat_map(|&leaf| map.pages_in(leaf)).map(|(page, entry)| (page, *entry)).collect();
    assert_eq!(found, expected);
    assert_eq!(map.nodes.segments.get(0).live, 6);
}

/// A map with volume 0, empty.
fn with_volume() -> PageMap {
    let mut map = map();
    let (volume, mode) = (VolumeId::MAIN, VolumeMode::Writable);
    map.apply_entry(&LogEntry::CreateVolume { volume, mode, lsn: Lsn(0), created: 0, size: 0 });
    map
}

fn object(slot: u64) -> ObjectId {
    VolumeId::MAIN.object(slot, 1)
}

fn write(map: &mut PageMap, slot: u64, page: u64, place: u64) {
    let PageMapEntry { place, page_lsn, crc, .. } = entry(place);
    let entry =
        LogEntry::Write { object: object(slot), page: PageNo(page), page_lsn, place, copy: None, crc };
    map.prepare(&entry).expect("in memory");
    map.apply_entry(&entry);
}

#[test]
fn clone_target_is_visited_again() {
    let mut map = with_volume();
    write(&mut map, 0, 5, 40);
    write(&mut map, 21, 5, 41);
    map.begin_scan(ScanPurpose::Clean, ScanTarget::All);
    walk(&mut map, ScanPurpose::Clean, 9);
    let clone = LogEntry::Transfer { transfer: PageTransfer::clone_of(object(0), object(20)), lsn: Lsn(100) };
    map.apply_entry(&clone);
    let objects = map.volumes.get(VolumeId::MAIN).expect("it is there").objects;
    let leaf = objects.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    assert_eq!(map.nodes.take_grey(ScanPurpose::Clean, 9), [leaf]);
    map.nodes.visit(ScanPurpose::Clean, leaf, None);
    let holders: Vec<NodeId> = scan(&mut map).holders[&Block(40)].iter().map(|holder| holder.node).collect();
    assert!(holders.contains(&leaf), "{holders:?}");
}

#[test]
fn scan_finds_a_tree_cloned_behind_it() {
    let mut map = with_volume();
    (0..20).for_each(|page| write(&mut map, 0, page, 40 + page));
    write(&mut map, 21, 5, 61);
    let objects = map.volumes.get(VolumeId::MAIN).expect("it is there").objects;
    map.begin_scan(ScanPurpose::Clean, ScanTarget::All);
    assert_eq!(map.nodes.take_grey(ScanPurpose::Clean, 9), [objects.root]);
    map.nodes.visit(ScanPurpose::Clean, objects.root, None);
    // The leaf of slot 21, but not yet that of slot 0.
    let leaf = objects.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    assert!(map.nodes.take_grey(ScanPurpose::Clean, 9).contains(&leaf));
    map.nodes.visit(ScanPurpose::Clean, leaf, None);
    map.apply_entry(&LogEntry::Transfer {
        transfer: PageTransfer::clone_of(object(0), object(20)),
        lsn: Lsn(100),
    });
    map.apply_entry(&LogEntry::Delete { object: object(0), lsn: Lsn(101) });
    let first = objects.leaf(&map.nodes, 0).expect("in memory").map(|leaf| leaf.id);
    first.into_iter().for_each(|id| map.nodes.visit(ScanPurpose::Clean, id, None));
    walk(&mut map, ScanPurpose::Clean, 9);
    assert_eq!(held(&mut map), (40..60).chain([61]).collect::<Vec<u64>>());
}

#[test]
fn scan_finds_children_on_the_dying_list() {
    let mut map = map();
    let tree = tree_of(&mut map, &[0, 1]);
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(ScanPurpose::Clean, ScanTarget::All);
    let root = map.volumes.take_dying(1)[0];
    map.free_dying_node(root);
    assert_eq!(map.volumes.dying().len(), 2);
    walk(&mut map, ScanPurpose::Clean, 9);
    assert_eq!(held(&mut map), [4, 5]);
}

#[test]
fn recount_removes_unreferenced_nodes() {
    let mut map = map();
    let (kept, lost, clean) =
        (map.nodes.add_node(NodeBody::pages()), map.nodes.add_node(NodeBody::pages()), map.nodes.table.add());
    map.nodes.add_loaded(clean, NodeBody::pages());
    assert_eq!(map.nodes.dirty(), 2);
    assert_eq!(map.nodes.set_references(&BTreeMap::from([(kept, 2)])), 3);
    assert_eq!((map.nodes.dirty(), map.nodes.table.references(kept)), (1, 2));
    assert!(map.nodes.is_cached(kept) && !map.nodes.is_cached(lost) && !map.nodes.is_cached(clean));
}
