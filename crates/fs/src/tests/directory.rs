//! Directories at their limits: names of one hash, many names, and what is left of them.

use super::bench::Bench;
use super::model::{Listing, Operation, Subject};
use crate::directory::{KEYS_PER_HASH, Tree};
use crate::error::FsError;
use crate::format::Slot;
use crate::types::{Ino, Kind};
use cache::Cost;
use device::SeededRng;

const ROOT: Ino = Ino::ROOT;
const ANY: Cost = Cost { pages: 1000, bytes: 1 << 20, records: 1000, ..Cost::NONE };

fn unlink(bench: &mut Bench, parent: Ino, name: &str) {
    bench.apply(&Operation::Unlink { parent, name: name.as_bytes().to_vec() }).expect("unlinked");
}

/// Blocks' bytes, as `stat` tells.
fn size(bench: &Bench, ino: Ino) -> u64 {
    bench.attributes(ino).expect("attributes").size
}

/// Adds a name under a hash of the test's choice, as if that were its hash.
fn insert(bench: &mut Bench, directory: Ino, hash: u64, name: &str) -> Result<(), FsError> {
    let (slot, hot) = bench.state.find_directory(directory)?;
    bench.run(ANY, |tx| {
        let mut tree = Tree::of(&hot);
        tree.insert(tx, hash, name.as_bytes(), Slot(1), Kind::File)?;
        tree.store(tx, slot)
    })
}

fn remove(bench: &mut Bench, directory: Ino, hash: u64, name: &str) -> Result<(), FsError> {
    let (slot, hot) = bench.state.find_directory(directory)?;
    bench.run(ANY, |tx| {
        let mut tree = Tree::of(&hot);
        tree.remove(tx, hash, name.as_bytes())?;
        tree.store(tx, slot)
    })
}

fn find(bench: &Bench, directory: Ino, hash: u64, name: &str) -> bool {
    let (_, hot) = bench.state.find_directory(directory).expect("a directory");
    Tree::of(&hot).find(bench.state.arena(), hash, name.as_bytes()).expect("a sound tree").is_some()
}

#[test]
fn names_of_one_hash_are_told_apart_wherever_they_are_and_a_seventeenth_is_refused() {
    let mut bench = Bench::new();
    let directory = bench.directory(ROOT, "d");
    // Long enough that leaves split around them, and that they fill a leaf by themselves.
    let twin = |rank: u64| format!("twin{rank:02}{}", "x".repeat(180));
    let hash = (1 << 40) + (1 << 20);
    for other in 0..400 {
        insert(&mut bench, directory, (other + 1) << 32, &format!("other{other}{}", "y".repeat(100)))
            .expect("in");
        if other % 16 == 0 && other / 16 < KEYS_PER_HASH {
            insert(&mut bench, directory, hash, &twin(other / 16)).expect("a name of the same hash");
        }
    }
    let listed = bench.list(directory).expect("a listing");
    let twins: Vec<_> = listed.iter().filter(|one| one.1.starts_with(b"twin")).map(|one| one.0).collect();
    assert_eq!(twins, (hash..hash + KEYS_PER_HASH).collect::<Vec<_>>(), "each has a cookie of its own");
    assert!(matches!(insert(&mut bench, directory, hash, "one more"), Err(FsError::NoSpace)));
    // The ninth goes; its key is the one that the next gets.
    remove(&mut bench, directory, hash, &twin(8)).expect("out");
    assert!(!find(&bench, directory, hash, &twin(8)));
    insert(&mut bench, directory, hash, "one more").expect("a place is free");
    let left: Vec<u64> = (0..KEYS_PER_HASH).filter(|&rank| rank != 8).collect();
    assert!(left.iter().all(|&rank| find(&bench, directory, hash, &twin(rank))));
    (0..400).for_each(|other| {
        let name = format!("other{other}{}", "y".repeat(100));
        remove(&mut bench, directory, (other + 1) << 32, &name).expect("out");
    });
    assert!(
        left.iter().all(|&rank| find(&bench, directory, hash, &twin(rank))),
        "their leaf was joined, not lost"
    );
    assert_eq!(bench.list(directory).expect("a listing").len(), KEYS_PER_HASH as usize);
}

