use super::format::{MAGIC, VERSION};
use super::{Benchmark, Initial, InitialKind};
use crate::action::Nap;
use crate::names::Name;
use std::path::Path;

fn hex_blocks() -> Vec<Vec<u8>> {
    let text = include_str!("../../FORMAT.md");
    let blocks = text.split("```hex\n").skip(1).filter_map(|block| block.split_once("```"));
    let byte = |byte: &str| u8::from_str_radix(byte, 16).expect("two hex digits");
    blocks.map(|(hex, _)| hex.split_whitespace().map(byte).collect()).collect()
}

#[test]
fn the_examples_of_the_format_are_what_is_written() {
    let blocks = hex_blocks();
    let file = super::format::encode(&Benchmark::default(), Path::new("test")).expect("it is written");
    assert_eq!(file[..16], blocks[0]);
    assert_eq!((&file[..8], file[8]), (&MAGIC[..], VERSION as u8));
    let initial = Initial {
        path: Name(5),
        kind: InitialKind::Directory,
        mode: 0o755,
        attributes: Box::default(),
        holes: Box::default(),
    };
    assert_eq!(postcard::to_stdvec(&initial).expect("it is written"), blocks[1]);
    let nap = Nap { action: 5, ends_with: 300 };
    assert_eq!(postcard::to_stdvec(&nap).expect("it is written"), blocks[2]);
}
