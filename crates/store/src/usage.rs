//! What each volume takes alone, and what it shares: exactly, by a walk.
//!
//! Every node is read once. It belongs to a volume as long as only that volume leads to it; where another one does,
//! too, it and all below it are shared. Of a page leaf whose entries are marked as shared the blocks are compared one by
//! one, as two leaves may refer to the same block.

use crate::error::StoreError;
use crate::map::{BlockEntry, NodeBody, NodeId, ObjectPageEntries};
use crate::shared::Shared;
use crate::volume::VolumeId;
use device::Block;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What a volume takes, in blocks of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Which.
    pub id: VolumeId,
    /// Blocks that nothing else refers to: what its deletion would give back.
    pub exclusive: u64,
    /// Blocks that others refer to, too.
    pub shared: u64,
}

/// What a store holds, counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Each volume, by number.
    pub volumes: Vec<VolumeUsage>,
    /// Blocks of data that some volume refers to, each counted once.
    pub data: u64,
    /// Blocks of data that only what was deleted holds, until it is freed.
    pub dying: u64,
}

/// Who leads to a node or a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Volume(VolumeId),
    /// Deleted volumes.
    Dying,
    /// More than one volume.
    Many,
}

impl Owner {
    /// The owner of what both lead to. What a deleted volume leads to as well is still the other's alone.
    fn with(self, other: Owner) -> Owner {
        match (self, other) {
            (Owner::Dying, one) | (one, Owner::Dying) => one,
            (one, two) if one == two => one,
            _ => Owner::Many,
        }
    }
}

/// A node as the walk saw it.
struct Seen {
    owner: Owner,
    children: Box<[NodeId]>,
    /// Blocks that only this node refers to.
    alone: u64,
    /// Blocks that other nodes may refer to.
    marked: Box<[Block]>,
}

type Nodes = HashMap<NodeId, Seen>;

/// Counts what volumes take: see [`Store::usage`](crate::Store::usage). The caller holds the writer's lock.
pub(crate) fn usage(shared: &Shared) -> Result<Usage, StoreError> {
    let roots: Vec<(VolumeId, NodeId)> = {
        let map = shared.map();
        map.volumes.iter().map(|(id, volume)| (id, volume.objects.root)).collect()
    };
    let mut todo: Vec<(NodeId, Owner)> = roots.iter().map(|&(id, root)| (root, Owner::Volume(id))).collect();
    todo.extend(shared.map().volumes.dying().map(|id| (id, Owner::Dying)));
    let mut nodes = Nodes::new();
    while let Some((id, owner)) = todo.pop() {
        if !id.is_some() {
            continue;
        }
        let node = match nodes.entry(id) {
            Entry::Vacant(place) => place.insert(see(shared, id, owner)?),
            Entry::Occupied(place) => {
                let node = place.into_mut();
                if !node.joins(owner) {
                    continue;
                }
                node.owner = node.owner.with(owner);
                node
            }
        };
        todo.extend(node.children.iter().map(|&child| (child, node.owner)));
    }
    Ok(count(&nodes, &roots))
}

fn see(shared: &Shared, id: NodeId, owner: Owner) -> Result<Seen, StoreError> {
    let body = shared.resolve(|map| map.nodes.node(id).map(|node| node.body.clone()))?;
    let (mut children, mut alone, mut marked) = (Vec::new(), 0, Vec::new());
    let mut add = |block: BlockEntry| match block.shared {
        true => marked.push(block.place),
        false => alone += 1,
    };
    match &body {
        NodeBody::Inner(ids) => children.extend(ids.iter().copied().filter(|id| id.is_some())),
        NodeBody::Pages(leaf) => leaf.blocks().for_each(|(_, block)| add(block)),
        NodeBody::Objects(objects) => {
            for object in objects.iter().flatten() {
                match &object.pages {
                    ObjectPageEntries::Inline(pages) => {
                        pages.iter().filter_map(|(_, entry)| entry.base()).for_each(&mut add);
                    }
                    ObjectPageEntries::Tree(tree) => children.push(tree.root),
                }
            }
        }
        NodeBody::Volumes(volumes) => {
            children.extend(volumes.iter().flatten().map(|volume| volume.objects.root))
        }
    }
    Ok(Seen { owner, children: children.into(), alone, marked: marked.into() })
}

impl Seen {
    /// Whether another way to the node changes whose it is.
    fn joins(&self, owner: Owner) -> bool {
        self.owner.with(owner) != self.owner
    }
}

/// Adds up, once everybody's owner is known.
fn count(nodes: &Nodes, roots: &[(VolumeId, NodeId)]) -> Usage {
    let mut of: HashMap<VolumeId, u64> = HashMap::new();
    let mut usage = Usage::default();
    let mut blocks: HashMap<Block, Owner> = HashMap::new();
    let mut add = |usage: &mut Usage, owner, count| {
        match owner {
            Owner::Dying => usage.dying += count,
            Owner::Many => usage.data += count,
            Owner::Volume(id) => {
                usage.data += count;
                *of.entry(id).or_default() += count;
            }
        };
    };
    for node in nodes.values() {
        add(&mut usage, node.owner, node.alone);
        for &place in &node.marked {
            blocks.entry(place).and_modify(|owner| *owner = owner.with(node.owner)).or_insert(node.owner);
        }
    }
    blocks.values().for_each(|&owner| add(&mut usage, owner, 1));
    let mut below = HashMap::new();
    for &(id, root) in roots {
        let exclusive = of.get(&id).copied().unwrap_or(0);
        let all = blocks_below(nodes, root, &mut below);
        usage.volumes.push(VolumeUsage { id, exclusive, shared: all.saturating_sub(exclusive) });
    }
    usage
}

/// Blocks that a node leads to. As deep as the trees are high.
fn blocks_below(nodes: &Nodes, id: NodeId, below: &mut HashMap<NodeId, u64>) -> u64 {
    if let Some(&known) = below.get(&id) {
        return known;
    }
    let Some(node) = nodes.get(&id) else { return 0 };
    let own = node.alone + node.marked.len() as u64;
    let all = own + node.children.iter().map(|&child| blocks_below(nodes, child, below)).sum::<u64>();
    below.insert(id, all);
    all
}
