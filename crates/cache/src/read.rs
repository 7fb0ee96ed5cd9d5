//! Reads: from memory at once, or from the store by a worker that fetches.

pub(crate) mod fetcher;
pub(crate) mod prefetch;
pub(crate) mod read_ahead;
pub(crate) mod seek;
pub(crate) mod synchronous;
pub(crate) mod waiting;
