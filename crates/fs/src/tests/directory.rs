//! Directories at their limits: names of one hash, many names, and what is left of them.

use super::in_memory::InMemoryFs;
use super::model::{ModelListing, ModelOperation, ModelSubject};
use crate::directory::{KEYS_PER_HASH, NameTree};
use crate::error::FsError;
use crate::format::InodeSlot;
use crate::types::{FileKind, Ino};
use cache::TransactionCost;
use device::SeededRng;

const ROOT: Ino = Ino::ROOT;
const ANY: TransactionCost =
    TransactionCost { pages: 1000, bytes: 1 << 20, records: 1000, ..TransactionCost::NONE };

fn unlink(fs: &mut InMemoryFs, parent: Ino, name: &str) {
    fs.apply(&ModelOperation::Unlink { parent, name: name.as_bytes().to_vec() }).expect("unlinked");
}

/// Blocks' bytes, as `stat` tells.
fn size(fs: &InMemoryFs, ino: Ino) -> u64 {
    fs.attributes(ino).expect("attributes").size
}

/// Adds a name under a hash of the test's choice, as if that were its hash.
fn insert(fs: &mut InMemoryFs, directory: Ino, hash: u64, name: &str) -> Result<(), FsError> {
    let (slot, inode) = fs.state.find_directory(directory)?;
    fs.run(ANY, |tx| {
        let mut tree = NameTree::of(&inode);
        tree.insert(tx, hash, name.as_bytes(), InodeSlot(1), FileKind::File)?;
        tree.store(tx, slot)
    })
}

fn remove(fs: &mut InMemoryFs, directory: Ino, hash: u64, name: &str) -> Result<(), FsError> {
    let (slot, inode) = fs.state.find_directory(directory)?;
    fs.run(ANY, |tx| {
        let mut tree = NameTree::of(&inode);
        tree.remove(tx, hash, name.as_bytes())?;
        tree.store(tx, slot)
    })
}

fn find(fs: &InMemoryFs, directory: Ino, hash: u64, name: &str) -> bool {
    let (_, inode) = fs.state.find_directory(directory).expect("a directory");
    NameTree::of(&inode).find(fs.state.arena(), hash, name.as_bytes()).expect("a sound tree").is_some()
}

#[test]
fn names_of_one_hash_are_told_apart_wherever_they_are_and_a_seventeenth_is_refused() {
    let mut fs = InMemoryFs::new();
    let directory = fs.directory(ROOT, "d");
    // Long enough that leaves split around them, and that they fill a leaf by themselves.
    let twin = |rank: u64| format!("twin{rank:02}{}", "x".repeat(180));
    let hash = (1 << 40) + (1 << 20);
    for other in 0..400 {
        insert(&mut fs, directory, (other + 1) << 32, &format!("other{other}{}", "y".repeat(100)))
            .expect("in");
        if other % 16 == 0 && other / 16 < KEYS_PER_HASH {
            insert(&mut fs, directory, hash, &twin(other / 16)).expect("a name of the same hash");
        }
    }
    let listed = fs.list(directory).expect("a listing");
    let twins: Vec<_> = listed.iter().filter(|one| one.1.starts_with(b"twin")).map(|one| one.0).collect();
    assert_eq!(twins, (hash..hash + KEYS_PER_HASH).collect::<Vec<_>>(), "each has a cookie of its own");
    assert!(matches!(insert(&mut fs, directory, hash, "one more"), Err(FsError::NoSpace)));
    // The ninth goes; its key is the one that the next gets.
    remove(&mut fs, directory, hash, &twin(8)).expect("out");
    assert!(!find(&fs, directory, hash, &twin(8)));
    insert(&mut fs, directory, hash, "one more").expect("a place is free");
    let left: Vec<u64> = (0..KEYS_PER_HASH).filter(|&rank| rank != 8).collect();
    assert!(left.iter().all(|&rank| find(&fs, directory, hash, &twin(rank))));
    (0..400).for_each(|other| {
        let name = format!("other{other}{}", "y".repeat(100));
        remove(&mut fs, directory, (other + 1) << 32, &name).expect("out");
    });
    assert!(
        left.iter().all(|&rank| find(&fs, directory, hash, &twin(rank))),
        "their leaf was joined, not lost"
    );
    assert_eq!(fs.list(directory).expect("a listing").len(), KEYS_PER_HASH as usize);
}

