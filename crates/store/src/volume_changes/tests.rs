//! All volumes cloned at once, by a reference to the root of their tree.

use crate::change::StoreChange;
use crate::check::StoreFinding;
use crate::format::LEAF_PAGES;
use crate::map::{NodeBody, NodeId, ObjectPageEntries};
use crate::map_walk::{WalkItem, walk_map};
use crate::store::Store;
use crate::superblock::StoreLayout;
use crate::volume::tests::make_main;
use crate::volume::{NewVolume, RestoredSnapshot, VolumeId, VolumeMode, VolumeRestoration};
use device::{Block, BufferId, Incarnation, Lsn, PageNo, StoreId};
use sim_disk::{PowerSupply, SimDisk};
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGES: u64 = 300;

fn write(store: &Store, volume: u32, slot: u64, page: u64, lsn: u64) {
    let (object, bytes) = (VolumeId(volume).object(slot, 1), Arc::new(device::Page::zeroed()));
    let change = StoreChange::Write { object, page: PageNo(page), bytes, page_lsn: Lsn(lsn) };
    store.data().apply(&[change]).expect("space");
}

fn clone(store: &Store, from: u32, to: u32, lsn: u64) {
    let (from, to) = (VolumeId(from), VolumeId(to));
    let new = NewVolume { name: &format!("at-{lsn}"), mode: VolumeMode::Writable, created: 0 };
    assert_eq!(store.volumes().clone_named(from, &new, Lsn(lsn)), Ok(to));
}

fn findings(store: &Store) -> Vec<StoreFinding> {
    let mut found = Vec::new();
    store.maintenance().check(&mut |finding| found.push(finding));
    found
}

#[test]
fn the_list_of_what_dies_stays_short_however_large_it_is() {
    let disk = SimDisk::new("store", 1 << 17, &PowerSupply::new(), 1);
    Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(64) })
        .expect("large enough");
    let store = Store::open(disk).expect("a new store");
    store.begin(Incarnation(1)).expect("the first");
    make_main(&store);
    // A leaf each, below 40 nodes of 256 of them.
    let pages = 40 * 256;
    for number in 0..pages {
        write(&store, 0, 1, number * LEAF_PAGES, number + 1);
        if number % 200 == 0 {
            store.maintenance().checkpoint().expect("space");
        }
    }
    let object = VolumeId::MAIN.object(1, 1);
    store.data().apply(&[StoreChange::Delete { object, lsn: Lsn(1 << 30) }]).expect("space");
    let mut longest = 0;
    while store.maintenance().free_deleted_step().expect("freeing") {
        longest = longest.max(store.shared.map().volumes.dying().len());
    }
    assert!((256..=3 * 256).contains(&longest), "{longest} nodes");
    assert_eq!(store.counters().nodes_freed, pages + 41);
    assert_eq!(findings(&store), []);
}

/// All blocks of data below a node, and the names of volumes, as often as they are met.
fn below(store: &Store, root: NodeId) -> (Vec<Block>, Vec<String>) {
    let (mut places, mut names, mut todo) = (Vec::new(), Vec::new(), vec![root]);
    while let Some(id) = todo.pop().filter(|id| id.is_some()) {
        match store.shared.resolve(|map| map.nodes.node(id).map(|node| node.body.clone())).expect("readable")
        {
            NodeBody::Inner(children) => todo.extend(children.iter().filter(|child| child.is_some())),
            NodeBody::Pages(leaf) => places.extend(leaf.blocks().map(|(_, block)| block.place)),
            NodeBody::Objects(objects) => {
                for object in objects.iter().flatten() {
                    match &object.pages {
                        ObjectPageEntries::Tree(tree) => todo.push(tree.root),
                        ObjectPageEntries::Inline(pages) => {
                            places.extend(pages.iter().map(|(_, entry)| entry.place))
                        }
                    }
                }
            }
            NodeBody::Volumes(volumes) => {
                for volume in volumes.iter().flatten() {
                    names.push(format!("{} {:?}", volume.name, volume.mode));
                    todo.extend(Some(volume.objects.root).filter(|root| root.is_some()));
                }
            }
        }
    }
    places.sort();
    (places, names)
}

