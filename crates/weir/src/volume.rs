//! `weir volume`: creates, clones, lists, renames, rolls back and deletes volumes.

use crate::byte_size::ByteSize;
use crate::cli::{
    CloneWish, VolumeCloneArgs, VolumeCommand, VolumeCreateArgs, VolumeDeleteArgs, VolumeListArgs,
    VolumeRenameArgs, VolumeResizeArgs, VolumeRollbackArgs, VolumeSnapshotArgs,
};
use crate::epoch_keeper;
use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use crate::store_path::{open_store, path_as_utf8};
use crate::store_server::StoreServer;
use block::BlockVolumeError;
use cache::{Cache, CacheSettings};
use device::{BLOCK_BYTES, Clock, OverlayDevice, PageNo, SharedPage};
use fs::{CallerCredentials, Fs};
use host::{DiskAccess, HostDisk, SystemClock, random_bytes};
use serde_json::{Value, json};
use stack::{ExpectedBuffer, StackError, StorageStack, StoreMedia, volume_named};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use store::{MAIN_VOLUME_NAME, NewVolume, Store, VolumeId, VolumeInfo, VolumeMode};
use weir_status::SpaceReport;

pub(crate) fn run(command: &VolumeCommand) -> Result<(), WeirError> {
    match command {
        VolumeCommand::Create(args) => create(args),
        VolumeCommand::Resize(args) => resize(args),
        VolumeCommand::Clone(args) => clone(args),
        VolumeCommand::Snapshot(args) => snapshot(args),
        VolumeCommand::Rollback(args) => rollback(args),
        VolumeCommand::List(args) => list(args),
        VolumeCommand::Rename(args) => rename(args),
        VolumeCommand::Delete(args) => delete(args),
    }
}

fn create(args: &VolumeCreateArgs) -> Result<(), WeirError> {
    let size = args.size.map(|size| size.0);
    let request = json!({ "operation": "volume_create", "name": args.name, "bytes": size });
    change(&args.path, &request, |cache, path| create_volume(cache, path, &args.name, size)).map(drop)
}

fn resize(args: &VolumeResizeArgs) -> Result<(), WeirError> {
    let VolumeResizeArgs { name, size, accept_loss, .. } = args;
    let request = json!({
        "operation": "volume_resize",
        "name": name,
        "bytes": size.0,
        "accept_loss": accept_loss,
    });
    let resize = |cache: &Cache, path: &Path| resize_volume(cache, path, name, size.0, *accept_loss);
    let reply = change(&args.path, &request, resize)?;
    let before = reply["before"].as_u64().expect("the size before");
    println!("{name}: {size} now, {} before", ByteSize(before));
    Ok(())
}

fn rename(args: &VolumeRenameArgs) -> Result<(), WeirError> {
    let request = json!({ "operation": "volume_rename", "name": args.old, "to": args.new });
    change(&args.path, &request, |cache, path| rename_volume(cache, path, &args.old, &args.new)).map(drop)
}

fn delete(args: &VolumeDeleteArgs) -> Result<(), WeirError> {
    if args.dry_run {
        return tell_freed_space(args);
    }
    let request = json!({ "operation": "volume_delete", "name": args.name });
    change(&args.path, &request, |cache, path| delete_volume(cache, path, &args.name)).map(drop)
}

/// Says what a deletion would free.
fn tell_freed_space(args: &VolumeDeleteArgs) -> Result<(), WeirError> {
    let path = &args.path;
    let freed: Vec<(String, u64)> = match StoreServer::at_or_of(path)? {
        Some(found) => {
            let space: SpaceReport = found.connect()?.report("space_exact")?;
            let volumes = space.by_volume.into_iter().flatten();
            volumes.filter_map(|volume| Some((volume.name?, volume.exclusive_bytes))).collect()
        }
        None => {
            let store = open_overlay(path, open_store(path, DiskAccess::Read)?)?;
            let usage = store.volumes().usage();
            let usage = usage.map_err(|source| StackError::Store { path: path.clone(), source })?;
            let freed: BTreeMap<VolumeId, u64> =
                usage.volumes.iter().map(|one| (one.id, one.exclusive * BLOCK_BYTES as u64)).collect();
            let volumes = store.volumes().describe().into_iter();
            volumes.filter_map(|volume| Some((volume.name, *freed.get(&volume.id)?))).collect()
        }
    };
    match freed.iter().find(|(name, _)| *name == args.name) {
        Some((name, bytes)) => println!("{name}: deleting it would free {}", ByteSize(*bytes)),
        None => {
            let there_are = freed.into_iter().map(|(name, _)| name).collect();
            let (path, name) = (path.clone(), args.name.clone());
            return Err(StackError::NoSuchVolume { path, name, there_are }.into());
        }
    }
    Ok(())
}

