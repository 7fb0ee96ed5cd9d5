//! Finds a store and its buffer, checks whether they may be used, and opens them.

use crate::error::StackError;
use crate::find_buffer;
use host::{
    DiskAccess, HostDisk, HostError, MountTable, VolatileReason, WEIR_FS_TYPE, probe_durability, shell_quoted,
};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use store::StoreSettings;

/// The name of the store file in a formatted directory.
pub const STORE_FILE: &str = "store";

/// The name of the buffer file in a formatted directory, or of a symbolic link to the buffer.
pub const BUFFER_FILE: &str = "buffer";

/// The name of a buffer file in that directory until it takes the place of the last one.
pub const NEW_BUFFER_FILE: &str = "buffer.new";

/// The two media of a store, as absolute paths without symbolic links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMedia {
    /// The store's path as the user knows it: the directory, or the device.
    pub name: PathBuf,
    /// The file or device of the store.
    pub store: PathBuf,
    /// The file or device of the buffer.
    pub buffer: PathBuf,
    /// The settings that the store keeps for the next mount. The command may change them.
    pub settings: StoreSettings,
    /// Why a power failure loses data that was flushed to the buffer; `None` if the buffer is durable.
    pub buffer_volatile: Option<VolatileReason>,
}

/// The kind of file at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediumKind {
    /// Nothing is there.
    Absent,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// A regular file.
    File,
}

/// The kind of file at `path`, after symbolic links. Fails for other kinds, such as a socket.
pub fn medium_kind(path: &Path) -> Result<MediumKind, StackError> {
    let found = match fs::metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(MediumKind::Absent),
        Err(error) => return Err(StackError::io("looking at it", path)(error)),
    };
    match found {
        kind if kind.is_dir() => Ok(MediumKind::Directory),
        kind if kind.is_block_device() => Ok(MediumKind::BlockDevice),
        kind if kind.is_file() => Ok(MediumKind::File),
        _ => Err(StackError::NotMedia { path: path.into() }),
    }
}

impl StoreMedia {
    /// Finds the media of the store at `path`, which was formatted earlier.
    pub fn find(path: &Path, buffer: Option<&Path>) -> Result<StoreMedia, StackError> {
        let store = store_of(path)?;
        let name = absolute(path)?;
        // An error is not reported here: opening the store reports it.
        let known = find_buffer::describe_store(&store);
        let wrong = known.as_ref().map_or(&[][..], |known| &known.warnings);
        wrong.iter().for_each(|what| tracing::warn!("{}: {what}", name.display()));
        let mut settings = known.as_ref().map(|known| known.settings.clone()).unwrap_or_default();
        let is_needed = known.as_ref().map_or(true, |known| known.needs_buffer);
        // Another daemon may change the data mode until the store is open. It is read again then.
        settings.data = None;
        let buffer = match buffer {
            Some(buffer) => buffer.to_path_buf(),
            None => find_buffer::find_buffer(&name, &store, known)?,
        };
        if medium_kind(&buffer)? == MediumKind::Absent {
            let looked = buffer
                .read_link()
                .map(|to| format!(": a symbolic link to {}, which does not exist", to.display()));
            let looked = looked.unwrap_or_default();
            return Err(StackError::BufferMissing { path: buffer, looked, is_needed });
        }
        let buffer_volatile = probe_durability(&buffer);
        let (store, buffer) = (absolute(&store)?, absolute(&buffer)?);
        let media = StoreMedia { name, store, buffer, settings, buffer_volatile };
        media.ensure_separate()?;
        media.ensure_not_on_weir()?;
        Ok(media)
    }

    /// Opens and locks both media.
    pub fn open(&self, access: DiskAccess) -> Result<(HostDisk, HostDisk), StackError> {
        Ok((open_medium(&self.store, access)?, open_medium(&self.buffer, access)?))
    }

    /// Warns if other users can read the media.
    pub fn warn_of_readers(&self) {
        warn_of_readers(&self.store);
        warn_of_readers(&self.buffer);
    }

