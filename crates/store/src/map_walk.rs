//! A walk of the whole map, which visits each node once, however many objects share it.

use crate::block_set::BlockSet;
use crate::error::StoreError;
use crate::format::{INNER_CHILDREN, LEAF_OBJECTS, LEAF_PAGES, LEAF_VOLUMES};
use crate::map::{BlockEntry, NodeBody, NodeId, NodeTree, ObjectPageEntries, PageMap};
use crate::shared::StoreShared;
use crate::volume::VolumeId;
use crate::writer::StoreWriter;
use device::{Block, ObjectId, PageNo};
use std::collections::BTreeMap;

/// The object through which a walk first found something; others may share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FirstHolder {
    pub(crate) volume: VolumeId,
    pub(crate) object: ObjectId,
}

/// An item that a walk reports.
pub(crate) enum WalkItem {
    /// A block of data, and the page whose base it is; or the first page of which it has a delta.
    Block(FirstHolder, PageNo, BlockEntry),
    /// A page that was lost earlier.
    LostPage(FirstHolder, PageNo),
    /// A node that could not be read, and the object that it belongs to, unless it holds objects itself.
    UnreadableNode(Option<FirstHolder>, StoreError),
}

/// A node to visit: its height above the leaves, the index of its first leaf, and the object that it belongs
/// to.
struct NodeVisit {
    id: NodeId,
    height: u8,
    index: u64,
    volume: VolumeId,
    object: Option<ObjectId>,
}

impl NodeVisit {
    fn owner(&self) -> Option<FirstHolder> {
        self.object.map(|object| FirstHolder { volume: self.volume, object })
    }
}

/// Visits every node once. Returns the number of references to each. The caller holds the writer's lock.
pub(crate) fn walk_map(shared: &StoreShared, meet: &mut dyn FnMut(WalkItem)) -> BTreeMap<NodeId, u32> {
    let mut references = BTreeMap::new();
    let mut todo = Vec::new();
    let root = |tree: NodeTree, volume, object| NodeVisit {
        id: tree.root,
        height: tree.height,
        index: 0,
        volume,
        object,
    };
    {
        let map = shared.map();
        // A dying tree belongs to no object any more; its height does not matter.
        let dying = |id: NodeId| root(NodeTree { root: id, height: 0 }, VolumeId::MAIN, None);
        todo.extend(map.volumes.dying().map(dying));
        todo.push(root(map.volumes.tree(), VolumeId::MAIN, None));
    }
    while let Some(at) = todo.pop() {
        if !at.id.is_some() {
            continue;
        }
        let count = references.entry(at.id).or_insert(0);
        *count += 1;
        if *count > 1 {
            continue;
        }
        match shared.resolve(|map| map.nodes.node(at.id).map(|node| node.body.clone())) {
            Err(error) => meet(WalkItem::UnreadableNode(at.owner(), error)),
            Ok(NodeBody::Inner(children)) => {
                let step = INNER_CHILDREN.saturating_pow(u32::from(at.height.saturating_sub(1)));
                let below = children.iter().zip(0..).map(|(&id, number)| NodeVisit {
                    id,
                    height: at.height.saturating_sub(1),
                    index: at.index.saturating_add(step.saturating_mul(number)),
                    volume: at.volume,
                    object: at.object,
                });
                let below: Vec<NodeVisit> = below.filter(|visit| visit.id.is_some()).collect();
                todo.extend(below.into_iter().rev());
            }
            Ok(NodeBody::Pages(leaf)) => {
                let owner = at.owner().unwrap_or_default();
                let number = |index| PageNo(at.index.saturating_mul(LEAF_PAGES).saturating_add(index));
                leaf.first_pages()
                    .for_each(|(page, block)| meet(WalkItem::Block(owner, number(page), block)));
                leaf.lost_pages().for_each(|page| meet(WalkItem::LostPage(owner, number(page))));
            }
            Ok(NodeBody::Volumes(entries)) => {
                // The first volume first, as the others are clones of it.
                for (number, entry) in entries.iter().enumerate().rev() {
                    let Some(entry) = entry else { continue };
                    let volume = VolumeId((at.index * LEAF_VOLUMES) as u32 + number as u32);
                    todo.push(root(entry.objects, volume, None));
                }
            }
            Ok(NodeBody::Objects(entries)) => {
                for (entry, number) in entries.iter().zip(0..) {
                    let Some(entry) = entry else { continue };
                    let slot = at.index * LEAF_OBJECTS + number;
                    let object = at.volume.object(slot, entry.generation);
                    match &entry.pages {
                        ObjectPageEntries::Tree(tree) => todo.push(root(*tree, at.volume, Some(object))),
                        ObjectPageEntries::Inline(pages) => {
                            let owner = FirstHolder { volume: at.volume, object };
                            pages.iter().for_each(|(page, entry)| match entry.base() {
                                Some(base) => meet(WalkItem::Block(owner, *page, base)),
                                None => meet(WalkItem::LostPage(owner, *page)),
                            });
                        }
                    }
                }
            }
        }
    }
    references
}

/// The blocks of nodes, of the node table's pages, and of the newest tables' stream, with their mirrors.
pub(crate) fn node_blocks(map: &PageMap, writer: &StoreWriter) -> BlockSet {
    let mut blocks = BlockSet::empty(map.nodes.segments.geometry());
    let nodes = map.nodes.table.iter().map(|(_, entry)| entry.place);
    let pages = map.nodes.table.pages().iter().map(|page| page.place);
    nodes.chain(pages).chain(writer.table_blocks()).filter(|&at| at != Block(0)).for_each(|at| {
        for place in [Some(at), map.nodes.segments.mirror_of(at)].into_iter().flatten() {
            blocks.add(place);
        }
    });
    blocks
}