#[test]
fn a_directory_of_200_000_names_costs_small_changes_and_shrinks_with_them() {
    const NAMES: u64 = 200_000;
    let mut bench = Bench::new();
    let directory = bench.directory(ROOT, "big");
    let mut bytes = 0;
    for at in 0..NAMES {
        bench.file(directory, &format!("message-{at}.eml"));
        bytes += bench.arena_bytes;
    }
    assert!(bytes / NAMES < 400, "{} bytes of changes for a name", bytes / NAMES);
    assert_eq!(bench.levels(directory), 2);
    let full = size(&bench, directory);
    let listed = bench.list(directory).expect("a listing");
    assert!(listed.len() as u64 == NAMES && listed.windows(2).all(|pair| pair[0].0 < pair[1].0));
    // All but a thousand go, in no order.
    let mut left: Vec<u64> = (0..NAMES).collect();
    let mut random = SeededRng::new(7);
    while left.len() > 1000 {
        let at = left.swap_remove(random.below(left.len() as u64) as usize);
        unlink(&mut bench, directory, &format!("message-{at}.eml"));
    }
    let small = size(&bench, directory);
    assert!(small < full / 60, "{small} bytes for 1000 names, {full} for 200,000");
    assert_eq!(bench.levels(directory), 1);
    assert_eq!(bench.list(directory).expect("a listing").len(), 1000);
    bench.state = crate::arena::State::new(device::VolumeId::MAIN, bench.load()).expect("reopened");
    bench.verify();
    for at in left.drain(3..) {
        unlink(&mut bench, directory, &format!("message-{at}.eml"));
    }
    assert!(size(&bench, directory) <= 256, "{} bytes for 3 names", size(&bench, directory));
    for at in left {
        unlink(&mut bench, directory, &format!("message-{at}.eml"));
    }
    assert_eq!(size(&bench, directory), 0);
    bench.verify();
}

#[test]
fn a_listing_goes_on_rightly_while_names_come_and_go() {
    let mut bench = Bench::new();
    let directory = bench.directory(ROOT, "d");
    for at in 0..2000 {
        bench.file(directory, &format!("stays{at}"));
    }
    for at in 0..20_000 {
        bench.file(directory, &format!("goes{at}"));
    }
    let before = bench.list(directory).expect("a listing");
    let (first, rest) = before.split_at(15_000);
    let full = size(&bench, directory);
    (0..20_000).for_each(|at| unlink(&mut bench, directory, &format!("goes{at}")));
    assert!(size(&bench, directory) < full / 4, "leaves were joined meanwhile");
    for at in 0..2000 {
        bench.file(directory, &format!("comes{at}"));
    }
    let after: Vec<_> = bench.list(directory).expect("a listing");
    let after: Vec<_> = after.into_iter().filter(|one| one.0 > first[14_999].0).collect();
    let stays =
        |all: &[Listing]| all.iter().filter(|one| one.1.starts_with(b"stays")).cloned().collect::<Vec<_>>();
    assert_eq!(stays(rest), stays(&after));
}

#[test]
fn a_path_may_be_as_deep_as_there_are_inodes_and_the_check_still_names_it() {
    let mut bench = Bench::new();
    let mut at = ROOT;
    for _ in 0..20_000 {
        at = bench.directory(at, "a directory with a name");
    }
    let moved = Operation::Rename {
        from: (ROOT, b"a directory with a name".to_vec()),
        to: (at, b"below itself".to_vec()),
        if_exists: crate::types::IfExists::Replace,
        whiteout: None,
    };
    assert!(matches!(bench.apply(&moved), Err(FsError::Invalid)));
    bench.verify();
    // Damage at the bottom is told with the end of its path.
    let (slot, mut hot, _) = bench.state.find(at).expect("the deepest");
    hot.links = 7.into();
    let plant = bench.run(ANY, |tx| {
        tx.set_hot(slot, &hot);
        Ok(())
    });
    plant.expect("planted");
    let findings = bench.findings();
    let path = findings[0].path.as_ref().expect("it has a path");
    assert!(findings.len() == 1 && path.starts_with("…/") && path.len() < 5000, "{findings:?}");
}
