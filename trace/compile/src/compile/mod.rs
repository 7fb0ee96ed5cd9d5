//! Compiles a trace: parse, decode, learn, linearise, order.

mod snapshot;
mod spool;
mod usage;

use crate::coverage::Coverage;
use crate::model::{Attribute, InitialLinks, Lineariser, NodeKind, World};
use crate::order::{Orderer, Root, Switches, Weir};
use crate::parse::Source;
use crate::step::Step;
use crate::untraced::count_untraced;
use snapshot::read_snapshot;
use spool::Spool;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use trace_file::{
    ActionBlock, ActionId, BlockCutter, CompiledTrace, CompiledTraceWriter, Device, FileTail, InitialFile,
    InitialKind, Name, Names, Order, Rule, TraceError, TraceOrigin, TracerCost, UntracedIo, Wait,
};
use usage::Usage;

/// The settings of a compilation.
#[derive(Debug, Clone)]
pub struct CompileSettings {
    /// The list of the tree before the run, and the directory to which its relative paths belong.
    pub snapshot: Option<(PathBuf, PathBuf)>,
    /// The time that the tracer adds between two calls; `None` for the time that the trace notes, or 0.
    pub tracer: Option<TracerCost>,
    /// Rules of the orders that differ from the default.
    pub switches: Switches,
    /// The share of the trace's calls, in per cent, that must be usable. A compile that uses less is refused.
    pub used_percent_min: u8,
}

impl Default for CompileSettings {
    fn default() -> Self {
        CompileSettings { snapshot: None, tracer: None, switches: Switches::default(), used_percent_min: 50 }
    }
}

/// Compiles a trace in memory. `name` is used in messages.
pub fn compile(
    source: &mut dyn Source,
    name: &Path,
    settings: &CompileSettings,
) -> Result<CompiledTrace, TraceError> {
    let mut compiled = CompiledTrace::default();
    let read = read_calls(source, name, Spool::in_memory())?;
    let tail = read.compile(name, settings, |block| {
        compiled.append(block);
        Ok(())
    })?;
    Ok(compiled.complete(tail))
}

/// Compiles a trace into a file. Memory depends on the names, and on the files that are open or named at one
/// time.
pub fn compile_to(
    source: &mut dyn Source,
    name: &Path,
    settings: &CompileSettings,
    output: &Path,
) -> Result<(), TraceError> {
    let read = read_calls(source, name, Spool::beside(output)?)?;
    let wrong = |error| TraceError::io("writing", output)(error);
    let file = File::create(output).map_err(TraceError::io("creating", output))?;
    let written = || {
        let mut writer =
            CompiledTraceWriter::new(BufWriter::with_capacity(1 << 20, file), &ORDERS).map_err(wrong)?;
        let tail = read.compile(name, settings, |block| writer.block(&block).map_err(wrong))?;
        writer.finish(&tail).map_err(wrong)
    };
    written().map(drop).inspect_err(|_| {
        // Remove half a compiled trace. A pipe or another output that is not a file stays.
        if output.symlink_metadata().is_ok_and(|found| found.is_file()) {
            drop(std::fs::remove_file(output));
        }
    })
}

/// The orders of every compiled trace.
const ORDERS: [&str; 2] = ["weir", "root"];

/// The results of the first pass over a trace.
struct FirstLook {
    calls: Spool,
    names: Names,
    links: Vec<(Vec<u8>, Vec<u8>)>,
    coverage: Coverage,
    unseen: UntracedIo,
    tracer: Option<TracerCost>,
}

fn read_calls(source: &mut dyn Source, name: &Path, mut calls: Spool) -> Result<FirstLook, TraceError> {
    let (mut names, mut links) = (Names::default(), InitialLinks::default());
    let (mut undecoded, mut unseen) = (Coverage::default(), UntracedIo::default());
    while let Some(event) = source.next_event().map_err(TraceError::io("reading", name))? {
        count_untraced(&mut unseen, &event);
        let call = crate::decode::decode(&event, &mut names, &mut undecoded);
        links.add(&call, &names);
        calls.push(call)?;
    }
    if calls.is_empty() {
        return Err(TraceError::Empty { path: name.into(), why: Usage::default().why(source.coverage()) });
    }
    let mut coverage = source.coverage().clone();
    coverage.problems.extend(undecoded.problems);
    let tracer = source.tracer();
    Ok(FirstLook { calls, names, links: links.finish(), coverage, unseen, tracer })
}

