//! How many blocks each volume has alone, and how many it shares: exactly, by a walk.
//!
//! The walk reads every node once. A node belongs to a volume as long as only that volume leads to it. Where
//! another volume does, too, the node and everything below it are shared. Blocks that a page leaf marks as
//! shared are compared one by one, as two leaves may refer to the same block.

use crate::error::StoreError;
use crate::map::{BlockEntry, NodeBody, NodeId, ObjectPageEntries};
use crate::shared::StoreShared;
use crate::volume::VolumeId;
use device::Block;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Blocks of data of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The volume.
    pub id: VolumeId,
    /// Blocks that nothing else refers to: deleting the volume would free them.
    pub exclusive: u64,
    /// Blocks that others refer to, too.
    pub shared: u64,
}

/// Blocks of data in the store, and in each volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreUsage {
    /// Each volume, ordered by number.
    pub volumes: Vec<VolumeUsage>,
    /// Blocks of data that some volume refers to, each counted once.
    pub data: u64,
    /// Blocks of data that only deleted volumes and files refer to, and that are not freed yet.
    pub dying: u64,
}

/// The volumes that lead to a node or a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceOwner {
    Volume(VolumeId),
    /// Deleted volumes only.
    Dying,
    /// More than one volume.
    Many,
}

impl SpaceOwner {
    /// The owner of something to which both lead. Something to which a deleted volume leads, too, is still
    /// the other's alone.
    fn with(self, other: SpaceOwner) -> SpaceOwner {
        match (self, other) {
            (SpaceOwner::Dying, one) | (one, SpaceOwner::Dying) => one,
            (one, two) if one == two => one,
            _ => SpaceOwner::Many,
        }
    }
}

/// The facts about a node that the walk remembers.
struct VisitedNode {
    reached_from: SpaceOwner,
    children: Box<[NodeId]>,
    /// Blocks that only this node refers to.
    alone: u64,
    /// Blocks that other nodes may refer to.
    marked: Box<[Block]>,
}

type VisitedNodes = HashMap<NodeId, VisitedNode>;

/// See [`StoreVolumes::usage`](crate::StoreVolumes::usage). The caller holds the writer's lock.
pub(crate) fn usage(shared: &StoreShared) -> Result<StoreUsage, StoreError> {
    let roots: Vec<(VolumeId, NodeId)> = {
        let map = shared.map();
        map.volumes.iter().map(|(id, volume)| (id, volume.objects.root)).collect()
    };
    let mut todo: Vec<(NodeId, SpaceOwner)> =
        roots.iter().map(|&(id, root)| (root, SpaceOwner::Volume(id))).collect();
    todo.extend(shared.map().volumes.dying().map(|id| (id, SpaceOwner::Dying)));
    let mut nodes = VisitedNodes::new();
    while let Some((id, owner)) = todo.pop() {
        if !id.is_some() {
            continue;
        }
        let node = match nodes.entry(id) {
            Entry::Vacant(place) => place.insert(visit_node(shared, id, owner)?),
            Entry::Occupied(place) => {
                let node = place.into_mut();
                if !node.changes_owner(owner) {
                    continue;
                }
                node.reached_from = node.reached_from.with(owner);
                node
            }
        };
        todo.extend(node.children.iter().map(|&child| (child, node.reached_from)));
    }
    Ok(sum_usage(&nodes, &roots))
}

fn visit_node(shared: &StoreShared, id: NodeId, owner: SpaceOwner) -> Result<VisitedNode, StoreError> {
    let body = shared.resolve(|map| map.nodes.node(id).map(|node| node.body.clone()))?;
    let mut children = Vec::new();
    let mut alone = 0;
    let mut marked = Vec::new();
    let mut add = |block: BlockEntry| if block.shared { marked.push(block.place) } else { alone += 1 };
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
    Ok(VisitedNode { reached_from: owner, children: children.into(), alone, marked: marked.into() })
}

impl VisitedNode {
    /// Whether reaching the node from `owner`, too, changes its owner.
    fn changes_owner(&self, owner: SpaceOwner) -> bool {
        self.reached_from.with(owner) != self.reached_from
    }
}

/// Adds up, once the owner of each node is known.
fn sum_usage(nodes: &VisitedNodes, roots: &[(VolumeId, NodeId)]) -> StoreUsage {
    let mut of: HashMap<VolumeId, u64> = HashMap::new();
    let mut usage = StoreUsage::default();
    let mut blocks: HashMap<Block, SpaceOwner> = HashMap::new();
    let mut add = |usage: &mut StoreUsage, owner, count| {
        match owner {
            SpaceOwner::Dying => usage.dying += count,
            SpaceOwner::Many => usage.data += count,
            SpaceOwner::Volume(id) => {
                usage.data += count;
                *of.entry(id).or_default() += count;
            }
        };
    };
    for node in nodes.values() {
        add(&mut usage, node.reached_from, node.alone);
        for &place in &node.marked {
            blocks
                .entry(place)
                .and_modify(|owner| *owner = owner.with(node.reached_from))
                .or_insert(node.reached_from);
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

/// Blocks to which a node leads. Recurses as deep as the trees are high.
fn blocks_below(nodes: &VisitedNodes, id: NodeId, below: &mut HashMap<NodeId, u64>) -> u64 {
    if let Some(&known) = below.get(&id) {
        return known;
    }
    let Some(node) = nodes.get(&id) else { return 0 };
    let own = node.alone + node.marked.len() as u64;
    let all = own + node.children.iter().map(|&child| blocks_below(nodes, child, below)).sum::<u64>();
    below.insert(id, all);
    all
}