#[test]
fn a_reference_to_the_root_of_all_volumes_keeps_them_as_they_were_until_it_is_released() {
    let disk = SimDisk::new("disk", 4 + 1000 * 16, &PowerSupply::new(), 1);
    Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(16) })
        .expect("large enough");
    let mut store = Store::open(disk.clone()).expect("a new store");
    store.begin(Incarnation(1)).expect("the first");
    make_main(&store);
    (0..PAGES).for_each(|page| write(&store, 0, 1, page, page + 1));
    (0..40).for_each(|slot| write(&store, 0, 100 + slot, 0, 1000 + slot));
    (1..=40).for_each(|to| clone(&store, (to - 1) / 2, to, 2000 + u64::from(to)));
    (1..=40).for_each(|volume| write(&store, volume, 1, u64::from(volume), 3000 + u64::from(volume)));
    assert_eq!(findings(&store), []);
    // The dying list has one more reference to the root: who holds a clone of all, until he gives it up.
    let held = {
        let mut map = store.shared.map_mut();
        let root = map.volumes.tree().root;
        map.nodes.add_reference(root);
        map.volumes.push_dying(root);
        root
    };
    let before = below(&store, held);
    assert!(
        before.0.len() > 41 * PAGES as usize && before.1.len() == 41,
        "{} {:?}",
        before.0.len(),
        before.1
    );
    let unchanged = |store: &Store, when: &str| {
        assert_eq!(findings(store), [], "{when}");
        assert_eq!(below(store, held), before, "{when}");
    };
    unchanged(&store, "referred to");
    write(&store, 7, 1, 200, 4000);
    unchanged(&store, "a page written");
    (3..20).for_each(|volume| {
        let lsn = Lsn(4100 + u64::from(volume));
        store.volumes().delete(VolumeId(volume), lsn).expect("it goes");
    });
    unchanged(&store, "volumes deleted");
    (41..=300).for_each(|to| clone(&store, [0, 2, 25, 40][to as usize % 4], to, 5000 + u64::from(to)));
    (200..=220).for_each(|volume| write(&store, volume, 9, 5, 6000 + u64::from(volume)));
    unchanged(&store, "a higher tree");
    let object = VolumeId(30).object(1, 1);
    store.data().apply(&[StoreChange::Delete { object, lsn: Lsn(7000) }]).expect("space");
    store.maintenance().checkpoint().expect("a checkpoint");
    unchanged(&store, "a checkpoint");
    drop(store);
    store = Store::open(disk).expect("it opens");
    store.begin(Incarnation(2)).expect("a higher one");
    unchanged(&store, "opened again");
    assert_eq!(store.volumes().all().len(), 41 - 17 + 260);
    while store.maintenance().free_deleted_step().expect("freeing") {}
    assert_eq!(findings(&store), [], "released");
    // Nothing is left of it that no volume has.
    let live = {
        let root = store.shared.map().volumes.tree().root;
        below(&store, root)
    };
    let mut met = BTreeSet::new();
    let _writer = store.writer.lock();
    let counted = walk_map(&store.shared, &mut |one| {
        if let WalkItem::Block(_, _, entry) = one {
            met.insert(entry.place);
        }
    });
    assert_eq!(met, live.0.into_iter().collect());
    assert_eq!(counted.len() as u64, store.shared.map().nodes.table.used_count());
}

/// A store whose volume 0 has changed since its snapshot. Volume 2 has no snapshot.
fn with_snapshot(power: &Arc<PowerSupply>) -> Arc<SimDisk> {
    let disk = SimDisk::new("disk", 4 + 100 * 16, power, 1);
    Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(16) }).expect("large");
    let store = Store::open(disk.clone()).expect("a new store");
    store.begin(Incarnation(1)).expect("the first");
    make_main(&store);
    write(&store, 0, 1, 0, 10);
    clone(&store, 0, 1, 20);
    clone(&store, 0, 2, 21);
    (1..60).for_each(|page| write(&store, 0, 1, page, 100 + page));
    drop(store);
    disk
}

