//! Fills the report of `weir status`, whose fields `weir_status` declares and documents.

use crate::epoch_keeper;
use crate::mounted_volume::MountedVolume;
use crate::option_values::{FETCH_MODES, KERNEL_CACHE_POLICIES, word_of};
use crate::store_daemon::RequestRefusal;
use crate::store_path::path_as_utf8;
use cache::{AppendCause, AppendedBytes};
use device::BLOCK_BYTES;
use fuse::{CLASSED_KINDS, LatencySummary};
use host::{DeviceCall, MaxLatency};
use request::{RequestClass, RequestKind};
use std::collections::BTreeMap;
use std::time::Duration;
use weir_status::{
    BufferBytesReport, BufferLogReport, CacheMemoryReport, ClassLatencyReport, CleaningReport,
    CountersReport, DirtyReport, ErrorCountsReport, HealthReport, InFlightReport, LatencyReport, LsnReport,
    SettingsReport, SlowestCallsReport, SlowestReport, SpaceReport, StartReport, StatusReport,
    StoreCountersReport, StoreReadsReport, StuckChangeReport, StuckReport, VolumeSpaceReport,
};

impl MountedVolume {
    /// The answer of `weir status`.
    pub(crate) fn status_report(&self) -> StatusReport {
        let cache = self.daemon.stack.cache.status();
        let report = StatusReport {
            health: HealthReport::Ok,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            log: self.daemon.log.get().map(path_as_utf8),
            mounted_on: path_as_utf8(&self.dir),
            volume: self.volume.name.clone(),
            atomic_writes: self.has_atomic_writes,
            store: path_as_utf8(&self.daemon.stack.media.store),
            buffer: path_as_utf8(&self.daemon.stack.media.buffer),
            volatile: self.daemon.stack.media.buffer_volatile.as_ref().map(ToString::to_string),
            incarnation: self.daemon.stack.store.incarnation().0,
            uptime_ms: whole_millis(self.since.elapsed()),
            start: self.start_report(),
            stuck: stuck_report(&cache),
            failed: cache.failed,
            rescued: cache.rescued,
            left_out: cache.left_out,
            not_rescued: cache.not_rescued,
            stalled: cache.stalled,
            lsns: LsnReport { applied: cache.applied.0, durable: cache.durable.0 },
            dirty: DirtyReport {
                pages: cache.dirty_pages,
                bytes: cache.dirty_bytes,
                deltas: cache.deltas,
                delta_bytes: cache.delta_bytes,
                age_ms: whole_millis(cache.dirty_age),
                cuts: cache.pending_punches,
                clones: cache.pending_transfers,
            },
            in_flight: InFlightReport {
                reads: cache.parked_reads,
                syncs: cache.parked_syncs,
                admissions: cache.parked_admissions,
                fetches: cache.fetching,
            },
            memory: CacheMemoryReport { pages: cache.pages, bytes: cache.memory_bytes },
            buffer_log: BufferLogReport { bytes: cache.buffer_bytes, free_bytes: cache.buffer_free_bytes },
            counters: self.counters_report(),
            space: self.space_report(),
            damaged_state: epoch_keeper::damaged_state(&self.daemon.stack.store, &self.volume.name),
            epoch: self.daemon.epochs.report(self.volume.id),
            latency: self.latency_report(),
            latency_by_class: self.class_latency_report(),
            slowest_ms: SlowestReport {
                store: slowest_calls(&self.daemon.stack.disks.store.max_latency),
                buffer: slowest_calls(&self.daemon.stack.disks.buffer.max_latency),
            },
            lending: self.daemon.policy.lending_report(),
            rule_shares: self.daemon.policy.share_reports(),
            wake_up: self.daemon.front.pm_qos.report(),
            settings: self.settings_report(),
            exports: self.daemon.exports_report(),
        };
        StatusReport { health: report.health_of_fields(), ..report }
    }

    fn latency_report(&self) -> BTreeMap<String, LatencyReport> {
        let of = |kind| latency_report(kind, &self.latencies.of_kind(kind));
        RequestKind::ALL.iter().map(|&kind| (kind.name().into(), of(kind))).collect()
    }

