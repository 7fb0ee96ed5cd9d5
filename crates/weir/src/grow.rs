//! `weir grow`: enlarges a store, mounted or not, or the buffer of a mounted store.

use crate::byte_size::ByteSize;
use crate::cli::GrowArgs;
use crate::error::WeirError;
use crate::store_path::open_store;
use crate::store_server::StoreServer;
use device::BLOCK_BYTES;
use host::{DiskAccess, spare_bytes};
use progress::{LongWork, OnInterrupt, WorkAmount, WorkUnit};
use serde_json::{Value, json};
use stack::{StackError, store_of};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use store::Store;

pub(crate) fn run(args: &GrowArgs) -> Result<(), WeirError> {
    if args.buffer { grow_buffer(args) } else { grow_store(args) }
}

fn grow_buffer(args: &GrowArgs) -> Result<(), WeirError> {
    let Some(found) = StoreServer::at_or_of(&args.path)? else {
        return Err(WeirError::BufferNotMounted { path: args.path.clone() });
    };
    let reply = ask(&found, "grow_buffer", args)?;
    let bytes = reply["buffer_bytes"].as_u64().expect("the daemon says how large it is");
    println!("{}: the buffer has {} now", args.path.display(), ByteSize(bytes));
    // The buffer may have taken space that the store's file has not allocated yet.
    if let Ok(store) = store_of(found.store()) {
        warn_of_too_little_space(&store, fs::metadata(&store).map_or(0, |file| file.len()));
    }
    Ok(())
}

fn grow_store(args: &GrowArgs) -> Result<(), WeirError> {
    let (store, bytes) = match StoreServer::at_or_of(&args.path)? {
        Some(found) => {
            let reply = ask(&found, "grow", args)?;
            (
                found.store().to_owned(),
                reply["store_bytes"].as_u64().expect("the daemon says how large it is"),
            )
        }
        None => (args.path.clone(), grow_unmounted(args)?),
    };
    println!("{}: the store has {} now", args.path.display(), ByteSize(bytes));
    warn_of_too_little_space(&store, bytes);
    Ok(())
}

fn warn_of_too_little_space(store: &Path, bytes: u64) {
    if let Some(free) = too_little_space(store, bytes) {
        let (store, free) = (store.display(), ByteSize(free));
        tracing::warn!(
            "{store}: its file system has {free} free: writes will fail with ENOSPC before the store is full"
        );
    }
}

fn ask(found: &StoreServer, operation: &str, args: &GrowArgs) -> Result<Value, WeirError> {
    let request = json!({ "operation": operation, "bytes": args.size.map(|size| size.0) });
    let mut daemon = found.connect()?;
    let _work = show_progress(args, daemon.pid());
    Ok(daemon.ask_for_long_work(&request)?)
}

/// Shows that the daemon works. The daemon does not say how far it is. A signal ends this process alone.
fn show_progress(args: &GrowArgs, daemon: Option<u32>) -> LongWork {
    let path = args.path.display().to_string();
    let what = format!("growing {path}");
    let process = daemon.map_or_else(String::new, |pid| format!(", process {pid},"));
    let subject = if args.buffer { "buffer" } else { "store" };
    let interrupted = move |_: &WorkAmount| {
        format!(
            "the daemon{process} goes on growing the {subject} of {path}, which keeps its new size. `weir status` shows the size; to \
             see an error, run it again with the same --size"
        )
    };
    let unknown = || WorkAmount { unit: WorkUnit::Unknown, done: 0, total: None };
    LongWork::start(what, unknown, OnInterrupt::Exit(Box::new(interrupted)))
}

fn grow_unmounted(args: &GrowArgs) -> Result<u64, WeirError> {
    let disk = open_store(&args.path, DiskAccess::Write)?;
    let grown = Store::grow_unopened(&disk, args.size.map(|size| size.0 / BLOCK_BYTES as u64));
    let blocks = grown.map_err(|source| StackError::Store { path: args.path.clone(), source })?;
    Ok(blocks * BLOCK_BYTES as u64)
}

/// The free bytes of the host file system, if they are fewer than the store file may still allocate. `bytes`
/// is the size of the file.
fn too_little_space(store: &Path, bytes: u64) -> Option<u64> {
    let store = store_of(store).ok()?;
    let file = fs::metadata(&store).ok().filter(|file| file.is_file())?;
    let free = spare_bytes(&store).ok()?;
    (bytes.saturating_sub(file.blocks() * 512) > free).then_some(free)
}
