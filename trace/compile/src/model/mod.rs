//! The model: a small kernel without bytes. It runs the calls of a trace in an order that explains their results, learns from
//! the results what was there before, and says of each call what it touches.

mod apply;
mod attributes;
mod chunks;
mod descriptors;
mod explain;
mod files;
mod fits;
mod infer;
mod linearise;
mod live;
mod locks;
mod names;
mod search;
mod sleep;
mod tasks;
mod tree;
mod waiting;
mod want;
mod world;

pub use infer::Links;
pub use linearise::Lineariser;
pub use tree::{Attribute, Kind};
pub use world::World;

#[cfg(test)]
mod tests;