    fn class_latency_report(&self) -> BTreeMap<String, ClassLatencyReport> {
        let of = |kind, class| Some(latency_report(kind, &self.latencies.of_class(kind, class)?));
        let reports = CLASSED_KINDS.iter().filter_map(|&kind| {
            let critical = of(kind, RequestClass::Critical)?;
            let background = of(kind, RequestClass::Background)?;
            Some((kind.name().to_owned(), ClassLatencyReport { critical, background }))
        });
        reports.filter(|(_, report)| report.critical.count + report.background.count > 0).collect()
    }

    fn start_report(&self) -> StartReport {
        let start = self.daemon.stack.start;
        StartReport {
            store_ms: millis(start.store),
            buffer_ms: millis(start.buffer),
            media_read_ms: millis(start.media),
            media_read_bytes: bytes(start.media_blocks),
            begin_ms: millis(start.beginning),
            metadata_ms: millis(self.metadata_time),
            transactions: self.daemon.stack.cache.status().counters.replayed,
            store_waits: self.reads_at_start.waits,
            store_reads: self.reads_at_start.reads,
            store_bytes: bytes(self.reads_at_start.blocks),
        }
    }

    fn counters_report(&self) -> CountersReport {
        let cache = self.daemon.stack.cache.status().counters;
        let buffer = self.daemon.stack.cache.buffer().counters();
        let store = self.daemon.stack.store.counters();
        CountersReport {
            transactions: cache.transactions,
            writes_to_absent_pages: cache.writes_to_absent_pages,
            store_reads: StoreReadsReport {
                for_reads: cache.fetched_for_reads,
                for_writes: cache.fetched_for_writes,
                for_write_back: cache.fetched_for_write_back,
                ahead: cache.fetched_ahead,
                in_background: cache.fetched_in_background,
            },
            store_io_for_syncs: cache.store_io_for_syncs,
            holes_read: cache.holes,
            reads_at_once: cache.reads_at_once,
            reads_parked: cache.reads_parked,
            syncs: cache.syncs,
            pages_stored: cache.pages_stored,
            pages_relogged: cache.pages_relogged,
            pages_bypassed: cache.pages_bypassed,
            pages_logged_late: cache.pages_logged_late,
            cuts_stored: cache.punches_stored,
            clones_stored: cache.transfers_stored,
            pages_evicted: cache.evicted,
            admissions_parked: cache.admissions_parked,
            cleaned_while_parked: cache.cleaned_while_parked,
            replayed: cache.replayed,
            store: StoreCountersReport {
                page_reads: store.page_reads,
                node_reads: store.node_reads,
                metadata_repaired: store.metadata_repaired,
                batches: store.batches,
                pages_written: store.pages_written,
                delta_blocks_written: store.delta_blocks_written,
                blocks_written: store.blocks_written,
                pages_folded: store.pages_delta_merged,
                flushes: store.flushes,
                checkpoints: store.checkpoints,
                pages_cleaned: store.pages_cleaned,
                segments_cleaned: store.segments_cleaned,
                segments_freed: store.segments_freed,
                trims_failed: store.trims_failed,
                segments_allocated: store.segments_allocated,
            },
            commits: buffer.commits,
            buffer_bytes_by_cause: buffer_bytes_report(&cache.appended),
            buffer_bytes_written: buffer.bytes_written,
            buffer_flushes: buffer.flushes,
            errors: ErrorCountsReport {
                fetch: cache.fetch_errors,
                write_back: cache.write_back_errors,
                checkpoint: cache.checkpoint_errors,
            },
        }
    }

    /// The answer of `weir space --exact`: the space of each volume is counted.
    pub(crate) fn exact_space_report(&self) -> Result<SpaceReport, RequestRefusal> {
        let usage = self
            .daemon
            .stack
            .store
            .volumes()
            .usage()
            .map_err(|error| RequestRefusal::new(&error, error.help()))?;
        let volumes = self.daemon.stack.store.volumes().describe();
        let name = |id| volumes.iter().find(|volume| volume.id == id).map(|volume| volume.name.clone());
        let by_volume = usage.volumes.iter().map(|volume| VolumeSpaceReport {
            name: name(volume.id),
            exclusive_bytes: bytes(volume.exclusive),
            shared_bytes: bytes(volume.shared),
        });
        Ok(SpaceReport {
            data_bytes: Some(bytes(usage.data)),
            dying_bytes: Some(bytes(usage.dying)),
            by_volume: Some(by_volume.collect()),
            ..self.space_report()
        })
    }