fn restorations() -> [VolumeRestoration; 2] {
    let snapshot = Some(RestoredSnapshot { id: VolumeId(1), created: 5 });
    [
        VolumeRestoration { volume: VolumeId(0), kept_name: "old".into(), snapshot },
        VolumeRestoration { volume: VolumeId(2), kept_name: "other".into(), snapshot: None },
    ]
}

#[test]
fn restored_volumes_and_the_new_settings_survive_a_power_cut_together_or_not_at_all() {
    let names = |store: &Store| -> Vec<String> {
        store.volumes().describe().into_iter().map(|volume| volume.name).collect()
    };
    let (before, after) = (["main", "at-20", "at-21"], ["old", "at-20", "other", "main"]);
    let mut outcomes = [0, 0];
    for cut in 0.. {
        let power = PowerSupply::new();
        let disk = with_snapshot(&power);
        let store = Store::open(disk.clone()).expect("sound");
        assert!(store.needs_buffer());
        store.volumes().restore_before_begin(&restorations(), Lsn(1 << 40)).expect("names are free");
        assert_eq!(names(&store), after);
        let mut settings = store.settings();
        settings.buffer = Some(BufferId([9; 16]));
        store.set_settings(settings);
        power.cut_after(cut);
        let begun = store.begin(Incarnation(2));
        let was_cut = power.is_lost();
        drop(store);
        power.restore();
        let store = Store::open(disk).expect("sound after any cut");
        let is_restored = store.settings().buffer.is_some();
        assert_eq!(names(&store), if is_restored { &after[..] } else { &before[..] }, "cut {cut}");
        assert!(is_restored || begun.is_err(), "cut {cut}");
        assert_eq!(findings(&store), [], "cut {cut}");
        outcomes[usize::from(is_restored)] += 1;
        if is_restored {
            assert_eq!(store.data().newest_logged_lsn(), Lsn(1 << 40), "an older buffer is refused");
            let main = store.volumes().named("main").expect("restored");
            assert_eq!((main.from, main.created, main.mode), (Some(VolumeId(1)), 5, VolumeMode::Writable));
            let object = main.id.object(1, 1);
            let listed = store.data().list(object, PageNo(0)..PageNo(100), 10).expect("readable");
            assert_eq!(listed.pages.len(), 1);
        }
        if !was_cut {
            break;
        }
    }
    assert!(outcomes[0] > 3 && outcomes[1] > 1, "{outcomes:?}");
}

#[test]
fn restorations_that_cannot_be_made_change_nothing() {
    let disk = with_snapshot(&PowerSupply::new());
    let store = Store::open(disk).expect("sound");
    let [first, second] = restorations();
    let itself = Some(RestoredSnapshot { id: VolumeId(2), created: 0 });
    for wrong in [
        VolumeRestoration { kept_name: "at-20".into(), ..second.clone() },
        VolumeRestoration { kept_name: "old".into(), ..second.clone() },
        VolumeRestoration { volume: VolumeId(7), ..second.clone() },
        VolumeRestoration { kept_name: "x".repeat(128), ..second.clone() },
        VolumeRestoration { volume: VolumeId(2), snapshot: itself, ..second },
    ] {
        let before = store.volumes().describe();
        let refused = store.volumes().restore_before_begin(&[first.clone(), wrong.clone()], Lsn(1 << 40));
        assert!(refused.is_err(), "{wrong:?}");
        assert_eq!(store.volumes().describe(), before, "{wrong:?}");
    }
}

#[test]
fn a_store_is_complete_until_it_begins_again() {
    let disk = with_snapshot(&PowerSupply::new());
    let store = Store::open(disk.clone()).expect("sound");
    store.begin(Incarnation(2)).expect("a higher one");
    store.note_complete().expect("space");
    drop(store);
    let store = Store::open(disk.clone()).expect("sound");
    assert!(!store.needs_buffer());
    store.begin(Incarnation(3)).expect("a higher one");
    assert!(store.needs_buffer());
    drop(store);
    assert!(Store::open(disk).expect("sound").needs_buffer());
}
