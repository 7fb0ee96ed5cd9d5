//! Tests of the core in memory.
