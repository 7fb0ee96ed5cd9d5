//! The map in memory: which block holds which page of which object.

mod leaf_deltas;
mod merge_cursor;
mod node;
mod node_table;
mod node_tree;
mod nodes;
mod object_leaf;
mod page_leaf;
#[allow(clippy::module_inception)]
mod page_map;
mod repoint;
mod scan;
#[cfg(test)]
mod tests;
mod transfer;
mod volume_leaf;
mod volumes;

pub(crate) use merge_cursor::{MergeCursor, MergeSearch};
#[cfg(test)]
pub(crate) use node::encode as encode_node;
pub(crate) use node::{MissingNodes, NodeBody, NodeId, NodeTree, decode as decode_node};
pub(crate) use node_table::{NodeEntry, NodeTable, TablePage, decode as decode_table_page};
pub(crate) use nodes::MapNodes;
pub(crate) use object_leaf::{ObjectEntry, ObjectPages};
pub(crate) use page_leaf::BlockEntry;
#[cfg(test)]
pub(crate) use page_leaf::{DeltaEntry, PageEntry};
pub(crate) use page_map::{PageLocation, PageMap};
pub(crate) use repoint::MovedBlock;
pub(crate) use scan::{BlockHolder, PeekedNode, ScanPurpose, ScanTarget};
#[cfg(test)]
pub(crate) use volume_leaf::VolumeEntry;
pub(crate) use volumes::MapVolumes;
