//! `weir grow`: a larger store, mounted or not.

use crate::cli::GrowArgs;
use crate::client::Found;
use crate::error::WeirError;
use crate::media::{self, store_of};
use crate::size::Size;
use device::BLOCK_BYTES;
use host::Access;
use serde_json::json;
use store::Store;

pub(crate) fn run(args: &GrowArgs) -> Result<(), WeirError> {
    let bytes = match Found::at(&args.path) {
        Ok(found) => {
            let request = json!({ "operation": "grow", "bytes": args.size.map(|size| size.0) });
            found.connect()?.ask(&request)?["store_bytes"].as_u64().unwrap_or_default()
        }
        Err(_) => grow_unmounted(args)?,
    };
    println!("{}: the store has {} now", args.path.display(), Size(bytes));
    Ok(())
}

fn grow_unmounted(args: &GrowArgs) -> Result<u64, WeirError> {
    let store = store_of(&args.path).map_err(|error| match error {
        WeirError::Missing { path } => WeirError::NeitherMountNorStore { path },
        other => other,
    })?;
    let disk = media::open(&store, Access::Write)?;
    let grown = Store::grow_unopened(&disk, args.size.map(|size| size.0 / BLOCK_BYTES as u64));
    let blocks = grown.map_err(|source| WeirError::Store { path: args.path.clone(), source })?;
    Ok(blocks * BLOCK_BYTES as u64)
}
