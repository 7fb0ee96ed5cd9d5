#![doc = include_str!("../README.md")]
mod errors;
mod file;
mod interpreter;
mod stat;
mod store;

/// Pages are aligned, and glibc takes two for each. It serves weir alone, not the program around it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

use pyo3::prelude::*;

/// The compiled part of the package `weir`.
#[pymodule]
mod _weir {
    use super::{PyModule, PyResult};

    #[pymodule_export]
    use super::{file::RawFile, interpreter::forget_of_parent, store::RawStore};

    #[pymodule_init]
    fn init(_module: &super::Bound<'_, PyModule>) -> PyResult<()> {
        super::interpreter::prepare();
        Ok(())
    }
}
