//! A store's path, as users give it and as JSON has it.

use crate::error::WeirError;
use host::{DiskAccess, HostDisk};
use stack::{StackError, open_medium, store_of};
use std::path::Path;

/// Opens the store at `path`, which the user may have meant as a mount.
pub(crate) fn open_store(path: &Path, access: DiskAccess) -> Result<HostDisk, WeirError> {
    let store = store_of(path).map_err(|error| match error {
        StackError::Missing { path } => WeirError::NeitherMountNorStore { path },
        other => other.into(),
    })?;
    Ok(open_medium(&store, access)?)
}

/// A path for JSON, with replacement characters for bytes that are not UTF-8.
pub(crate) fn path_as_utf8(path: impl AsRef<Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}
