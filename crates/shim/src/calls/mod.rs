//! The calls that are served, by kind.

pub(crate) mod attributes;
pub(crate) mod bytes;
pub(crate) mod descriptors;
pub(crate) mod directories;
pub(crate) mod names;
pub(crate) mod processes;
pub(crate) mod walks;
