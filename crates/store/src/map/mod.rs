//! The map in memory: which block holds which page of which object.
//!
//! # Definitions
//!
//! - *Volume*: a tree of objects, by slot. *Object*: a sequence of pages. A *slot* holds one object at a
//!   time; its *generation* tells it from earlier ones.
//! - *Node*: 4 KiB of the map. Its *id* stays while its block changes. Leaves of pages, objects and volumes
//!   are nodes; so are the inner nodes above them.
//! - *Node table*: for each node id its block, its checksum and its number of references.
//! - *Reference*: an id in a parent, in an object's or a volume's entry, in the root of the volumes' tree, or
//!   on the dying list. A node with more than one reference is *shared*.
//! - *Inline pages*: the few pages of a small object, in the object's entry instead of a tree.
//! - *Base*: the whole block of a page. *Delta block*: a block with deltas for pages of one leaf. A page is
//!   its base with its deltas laid over it.
//! - *Shared flag* of an entry: other entries may refer to the same block.
//! - *Live block*: a block that an entry, the node table or a checkpoint's tables refer to. Counted for each
//!   segment; an upper bound where blocks are shared.
//! - *Dying list*: roots of trees that were deleted and are freed in steps.
//! - *Dirty node*: a node that the medium does not have as it is here.
//! - *Scan*: an incremental visit of all nodes, for the cleaner or the scrubber.
//!
//! # Rules
//!
//! 1. A change never waits for the device. `prepare` says which nodes the change needs and memory lacks; the
//!    caller reads them with no lock held, and asks again. Then `apply_entry` cannot fail.
//! 2. A shared node does not change. A change first copies each shared node on its path; the children of a
//!    copy get one reference more. Only two changes happen in place, as they hold for all parents: repointing
//!    a block that the cleaner moved, and setting shared flags.
//! 3. With its last reference a node is removed, and its own references are dropped.
//! 4. When an entry without the shared flag drops its block, the block is no longer live. With the flag, the
//!    count stays as it is until a recount.
//! 5. A new node, and a node with a new reference, is shown to the scans under way.
//! 6. An entry for an older generation than the one in the slot changes nothing. A write, clone or move for a
//!    newer one replaces the object.
//! 7. A punch leaves pages that are newer than it. An object that has had a clone or move ignores every
//!    punch, deletion, clone and move that is older.

mod leaf_deltas;
mod node;
mod node_table;
mod node_tree;
mod nodes;
mod object_leaf;
mod page_leaf;
mod page_map;
mod repoint;
mod scan;
#[cfg(test)]
mod tests;
mod transfer;
mod volume_leaf;
mod volumes;

pub(crate) use leaf_deltas::{MergeCursor, MergeSearch, SharedDeltas};
#[cfg(test)]
pub(crate) use node::encode as encode_node;
pub(crate) use node::{MissingNodes, NodeBody, NodeId, NodeTree, decode as decode_node};
pub(crate) use node_table::{NodeEntry, NodeTable, TablePage, decode as decode_table_page};
pub(crate) use nodes::MapNodes;
pub(crate) use object_leaf::{ObjectEntry, ObjectPageEntries};
pub(crate) use page_leaf::BlockEntry;
#[cfg(test)]
pub(crate) use page_leaf::{DeltaEntry, PageMapEntry};
pub(crate) use page_map::{PageLocation, PageMap};
pub(crate) use repoint::MovedBlock;
pub(crate) use scan::{BlockHolder, PeekedNode, ScanPurpose, ScanTarget};
#[cfg(test)]
pub(crate) use volume_leaf::VolumeEntry;
pub(crate) use volumes::MapVolumes;
