//! The bytes of a compiled benchmark; FORMAT.md describes them.

use super::{About, Benchmark, Initial};
use crate::action::Action;
use crate::error::TraceError;
use crate::model::Inherited;
use crate::names::Names;
use crate::order::Order;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;

pub(super) const MAGIC: [u8; 8] = *b"WEIRTRAC";
pub(super) const VERSION: u32 = 3;
/// What a section may grow to when it is unpacked: 2^32 actions are more than any trace has. Against hostile files.
const SECTION_BYTES_MAX: u64 = 64 << 30;
/// Fast, and within a few per cent of the slower levels on these records.
const LEVEL: i32 = 3;

/// Sections, in the order of the file.
const SECTIONS: [&str; 6] = ["about", "names", "tree", "inherited", "actions", "orders"];

pub(super) fn encode(benchmark: &Benchmark, path: &Path) -> Result<Vec<u8>, TraceError> {
    let mut file = Vec::new();
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    let sections = [
        section(&benchmark.about),
        section(&benchmark.names.all()),
        section(&benchmark.tree),
        section(&benchmark.inherited),
        section(&benchmark.actions),
        section(&benchmark.orders),
    ];
    file.extend_from_slice(&(sections.len() as u32).to_le_bytes());
    for (bytes, name) in sections.into_iter().zip(SECTIONS) {
        let bytes = bytes.map_err(|why| TraceError::Contents { path: path.into(), section: name, why })?;
        file.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        file.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        file.extend_from_slice(&[0; 4]);
        file.extend_from_slice(&bytes);
    }
    Ok(file)
}

fn section(value: &impl Serialize) -> Result<Vec<u8>, String> {
    let plain = postcard::to_stdvec(value).map_err(|error| error.to_string())?;
    zstd::bulk::compress(&plain, LEVEL).map_err(|error| error.to_string())
}

pub(super) fn decode(file: &[u8], path: &Path) -> Result<Benchmark, TraceError> {
    let not = || TraceError::NotBenchmark { path: path.into() };
    let mut input = file;
    if take::<8>(&mut input).ok_or_else(not)? != MAGIC {
        return Err(not());
    }
    let found = u32::from_le_bytes(take(&mut input).ok_or_else(not)?);
    if found != VERSION {
        return Err(TraceError::Version { path: path.into(), found, supported: VERSION });
    }
    if u32::from_le_bytes(take(&mut input).ok_or_else(not)?) != SECTIONS.len() as u32 {
        return Err(not());
    }
    let mut reader = Reader { input, path };
    let about: About = reader.next(SECTIONS[0])?;
    let names: Vec<Box<[u8]>> = reader.next(SECTIONS[1])?;
    let tree: Vec<Initial> = reader.next(SECTIONS[2])?;
    let inherited: Vec<Inherited> = reader.next(SECTIONS[3])?;
    let actions: Vec<Action> = reader.next(SECTIONS[4])?;
    let orders: Vec<Order> = reader.next(SECTIONS[5])?;
    let benchmark = Benchmark { about, names: Names::from_all(names), tree, inherited, actions, orders };
    super::validate::validate(&benchmark, path)?;
    Ok(benchmark)
}

struct Reader<'a> {
    input: &'a [u8],
    path: &'a Path,
}

impl Reader<'_> {
    fn next<T: DeserializeOwned>(&mut self, section: &'static str) -> Result<T, TraceError> {
        let wrong = |why: &str| TraceError::Contents { path: self.path.into(), section, why: why.into() };
        let length = u64::from_le_bytes(take(&mut self.input).ok_or_else(|| wrong("cut off"))?);
        let expected = u32::from_le_bytes(take(&mut self.input).ok_or_else(|| wrong("cut off"))?);
        take::<4>(&mut self.input).ok_or_else(|| wrong("cut off"))?;
        let length = usize::try_from(length).ok().filter(|length| *length <= self.input.len());
        let (bytes, rest) = self.input.split_at(length.ok_or_else(|| wrong("cut off"))?);
        self.input = rest;
        let found = crc32c::crc32c(bytes);
        if found != expected {
            return Err(TraceError::Checksum { path: self.path.into(), section, found, expected });
        }
        let mut plain = Vec::new();
        let unpacked =
            zstd::stream::Decoder::with_buffer(bytes).map(|decoder| decoder.take(SECTION_BYTES_MAX));
        unpacked
            .and_then(|mut decoder| decoder.read_to_end(&mut plain))
            .map_err(|error| wrong(&error.to_string()))?;
        postcard::from_bytes(&plain).map_err(|error| wrong(&error.to_string()))
    }
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*head)
}