/// Asks the daemon of the store, or works on the store if it is not mounted.
fn change<T: Into<Value>>(
    path: &Path,
    request: &Value,
    work: impl FnOnce(&Cache, &Path) -> Result<T, WeirError>,
) -> Result<Value, WeirError> {
    match StoreServer::at_or_of(path)? {
        Some(found) => Ok(found.connect()?.ask(request)?),
        None => {
            let settings = CacheSettings::default();
            let media = StoreMedia::find(path, None)?;
            // The buffer keeps its records for the next mount.
            let stack = StorageStack::open(media, settings, DiskAccess::Write, ExpectedBuffer::LastUsed)?;
            let answer = work(&stack.cache, path);
            if stack.was_complete {
                // If that fails, nothing is lost but the note.
                let _ = stack.cache.drain().and_then(|()| stack.cache.note_complete());
            }
            answer.map(Into::into)
        }
    }
}

/// Makes a volume: with an empty file system, which belongs to the user of this process, or a block volume of `size`
/// bytes. `path` is the store's path for messages, here and below.
pub(crate) fn create_volume(
    cache: &Cache,
    path: &Path,
    name: &str,
    size: Option<u64>,
) -> Result<(), WeirError> {
    let failed = |source| StackError::Cache { path: path.into(), source };
    epoch_keeper::ensure_not_reserved(name).map_err(|source| failed(source.into()))?;
    let clock = SystemClock::new();
    let pages = match size {
        Some(size) => {
            block::new_block_volume(size).map_err(|source| block_volume_error(path, name, source))?
        }
        None => new_file_system(&clock, path)?,
    };
    let created = u64::try_from(clock.wall_nanos()).unwrap_or(0);
    let new = NewVolume { name, mode: VolumeMode::Writable, created };
    cache.create_volume(&new, &pages).map_err(failed)?;
    Ok(())
}

/// The first pages of a file system that belongs to the user of this process.
fn new_file_system(clock: &SystemClock, path: &Path) -> Result<Vec<(PageNo, SharedPage)>, WeirError> {
    let owner = CallerCredentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0,
    };
    Fs::create(clock, owner, random_bytes()).map_err(|source| WeirError::Fs { path: path.into(), source })
}

/// Changes the size of a block volume that is not exported. Returns what `weir volume` prints.
pub(crate) fn resize_volume(
    cache: &Cache,
    path: &Path,
    name: &str,
    size: u64,
    accepts_loss: bool,
) -> Result<Value, WeirError> {
    let volume = volume_named(cache.store(), path, name)?;
    let failed = |source| block_volume_error(path, name, source);
    let before = block::block_volume_size(cache, volume.id).map_err(failed)?;
    let before = before.ok_or_else(|| failed(BlockVolumeError::NotBlockVolume))?;
    if size < before && !accepts_loss {
        return Err(WeirError::WouldShrink { path: path.into(), name: name.into(), size: ByteSize(before) });
    }
    block::resize(cache, volume.id, size).map_err(failed)?;
    Ok(json!({ "before": before }))
}

fn block_volume_error(path: &Path, name: &str, source: BlockVolumeError) -> WeirError {
    let (path, volume) = (path.into(), name.into());
    StackError::BlockVolume { path, volume, source: Box::new(source) }.into()
}

/// Renames a volume that is not mounted.
pub(crate) fn rename_volume(cache: &Cache, path: &Path, old: &str, new: &str) -> Result<(), WeirError> {
    let failed = |source| StackError::Cache { path: path.into(), source };
    let volume = volume_named(cache.store(), path, old)?;
    if epoch_keeper::is_epoch(&volume) {
        return Err(WeirError::EpochKeepsName { path: path.into(), name: old.into() });
    }
    epoch_keeper::ensure_not_reserved(new).map_err(|source| failed(source.into()))?;
    Ok(cache.rename_volume(volume.id, new).map_err(failed)?)
}

