//! From what actions touch to what they wait for. Each order reads the model's steps as they come and keeps the edges.

mod edges;
mod orderer;
mod paths;
mod ranges;
mod root;
mod switches;
mod weir;

pub use orderer::Orderer;
pub use root::Root;
pub use switches::Switches;
pub use weir::Weir;