#[test]
fn a_directory_of_200_000_names_costs_small_changes_and_shrinks_with_them() {
    const NAMES: u64 = 200_000;
    let mut fs = InMemoryFs::new();
    let directory = fs.directory(ROOT, "big");
    let mut bytes = 0;
    for at in 0..NAMES {
        fs.file(directory, &format!("message-{at}.eml"));
        bytes += fs.arena_bytes;
    }
    assert!(bytes / NAMES < 400, "{} bytes of changes for a name", bytes / NAMES);
    assert_eq!(fs.levels(directory), 2);
    let full = size(&fs, directory);
    let listed = fs.list(directory).expect("a listing");
    assert!(listed.len() as u64 == NAMES && listed.windows(2).all(|pair| pair[0].0 < pair[1].0));
    // All but a thousand go, in no order.
    let mut left: Vec<u64> = (0..NAMES).collect();
    let mut random = SeededRng::new(7);
    while left.len() > 1000 {
        let at = left.swap_remove(random.below(left.len() as u64) as usize);
        unlink(&mut fs, directory, &format!("message-{at}.eml"));
    }
    let small = size(&fs, directory);
    assert!(small < full / 60, "{small} bytes for 1000 names, {full} for 200,000");
    assert_eq!(fs.levels(directory), 1);
    assert_eq!(fs.list(directory).expect("a listing").len(), 1000);
    fs.state = crate::arena::FsState::new(device::VolumeId::MAIN, fs.load()).expect("reopened");
    fs.verify();
    for at in left.drain(3..) {
        unlink(&mut fs, directory, &format!("message-{at}.eml"));
    }
    assert!(size(&fs, directory) <= 256, "{} bytes for 3 names", size(&fs, directory));
    for at in left {
        unlink(&mut fs, directory, &format!("message-{at}.eml"));
    }
    assert_eq!(size(&fs, directory), 0);
    fs.verify();
}

#[test]
fn a_listing_goes_on_rightly_while_names_come_and_go() {
    let mut fs = InMemoryFs::new();
    let directory = fs.directory(ROOT, "d");
    for at in 0..2000 {
        fs.file(directory, &format!("stays{at}"));
    }
    for at in 0..20_000 {
        fs.file(directory, &format!("goes{at}"));
    }
    let before = fs.list(directory).expect("a listing");
    let (first, rest) = before.split_at(15_000);
    let full = size(&fs, directory);
    (0..20_000).for_each(|at| unlink(&mut fs, directory, &format!("goes{at}")));
    assert!(size(&fs, directory) < full / 4, "leaves were joined meanwhile");
    for at in 0..2000 {
        fs.file(directory, &format!("comes{at}"));
    }
    let after: Vec<_> = fs.list(directory).expect("a listing");
    let after: Vec<_> = after.into_iter().filter(|one| one.0 > first[14_999].0).collect();
    let stays = |all: &[ModelListing]| {
        all.iter().filter(|one| one.1.starts_with(b"stays")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(stays(rest), stays(&after));
}

#[test]
fn a_path_may_be_as_deep_as_there_are_inodes_and_the_check_still_names_it() {
    let mut fs = InMemoryFs::new();
    let mut at = ROOT;
    for _ in 0..20_000 {
        at = fs.directory(at, "a directory with a name");
    }
    let moved = ModelOperation::Rename {
        from: (ROOT, b"a directory with a name".to_vec()),
        to: (at, b"below itself".to_vec()),
        if_exists: crate::types::IfExists::Replace,
        whiteout: None,
    };
    assert!(matches!(fs.apply(&moved), Err(FsError::Invalid)));
    fs.verify();
    // Damage at the bottom is told with the end of its path.
    let (slot, mut inode, _) = fs.state.find_inode(at).expect("the deepest");
    inode.links = 7.into();
    let plant = fs.run(ANY, |tx| {
        tx.set_inode(slot, &inode);
        Ok(())
    });
    plant.expect("planted");
    let findings = fs.findings();
    let path = findings[0].path.as_ref().expect("it has a path");
    assert!(findings.len() == 1 && path.starts_with("…/") && path.len() < 5000, "{findings:?}");
}