    /// Warns if the I/O of a medium goes through the kernel's page cache.
    pub fn warn_of_page_cache(&self) {
        for path in [&self.store, &self.buffer].into_iter().filter(|path| !host::has_direct_io(path)) {
            tracing::warn!(
                "{}: its file system has no direct I/O (O_DIRECT): after a disk error, restart the machine before you trust \
                 data that is read from it",
                path.display()
            );
        }
    }

    /// Refuses a buffer that loses flushed data at a power failure.
    pub fn ensure_durable(&self) -> Result<(), StackError> {
        let store = Some(self.name.clone());
        match self.buffer_volatile.clone() {
            Some(why) => Err(StackError::VolatileBuffer { path: self.buffer.clone(), why, store }),
            None => Ok(()),
        }
    }

    fn ensure_separate(&self) -> Result<(), StackError> {
        if host::are_same_medium(&self.store, &self.buffer) {
            Err(StackError::SameMedia { path: self.store.clone() })
        } else {
            Ok(())
        }
    }

    fn ensure_not_on_weir(&self) -> Result<(), StackError> {
        ensure_not_on_weir(&self.store)?;
        ensure_not_on_weir(&self.buffer)
    }
}

/// The store's medium, for the directory or device `path` that was formatted.
pub fn store_of(path: &Path) -> Result<PathBuf, StackError> {
    ensure_leads_somewhere(path)?;
    let store = match medium_kind(path)? {
        MediumKind::Absent => return Err(StackError::Missing { path: path.into() }),
        MediumKind::Directory => absolute(path)?.join(STORE_FILE),
        MediumKind::BlockDevice | MediumKind::File => absolute(path)?,
    };
    match medium_kind(&store)? {
        MediumKind::Absent => Err(StackError::Missing { path: path.into() }),
        _ => Ok(store),
    }
}

/// Refuses a dangling symbolic link, which probably means that a device is not attached.
pub fn ensure_leads_somewhere(path: &Path) -> Result<(), StackError> {
    match path.read_link() {
        Ok(to) if medium_kind(path)? == MediumKind::Absent => {
            Err(StackError::LeadsNowhere { path: path.into(), to })
        }
        _ => Ok(()),
    }
}

/// Warns if other users can read the medium at `path`.
pub fn warn_of_readers(path: &Path) {
    let Ok(Some(mode)) = host::mode_if_public(path) else { return };
    let bits =
        if medium_kind(path).is_ok_and(|what| what == MediumKind::BlockDevice) { "o-rwx" } else { "600" };
    tracing::warn!(
        "{}: other users can read it (mode {mode:04o}), and thus the files of all users: `chmod {bits} {}`",
        path.display(),
        shell_quoted(path)
    );
}

/// Refuses a path on a weir mount: the daemon would wait for itself, or for another daemon that waits for it.
pub fn ensure_not_on_weir(path: &Path) -> Result<(), StackError> {
    let mounts = MountTable::read().map_err(|source| StackError::Host { path: path.into(), source })?;
    match mounts.mount_of(path) {
        Some(mount) if mount.fs_type == WEIR_FS_TYPE => {
            Err(StackError::OnOwnMount { path: path.into(), mount: mount.point.clone() })
        }
        _ => Ok(()),
    }
}

/// Opens one medium.
pub fn open_medium(path: &Path, access: DiskAccess) -> Result<HostDisk, StackError> {
    HostDisk::open(path, access).map_err(|error| host_error(path, error))
}

/// The error for a host error at `path`. For a busy medium, the error says who uses it.
pub fn host_error(path: &Path, error: HostError) -> StackError {
    match error {
        HostError::Busy { .. } => in_use_error(path),
        source => StackError::Host { path: path.into(), source },
    }
}

/// The error for a medium in use at `path`. It names the process if this process can see it.
fn in_use_error(path: &Path) -> StackError {
    let Ok(Some(pid)) = host::lock_holder(path) else { return StackError::Busy { path: path.into() } };
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    StackError::InUse { path: path.into(), pid, program }
}

/// The absolute path of `path` without symbolic links. `path` must exist.
pub fn absolute(path: &Path) -> Result<PathBuf, StackError> {
    fs::canonicalize(path).map_err(StackError::io("finding it", path))
}
