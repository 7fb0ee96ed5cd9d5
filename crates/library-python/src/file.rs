//! Open files.

use crate::errors::failed;
use crate::interpreter::FILES;
use crate::stat::stat_result;
use crate::store::RawStore;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use rustix::io::Errno;
use std::io::{self, Seek, SeekFrom};
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
    /// Closes the file. Does nothing if the file or its store was closed before.
    fn close(&self) {
        let _ = FILES.remove(self.number);
    }

    /// Reads from the position on into `buffer`. Returns the number of bytes: 0 at the end.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let into = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
        let file = &self.open()?.file;
        let left = bytes_left(file, position_of(file)?)?;
        let mut bytes = space_for(into.len()?, left)?;
        let read = file.read(&mut bytes).map_err(failed)?;
        into.set_item(PySlice::new(py, 0, read as isize, 1), PyBytes::new(py, &bytes[..read]))?;
        Ok(read)
    }

    /// Reads at most `size` bytes from the position on.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = &self.open()?.file;
        let left = bytes_left(file, position_of(file)?)?;
        read_bytes(py, space_for(size, left)?, |bytes| file.read(bytes))
    }

    /// Reads at most `size` bytes from `offset` on.
    fn pread<'py>(&self, py: Python<'py>, size: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = &self.open()?.file;
        read_bytes(py, space_for(size, bytes_left(file, offset)?)?, |bytes| file.read_at(bytes, offset))
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

fn position_of(mut file: &WeirFile) -> PyResult<u64> {
    file.stream_position().map_err(failed)
}

/// Bytes of the file from `offset` on.
fn bytes_left(file: &WeirFile, offset: u64) -> PyResult<u64> {
    Ok(file.metadata().map_err(failed)?.size.saturating_sub(offset))
}

/// Memory for `size` bytes, of which the file has `left`.
fn space_for(size: usize, left: u64) -> PyResult<Vec<u8>> {
    if size > isize::MAX as usize {
        return Err(failed(Errno::INVAL.into()));
    }
    // At least one, so that a read of a file that grows meanwhile is no end of it, and a directory is refused.
    Ok(vec![0; size.min(usize::try_from(left.max(1)).unwrap_or(size))])
}

/// The bytes of an object, whatever its elements are.
fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    PyBuffer::<u8>::get(data)
        .or_else(|_| PyBuffer::<u8>::get(&PyMemoryView::from(data)?.call_method1("cast", ("B",))?))
}

fn read_bytes<'py>(
    py: Python<'py>,
    mut bytes: Vec<u8>,
    read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
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
    let bytes = bytes_of(data)?.to_vec(py)?;
    write(&bytes).map_err(failed)
}