/// Deletes a volume that is not mounted.
pub(crate) fn delete_volume(cache: &Cache, path: &Path, name: &str) -> Result<(), WeirError> {
    let volume = volume_named(cache.store(), path, name)?;
    let deleted = cache.delete_volume(volume.id);
    Ok(deleted.map_err(|source| StackError::Cache { path: path.into(), source })?)
}

fn clone(args: &VolumeCloneArgs) -> Result<(), WeirError> {
    let mode = if args.read_only { VolumeMode::ReadOnly } else { VolumeMode::Writable };
    clone_all(&args.path, &[CloneWish { name: args.name.clone(), of: args.of.clone() }], mode)
}

fn snapshot(args: &VolumeSnapshotArgs) -> Result<(), WeirError> {
    clone_all(&args.path, &args.snapshots, VolumeMode::ReadOnly)
}

fn clone_all(path: &Path, clones: &[CloneWish], mode: VolumeMode) -> Result<(), WeirError> {
    let wishes: Vec<Value> =
        clones.iter().map(|clone| json!({ "name": clone.name, "of": clone.of })).collect();
    let read_only = mode == VolumeMode::ReadOnly;
    let request = json!({ "operation": "volume_clone", "clones": wishes, "read_only": read_only });
    let reply = change(path, &request, |cache, path| clone_volumes(cache, path, (clones, DEFAULT), mode))?;
    for clone in reply["clones"].as_array().into_iter().flatten() {
        println!("{}: a copy of {} in {} ms", text(&clone["name"]), text(&clone["of"]), reply["ms"]);
    }
    Ok(())
}

fn rollback(args: &VolumeRollbackArgs) -> Result<(), WeirError> {
    let VolumeRollbackArgs { path, volume, snapshot } = args;
    let request = json!({ "operation": "volume_rollback", "name": volume, "snapshot": snapshot });
    let reply = change(path, &request, |cache, path| roll_back_volume(cache, path, volume, snapshot))?;
    println!("{volume}: a copy of {snapshot}; what it was before: {}", text(&reply["before"]));
    Ok(())
}

/// Clones volumes, all at one moment; `default` is the volume to clone where none is named. Returns what
/// `weir volume` prints.
pub(crate) fn clone_volumes(
    cache: &Cache,
    path: &Path,
    (clones, default): (&[CloneWish], &str),
    mode: VolumeMode,
) -> Result<Value, WeirError> {
    let failed = |source| StackError::Cache { path: path.into(), source };
    let created = u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0);
    let begun = Instant::now();
    let mut new = Vec::new();
    let mut told = Vec::new();
    for CloneWish { name, of } in clones {
        epoch_keeper::ensure_not_reserved(name).map_err(|source| failed(source.into()))?;
        let of = of.as_deref().unwrap_or(default);
        new.push((volume_named(cache.store(), path, of)?.id, NewVolume { name, mode, created }));
        told.push(json!({ "name": name, "of": of }));
    }
    cache.clone_volumes(&new).map_err(failed)?;
    let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(json!({ "clones": told, "ms": ms }))
}

/// Gives a volume that is not mounted the content of its snapshot. Returns the name that its content before gets.
pub(crate) fn roll_back_volume(
    cache: &Cache,
    path: &Path,
    name: &str,
    snapshot: &str,
) -> Result<Value, WeirError> {
    let volume = volume_named(cache.store(), path, name)?;
    let snapshot = volume_named(cache.store(), path, snapshot)?;
    if volume.mode == VolumeMode::ReadOnly {
        return Err(WeirError::ReadOnlyRolledBack { path: path.into(), name: name.into() });
    }
    let created = u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0);
    let first = format!("{name}-before-{}", rfc3339(created / 1_000_000_000));
    let before = free_name(cache.store(), |number| numbered(&first, number));
    cache
        .roll_back(volume.id, snapshot.id, &before, created)
        .map_err(|source| StackError::Cache { path: path.into(), source })?;
    Ok(json!({ "before": before }))
}

