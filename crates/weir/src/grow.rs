//! `weir grow`: a larger store, mounted or not.

use crate::cli::GrowArgs;
use crate::client::Found;
use crate::error::WeirError;
use crate::media::{self, store_of};
use crate::size::Size;
use device::BLOCK_BYTES;
use host::{Access, spare_bytes};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use store::Store;

pub(crate) fn run(args: &GrowArgs) -> Result<(), WeirError> {
    let (store, bytes) = match Found::at(&args.path) {
        Ok(found) => (found.store.clone(), grow_mounted(&found, args)?),
        Err(_) => match grow_unmounted(args) {
            // Its store's path will do as well.
            Err(WeirError::InUse { mount: Some(dir), .. }) => {
                let found = Found::at(&dir)?;
                (found.store.clone(), grow_mounted(&found, args)?)
            }
            grown => (args.path.clone(), grown?),
        },
    };
    println!("{}: the store has {} now", args.path.display(), Size(bytes));
    if let Some(free) = too_little_space(&store, bytes) {
        let free = Size(free);
        eprintln!(
            "warning: its file system has {free} free: writers will get ENOSPC before the store is full"
        );
    }
    Ok(())
}

fn grow_mounted(found: &Found, args: &GrowArgs) -> Result<u64, WeirError> {
    let request = json!({ "operation": "grow", "bytes": args.size.map(|size| size.0) });
    let reply = found.connect()?.ask(&request)?;
    Ok(reply["store_bytes"].as_u64().expect("the daemon says how large it is"))
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

/// What the file system has left that holds a store, which is a file of so many bytes, if that is less than the file may still take.
fn too_little_space(store: &Path, bytes: u64) -> Option<u64> {
    let store = store_of(store).ok()?;
    let file = fs::metadata(&store).ok().filter(|file| file.is_file())?;
    let free = spare_bytes(&store).ok()?;
    (bytes.saturating_sub(file.blocks() * 512) > free).then_some(free)
}
