//! The model: a small kernel without file contents. It runs the calls of a trace in an order that explains
//! their results, learns the initial tree from the results, and lists the resources that each call touches.

mod apply;
mod attributes;
mod chunks;
mod descriptors;
mod expected_file;
mod explain;
mod files;
mod futex_sleeps;
mod infer;
mod linearise;
mod locks;
mod names;
mod open_descriptions;
mod result_matching;
mod search;
mod tasks;
mod tree;
mod waiting;
mod world;

pub(crate) use infer::InitialLinks;
pub(crate) use linearise::Lineariser;
pub(crate) use tree::{Attribute, NodeKind};
pub(crate) use world::World;

#[cfg(test)]
mod tests;
