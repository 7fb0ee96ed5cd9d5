//! Whether a medium may be overwritten.

use crate::error::WeirError;
use stack::MediumContent;
use std::path::Path;

/// Refuses a medium whose first blocks are not zeros.
pub(crate) fn ensure_blank(path: &Path) -> Result<(), WeirError> {
    match MediumContent::of(path).map_err(WeirError::io("reading its first blocks", path))? {
        MediumContent::Blank => Ok(()),
        MediumContent::Known(found) | MediumContent::Unknown(found) => {
            Err(WeirError::NotBlank { path: path.into(), found })
        }
    }
}
