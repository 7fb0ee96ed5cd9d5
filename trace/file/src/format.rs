//! Reads and writes the bytes of a compiled trace, which FORMAT.md describes. Both work from the beginning to
//! the end, block by block, so a long trace needs no more memory than a short one.

use crate::action::Rule;
use crate::block::{ActionBlock, BlockCutter, FileTail};
use crate::contents::{CompiledTrace, InheritedHandle, InitialFile, TraceOrigin};
use crate::error::TraceError;
use crate::names::Names;
use crate::order::Order;
use crate::section::{read_section, write_section};
use crate::validate::Validator;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

pub(crate) const MAGIC: [u8; 8] = *b"WEIRTRAC";
pub(crate) const VERSION: u32 = 3;

/// Writes a compiled trace.
pub struct CompiledTraceWriter<W> {
    out: W,
}

impl<W: Write> CompiledTraceWriter<W> {
    /// Begins a file: writes the names of the orders.
    pub fn new(mut out: W, orders: &[&str]) -> io::Result<CompiledTraceWriter<W>> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&[0; 4])?;
        write_section(&orders, &mut out)?;
        Ok(CompiledTraceWriter { out })
    }

    /// Writes the next block. An empty block is left out, because it would end the sequence of blocks.
    pub fn block(&mut self, block: &ActionBlock) -> io::Result<()> {
        if block.actions.is_empty() { Ok(()) } else { write_section(block, &mut self.out) }
    }

    /// Ends the sequence of blocks, and writes the tail.
    pub fn finish(mut self, tail: &FileTail) -> io::Result<W> {
        let FileTail { rest, asked } = tail;
        write_section(&ActionBlock::default(), &mut self.out)?;
        write_section(&rest.names.all(), &mut self.out)?;
        write_section(&rest.tree, &mut self.out)?;
        write_section(&rest.inherited, &mut self.out)?;
        write_section(&End { about: &rest.about, asked }, &mut self.out)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The last section.
#[derive(Serialize)]
struct End<'a> {
    about: &'a TraceOrigin,
    asked: &'a [BTreeMap<Rule, u64>],
}

/// Writes a compiled trace that is in memory.
pub(crate) fn write<W: Write>(compiled: &CompiledTrace, out: W) -> io::Result<W> {
    let names: Vec<&str> = compiled.orders.iter().map(|order| order.name.as_str()).collect();
    let mut writer = CompiledTraceWriter::new(out, &names)?;
    let mut cutter = BlockCutter::default();
    for (id, action) in compiled.actions.iter().enumerate() {
        let waits = compiled.orders.iter().map(|order| order.of(id as u32));
        if let Some(block) = cutter.push(action.clone(), waits) {
            writer.block(&block)?;
        }
    }
    cutter.finish().map_or(Ok(()), |block| writer.block(&block))?;
    let CompiledTrace { about, names, tree, inherited, .. } = compiled;
    let rest = CompiledTrace {
        about: about.clone(),
        names: names.clone(),
        tree: tree.clone(),
        inherited: inherited.clone(),
        ..CompiledTrace::default()
    };
    let asked = compiled.orders.iter().map(|order| order.asked.clone()).collect();
    writer.finish(&FileTail { rest, asked })
}

/// Reads a compiled trace, checks it, and passes its blocks to `each` with the orders' names. Do not rely on
/// the blocks until this function returns: their references are checked at the end of the file.
pub(crate) fn read(
    input: &mut impl Read,
    path: &Path,
    mut each: impl FnMut(&[String], ActionBlock),
) -> Result<FileTail, TraceError> {
    let mut head = [0; 16];
    input.read_exact(&mut head).map_err(|_| TraceError::NotCompiledTrace { path: path.into() })?;
    let (magic, rest) = head.split_first_chunk().expect("16 bytes");
    let (version, _) = rest.split_first_chunk().expect("8 bytes");
    if *magic != MAGIC {
        return Err(TraceError::NotCompiledTrace { path: path.into() });
    }
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(TraceError::Version { path: path.into(), found, supported: VERSION });
    }
    let orders: Vec<String> = read_section(input, path, "orders")?;
    let mut validator = Validator::new(path, orders.len());
    loop {
        let block: ActionBlock = read_section(input, path, "actions")?;
        if block.actions.is_empty() {
            break;
        }
        validator.block(&block)?;
        each(&orders, block);
    }
    let names: Vec<Box<[u8]>> = read_section(input, path, "names")?;
    let tree: Vec<InitialFile> = read_section(input, path, "tree")?;
    let inherited: Vec<InheritedHandle> = read_section(input, path, "inherited")?;
    let (about, asked): (TraceOrigin, Vec<BTreeMap<Rule, u64>>) = read_section(input, path, "about")?;
    let orders = orders.into_iter().map(|name| Order { name, ..Order::default() }).collect();
    let (names, actions) = (Names::from_all(names), Vec::new());
    let tail = FileTail { rest: CompiledTrace { about, names, tree, inherited, actions, orders }, asked };
    validator.finish(&tail)?;
    Ok(tail)
}

impl CompiledTrace {
    /// Reads a compiled trace and checks it. A damaged file is refused.
    pub fn read(path: &Path) -> Result<CompiledTrace, TraceError> {
        let mut compiled = CompiledTrace::default();
        let tail = read(&mut open(path)?, path, |_, block| compiled.append(block))?;
        Ok(compiled.complete(tail))
    }

    /// Writes the compiled trace. The same trace gives the same bytes.
    pub fn write(&self, path: &Path) -> Result<(), TraceError> {
        let wrong = |error| TraceError::io("writing", path)(error);
        let file = File::create(path).map_err(TraceError::io("creating", path))?;
        write(self, BufWriter::new(file)).map(drop).map_err(wrong)
    }
}

pub(crate) fn open(path: &Path) -> Result<BufReader<File>, TraceError> {
    Ok(BufReader::with_capacity(1 << 20, File::open(path).map_err(TraceError::io("reading", path))?))
}
