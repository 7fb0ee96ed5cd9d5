//! Nodes of the map: 4 KiB each on the medium, decoded in memory.

use super::object_leaf::ObjectEntry;
use super::page_leaf::PageLeaf;
use super::volume_leaf::{self, VolumeEntries};
use crate::format::*;
use device::{Page, StoreId};
use std::sync::atomic::AtomicBool;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The id of a node, which stays while its block changes. 0 is no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct NodeId(pub(crate) u64);

impl NodeId {
    pub(crate) const NONE: NodeId = NodeId(0);

    pub(crate) fn is_some(self) -> bool {
        self != NodeId::NONE
    }

    pub(crate) fn after(self) -> NodeId {
        NodeId(self.0 + 1)
    }
}

/// A tree. `height` counts the inner nodes above a leaf; a root of [`NodeId::NONE`] is an empty tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeTree {
    pub(crate) root: NodeId,
    pub(crate) height: u8,
}

/// Nodes that must be read from the medium before the answer is known.
#[derive(Debug)]
pub(crate) struct MissingNodes(pub(crate) Vec<NodeId>);

/// The content of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeBody {
    /// Ids of the children.
    Inner(Box<[NodeId; INNER_CHILDREN as usize]>),
    /// Pages of an object.
    Pages(Box<PageLeaf>),
    /// Objects of a volume.
    Objects(Box<[Option<ObjectEntry>; LEAF_OBJECTS as usize]>),
    /// Volumes.
    Volumes(Box<VolumeEntries>),
}

impl NodeBody {
    pub(crate) fn inner() -> NodeBody {
        NodeBody::Inner(Box::new([NodeId::NONE; INNER_CHILDREN as usize]))
    }

    pub(crate) fn pages() -> NodeBody {
        NodeBody::Pages(Box::new(PageLeaf::new()))
    }

    pub(crate) fn objects() -> NodeBody {
        NodeBody::Objects(Box::new([const { None }; LEAF_OBJECTS as usize]))
    }

    pub(crate) fn volumes() -> NodeBody {
        NodeBody::Volumes(Box::new([const { None }; LEAF_VOLUMES as usize]))
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            NodeBody::Inner(children) => !children.iter().any(|child| child.is_some()),
            NodeBody::Pages(leaf) => leaf.is_empty(),
            NodeBody::Objects(entries) => entries.iter().all(Option::is_none),
            NodeBody::Volumes(entries) => entries.iter().all(Option::is_none),
        }
    }
}

/// A node in memory.
#[derive(Debug)]
pub(crate) struct MapNode {
    pub(crate) body: NodeBody,
    /// The medium does not have the node as it is here.
    pub(crate) dirty: bool,
    /// Changed since a checkpoint under way wrote it.
    pub(crate) changed: bool,
    /// Used since eviction last passed by.
    pub(crate) used: AtomicBool,
}

