//! The examples in FORMAT.md and `golden.hex` are what the code writes.

use super::bench::{Bench, OWNER};
use super::model::{Operation, Subject};
use crate::directory::Tree;
use crate::error::FsError;
use crate::format::{Cold, Hot, Owner, Region};
use crate::types::{Ino, SetXattr};
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
    assert_eq!(Bench::new().state.header().as_bytes(), example("header"));
}

#[test]
fn inodes_owners_and_names_are_the_examples() {
    let mut bench = Bench::new();
    let ino = bench.file(Ino::ROOT, "notes");
    bench.apply(&Operation::Write { ino, offset: 0, bytes: b"hello".to_vec() }).expect("a write");
    let (slot, hot, _) = bench.state.find(ino).expect("a file");
    assert_eq!(slot.0, 2);
    assert_eq!(bench.state.bytes(Region::Hot.at::<Hot>(2), 32).expect("an inode"), example("hot"));
    let owner = bench.state.bytes(Region::Owners.at::<Owner>(hot.owner.get()), 16).expect("an owner");
    assert_eq!(owner, example("owner"));
    assert_eq!((OWNER.uid, OWNER.gid), (1000, 100));
    let (_, root) = bench.state.find_directory(Ino::ROOT).expect("the root");
    let leaf = example("leaf");
    let block = Tree::of(&root).root;
    assert_eq!(bench.state.bytes(block.offset(), leaf.len()).expect("a leaf"), leaf);
    let (name, value) = (b"user.tag".to_vec(), b"blue".to_vec());
    bench.apply(&Operation::SetXattr { ino, name, value, how: SetXattr::Any }).expect("an attribute");
    let (_, hot, _) = bench.state.find(ino).expect("a file");
    let xattr = example("xattr");
    assert_eq!(bench.state.bytes(hot.xattrs().offset(), xattr.len()).expect("a block"), xattr);
    let cold = [1, 2, 3, -1].map(I64::new);
    let cold = Cold { accessed: cold[0], modified: cold[1], changed: cold[2], created: cold[3] };
    assert_eq!(cold.as_bytes(), example("cold"));
}

#[test]
fn what_is_not_ours_or_newer_is_refused_by_name() {
    let bench = Bench::new();
    let open = |at: usize, byte: u8| {
        let mut objects = bench.objects.clone();
        objects.write(super::bench::ARENA, at as u64, &[byte]);
        let loaded = crate::arena::Arena::load(&mut |ranges| {
            let read = |&(offset, len): &(u64, usize)| objects.read(super::bench::ARENA, offset, len);
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
