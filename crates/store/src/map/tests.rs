//! Trees, walks and repointing on a map that has no medium below it.

use super::scan::Scan;
use super::tree::Leaf;
use super::*;
use crate::entry::LogEntry;
use crate::format::LEAF_PAGES;
use crate::root::Newest;
use crate::segments::{SegmentEntry, SegmentTable, SegmentUse};
use crate::superblock::Geometry;
use crate::volume::VolumeId;
use device::{Block, Lsn, ObjectId, PageNo, StoreId, Transfer};
use std::collections::{BTreeMap, BTreeSet};

/// Segments of 16 blocks from block 4 on, all of them data's.
fn map() -> Map {
    let id = StoreId([1; 16]);
    let geometry = Geometry { id, total_blocks: 4 + 32 * 16, segment_blocks: 16, segments: 32 };
    let used = vec![SegmentEntry { usage: SegmentUse::Log, ..SegmentEntry::default() }; 32];
    Map::new(
        Nodes::new(NodeTable::new(), SegmentTable::new(geometry, used)),
        Volumes::default(),
        Newest::default(),
    )
}

fn entry(place: u64) -> PageEntry {
    PageEntry { place: Block(place), page_lsn: Lsn(place * 2), crc: place as u32 * 7, shared: false }
}

/// Leaves that lie in trees of every height.
const INDEXES: [u64; 9] = [0, 1, 255, 256, 65_535, 65_536, 1 << 24, 1 << 40, (1 << 57) - 1];

/// A tree of leaves, each with one page, whose blocks count up from 4.
fn tree_of(map: &mut Map, indexes: &[u64]) -> Tree {
    let mut tree = Tree::default();
    for (&index, place) in indexes.iter().zip(4..) {
        let leaf = tree.leaf_for_change(&mut map.nodes, index, Body::pages);
        let Body::Pages(pages) = &mut map.nodes.node_mut(leaf).body else { panic!("a leaf of pages") };
        pages.set(3, entry(place));
        map.nodes.segments.inc_live(Block(place));
    }
    tree
}

/// Every node below these roots.
fn reachable(map: &Map, roots: &[NodeId]) -> BTreeSet<NodeId> {
    let (mut found, mut next) = (BTreeSet::new(), roots.to_vec());
    while let Some(id) = next.pop().filter(|id| id.is_some()) {
        found.insert(id);
        if let Body::Inner(children) = &map.nodes.node(id).expect("in memory").body {
            next.extend(children.iter().filter(|child| child.is_some()));
        }
    }
    found
}

fn indexes(leaves: Vec<Leaf>) -> Vec<u64> {
    leaves.into_iter().map(|leaf| leaf.index).collect()
}