    /// The answer of `weir space`.
    pub(crate) fn space_report(&self) -> SpaceReport {
        let store = self.daemon.stack.cache.store_without_spare();
        let space = store.space().now();
        SpaceReport {
            total_bytes: bytes(space.total),
            usable_bytes: bytes(space.usable()),
            used_bytes: bytes(space.used()),
            live_bytes_bound: bytes(space.live),
            map_bytes: bytes(space.nodes),
            volumes: store.volumes().all().len() as u64,
            freeing: store.maintenance().is_freeing(),
            free_bytes: bytes(space.free + space.unbacked),
            available_bytes: bytes(space.available()),
            full_below_bytes: store.space().host_fs_free_bytes_if_full(),
            reserved_bytes: bytes(space.reserved),
            log_bytes_since_checkpoint: bytes(
                self.daemon.stack.store.maintenance().blocks_since_checkpoint(),
            ),
            cleaning: store
                .maintenance()
                .cleaning_work()
                .map(|work| CleaningReport { left_bytes: bytes(work.left), debt_bytes: bytes(work.debt) }),
            data_bytes: None,
            dying_bytes: None,
            by_volume: None,
        }
    }

    fn settings_report(&self) -> SettingsReport {
        let settings = self.daemon.stack.cache.settings();
        let bypass_after = self.daemon.stack.cache.bypass_after();
        let in_force = self.daemon.policy.in_force();
        SettingsReport {
            fetch: word_of(FETCH_MODES, &settings.fetch).into(),
            memory_bytes_max: settings.memory_bytes_max,
            dirty_bytes_max: settings.dirty_bytes_max,
            delta_bytes_max: settings.delta_bytes_max,
            commit_interval_ms: whole_millis(settings.commit_interval),
            dirty_age_max_ms: whole_millis(settings.dirty_age_max),
            data: in_force.data.name().into(),
            bypass_after_bytes: (bypass_after != u64::MAX).then_some(bypass_after),
            policy: in_force.shown_policy(),
            rules: in_force.user_rules().map(ToString::to_string).collect(),
            threads: self.daemon.front.threads,
            wake_up: self.daemon.front.wake_up.name().into(),
            kernel_cache: word_of(KERNEL_CACHE_POLICIES, &self.daemon.front.kernel_cache).into(),
        }
    }
}

fn stuck_report(cache: &cache::CacheStatus) -> StuckReport {
    let some = cache.stuck.iter().map(|stuck| StuckChangeReport {
        object: stuck.object.to_string(),
        page: stuck.page.map(|page| page.0),
        why: stuck.why.clone(),
    });
    StuckReport { count: cache.stuck_count, some: some.collect() }
}

fn buffer_bytes_report(appended: &AppendedBytes) -> BufferBytesReport {
    BufferBytesReport {
        synced_pages: appended.of(AppendCause::Sync),
        lent_pages: appended.of(AppendCause::LentSync),
        whole_pages: appended.of(AppendCause::WholePage),
        parts_of_pages: appended.of(AppendCause::PartOfPage),
        metadata: appended.of(AppendCause::Metadata),
        relogged: appended.of(AppendCause::Relogged),
    }
}

fn slowest_calls(disk: &MaxLatency) -> SlowestCallsReport {
    SlowestCallsReport {
        read: millis(disk.of(DeviceCall::Read)),
        write: millis(disk.of(DeviceCall::Write)),
        flush: millis(disk.of(DeviceCall::Flush)),
        trim: millis(disk.of(DeviceCall::Trim)),
    }
}

fn latency_report(kind: RequestKind, of: &LatencySummary) -> LatencyReport {
    let has_bytes = matches!(kind, RequestKind::Read | RequestKind::Write);
    LatencyReport {
        count: of.count,
        bytes: has_bytes.then_some(of.bytes),
        p50_us: micros(of.p50),
        p99_us: micros(of.p99),
        p999_us: micros(of.p999),
        max_us: micros(of.max),
        buckets_us: of.buckets.iter().map(|&(end, count)| (micros(end), count)).collect(),
    }
}

fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

pub(crate) fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn millis(time: Duration) -> f64 {
    micros(time) / 1000.0
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}
