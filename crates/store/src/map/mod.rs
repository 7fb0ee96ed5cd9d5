//! The map in memory: which block holds which page of which object.

mod fold;
mod fold_cursor;
mod leaf;
#[allow(clippy::module_inception)]
mod map;
mod node;
mod nodes;
mod object;
mod ranges;
mod repoint;
mod scan;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod volume;
mod volumes;

pub(crate) use fold_cursor::{FoldCursor, FoldLook};
pub(crate) use leaf::BlockEntry;
#[cfg(test)]
pub(crate) use leaf::{DeltaEntry, PageEntry};
pub(crate) use map::{Located, Map};
#[cfg(any(test, fuzzing))]
pub(crate) use node::encode as encode_node;
pub(crate) use node::{Body, Missing, NodeId, Tree, decode as decode_node};
pub(crate) use nodes::Nodes;
pub(crate) use object::{ObjectEntry, Pages};
pub(crate) use repoint::Move;
pub(crate) use scan::{Holder, Peeked, Purpose, Wanted};
pub(crate) use table::{NodeEntry, NodeTable, TablePage, decode as decode_table_page};
#[cfg(test)]
pub(crate) use volume::Volume;
pub(crate) use volumes::Volumes;