impl FirstLook {
    /// The second pass: passes each block to `put`, and returns the tail.
    fn compile(
        self,
        name: &Path,
        settings: &CompileSettings,
        put: impl FnMut(ActionBlock) -> Result<(), TraceError>,
    ) -> Result<FileTail, TraceError> {
        let mut world = World::new(self.names);
        if let Some((file, root)) = &settings.snapshot {
            read_snapshot(&mut world, file, root)?;
        }
        add_links(&mut world, self.links);
        let mut ordering = Ordering::new(&settings.switches, put);
        let mut lineariser = Lineariser::new(&mut world, |step| ordering.add(step));
        self.calls.read(|call| {
            lineariser.add(call);
            !lineariser.is_refused()
        })?;
        lineariser.finish();
        if let Some((line, what)) = world.excess() {
            return Err(TraceError::TooLarge { path: name.into(), line, what });
        }
        let (asked, usage) = ordering.finish()?;
        let coverage = self.coverage;
        usage.check(name, &coverage, settings.used_percent_min)?;
        let problems = coverage.problems.iter();
        let about = TraceOrigin {
            trace: name.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            threads: world.threads(),
            handles: world.handles(),
            requests: world.requests(),
            lines: coverage.lines,
            used: coverage.used,
            unfinished: coverage.unfinished,
            problems: problems.map(|(kind, what)| (kind.clone(), what.count, what.line)).collect(),
            repairs: world.repairs,
            races: std::mem::take(&mut world.races),
            unseen: self.unseen,
            tracer: settings.tracer.or(self.tracer).unwrap_or_default(),
            naps: std::mem::take(&mut world.naps),
        };
        let tree = initial_tree(&mut world);
        let inherited = std::mem::take(&mut world.inherited);
        let orders = ORDERS.iter().map(|name| Order { name: (*name).into(), ..Order::default() }).collect();
        let rest = CompiledTrace { about, names: world.names, tree, inherited, actions: Vec::new(), orders };
        Ok(FileTail { rest, asked })
    }
}

/// Turns steps into blocks.
struct Ordering<Put> {
    orders: Vec<Box<dyn Orderer>>,
    /// The thread of each action so far.
    threads: Vec<u32>,
    cutter: BlockCutter,
    usage: Usage,
    put: Put,
    /// The failure of the first block that could not be written.
    failed: Result<(), TraceError>,
}

impl<Put: FnMut(ActionBlock) -> Result<(), TraceError>> Ordering<Put> {
    fn new(switches: &Switches, put: Put) -> Self {
        let orders: Vec<Box<dyn Orderer>> =
            vec![Box::new(Weir::new(switches)), Box::new(Root::new(switches))];
        assert!(orders.iter().map(|order| order.name()).eq(ORDERS), "orders have their names");
        let (threads, cutter, usage) = Default::default();
        Ordering { orders, threads, cutter, usage, put, failed: Ok(()) }
    }

    fn add(&mut self, step: Step) {
        if self.failed.is_err() {
            return;
        }
        let id = self.threads.len() as ActionId;
        self.threads.push(step.action.thread);
        self.usage.add(&step.action);
        let waits: Vec<&[Wait]> =
            self.orders.iter_mut().map(|order| order.add(&step, &self.threads)).collect();
        for wait in waits.iter().flat_map(|waits| waits.iter()) {
            assert!(wait.on < id, "an edge runs backwards from action {id}");
        }
        if let Some(block) = self.cutter.push(step.action, waits.into_iter()) {
            self.failed = (self.put)(block);
        }
    }

    /// The edges that each rule asked for in each order, and the use of the trace.
    fn finish(mut self) -> Result<(Vec<BTreeMap<Rule, u64>>, Usage), TraceError> {
        self.failed?;
        self.cutter.finish().map_or(Ok(()), &mut self.put)?;
        Ok((self.orders.into_iter().map(Orderer::finish).collect(), self.usage))
    }
}

/// Adds links that the trace shows. Files in the snapshot stay as they are.
fn add_links(world: &mut World, links: Vec<(Vec<u8>, Vec<u8>)>) {
    for (link, target) in links {
        let target = world.names.intern(&target);
        world.add_link(&link, target);
    }
}

/// The initial tree, as far as the trace and the snapshot show. Nodes are numbered so that parents come
/// before children.
fn initial_tree(world: &mut World) -> Vec<InitialFile> {
    let mut tree = Vec::new();
    let nodes: Vec<_> =
        world.tree.nodes().skip(1).filter_map(|node| Some((node.initial?, node.clone()))).collect();
    for (path, node) in nodes {
        let kind = match &node.kind {
            NodeKind::Directory { .. } => InitialKind::Directory,
            NodeKind::Link(Some(target)) => InitialKind::Link(*target),
            NodeKind::Link(None) => InitialKind::Link(unknown_target(&mut world.names, node.initial_size)),
            NodeKind::Socket => InitialKind::Special(Device::Socket),
            NodeKind::File | NodeKind::Undecided | NodeKind::Special | NodeKind::Fifo => {
                match device(world.names.bytes(path)) {
                    Some(device) => InitialKind::Special(device),
                    None => InitialKind::File(node.initial_size),
                }
            }
        };
        let attribute = |known: &Attribute| Some((known.name, known.initial?));
        let attributes = node.attributes.iter().filter_map(attribute).collect();
        tree.push(InitialFile { path, kind, mode: node.mode, attributes, holes: node.holes.into() });
    }
    for (name, node) in world.take_hard_links() {
        if let Some(first) = world.tree.node(node).initial {
            let mode = world.tree.node(node).mode;
            let (attributes, holes) = Default::default();
            tree.push(InitialFile {
                path: name,
                kind: InitialKind::HardLink(first),
                mode,
                attributes,
                holes,
            });
        }
    }
    tree
}

/// A made-up target of the same length for a link whose target the trace cuts off, because readlink returns
/// the length.
fn unknown_target(names: &mut Names, length: u64) -> Name {
    const TARGET_BYTES_MAX: u64 = 4095;
    names.intern(&vec![b'?'; length.clamp(1, TARGET_BYTES_MAX) as usize])
}

fn device(path: &[u8]) -> Option<Device> {
    match path {
        b"/dev/null" => Some(Device::Null),
        b"/dev/zero" => Some(Device::Zero),
        b"/dev/random" | b"/dev/urandom" => Some(Device::Random),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