/// The first of the names for the numbers from 1 on that no volume has.
pub(crate) fn free_name(store: &Store, name: impl Fn(u64) -> String) -> String {
    let is_free = |name: &String| store.volumes().named(name).is_none();
    (1..).map(name).find(is_free).expect("the names do not end")
}

/// `name` for the number 1, and `name` with the number behind it for all others.
pub(crate) fn numbered(name: &str, number: u64) -> String {
    if number == 1 { name.to_owned() } else { format!("{name}-{number}") }
}

fn list(args: &VolumeListArgs) -> Result<(), WeirError> {
    let volumes = match StoreServer::serving(&args.path) {
        Some(found) => found.connect()?.request("volume_list")?["volumes"].take(),
        None => {
            let disk = open_store(&args.path, DiskAccess::Read)?;
            volumes_to_json(&open_overlay(&args.path, disk)?.volumes().describe(), |_| {
                VolumePlaces::default()
            })
        }
    };
    if args.json {
        println!("{volumes:#}");
    } else {
        print(&volumes);
    }
    Ok(())
}

/// Opens the store on `disk` without writing to it.
fn open_overlay(path: &Path, disk: HostDisk) -> Result<Store, WeirError> {
    let opened = Store::open(Arc::new(OverlayDevice::new(disk)));
    Ok(opened.map_err(|source| StackError::Store { path: path.into(), source })?)
}

/// The places where a volume is used.
#[derive(Default)]
pub(crate) struct VolumePlaces {
    /// The directory on which the volume is mounted.
    pub(crate) mounted_on: Option<PathBuf>,
    /// The place where clients of its export connect.
    pub(crate) exported_at: Option<String>,
}

/// The volumes as `weir volume list --json` prints them.
///
/// `places_of` returns where a volume is used.
pub(crate) fn volumes_to_json(
    volumes: &[VolumeInfo],
    places_of: impl Fn(&VolumeInfo) -> VolumePlaces,
) -> Value {
    let names: BTreeMap<VolumeId, &str> = volumes.iter().map(|one| (one.id, one.name.as_str())).collect();
    let name_of = |id: VolumeId| names.get(&id).map_or_else(|| format!("#{id}"), ToString::to_string);
    let describe = |volume: &VolumeInfo| {
        let VolumePlaces { mounted_on, exported_at } = places_of(volume);
        JsonSchema::VOLUME.add_to(json!({
            "name": volume.name,
            "number": volume.id.0,
            "read_only": volume.mode == VolumeMode::ReadOnly,
            "created": (volume.created > 0).then(|| rfc3339(volume.created / 1_000_000_000)),
            "from": volume.from.map(name_of),
            "mounted": mounted_on.is_some(),
            "mounted_on": mounted_on.map(path_as_utf8),
            "exported_at": exported_at,
        }))
    };
    volumes.iter().map(describe).collect()
}

fn print(volumes: &Value) {
    let volumes = volumes.as_array().map_or(&[][..], Vec::as_slice);
    let width = volumes.iter().map(|volume| text(&volume["name"]).len()).max().unwrap_or(0).max(4);
    println!("{:width$}  {:10}  {:20}  FROM", "NAME", "MODE", "CREATED");
    for volume in volumes {
        let mode = if volume["read_only"] == true { "read-only" } else { "writable" };
        let used = match (volume["mounted_on"].as_str(), volume["exported_at"].as_str()) {
            (Some(dir), _) => format!("  (mounted on {dir})"),
            (None, Some(at)) => format!("  (exported at {at})"),
            (None, None) => String::new(),
        };
        let name = text(&volume["name"]);
        let created = text(&volume["created"]);
        let from = text(&volume["from"]);
        println!("{name:width$}  {mode:10}  {created:20}  {from}{used}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// A time in seconds since 1970, as RFC 3339 writes it, in UTC.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let rest = seconds % 86_400;
    // Years begin in March, so that the leap day is their last day. An era has 400 of them.
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let hour = rest / 3600;
    let minute = rest / 60 % 60;
    let second = rest % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The volume that `weir mount` mounts by default.
pub(crate) const DEFAULT: &str = MAIN_VOLUME_NAME;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(rfc3339(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(rfc3339(1_767_225_600), "2026-01-01T00:00:00Z");
        assert_eq!(rfc3339(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
