//! Open files.

use crate::errors::failed;
use crate::interpreter::FILES;
use crate::stat::stat_result;
use crate::store::RawStore;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::io::Errno;
use std::io::{self, SeekFrom};
use std::sync::Arc;
use weir_library::{FallocateMode, SeekWhence, SizePolicy, WeirFile};

/// A file, and the number of its store.
pub(crate) struct OpenFile {
    pub(crate) store: u64,
    pub(crate) file: WeirFile,
}

/// An open file, as the kernel would have it: `weir.File` is the class for programs.
#[pyclass(module = "weir._weir", frozen)]
pub(crate) struct RawFile {
    number: u64,
    /// The store is closed after its files.
    _store: Py<RawStore>,
}

impl RawFile {
    pub(crate) fn new(store: Py<RawStore>, open: OpenFile) -> RawFile {
        RawFile { number: FILES.add(open), _store: store }
    }

    pub(crate) fn open(&self) -> PyResult<Arc<OpenFile>> {
        FILES.get(self.number).map_err(failed)
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        // It fails if the file was closed.
        let _ = FILES.remove(self.number);
    }
}

#[pymethods]
impl RawFile {
    /// Closes the file.
    fn close(&self) -> PyResult<()> {
        FILES.remove(self.number).map(drop).map_err(failed)
    }

    /// Reads from the position on into `buffer`. Returns the number of bytes: 0 at the end.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = PyBuffer::<u8>::get(buffer)?;
        // What is not read stays as it was.
        let mut bytes = buffer.to_vec(py)?;
        let read = self.open()?.file.read(&mut bytes).map_err(failed)?;
        buffer.copy_from_slice(py, &bytes)?;
        Ok(read)
    }

    /// Reads at most `size` bytes from the position on.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.open()?;
        read_bytes(py, size, |bytes| file.file.read(bytes))
    }

    /// Reads at most `size` bytes from `offset` on.
    fn pread<'py>(&self, py: Python<'py>, size: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.open()?;
        read_bytes(py, size, |bytes| file.file.read_at(bytes, offset))
    }

    /// Writes at the position, or at the end of an appending file. Returns the number of bytes written.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.open()?;
        with_bytes(py, data, |bytes| file.file.write(bytes))
    }

    /// Writes at `offset`, or at the end of an appending file. Returns the number of bytes written.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.open()?;
        with_bytes(py, data, |bytes| file.file.write_at(bytes, offset))
    }

    /// Moves the position, and returns it.
    #[pyo3(signature = (offset, whence = 0))]
    fn seek(&self, offset: i64, whence: i32) -> PyResult<u64> {
        let file = &self.open()?.file;
        let unsigned = u64::try_from(offset);
        let moved = match (whence, unsigned) {
            (0, Ok(offset)) => file.seek(SeekFrom::Start(offset)),
            (1, _) => file.seek(SeekFrom::Current(offset)),
            (2, _) => file.seek(SeekFrom::End(offset)),
            (3, Ok(offset)) => file.seek_to(offset, SeekWhence::Data),
            (4, Ok(offset)) => file.seek_to(offset, SeekWhence::Hole),
            _ => Err(Errno::INVAL.into()),
        };
        moved.map_err(failed)
    }

    /// Sets the size. New bytes are zeros.
    fn truncate(&self, size: u64) -> PyResult<()> {
        self.open()?.file.set_len(size).map_err(failed)
    }

    /// Allocates a range of bytes, and makes the file as long.
    fn allocate(&self, offset: u64, length: u64) -> PyResult<()> {
        self.open()?
            .file
            .allocate(FallocateMode::Allocate, (offset, length), SizePolicy::Grow)
            .map_err(failed)
    }

    /// Makes a range of bytes zeros that take no space.
    fn punch_hole(&self, offset: u64, length: u64) -> PyResult<()> {
        self.open()?
            .file
            .allocate(FallocateMode::PunchHole, (offset, length), SizePolicy::Keep)
            .map_err(failed)
    }

    /// Makes the file durable, and every earlier change of the volume.
    fn sync(&self) -> PyResult<()> {
        self.open()?.file.sync_data().map_err(failed)
    }

    /// The attributes, as of `os.fstat`.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stat_result(py, &self.open()?.file.metadata().map_err(failed)?)
    }
}

fn read_bytes<'py>(
    py: Python<'py>,
    size: usize,
    read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut bytes = Vec::new();
    if size > isize::MAX as usize || bytes.try_reserve_exact(size).is_err() {
        return Err(PyOSError::new_err((Errno::INVAL.raw_os_error(), "Invalid argument")));
    }
    bytes.resize(size, 0);
    let count = read(&mut bytes).map_err(failed)?;
    Ok(PyBytes::new(py, &bytes[..count]))
}

/// Hands the bytes of an object to `write`. They are copied unless they cannot change: another thread may, while this one waits.
pub(crate) fn with_bytes<T>(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    write: impl FnOnce(&[u8]) -> io::Result<T>,
) -> PyResult<T> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return write(bytes.as_bytes()).map_err(failed);
    }
    let bytes = PyBuffer::<u8>::get(data)?.to_vec(py)?;
    write(&bytes).map_err(failed)
}
