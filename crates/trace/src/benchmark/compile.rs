//! From a trace to a benchmark: parse, decode, learn, linearise, order.

use super::{About, Benchmark, Device, Initial, InitialKind};
use crate::action::Action;
use crate::error::TraceError;
use crate::model::{Attribute, Kind, World, linearise, links};
use crate::names::{Name, Names};
use crate::op::Call;
use crate::order::{Orderer, Root, Switches, Weir};
use crate::parse::{Coverage, Source};
use crate::tracer::TracerCost;
use crate::unseen::Unseen;
use std::path::{Path, PathBuf};

/// What a compilation needs besides the trace.
#[derive(Debug, Clone, Default)]
pub struct CompileSettings {
    /// A list of the tree before the run, and the directory to which its relative paths belong.
    pub snapshot: Option<(PathBuf, PathBuf)>,
    /// What the tracer adds between two calls; nothing: what the trace says, or 0.
    pub tracer: Option<TracerCost>,
    /// Rules of the orders that differ from the default.
    pub switches: Switches,
}

/// Compiles a trace. `name` is for people.
pub fn compile(
    source: &mut dyn Source,
    name: &Path,
    settings: &CompileSettings,
) -> Result<Benchmark, TraceError> {
    let mut names = Names::default();
    let (calls, coverage, unseen) = read_calls(source, name, &mut names)?;
    if calls.is_empty() {
        return Err(TraceError::Empty { path: name.into() });
    }
    let links = links(&calls, &names);
    let mut world = World::new(names);
    if let Some((file, root)) = &settings.snapshot {
        super::read_snapshot(&mut world, file, root)?;
    }
    add_links(&mut world, links);
    let mut orders: Vec<Box<dyn Orderer>> =
        vec![Box::new(Weir::new(&settings.switches)), Box::new(Root::new(&settings.switches))];
    let mut actions: Vec<Action> = Vec::with_capacity(calls.len());
    linearise(&mut world, calls, |step| {
        orders.iter_mut().for_each(|order| order.add(&step));
        actions.push(step.action);
    });
    let about = About {
        trace: name.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        threads: world.threads(),
        handles: world.handles(),
        requests: world.requests(),
        lines: coverage.lines,
        used: coverage.used,
        unfinished: coverage.unfinished,
        problems: coverage
            .problems
            .iter()
            .map(|(kind, what)| (kind.clone(), what.count, what.line))
            .collect(),
        repairs: world.repairs,
        races: std::mem::take(&mut world.races),
        unseen,
        tracer: settings.tracer.or(source.tracer()).unwrap_or_default(),
        naps: std::mem::take(&mut world.naps),
    };
    let orders: Vec<_> = orders.into_iter().map(Orderer::finish).collect();
    for order in &orders {
        assert!(order.is_acyclic(actions.len()), "an edge runs backwards in order {}", order.name);
    }
    let tree = initial_tree(&mut world);
    let inherited = std::mem::take(&mut world.inherited);
    Ok(Benchmark { about, names: world.names, tree, inherited, actions, orders })
}

fn read_calls(
    source: &mut dyn Source,
    name: &Path,
    names: &mut Names,
) -> Result<(Vec<Call>, Coverage, Unseen), TraceError> {
    let mut calls = Vec::new();
    let (mut undecoded, mut unseen) = (Coverage::default(), Unseen::default());
    while let Some(event) = source.next_event().map_err(TraceError::io("reading", name))? {
        unseen.add(&event);
        calls.push(crate::decode::decode(&event, names, &mut undecoded));
    }
    let mut coverage = source.coverage().clone();
    coverage.problems.extend(undecoded.problems);
    Ok((calls, coverage, unseen))
}

/// A snapshot knows better what it lists.
fn add_links(world: &mut World, links: Vec<(Vec<u8>, Vec<u8>)>) {
    for (link, target) in links {
        let target = world.names.intern(&target);
        world.add_link(&link, target);
    }
}

/// What was there before, as far as the trace and the snapshot show. Parents come before children: nodes are numbered so.
fn initial_tree(world: &mut World) -> Vec<Initial> {
    let mut tree = Vec::new();
    let nodes: Vec<_> =
        world.tree.nodes().skip(1).filter_map(|node| Some((node.initial?, node.clone()))).collect();
    for (path, node) in nodes {
        let kind = match &node.kind {
            Kind::Directory { .. } => InitialKind::Directory,
            Kind::Link(Some(target)) => InitialKind::Link(*target),
            Kind::Link(None) => InitialKind::Link(unknown_target(&mut world.names, node.initial_size)),
            Kind::Socket => InitialKind::Special(Device::Socket),
            Kind::File | Kind::Undecided | Kind::Special | Kind::Fifo => {
                match device(world.names.bytes(path)) {
                    Some(device) => InitialKind::Special(device),
                    None => InitialKind::File(node.initial_size),
                }
            }
        };
        let attribute = |known: &Attribute| Some((known.name, known.initial?));
        let attributes = node.attributes.iter().filter_map(attribute).collect();
        tree.push(Initial { path, kind, mode: node.mode, attributes, holes: node.holes.into() });
    }
    for (name, node) in world.take_hard_links() {
        if let Some(first) = world.tree.node(node).initial {
            let mode = world.tree.node(node).mode;
            let (attributes, holes) = Default::default();
            tree.push(Initial { path: name, kind: InitialKind::HardLink(first), mode, attributes, holes });
        }
    }
    tree
}

/// A link whose target the trace cuts off keeps its length, which is what readlink returns.
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
