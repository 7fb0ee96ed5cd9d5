//! What a mount tells about itself: one JSON object, and the same for people.

mod print;

pub(crate) use print::{print, print_space};

use crate::epoch_keeper::{self, EpochKeeper};
use crate::log_files;
use crate::pm_qos::PmQos;
use crate::storage_stack::StorageStack;
use crate::{media::path_as_utf8, volume};
use cache::{Cache, FetchMode};
use device::{BLOCK_BYTES, Clock};
use fs::Ino;
use fuse::{LatencySummary, OpLatencies};
use host::{DeviceCall, DiskAccess, MaxLatency, SystemClock};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use store::{DataMode, NewVolume, VolumeMode};

/// Where a scrub goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScrubFrom {
    Start,
    WhereItIs,
}

/// Why a request is refused, and the next step.
pub(crate) struct RequestRefusal {
    pub(crate) why: String,
    pub(crate) help: Option<String>,
}

impl RequestRefusal {
    fn new(why: &dyn Display, help: Option<Cow<'static, str>>) -> RequestRefusal {
        RequestRefusal { why: why.to_string(), help: help.map(Cow::into_owned) }
    }
}

/// What one request scrubs: 4 MiB, so that its client can keep the pace.
const SCRUB_BLOCKS: u64 = 1024;

/// What takes the kernel's requests.
pub(crate) struct FrontEnd {
    pub(crate) latencies: Arc<OpLatencies>,
    pub(crate) awake: Arc<PmQos>,
    pub(crate) threads: u8,
}

/// A mounted stack, as its control socket sees it.
pub(crate) struct MountedStore {
    dir: PathBuf,
    stack: StorageStack,
    /// From where on large sequential writes bypass the buffer, in mode `ordered`.
    bypass_after: u64,
    data_mode_change: Mutex<()>,
    front: FrontEnd,
    epochs: Arc<EpochKeeper>,
    since: Instant,
    /// Where messages go instead of the terminal.
    log: OnceLock<PathBuf>,
    /// `None` until everything is stored, or could not be written back. Set once, by the main thread.
    drained: Mutex<Option<Result<(), String>>>,
    drained_set: Condvar,
}

impl MountedStore {
    pub(crate) fn new(
        dir: PathBuf,
        (stack, bypass_after): (StorageStack, u64),
        front: FrontEnd,
        epochs: Arc<EpochKeeper>,
    ) -> MountedStore {
        let (log, drained, drained_set) = (OnceLock::new(), Mutex::new(None), Condvar::new());
        let data_mode_change = Mutex::default();
        MountedStore {
            dir,
            stack,
            bypass_after,
            data_mode_change,
            front,
            epochs,
            since: Instant::now(),
            log,
            drained,
            drained_set,
        }
    }

    /// Says where messages go from now on.
    pub(crate) fn set_log(&self, log: PathBuf) {
        let _ = self.log.set(log);
    }