#[test]
fn a_tree_is_as_high_as_its_last_leaf_needs_and_finds_each() {
    let mut map = map();
    let mut tree = Tree::default();
    let mut leaves = Vec::new();
    for (&index, height) in INDEXES.iter().zip([0, 1, 1, 2, 2, 3, 4, 6, 8]) {
        assert!(tree.leaf(&map.nodes, index).expect("in memory").is_none());
        leaves.push(tree.leaf_for_change(&mut map.nodes, index, Body::pages));
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
    assert_eq!(reachable(&map, &[tree.root]).len() as u64, map.nodes.table.used(), "no node is lost");
    assert_eq!(map.nodes.dirty(), map.nodes.table.used());
}

#[test]
fn leaves_in_a_range_are_those_and_no_others() {
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
    assert!(Tree::default().leaves(&map.nodes, 0..9).expect("nothing to read").is_empty());
}

#[test]
fn all_nodes_that_can_be_read_at_once_are_asked_for_together() {
    let mut map = map();
    let tree = tree_of(&mut map, &INDEXES);
    let Body::Inner(children) = map.nodes.cached(tree.root).clone() else { panic!("a high tree") };
    let below: Vec<NodeId> = children.iter().copied().filter(|child| child.is_some()).collect();
    below.iter().for_each(|&id| map.nodes.drop_cached(id));
    let Missing(missing) = tree.leaves(&map.nodes, 0..u64::MAX).expect_err("they are not in memory");
    assert_eq!(missing, below);
    let Missing(missing) = tree.leaf(&map.nodes, INDEXES[8]).expect_err("it is not in memory");
    assert_eq!(missing, below[1..]);
}

#[test]
fn a_tree_from_which_every_leaf_was_taken_has_no_node_left() {
    let mut map = map();
    let mut tree = tree_of(&mut map, &INDEXES);
    let mut left = INDEXES.to_vec();
    for at in [4, 0, 5, 1, 4, 0, 2, 0, 0] {
        tree.remove_leaf(&mut map.nodes, left.remove(at));
        assert_eq!(indexes(tree.leaves(&map.nodes, 0..u64::MAX).expect("in memory")), left);
        assert_eq!(reachable(&map, &[tree.root]).len() as u64, map.nodes.table.used());
        assert_eq!(map.nodes.segments.get(0).live as usize, left.len(), "its block is dead");
    }
    assert_eq!((tree, map.nodes.dirty(), map.nodes.cached_len()), (Tree::default(), 0, 0));
}

#[test]
fn whoever_changes_a_shared_tree_copies_the_way_and_shares_the_rest() {
    let mut map = map();
    let mut copy = tree_of(&mut map, &INDEXES[..4]);
    let tree = copy;
    assert!(!tree.is_shared(&map.nodes, 255).expect("in memory"));
    map.nodes.refer(tree.root);
    for index in [0, 1, 255, 256] {
        assert!(tree.is_shared(&map.nodes, index).expect("in memory"), "by the root's second reference");
    }
    assert!(!tree.is_shared(&map.nodes, 7).expect("in memory"), "there is no such leaf");
    let leaf = copy.leaf_for_change(&mut map.nodes, 255, Body::pages);
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
    assert_eq!(map.nodes.table.used(), 3 + 7);
    assert_eq!(reachable(&map, &[tree.root, copy.root]).len(), 10);
    let old = tree.leaf(&map.nodes, 255).expect("in memory").expect("it is there").id;
    for id in [old, leaf] {
        let Body::Pages(leaf) = map.nodes.cached(id) else { panic!("a leaf of pages") };
        let entries = leaf.pages();
        assert_eq!(entries[3], PageEntry { shared: true, ..entry(6) }, "its block has two entries now");
        assert_eq!(entries[4], PageEntry::default(), "a hole is nobody's");
    }
    map.nodes.release(tree.root);
    assert_eq!(reachable(&map, &[copy.root]).len() as u64, map.nodes.table.used());
    assert!(
        map.nodes.segments.counts_may_be_high(),
        "a shared block lost an entry, but perhaps not the last"
    );
    assert_eq!(map.nodes.segments.get(0).live, 4);
}

#[test]
fn clean_nodes_make_way_unless_somebody_relies_on_them_and_dirty_ones_stay() {
    let mut map = map();
    map.nodes.keep_exactly(2);
    let ids: Vec<NodeId> = (0..6).map(|_| map.nodes.table.add()).collect();
    map.nodes.hold();
    ids[..5].iter().for_each(|&id| map.nodes.loaded(id, Body::pages()));
    assert_eq!(map.nodes.cached_len(), 5);
    map.nodes.node_mut(ids[0]);
    map.nodes.node_mut(ids[0]);
    map.nodes.node_mut(ids[1]);
    assert_eq!(map.nodes.dirty(), 2);
    map.nodes.loaded(ids[5], Body::pages());
    map.nodes.let_go();
    assert_eq!(map.nodes.cached_len(), 4);
    assert!(!map.nodes.is_clean(ids[0]) && !map.nodes.is_clean(ids[1]));
    map.nodes.evict();
    assert_eq!(map.nodes.cached_len(), 4, "there are not too many");
}

/// Walks to the end, `max` nodes at a time, with nothing to be read.
fn walk(map: &mut Map, purpose: Purpose, max: usize) {
    loop {
        let taken = map.nodes.take_grey(purpose, max);
        assert!(taken.len() <= max);
        if taken.is_empty() {
            return;
        }
        taken.into_iter().for_each(|id| map.nodes.visit(purpose, id, None));
    }
}

fn scan(map: &mut Map) -> &mut Scan {
    map.nodes.scan(Purpose::Clean).as_mut().expect("a walk is under way")
}

fn held(map: &mut Map) -> Vec<u64> {
    scan(map).held.keys().map(|at| at.0).collect()
}

#[test]
fn a_walk_visits_each_node_once_however_many_refer_to_it_and_finds_every_block() {
    for max in [1, 2, 100] {
        let mut map = map();
        let tree = tree_of(&mut map, &INDEXES);
        map.nodes.refer(tree.root);
        [tree.root, tree.root, NodeId::NONE].into_iter().for_each(|id| map.volumes.push_dying(id));
        map.begin_scan(Purpose::Clean, Wanted::Every);
        assert!(!scan(&mut map).is_complete());
        walk(&mut map, Purpose::Clean, max);
        let nodes = map.nodes.table.used();
        let scan = scan(&mut map);
        assert!(scan.is_complete() && scan.lost.is_empty());
        assert_eq!((scan.visited, scan.holders), (nodes, INDEXES.len()));
        for (&index, place) in INDEXES.iter().zip(4..) {
            let node = tree.leaf(&map.nodes, index).expect("in memory").expect("it is there").id;
            let holder = Holder { node, crc: place as u32 * 7, index: 3 };
            let scan = map.nodes.scan(Purpose::Clean).as_mut().expect("a walk");
            assert_eq!(scan.held[&Block(place)], [holder]);
        }
    }
}

#[test]
fn a_walk_for_some_segments_holds_their_blocks_only_until_they_are_resolved_or_unwanted() {
    let mut map = map();
    let mut tree = tree_of(&mut map, &INDEXES);
    // Two blocks in segment 2, of which one has two entries.
    for index in [0, 1, 255] {
        let leaf = tree.leaf_for_change(&mut map.nodes, index, Body::pages);
        let Body::Pages(pages) = &mut map.nodes.node_mut(leaf).body else { panic!("a leaf of pages") };
        pages.set(9, entry(4 + 2 * 16 + index % 255));
    }
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(Purpose::Clean, Wanted::In([2].into()));
    walk(&mut map, Purpose::Clean, 3);
    assert_eq!((held(&mut map), scan(&mut map).holders), (vec![36, 37], 3));
    scan(&mut map).resolved(Block(36));
    scan(&mut map).resolved(Block(36));
    assert_eq!((held(&mut map), scan(&mut map).holders), (vec![37], 1));
    scan(&mut map).unwant(2, Block(36)..Block(52));
    assert_eq!((held(&mut map), scan(&mut map).holders), (vec![], 0));
    let leaf = tree.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    map.nodes.revisit(leaf);
    walk(&mut map, Purpose::Clean, 3);
    assert_eq!(held(&mut map), [], "nobody wants them any more");
}

#[test]
fn what_changes_behind_a_walk_is_visited_again_and_what_goes_is_not() {
    let mut map = map();
    let mut tree = tree_of(&mut map, &[0, 1]);
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(Purpose::Clean, Wanted::Every);
    map.begin_scan(Purpose::StoreScrub, Wanted::Every);
    for purpose in [Purpose::Clean, Purpose::StoreScrub] {
        walk(&mut map, purpose, 1);
    }
    map.nodes.refer(tree.root);
    assert!(scan(&mut map).is_complete(), "it has been visited");
    map.nodes.table.drop_reference(tree.root);
    let new = tree.leaf_for_change(&mut map.nodes, 2, Body::pages);
    for purpose in [Purpose::Clean, Purpose::StoreScrub] {
        assert!(!map.nodes.scan(purpose).as_ref().expect("a walk").is_complete(), "a node is new");
    }
    assert_eq!(map.nodes.take_grey(Purpose::Clean, 9), [new]);
    tree.remove_leaf(&mut map.nodes, 2);
    map.nodes.visit(Purpose::Clean, new, None);
    walk(&mut map, Purpose::StoreScrub, 9);
    assert_eq!((scan(&mut map).visited, scan(&mut map).lost.len()), (3, 0), "it went before it was visited");
    let again = tree.leaf_for_change(&mut map.nodes, 3, Body::pages);
    assert_eq!(again, new, "its id is used again");
    walk(&mut map, Purpose::Clean, 9);
    assert_eq!(scan(&mut map).visited, 4);
    map.nodes.end_scan(Purpose::Clean);
    assert!(map.nodes.scan(Purpose::Clean).is_none() && map.nodes.scan(Purpose::StoreScrub).is_some());
}

#[test]
fn what_was_read_for_a_walk_counts_only_where_the_node_lies_there_still() {
    let mut map = map();
    let tree = tree_of(&mut map, &[0, 1]);
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    let leaf = tree.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    map.nodes.table.moved(leaf, Block(100), 1);
    let body = map.nodes.cached(leaf).clone();
    map.nodes.drop_cached(leaf);
    map.begin_scan(Purpose::Clean, Wanted::Every);
    map.nodes.take_grey(Purpose::Clean, 1);
    map.nodes.visit(Purpose::Clean, tree.root, None);
    for stale in [None, Some((Block(99), Some(body.clone()))), Some((Block(99), None))] {
        assert!(map.nodes.take_grey(Purpose::Clean, 9).contains(&leaf));
        map.nodes.visit(Purpose::Clean, leaf, stale);
        assert!(!scan(&mut map).held.contains_key(&Block(5)) && scan(&mut map).lost.is_empty());
    }
    map.nodes.take_grey(Purpose::Clean, 9);
    map.nodes.visit(Purpose::Clean, leaf, Some((Block(100), Some(body))));
    assert!(scan(&mut map).held.contains_key(&Block(5)) && scan(&mut map).lost.is_empty());
    map.nodes.revisit(leaf);
    map.nodes.take_grey(Purpose::Clean, 9);
    map.nodes.visit(Purpose::Clean, leaf, Some((Block(100), None)));
    assert_eq!(scan(&mut map).lost, [leaf], "it cannot be read");
}

#[test]
fn only_a_cleaner_s_walk_says_what_is_live() {
    let mut map = map();
    let tree = tree_of(&mut map, &INDEXES);
    // Two more than there are entries for.
    map.nodes.segments.inc_live(Block(14));
    map.nodes.segments.inc_live(Block(15));
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(Purpose::StoreScrub, Wanted::Every);
    walk(&mut map, Purpose::StoreScrub, 9);
    assert_eq!((map.nodes.segments.apply_recount(), map.nodes.segments.get(0).live), (0, 11));
    map.begin_scan(Purpose::Clean, Wanted::In(BTreeSet::new()));
    walk(&mut map, Purpose::Clean, 9);
    map.nodes.end_scan(Purpose::StoreScrub);
    map.begin_scan(Purpose::StoreScrub, Wanted::Every);
    assert_eq!((map.nodes.segments.apply_recount(), map.nodes.segments.get(0).live), (1, 9));
    map.nodes.end_scan(Purpose::Clean);
    assert_eq!(map.nodes.segments.apply_recount(), 0, "the walk has ended");
}

fn moved(from: u64, to: u64, sole: bool) -> Move {
    Move { from: Block(from), to: Block(to), crc: entry(from).crc, sole }
}

#[test]
fn an_entry_is_repointed_if_it_refers_to_these_very_bytes_still() {
    let mut map = map();
    let tree = tree_of(&mut map, &[0]);
    let node = tree.root;
    let holder = Holder { node, crc: entry(4).crc, index: 3 };
    let now = |map: &Map| map.nodes.held_entry(holder, Block(36));
    assert!(!map.nodes.repoint(&Move { crc: 1, ..moved(4, 36, true) }, holder), "other bytes");
    assert!(!map.nodes.repoint(&moved(5, 36, true), holder), "another block");
    assert!(!map.nodes.repoint(&moved(4, 36, true), Holder { index: 4, ..holder }), "another entry");
    assert!(!map.nodes.repoint(&moved(4, 36, true), Holder { index: 999, ..holder }), "no entry");
    assert_eq!((now(&map), map.nodes.segments.get(0).live), (None, 1));
    assert!(map.nodes.repoint(&moved(4, 36, false), holder));
    assert_eq!(now(&map), Some(BlockEntry { place: Block(36), crc: entry(4).crc, shared: false }));
    assert_eq!(map.nodes.segments.get(0).live, 0, "the block that it had is dead");
}

#[test]
fn a_shared_entry_stays_so_unless_it_is_known_to_be_the_only_one() {
    for sole in [false, true] {
        let mut map = map();
        let tree = tree_of(&mut map, &[0]);
        let Body::Pages(leaf) = &mut map.nodes.node_mut(tree.root).body else { panic!("a leaf of pages") };
        leaf.share(3);
        let holder = Holder { node: tree.root, crc: entry(4).crc, index: 3 };
        assert!(map.nodes.repoint(&moved(4, 36, sole), holder));
        let found = map.nodes.held_entry(holder, Block(36)).expect("it was repointed");
        assert_eq!((found.shared, map.nodes.segments.get(0).live), (!sole, 1), "a walk counts the old block");
    }
}

#[test]
fn pages_that_moved_apart_leave_their_object_s_entry_for_a_tree() {
    let mut map = map();
    let inline: Vec<(PageNo, PageEntry)> = (0..8)
        .map(|at| (PageNo(LEAF_PAGES - 4 + at), PageEntry { page_lsn: Lsn(9), ..entry(4 + at) }))
        .collect();
    inline.iter().for_each(|(_, entry)| map.nodes.segments.inc_live(entry.place));
    let mut body = Body::objects();
    let Body::Objects(objects) = &mut body else { panic!("a leaf of objects") };
    objects[5] =
        Some(ObjectEntry { generation: 2, transfer_lsn: Lsn(0), pages: Pages::Inline(inline.clone()) });
    let node = map.nodes.add(body);
    let repoint = |map: &mut Map, at: u64, to: u64| {
        let holder = Holder { node, crc: entry(4 + at).crc, index: 5 };
        assert!(!map.nodes.repoint(&moved(4 + at, to, true), Holder { index: 6, ..holder }), "no object's");
        assert!(map.nodes.repoint(&moved(4 + at, to, true), holder));
    };
    let pages = |map: &Map| {
        let Body::Objects(objects) = map.nodes.cached(node) else { panic!("a leaf of objects") };
        objects[5].clone().expect("the object").pages
    };
    let mut expected = inline;
    repoint(&mut map, 1, 100);
    expected[1].1.place = Block(100);
    assert_eq!(pages(&map), Pages::Inline(expected.clone()), "three runs fit");
    repoint(&mut map, 3, 200);
    expected[3].1.place = Block(200);
    let Pages::Tree(tree) = pages(&map) else { panic!("five runs do not fit") };
    let leaves = tree.leaves(&map.nodes, 0..9).expect("in memory");
    let found: Vec<(PageNo, PageEntry)> =
        leaves.iter().flat_map(|&leaf| map.pages_in(leaf)).map(|(page, entry)| (page, *entry)).collect();
    assert_eq!(found, expected);
    assert_eq!(map.nodes.segments.get(0).live, 6);
}

/// The main volume, empty.
fn with_volume() -> Map {
    let mut map = map();
    map.volumes = Volumes::main_only();
    map
}

fn object(slot: u64) -> ObjectId {
    VolumeId::MAIN.object(slot, 1)
}

fn write(map: &mut Map, slot: u64, page: u64, place: u64) {
    let PageEntry { place, page_lsn, crc, .. } = entry(place);
    let entry =
        LogEntry::Write { object: object(slot), page: PageNo(page), page_lsn, place, copy: None, crc };
    map.prepare(&entry).expect("in memory");
    map.change(&entry);
}

#[test]
fn a_leaf_that_got_pages_of_another_by_a_clone_is_visited_again() {
    let mut map = with_volume();
    write(&mut map, 0, 5, 40);
    write(&mut map, 21, 5, 41);
    map.begin_scan(Purpose::Clean, Wanted::Every);
    walk(&mut map, Purpose::Clean, 9);
    let clone = LogEntry::Clone { transfer: Transfer::whole(object(0), object(20)), lsn: Lsn(100) };
    map.change(&clone);
    let objects = map.volumes.get(VolumeId::MAIN).expect("it is there").objects;
    let leaf = objects.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    assert_eq!(map.nodes.take_grey(Purpose::Clean, 9), [leaf]);
    map.nodes.visit(Purpose::Clean, leaf, None);
    let holders: Vec<NodeId> = scan(&mut map).held[&Block(40)].iter().map(|holder| holder.node).collect();
    assert!(holders.contains(&leaf), "{holders:?}");
}

#[test]
fn a_walk_finds_a_tree_that_was_cloned_behind_it_and_deleted_before_it() {
    let mut map = with_volume();
    (0..20).for_each(|page| write(&mut map, 0, page, 40 + page));
    write(&mut map, 21, 5, 61);
    let objects = map.volumes.get(VolumeId::MAIN).expect("it is there").objects;
    map.begin_scan(Purpose::Clean, Wanted::Every);
    assert_eq!(map.nodes.take_grey(Purpose::Clean, 9), [objects.root]);
    map.nodes.visit(Purpose::Clean, objects.root, None);
    // The leaf of slot 21, but not yet that of slot 0.
    let leaf = objects.leaf(&map.nodes, 1).expect("in memory").expect("it is there").id;
    assert!(map.nodes.take_grey(Purpose::Clean, 9).contains(&leaf));
    map.nodes.visit(Purpose::Clean, leaf, None);
    map.change(&LogEntry::Clone { transfer: Transfer::whole(object(0), object(20)), lsn: Lsn(100) });
    map.change(&LogEntry::Delete { object: object(0), lsn: Lsn(101) });
    let first = objects.leaf(&map.nodes, 0).expect("in memory").map(|leaf| leaf.id);
    first.into_iter().for_each(|id| map.nodes.visit(Purpose::Clean, id, None));
    walk(&mut map, Purpose::Clean, 9);
    assert_eq!(held(&mut map), (40..60).chain([61]).collect::<Vec<u64>>());
}

#[test]
fn a_walk_finds_what_the_dying_list_got_from_a_node_that_went_before_its_visit() {
    let mut map = map();
    let tree = tree_of(&mut map, &[0, 1]);
    [tree.root].into_iter().for_each(|id| map.volumes.push_dying(id));
    map.begin_scan(Purpose::Clean, Wanted::Every);
    let root = map.volumes.take_dying(1)[0];
    map.let_die(root);
    assert_eq!(map.volumes.dying().len(), 2);
    walk(&mut map, Purpose::Clean, 9);
    assert_eq!(held(&mut map), [4, 5]);
}

#[test]
fn a_node_that_nothing_refers_to_goes_from_memory_too_when_references_are_counted() {
    let mut map = map();
    let (kept, lost, clean) =
        (map.nodes.add(Body::pages()), map.nodes.add(Body::pages()), map.nodes.table.add());
    map.nodes.loaded(clean, Body::pages());
    assert_eq!(map.nodes.dirty(), 2);
    assert_eq!(map.nodes.set_references(&BTreeMap::from([(kept, 2)])), 3);
    assert_eq!((map.nodes.dirty(), map.nodes.table.references(kept)), (1, 2));
    assert!(map.nodes.is_cached(kept) && !map.nodes.is_cached(lost) && !map.nodes.is_cached(clean));
}
