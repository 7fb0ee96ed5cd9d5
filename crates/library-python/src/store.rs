//! Stores, and the functions that take a path.

use crate::errors::{failed, failed_at, failed_at_both, not_opened};
use crate::file::{OpenFile, RawFile, with_bytes};
use crate::interpreter::{FILES, STORES};
use crate::stat::stat_result;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::fs::Access;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use weir_library::{OFlags, SetTime, SetXattrMode, Weir, WeirOptions};

const NANOS_AS_FLOAT: f64 = 1e9;

/// An open store: `weir.Store` is the class for programs.
#[pyclass(module = "weir._weir", subclass, frozen)]
pub(crate) struct RawStore {
    number: u64,
}

impl RawStore {
    fn get(&self) -> PyResult<Arc<Weir>> {
        STORES.get(self.number).map_err(failed)
    }

    fn end(&self) -> io::Result<()> {
        let weir = STORES.remove(self.number)?;
        FILES.remove_where(|open| open.store == self.number);
        weir.close_shared()
    }

    /// The result of an operation at `path`.
    fn at<T>(&self, path: &PathBuf, operation: impl FnOnce(&Weir, &PathBuf) -> io::Result<T>) -> PyResult<T> {
        operation(&*self.get()?, path).map_err(failed_at(path))
    }
}

impl Drop for RawStore {
    fn drop(&mut self) {
        // It fails if the store was closed. What cannot be written back is safe if it was synced.
        let _ = self.end();
    }
}