impl MapNode {
    pub(crate) fn new(body: NodeBody, dirty: bool) -> MapNode {
        MapNode { body, dirty, changed: dirty, used: AtomicBool::new(true) }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MapNodeHead {
    head: StructureHead,
    id: U64,
    kind: u8,
    /// Delta blocks in a page leaf.
    deltas: u8,
    reserved: [u8; 22],
}

const HEAD_BYTES: usize = size_of::<MapNodeHead>();
const _: () = assert!(HEAD_BYTES == 64);
const _: () = assert!(HEAD_BYTES + 8 * INNER_CHILDREN as usize <= 4096);

const KIND_INNER: u8 = 1;
const KIND_PAGES: u8 = 2;
const KIND_OBJECTS: u8 = 3;
const KIND_VOLUMES: u8 = 4;

/// The block may have other references.
pub(crate) const FLAG_SHARED: u32 = 1;

/// A node's bytes, and their checksum.
pub(crate) fn encode(body: &NodeBody, id: NodeId, store: StoreId) -> (Box<Page>, u32) {
    let mut page = Page::zeroed();
    let kind = match body {
        NodeBody::Inner(_) => KIND_INNER,
        NodeBody::Pages(_) => KIND_PAGES,
        NodeBody::Objects(_) => KIND_OBJECTS,
        NodeBody::Volumes(_) => KIND_VOLUMES,
    };
    let head = StructureHead::new(MAGIC_NODE, store);
    let deltas = match body {
        NodeBody::Pages(leaf) => leaf.deltas_len(),
        NodeBody::Inner(_) | NodeBody::Objects(_) | NodeBody::Volumes(_) => 0,
    };
    let head = MapNodeHead { head, id: id.0.into(), kind, deltas, reserved: [0; 22] };
    head.write_to_prefix(&mut page.0).expect("smaller than a page");
    let rest = &mut page.0[HEAD_BYTES..];
    match body {
        NodeBody::Inner(children) => {
            for (child, bytes) in children.iter().zip(rest.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&child.0.to_le_bytes());
            }
        }
        NodeBody::Pages(leaf) => leaf.encode(rest),
        NodeBody::Objects(entries) => super::object_leaf::encode(entries, rest),
        NodeBody::Volumes(entries) => volume_leaf::encode(entries, rest),
    }
    let crc = seal(&mut page.0);
    (page, crc)
}

/// The node in `page`; `None` if these are not the bytes of node `id`. The caller has compared the checksum
/// with the node table's.
pub(crate) fn decode(page: &Page, id: NodeId, store: StoreId) -> Option<NodeBody> {
    verify_head(&page.0, MAGIC_NODE, store)?;
    let (head, rest) = MapNodeHead::read_from_prefix(&page.0).ok()?;
    if head.id.get() != id.0 {
        return None;
    }
    match head.kind {
        KIND_INNER => {
            let mut body = Box::new([NodeId::NONE; INNER_CHILDREN as usize]);
            for (child, bytes) in body.iter_mut().zip(rest.chunks_exact(8)) {
                *child = NodeId(u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
            }
            Some(NodeBody::Inner(body))
        }
        KIND_PAGES => PageLeaf::decode(rest, head.deltas).map(|leaf| NodeBody::Pages(Box::new(leaf))),
        KIND_OBJECTS => super::object_leaf::decode(rest).map(NodeBody::Objects),
        KIND_VOLUMES => volume_leaf::decode(rest).map(NodeBody::Volumes),
        _ => None,
    }
}

/// Whether the shared flag is set; `None` if unknown flags are set.
pub(super) fn decode_shared_flag(flags: u32) -> Option<bool> {
    (flags & !FLAG_SHARED == 0).then_some(flags & FLAG_SHARED != 0)
}

#[cfg(test)]
mod tests {
    use super::super::page_leaf::{BlockEntry, DeltaEntry, PageMapEntry};
    use super::*;
    use device::{Block, Lsn};

    #[test]
    fn nodes_read_back_under_their_own_id() {
        let store = StoreId([1; 16]);
        let mut inner = NodeBody::inner();
        let mut pages = NodeBody::pages();
        assert!(inner.is_empty() && pages.is_empty() && NodeBody::objects().is_empty());
        let NodeBody::Inner(children) = &mut inner else { unreachable!() };
        children[0] = NodeId(7);
        children[255] = NodeId(u64::MAX);
        let NodeBody::Pages(leaf) = &mut pages else { unreachable!() };
        leaf.set(1, PageMapEntry { place: Block(90), page_lsn: Lsn(4), crc: 5, shared: true });
        leaf.set(127, PageMapEntry { place: Block(91), page_lsn: Lsn(6), crc: 7, shared: false });
        for place in 0..LEAF_DELTAS as u64 {
            let block = BlockEntry { place: Block(1000 + place), crc: 8, shared: place == 3 };
            leaf.add_delta(DeltaEntry { block, pages: 1 | 1 << (place + 70) }, Lsn(7 + place));
        }
        for body in [inner, pages] {
            assert!(!body.is_empty());
            let (page, crc) = encode(&body, NodeId(3), store);
            assert_eq!(verify_head(&page.0, MAGIC_NODE, store).expect("whole").crc.get(), crc);
            assert_eq!(decode(&page, NodeId(3), store), Some(body));
            assert_eq!(decode(&page, NodeId(4), store), None, "another node's bytes");
            let mut other = page.clone();
            other.0[40] = 9;
            seal(&mut other.0);
            assert_eq!(decode(&other, NodeId(3), store), None, "an unknown kind");
        }
        assert_eq!(
            (NodeId(3).after(), NodeId(3).is_some(), NodeId::NONE.is_some()),
            (NodeId(4), true, false)
        );
    }
}
