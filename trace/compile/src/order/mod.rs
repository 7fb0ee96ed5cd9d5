//! The orders: they turn touched resources into waits. Each order reads the model's steps one by one and
//! keeps the edges.

mod edges;
mod orderer;
mod paths;
mod ranges;
mod root;
mod switches;
mod weir;

pub(crate) use orderer::Orderer;
pub(crate) use root::Root;
pub use switches::Switches;
pub(crate) use weir::Weir;
