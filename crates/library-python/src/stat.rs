//! `os.stat_result`.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use weir_library::{BLOCK_BYTES, DEVICE_MINOR, FileAttributes, full_mode};

const NANOS: i64 = 1_000_000_000;
const NANOS_AS_FLOAT: f64 = 1e9;

/// The attributes of a file, as `os.stat` returns them.
pub(crate) fn stat_result<'py>(py: Python<'py>, found: &FileAttributes) -> PyResult<Bound<'py, PyAny>> {
    let times = [found.accessed, found.modified, found.changed];
    let fields = PyList::empty(py);
    fields.append(full_mode(found))?;
    fields.append(found.ino.0)?;
    fields.append(rustix::fs::makedev(0, DEVICE_MINOR))?;
    fields.append(found.links)?;
    fields.append(found.uid)?;
    fields.append(found.gid)?;
    fields.append(found.size)?;
    // Each time in whole seconds, then as a float, then in nanoseconds: the order of the type's constructor.
    for time in times {
        fields.append(time.div_euclid(NANOS))?;
    }
    for time in times {
        fields.append(time as f64 / NANOS_AS_FLOAT)?;
    }
    for time in times {
        fields.append(time)?;
    }
    fields.append(BLOCK_BYTES)?;
    fields.append(found.stored_bytes.div_ceil(512))?;
    fields.append(found.device)?;
    let stat_result = py.import("os")?.getattr("stat_result")?;
    stat_result.call1(PyTuple::new(py, [fields])?)
}
