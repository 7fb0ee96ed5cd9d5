//! The examples in FORMAT.md and `golden.hex` are what the code writes.

use super::in_memory::{InMemoryFs, OWNER};
use super::model::{ModelOperation, ModelSubject};
use crate::directory::NameTree;
use crate::error::FsError;
use crate::format::{ArenaRegion, Inode, InodeTimes, OwnerRecord};
use crate::types::{Ino, SetXattrMode};
use zerocopy::IntoBytes;
use zerocopy::little_endian::I64;

/// The bytes of an example.
fn example(name: &str) -> Vec<u8> {
    let texts = [include_str!("../../FORMAT.md"), include_str!("../golden.hex")];
    let (_, rest) = texts
        .iter()
        .find_map(|text| text.split_once(&format!("hex {name}\n")))
        .unwrap_or_else(|| panic!("no example {name}"));
    let lines = rest.lines().take_while(|line| !line.is_empty() && *line != "```");
    let bytes = lines.flat_map(str::split_whitespace);
    bytes.map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits")).collect()
}

#[test]
fn a_new_header_is_the_example() {
    assert_eq!(InMemoryFs::new().state.header().as_bytes(), example("header"));
}

#[test]
fn inodes_owners_and_names_are_the_examples() {
    let mut fs = InMemoryFs::new();
    let ino = fs.file(Ino::ROOT, "notes");
    fs.apply(&ModelOperation::Write { ino, offset: 0, bytes: b"hello".to_vec() }).expect("a write");
    let (slot, inode, _) = fs.state.find_inode(ino).expect("a file");
    assert_eq!(slot.0, 2);
    assert_eq!(fs.state.bytes(ArenaRegion::Inodes.at::<Inode>(2), 32).expect("an inode"), example("inode"));
    let owner =
        fs.state.bytes(ArenaRegion::Owners.at::<OwnerRecord>(inode.owner.get()), 16).expect("an owner");
    assert_eq!(owner, example("owner"));
    assert_eq!((OWNER.uid, OWNER.gid), (1000, 100));
    let (_, root) = fs.state.find_directory(Ino::ROOT).expect("the root");
    let leaf = example("leaf");
    let block = NameTree::of(&root).root;
    assert_eq!(fs.state.bytes(block.offset(), leaf.len()).expect("a leaf"), leaf);
    let (name, value) = (b"user.tag".to_vec(), b"blue".to_vec());
    fs.apply(&ModelOperation::SetXattr { ino, name, value, how: SetXattrMode::Any }).expect("an attribute");
    let (_, inode, _) = fs.state.find_inode(ino).expect("a file");
    let xattr = example("xattr");
    assert_eq!(fs.state.bytes(inode.xattrs().offset(), xattr.len()).expect("a block"), xattr);
    let times = [1, 2, 3, -1].map(I64::new);
    let times = InodeTimes { accessed: times[0], modified: times[1], changed: times[2], created: times[3] };
    assert_eq!(times.as_bytes(), example("times"));
}

#[test]
fn what_is_not_ours_or_newer_is_refused_by_name() {
    let fs = InMemoryFs::new();
    let open = |at: usize, byte: u8| {
        let mut objects = fs.objects.clone();
        objects.write(super::in_memory::ARENA, at as u64, &[byte]);
        let loaded = crate::arena::Arena::load(&mut |ranges| {
            let read = |&(offset, len): &(u64, usize)| objects.read(super::in_memory::ARENA, offset, len);
            Ok(ranges.iter().map(read).collect())
        });
        match loaded {
            Err(FsError::Corrupt { offset, what }) => format!("{offset}: {what}"),
            Err(other) => panic!("{other}"),
            Ok(_) => "opened".to_owned(),
        }
    };
    assert_eq!(open(0, b'w'), "opened");
    assert!(open(0, b'x').starts_with("0: this volume holds no file system"));
    assert!(open(8, 2).starts_with("8: format version 2"));
    assert!(open(16, 1).contains("features 0x1"));
    assert_eq!(open(12, 1), "opened", "compatible features are ignored");
    assert!(open(43, 0xff).starts_with("40: "));
    assert!(open(55, 0xff).starts_with("52: "));
}