    /// Removes the file for messages if there were none: to be called at the end.
    pub(crate) fn remove_empty_log(&self) {
        if let Some(log) = self.log.get() {
            log_files::remove_if_empty(log);
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cache, for whoever watches it.
    pub(crate) fn cache(&self) -> Cache {
        Cache::clone(&self.stack.cache)
    }

    /// Who owns the root directory, and so decides what is in it.
    pub(crate) fn owner_of_files(&self) -> Option<u32> {
        self.stack.fs.attributes(Ino::ROOT).ok().map(|root| root.uid)
    }

    /// Makes everything written so far durable, and waits for it.
    pub(crate) fn sync(&self) -> Result<(), RequestRefusal> {
        let (done, result) = std::sync::mpsc::channel();
        self.stack.fs.sync(Box::new(move |synced| {
            // Nobody waits any more if the daemon is ending.
            let _ = done.send(synced.map_err(|error| RequestRefusal::new(&error, error.help())));
        }));
        result.recv().unwrap_or_else(|_| Err(RequestRefusal::new(&"the daemon is ending", None)))
    }

    /// Says how writing everything back went.
    pub(crate) fn set_drained(&self, result: Result<(), String>) {
        *self.drained.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.drained_set.notify_all();
    }

    /// Waits for [`set_drained`](Mounted::set_drained).
    pub(crate) fn wait_drained(&self) -> Result<(), String> {
        let drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        let drained = self.drained_set.wait_while(drained, |drained| drained.is_none());
        drained.unwrap_or_else(PoisonError::into_inner).clone().expect("waited for it")
    }

    /// Scrubs a little, and says how far it is and what it found.
    pub(crate) fn scrub(&self, from: ScrubFrom) -> Value {
        let store = &self.stack.store;
        if from == ScrubFrom::Start {
            store.end_scrub();
        }
        let mut findings = Vec::new();
        let mut report = |finding: store::StoreFinding| findings.push(finding.to_string());
        let first = store.scrub_step(&mut report);
        let mut so_far = first;
        while !so_far.done && so_far.blocks < first.blocks + SCRUB_BLOCKS {
            so_far = store.scrub_step(&mut report);
        }
        json!({
            "blocks": so_far.blocks,
            "of_blocks": so_far.blocks_expected,
            "damaged": so_far.damaged,
            "healed": so_far.repaired + so_far.rewritten_from_memory,
            "done": so_far.done,
            "findings": findings,
        })
    }

    /// The volumes of the store.
    pub(crate) fn volumes(&self) -> Value {
        let volumes = self.stack.store.describe_volumes();
        json!({ "volumes": volume::volumes_to_json(&volumes, Some(self.stack.volume.id)) })
    }

    /// Makes a copy of the mounted volume; says of what, and how long it took.
    pub(crate) fn clone_volume(&self, name: &str, read_only: bool) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        if name.starts_with(epoch_keeper::PREFIX) {
            let why = format!(
                "names that begin with {} are for copies that weir takes itself",
                epoch_keeper::PREFIX
            );
            return Err(RequestRefusal::new(&why, Some("choose another name".into())));
        }
        let mode = if read_only { VolumeMode::ReadOnly } else { VolumeMode::Writable };
        let begun = Instant::now();
        let created = u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0);
        let cloned = self.stack.cache.clone_volume(self.stack.volume.id, &NewVolume { name, mode, created });
        cloned.map_err(|error| RequestRefusal::new(&error, error.help()))?;
        Ok(json!({ "from": self.stack.volume.name, "ms": millis(begun.elapsed()) }))
    }