#[pymethods]
impl RawStore {
    #[new]
    #[pyo3(signature = (
        path, *, volume = "main", buffer = None, read_only = false, memory_bytes = 134_217_728, volatile_buffer = false, umask = 18
    ))]
    fn new(
        path: PathBuf,
        volume: &str,
        buffer: Option<PathBuf>,
        read_only: bool,
        memory_bytes: u64,
        volatile_buffer: bool,
        umask: u16,
    ) -> PyResult<RawStore> {
        let volume = volume.to_owned();
        let options =
            WeirOptions { volume, buffer, read_only, memory_bytes, volatile_buffer, umask: umask & 0o777 };
        Ok(RawStore { number: STORES.add(Weir::open(&path, &options).map_err(not_opened)?) })
    }

    /// Closes the store with all its files, and writes everything back. A second call does nothing.
    fn close(&self) -> PyResult<()> {
        match self.end() {
            Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) => Ok(()),
            ended => ended.map_err(failed),
        }
    }

    /// Makes everything durable that was changed before the call.
    fn commit(&self) -> PyResult<()> {
        self.get()?.commit().map_err(failed)
    }

    /// Makes several changes at once. Each is a tuple: file, bytes and offset are a write, two names are a renaming, and one name is a
    /// removal.
    fn apply(&self, py: Python<'_>, changes: Vec<Change>) -> PyResult<()> {
        let mut batch = self.get()?.batch();
        for change in changes {
            match change {
                Change::Write(file, data, offset) => {
                    let file = file.get().open()?;
                    with_bytes(py, &data.into_bound(py), |bytes| {
                        batch.write_at(&file.file, bytes, offset).map(drop)
                    })?
                }
                Change::Rename(src, dst) => {
                    batch.rename(&src, &dst).map(drop).map_err(failed_at_both(&src, &dst))?
                }
                Change::Unlink((path,)) => batch.remove_file(&path).map(drop).map_err(failed_at(&path))?,
            }
        }
        batch.apply().map_err(failed)
    }

    /// Makes a read-only volume of the present state, durably on return.
    fn snapshot(&self, name: &str) -> PyResult<()> {
        self.get()?.snapshot(name).map_err(failed)
    }

    /// Sets the permission bits that new files do not get, and returns the old ones.
    fn umask(&self, mask: u16) -> PyResult<u16> {
        Ok(self.get()?.set_umask(mask))
    }

    /// Opens a file with the flags of `os.open`.
    #[pyo3(signature = (path, flags, mode = 511))]
    fn open_raw(store: &Bound<'_, Self>, path: PathBuf, flags: i32, mode: u32) -> PyResult<RawFile> {
        let this = store.get();
        let file =
            this.at(&path, |weir, path| weir.open(path, OFlags::from_bits_retain(flags as u32), mode))?;
        Ok(RawFile::new(store.clone().unbind(), OpenFile { store: this.number, file }))
    }

    /// The names in a directory, without `.` and `..`.
    #[pyo3(signature = (path = PathBuf::from("/")), text_signature = "($self, path='/')")]
    fn listdir(&self, path: PathBuf) -> PyResult<Vec<OsString>> {
        self.at(&path, |weir, path| {
            let directory = weir_library::Directory::of(&weir.open(path, OFlags::DIRECTORY, 0)?)?;
            directory.entries().map(|entry| Ok(entry?.name)).collect()
        })
    }

    /// The attributes of a file.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found =
            self.at(
                &path,
                |weir, path| {
                    if follow_symlinks { weir.metadata(path) } else { weir.symlink_metadata(path) }
                },
            );
        stat_result(py, &found?)
    }

    /// The attributes of a file, also of a symbolic link.
    fn lstat<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyAny>> {
        self.stat(py, path, false)
    }

    /// Whether this process may use a file so: `os.F_OK`, or several of `os.R_OK`, `os.W_OK`, `os.X_OK`.
    fn access(&self, path: PathBuf, mode: u32) -> PyResult<bool> {
        let known = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        let wanted = Access::from_bits_retain(mode);
        if !known.contains(wanted) {
            return Err(failed(Errno::INVAL.into()));
        }
        Ok(self.get()?.ensure_access(path, wanted).is_ok())
    }

    /// Makes a directory.
    #[pyo3(signature = (path, mode = 511))]
    fn mkdir(&self, path: PathBuf, mode: u32) -> PyResult<()> {
        self.at(&path, |weir, path| weir.create_dir(path, mode))
    }

    /// Removes an empty directory.
    fn rmdir(&self, path: PathBuf) -> PyResult<()> {
        self.at(&path, |weir, path| weir.remove_directory(path))
    }

    /// Removes a name of a file. Of a file that was synced lately this is durable on return.
    fn unlink(&self, path: PathBuf) -> PyResult<()> {
        self.at(&path, |weir, path| weir.remove_file(path))
    }

    /// The same as `unlink`.
    fn remove(&self, path: PathBuf) -> PyResult<()> {
        self.unlink(path)
    }

    /// Renames a file or directory, and replaces what has the new name, atomically.
    fn rename(&self, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.get()?.rename(&src, &dst).map_err(failed_at_both(&src, &dst))
    }

    /// The same as `rename`.
    fn replace(&self, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.rename(src, dst)
    }

    /// Gives a file a further name.
    fn link(&self, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.get()?.hard_link(&src, &dst).map_err(failed_at_both(&src, &dst))
    }

    /// Makes a symbolic link at `dst` that leads to `src`.
    fn symlink(&self, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.at(&dst, |weir, dst| weir.symlink(&src, dst))
    }

    /// Where a symbolic link leads.
    fn readlink(&self, path: PathBuf) -> PyResult<OsString> {
        self.at(&path, |weir, path| Ok(weir.read_link(path)?.into_os_string()))
    }

    /// Sets the size of a file.
    fn truncate(&self, path: PathBuf, length: u64) -> PyResult<()> {
        self.at(&path, |weir, path| weir.truncate(path, length))
    }

    /// Sets the permission bits of a file.
    fn chmod(&self, path: PathBuf, mode: u32) -> PyResult<()> {
        self.at(&path, |weir, path| weir.set_mode(path, mode))
    }

    /// Sets owner and group of a file; -1 leaves one as it is.
    #[pyo3(signature = (path, uid, gid, *, follow_symlinks = true))]
    fn chown(&self, path: PathBuf, uid: i64, gid: i64, follow_symlinks: bool) -> PyResult<()> {
        self.at(&path, |weir, path| weir.set_owner(path, id_of(uid)?, id_of(gid)?, follow_symlinks))
    }

    /// Sets the times of last access and last change: `times` in seconds, `ns` in nanoseconds, neither is now.
    #[pyo3(signature = (path, times = None, *, ns = None, follow_symlinks = true))]
    fn utime(
        &self,
        path: PathBuf,
        times: Option<(f64, f64)>,
        ns: Option<(i64, i64)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let nanos = |seconds: f64| (seconds * NANOS_AS_FLOAT).round() as i64;
        let (accessed, modified) = match (times, ns) {
            (Some(_), Some(_)) => return Err(PyValueError::new_err("times and ns: give one of them")),
            (Some((accessed, modified)), None) => {
                (SetTime::To(nanos(accessed)), SetTime::To(nanos(modified)))
            }
            (None, Some((accessed, modified))) => (SetTime::To(accessed), SetTime::To(modified)),
            (None, None) => (SetTime::Now, SetTime::Now),
        };
        self.at(&path, |weir, path| weir.set_times(path, Some(accessed), Some(modified), follow_symlinks))
    }

    /// An extended attribute.
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        attribute: OsString,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.at(&path, |weir, path| weir.xattr(path, &attribute.into_vec()))?;
        Ok(PyBytes::new(py, &value))
    }

    /// The names of all extended attributes.
    fn listxattr(&self, path: PathBuf) -> PyResult<Vec<OsString>> {
        let names = self.at(&path, |weir, path| weir.xattr_names(path))?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Sets an extended attribute. `flags` are 0, `os.XATTR_CREATE` or `os.XATTR_REPLACE`.
    #[pyo3(signature = (path, attribute, value, flags = 0))]
    fn setxattr(&self, path: PathBuf, attribute: OsString, value: &[u8], flags: i32) -> PyResult<()> {
        let how = match flags {
            0 => SetXattrMode::Any,
            1 => SetXattrMode::Create,
            2 => SetXattrMode::Replace,
            _ => return Err(failed(Errno::INVAL.into())),
        };
        self.at(&path, |weir, path| weir.set_xattr(path, &attribute.into_vec(), value, how))
    }

    /// Removes an extended attribute.
    fn removexattr(&self, path: PathBuf, attribute: OsString) -> PyResult<()> {
        self.at(&path, |weir, path| weir.remove_xattr(path, &attribute.into_vec()))
    }
}

/// One of several changes.
#[derive(FromPyObject)]
enum Change {
    Write(Py<RawFile>, Py<PyAny>, u64),
    Rename(PathBuf, PathBuf),
    Unlink((PathBuf,)),
}

/// A user or group to set; `None` leaves it as it is.
fn id_of(id: i64) -> io::Result<Option<u32>> {
    match id {
        -1 => Ok(None),
        id => u32::try_from(id).map(Some).map_err(|_| Errno::INVAL.into()),
    }
}