    /// Makes the store so many bytes large, or as large as its device; says how large that is.
    pub(crate) fn grow(&self, bytes: Option<u64>) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        let grown = self.stack.cache.grow_store(bytes.map(|bytes| bytes / BLOCK_BYTES as u64));
        let blocks = grown.map_err(|error| RequestRefusal::new(&error, error.help()))?;
        Ok(json!({ "store_bytes": blocks * BLOCK_BYTES as u64 }))
    }

    /// Makes the buffer so many bytes large, or as large as its device; says how large that is.
    pub(crate) fn grow_buffer(&self, bytes: Option<u64>) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        let grown = self.stack.cache.grow_buffer(bytes.map(|bytes| bytes / BLOCK_BYTES as u64));
        let blocks = grown.map_err(|error| RequestRefusal::new(&error, error.help()))?;
        Ok(json!({ "buffer_bytes": blocks * BLOCK_BYTES as u64 }))
    }

    /// Changes the data mode from now on, and at later mounts: once this returns, all that was written before is durable, and a crash leaves
    /// what `mode` promises. After an error the mode is what it was, here and at later mounts.
    pub(crate) fn set_data_mode(&self, mode: DataMode) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        // One at a time, so that what is kept is what counts.
        let _turn = self.data_mode_change.lock().unwrap_or_else(PoisonError::into_inner);
        let (cache, store) = (&self.stack.cache, &self.stack.store);
        let before = cache.bypass_after();
        // First of all: the sync covers what bypassed the buffer, if nothing does any more.
        if mode == DataMode::Journal {
            cache.set_bypass_after(u64::MAX);
        }
        let mut settings = store.settings();
        settings.data = Some(mode);
        let changed = self.sync().and_then(|()| {
            store.change_settings(settings).map_err(|error| RequestRefusal::new(&error, error.help()))
        });
        match changed {
            Ok(()) if mode == DataMode::Ordered => cache.set_bypass_after(self.bypass_after),
            Ok(()) => {}
            Err(_) => cache.set_bypass_after(before),
        }
        changed
    }

    /// Deletes a volume that is not mounted.
    pub(crate) fn delete_volume(&self, name: &str) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        if name == self.stack.volume.name {
            let help = "mount another volume to delete this one";
            return Err(RequestRefusal::new(&format!("volume {name} is mounted here"), Some(help.into())));
        }
        let store = &self.stack.store;
        let volume = volume::volume_named(store, &self.stack.media.name, name)
            .map_err(|error| RequestRefusal::new(&error, error.help()))?;
        let deleted = self.stack.cache.delete_volume(volume.id);
        deleted.map_err(|error| RequestRefusal::new(&error, error.help()))
    }

    fn refuse_read_only(&self) -> Result<(), RequestRefusal> {
        match self.stack.access {
            DiskAccess::Write => Ok(()),
            DiskAccess::Read => {
                let help = "mount a writable volume of the store first";
                Err(RequestRefusal::new(&"the mount is read-only", Some(help.into())))
            }
        }
    }

    /// Everything, as `weir status --json` shows it.
    pub(crate) fn report(&self) -> Value {
        let cache = self.stack.cache.status();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "log": self.log.get().map(path_as_utf8),
            "mounted_on": path_as_utf8(&self.dir),
            "volume": self.stack.volume.name,
            "store": path_as_utf8(&self.stack.media.store),
            "buffer": path_as_utf8(&self.stack.media.buffer),
            "volatile": self.stack.media.buffer_volatile.as_ref().map(ToString::to_string),
            "incarnation": self.stack.store.incarnation().0,
            "uptime_ms": millis(self.since.elapsed()),
            "start": self.start(),
            "failed": cache.failed,
            "rescued": cache.rescued,
            "left_out": cache.left_out,
            "not_rescued": cache.not_rescued,
            "stalled": cache.stalled,
            "stuck": stuck(&cache),
            "lsns": { "applied": cache.applied.0, "durable": cache.durable.0 },
            "dirty": {
                "pages": cache.dirty_pages,
                "bytes": cache.dirty_bytes,
                "deltas": cache.deltas,
                "delta_bytes": cache.delta_bytes,
                "age_ms": millis(cache.dirty_age),
                "cuts": cache.pending_punches,
                "clones": cache.pending_transfers,
            },
            "in_flight": {
                "reads": cache.parked_reads,
                "syncs": cache.parked_syncs,
                "admissions": cache.parked_admissions,
                "fetches": cache.fetching,
            },
            "memory": { "pages": cache.pages, "bytes": cache.memory_bytes },
            "buffer_log": { "bytes": cache.buffer_bytes, "free_bytes": cache.buffer_free_bytes },
            "counters": self.counters(),
            "space": self.space(),
            "epoch": self.epochs.report(),
            "latency": self.latency(),
            "slowest_ms": {
                "store": slowest(&self.stack.disks.store.max_latency),
                "buffer": slowest(&self.stack.disks.buffer.max_latency),
            },
            "wake_up": self.front.awake.report(),
            "settings": self.settings(),
        })
    }

    /// What the start took, by parts.
    fn start(&self) -> Value {
        let start = self.stack.start;
        json!({
            "store_ms": micros(start.store) / 1000.0,
            "preload_ms": micros(start.preload) / 1000.0,
            "buffer_ms": micros(start.buffer) / 1000.0,
            "media_read_ms": micros(start.media) / 1000.0,
            "media_read_bytes": start.media_blocks * BLOCK_BYTES as u64,
            "begin_ms": micros(start.beginning) / 1000.0,
            "metadata_ms": micros(start.metadata) / 1000.0,
            "transactions": self.stack.cache.status().counters.replayed,
            "store_waits": start.reads.waits,
            "store_reads": start.reads.reads,
            "store_bytes": start.reads.blocks * BLOCK_BYTES as u64,
        })
    }

    fn counters(&self) -> Value {
        let cache = self.stack.cache.status().counters;
        let buffer = self.stack.cache.buffer().counters();
        let store = self.stack.store.counters();
        json!({
            "transactions": cache.transactions,
            "writes_to_absent_pages": cache.writes_to_absent_pages,
            "store_reads": {
                "for_reads": cache.fetched_for_reads,
                "for_writes": cache.fetched_for_writes,
                "for_write_back": cache.fetched_for_write_back,
                "ahead": cache.fetched_ahead,
                "in_background": cache.fetched_in_background,
            },
            "store_io_for_syncs": cache.store_io_for_syncs,
            "holes_read": cache.holes,
            "reads_at_once": cache.reads_at_once,
            "reads_parked": cache.reads_parked,
            "syncs": cache.syncs,
            "pages_stored": cache.pages_stored,
            "pages_relogged": cache.pages_relogged,
            "pages_bypassed": cache.pages_bypassed,
            "pages_logged_late": cache.pages_logged_late,
            "cuts_stored": cache.punches_stored,
            "clones_stored": cache.transfers_stored,
            "pages_evicted": cache.evicted,
            "admissions_parked": cache.admissions_parked,
            "cleaned_while_parked": cache.cleaned_while_parked,
            "replayed": cache.replayed,
            "store": {
                "page_reads": store.page_reads,
                "node_reads": store.node_reads,
                "metadata_repaired": store.metadata_repaired,
                "batches": store.batches,
                "pages_written": store.pages_written,
                "delta_blocks_written": store.delta_blocks_written,
                "blocks_written": store.blocks_written,
                "pages_folded": store.pages_delta_merged,
                "flushes": store.flushes,
                "checkpoints": store.checkpoints,
                "pages_cleaned": store.pages_cleaned,
                "segments_cleaned": store.segments_cleaned,
                "segments_freed": store.segments_freed,
                "trims_failed": store.trims_failed,
                "segments_allocated": store.segments_allocated,
            },
            "commits": buffer.commits,
            "buffer_bytes_written": buffer.bytes_written,
            "buffer_flushes": buffer.flushes,
            "errors": {
                "fetch": cache.fetch_errors,
                "write_back": cache.write_back_errors,
                "checkpoint": cache.checkpoint_errors,
            },
        })
    }

    /// How full the store is, counted volume by volume.
    pub(crate) fn space_exact(&self) -> Result<Value, RequestRefusal> {
        let usage = self.stack.store.usage().map_err(|error| RequestRefusal::new(&error, error.help()))?;
        let volumes = self.stack.store.describe_volumes();
        let name = |id| volumes.iter().find(|volume| volume.id == id).map(|volume| volume.name.clone());
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let each = usage.volumes.iter().map(|volume| {
            json!({
                "name": name(volume.id),
                "exclusive_bytes": bytes(volume.exclusive),
                "shared_bytes": bytes(volume.shared),
            })
        });
        let mut space = self.space();
        space["data_bytes"] = json!(bytes(usage.data));
        space["dying_bytes"] = json!(bytes(usage.dying));
        space["by_volume"] = each.collect();
        Ok(space)
    }

    /// How full the store is.
    pub(crate) fn space(&self) -> Value {
        let store = self.stack.cache.store_without_spare();
        let space = store.space();
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        json!({
            "total_bytes": bytes(space.total),
            "usable_bytes": bytes(space.usable()),
            "used_bytes": bytes(space.used()),
            "live_bytes_bound": bytes(space.live),
            "map_bytes": bytes(space.nodes),
            "volumes": store.volumes().len(),
            "freeing": store.is_freeing(),
            "free_bytes": bytes(space.free + space.unbacked),
            "available_bytes": bytes(space.available()),
            "full_below_bytes": store.host_fs_free_bytes_if_full(),
            "reserved_bytes": bytes(space.reserved),
            "log_bytes_since_checkpoint": bytes(self.stack.store.blocks_since_checkpoint()),
        })
    }

    fn latency(&self) -> Value {
        let classes =
            self.front.latencies.summaries().into_iter().map(|of| (of.class.name().into(), summary(&of)));
        Value::Object(classes.collect::<Map<String, Value>>())
    }

    fn settings(&self) -> Value {
        let settings = self.stack.cache.settings();
        let bypass_after = self.stack.cache.bypass_after();
        let mode = if bypass_after == u64::MAX { DataMode::Journal } else { DataMode::Ordered };
        json!({
            "fetch": match settings.fetch {
                FetchMode::Adaptive => "adaptive",
                FetchMode::Background => "background",
                FetchMode::Lazy => "lazy",
                FetchMode::Blocking => "blocking",
            },
            "memory_bytes_max": settings.memory_bytes_max,
            "dirty_bytes_max": settings.dirty_bytes_max,
            "delta_bytes_max": settings.delta_bytes_max,
            "commit_interval_ms": millis(settings.commit_interval),
            "dirty_age_max_ms": millis(settings.dirty_age_max),
            "data": mode.name(),
            "bypass_after_bytes": (mode == DataMode::Ordered).then_some(bypass_after),
            "threads": self.front.threads,
        })
    }
}

/// The longest calls to a medium since it was opened.
fn slowest(disk: &MaxLatency) -> Value {
    let calls =
        DeviceCall::ALL.into_iter().map(|call| (call.name().into(), json!(micros(disk.of(call)) / 1000.0)));
    Value::Object(calls.collect::<Map<String, Value>>())
}

/// What cannot be written back.
fn stuck(cache: &cache::CacheStatus) -> Value {
    let some = cache.stuck.iter().map(|one| {
        let page = one.page.map(|page| page.0);
        json!({ "object": one.object.to_string(), "page": page, "why": one.why })
    });
    json!({ "count": cache.stuck_count, "some": some.collect::<Vec<_>>() })
}

fn summary(of: &LatencySummary) -> Value {
    json!({
        "count": of.count,
        "p50_us": micros(of.p50),
        "p99_us": micros(of.p99),
        "p999_us": micros(of.p999),
        "max_us": micros(of.max),
        "buckets_us": of.buckets.iter().map(|&(end, count)| json!([micros(end), count])).collect::<Vec<_>>(),
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}
