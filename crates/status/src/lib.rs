#![doc = include_str!("../README.md")]

mod health;

pub use health::HealthReport;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The answer of `weir status --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusReport {
    /// The state of the mount in one word, of several the worst: `ok`, `volatile`, `stuck`, `stalled`, `read-only` or
    /// `at-risk`. `weir status --help` explains them.
    pub health: HealthReport,
    /// The version of the daemon.
    pub version: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// The file with the daemon's messages; null if they go to the terminal or to the journal.
    pub log: Option<String>,
    /// The directory on which the volume is mounted.
    pub mounted_on: String,
    /// The name of the mounted volume.
    pub volume: String,
    /// Whether files of the volume can be marked for atomic writes, with the attribute `user.weir.atomic`.
    pub atomic_writes: bool,
    /// The path of the store's file or device.
    pub store: String,
    /// The path of the buffer's file or device.
    pub buffer: String,
    /// Why a power failure loses what was flushed to the buffer; null if it does not.
    pub volatile: Option<String>,
    /// A number that is higher at every later mount; other commands raise it, too.
    pub incarnation: u64,
    /// Milliseconds since the mount.
    pub uptime_ms: u64,
    /// Times and counts of the start.
    pub start: StartReport,
    /// Why the mount is read-only from now on: changes cannot be made durable. Null while all is well.
    pub failed: Option<String>,
    /// After `failed`: the volume in the store that has everything that was written, once it is complete.
    pub rescued: Option<String>,
    /// Pages of the rescued volume without their last changes, because the store's version of them is
    /// damaged. Reading such a page is an error.
    pub left_out: u64,
    /// After `failed`: why the changes in memory could not be saved to the store yet. weir tries again.
    pub not_rescued: Option<String>,
    /// Why nothing can be written back at present. Writes that find no space fail after 30 s of this.
    pub stalled: Option<String>,
    /// Changes that cannot be written back, of damaged pages for instance.
    pub stuck: StuckReport,
    /// How far the log is.
    pub lsns: LsnReport,
    /// Data that is newer than the store.
    pub dirty: DirtyReport,
    /// Requests and fetches that wait at this moment.
    pub in_flight: InFlightReport,
    /// Memory for pages.
    pub memory: CacheMemoryReport,
    /// The log in the buffer.
    pub buffer_log: BufferLogReport,
    /// Events since the daemon began, in all mounts of the store.
    pub counters: CountersReport,
    /// How full the store is.
    pub space: SpaceReport,
    /// The volume with the state, perhaps damaged, that this one had when its buffer was lost (`--on-lost-buffer restore`); null
    /// if there is none.
    pub damaged_state: Option<String>,
    /// The read-only copy of the volume that is kept in case the buffer is lost.
    pub epoch: EpochReport,
    /// Latencies since the mount, for each kind of request.
    pub latency: BTreeMap<String, LatencyReport>,
    /// Latencies of reads, writes and syncs since the mount by class, while rules were in force. Empty without such
    /// requests.
    pub latency_by_class: BTreeMap<String, ClassLatencyReport>,
    /// The longest calls to each medium since the daemon began, in milliseconds.
    pub slowest_ms: SlowestReport,
    /// Priority lent to background programs that others wait for, with `--policy critical+process` or
    /// `critical+process+io`.
    pub lending: LendingReport,
    /// The rules in force that have a share of the buffer (`share=` in a rule).
    pub rule_shares: Vec<RuleShareReport>,
    /// Whether processors are kept awake while requests arrive, and what that costs.
    pub wake_up: WakeUpReport,
    /// The settings in effect.
    pub settings: SettingsReport,
    /// Block volumes that the daemon exports.
    pub exports: Vec<ExportReport>,
}

/// A block volume that is exported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportReport {
    /// The name of the volume.
    pub volume: String,
    /// Where clients connect.
    pub at: String,
}

/// Times and counts of the start of a mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartReport {
    /// Milliseconds to read the store's newest checkpoint and the log after it.
    pub store_ms: f64,
    /// Milliseconds to read the buffer and to replay its log.
    pub buffer_ms: f64,
    /// Milliseconds during which at least one of the media was being read.
    pub media_read_ms: f64,
    /// Bytes read from both media in that time.
    pub media_read_bytes: u64,
    /// Milliseconds to make the new incarnation durable on both media.
    pub begin_ms: f64,
    /// Milliseconds to read the metadata of all files.
    pub metadata_ms: f64,
    /// Transactions found in the buffer.
    pub transactions: u64,
    /// Times that the start waited for a read of the store.
    pub store_waits: u64,
    /// Reads of the store, from the start of the daemon until the mount was ready.
    pub store_reads: u64,
    /// Bytes of these reads.
    pub store_bytes: u64,
}

/// Changes that cannot be written back. They stay in the buffer, durable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StuckReport {
    /// How many there were when write-back last tried.
    pub count: u64,
    /// Some of them.
    pub some: Vec<StuckChangeReport>,
}

/// A change that cannot be written back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StuckChangeReport {
    /// The object, as error messages name it.
    pub object: String,
    /// The number of the page in the object; null for a truncation, deletion, clone or move.
    pub page: Option<u64>,
    /// Why it cannot be written back.
    pub why: String,
}

/// Positions in the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LsnReport {
    /// The LSN of the newest change.
    pub applied: u64,
    /// The LSN of the newest change that survives a crash.
    pub durable: u64,
}

/// Data that is newer than the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirtyReport {
    /// Dirty pages.
    pub pages: u64,
    /// Memory that they take, approximately.
    pub bytes: u64,
    /// Dirty pages of which only the written parts are in memory.
    pub deltas: u64,
    /// Memory that these take, approximately.
    pub delta_bytes: u64,
    /// The age of the oldest change that is not in the store, in milliseconds.
    pub age_ms: u64,
    /// Truncations, hole punches and deletions that are not in the store.
    pub cuts: u64,
    /// Clones and moves of page ranges that are not in the store.
    pub clones: u64,
}

/// Requests and fetches that wait.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InFlightReport {
    /// Reads that wait for a page.
    pub reads: u64,
    /// Syncs that wait for a commit.
    pub syncs: u64,
    /// Operations that wait for space.
    pub admissions: u64,
    /// Pages that are queued for a fetch or being fetched.
    pub fetches: u64,
}

/// Pages in memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheMemoryReport {
    /// Pages in memory.
    pub pages: u64,
    /// Memory that they take, approximately.
    pub bytes: u64,
}

/// The log in the buffer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BufferLogReport {
    /// The size of the log.
    pub bytes: u64,
    /// How much of it is free.
    pub free_bytes: u64,
}

/// Events since the daemon began, in all mounts of the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountersReport {
    /// Transactions applied.
    pub transactions: u64,
    /// Page changes to pages that were not in memory.
    pub writes_to_absent_pages: u64,
    /// Pages read from the store, by reason.
    pub store_reads: StoreReadsReport,
    /// Reads, writes and flushes of the store that a sync had to wait for.
    pub store_io_for_syncs: u64,
    /// Reads of holes, for which no device was read.
    pub holes_read: u64,
    /// Reads answered without waiting.
    pub reads_at_once: u64,
    /// Reads that waited for a page.
    pub reads_parked: u64,
    /// Syncs requested.
    pub syncs: u64,
    /// Pages written back.
    pub pages_stored: u64,
    /// Pages whose deltas were logged again, because they are written too often to be written back.
    pub pages_relogged: u64,
    /// Pages that bypassed the buffer.
    pub pages_bypassed: u64,
    /// Bypassed pages that had to be logged after all, because a later change depends on them or the store
    /// failed.
    pub pages_logged_late: u64,
    /// Truncations, hole punches and deletions written back.
    pub cuts_stored: u64,
    /// Clones and moves of page ranges written back.
    pub clones_stored: u64,
    /// Pages dropped from memory.
    pub pages_evicted: u64,
    /// Operations that had to wait for space.
    pub admissions_parked: u64,
    /// The most pages that the cleaner moved while one operation waited for space.
    pub cleaned_while_parked: u64,
    /// Transactions found in the buffer at the start.
    pub replayed: u64,
    /// Events in the store.
    pub store: StoreCountersReport,
    /// Commits written to the buffer.
    pub commits: u64,
    /// Bytes appended to the buffer's log, by cause. Each byte counts once.
    pub buffer_bytes_by_cause: BufferBytesReport,
    /// Bytes written to the buffer, with padding and headers.
    pub buffer_bytes_written: u64,
    /// Flushes of the buffer.
    pub buffer_flushes: u64,
    /// Background work that failed and is tried again.
    pub errors: ErrorCountsReport,
}

/// Bytes appended to the buffer's log, by cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BufferBytesReport {
    /// Pages that bypassed the buffer until a sync logged them. If nobody waits for these syncs, a rule that makes
    /// them background keeps the pages out of the buffer.
    pub synced_pages: u64,
    /// The same for a sync of a background program, logged because a critical program waited for it.
    pub lent_pages: u64,
    /// Other whole pages. Without a policy, or under `all`, most are pages as they were written, and `--policy sync` or
    /// `critical` keeps them out. Under these, they are pages on which a later change depends, and pages for which
    /// the store is too slow.
    pub whole_pages: u64,
    /// Writes of a part of a page. No rule keeps them out.
    pub parts_of_pages: u64,
    /// Names, sizes, holes and clones, and pages that must be durable before their file's new name. No rule keeps them
    /// out.
    pub metadata: u64,
    /// Changes logged again, of pages that are written too often to be written back. A larger buffer has fewer.
    pub relogged: u64,
}

/// Pages read from the store, by reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreReadsReport {
    /// For a reader that waited.
    pub for_reads: u64,
    /// For a writer that waited, with `--fetch blocking`.
    pub for_writes: u64,
    /// To write back a page that was written in part.
    pub for_write_back: u64,
    /// Ahead of a reader that reads a file in order.
    pub ahead: u64,
    /// After a write that left a page partial.
    pub in_background: u64,
}

/// Events in the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreCountersReport {
    /// Pages read that were not holes.
    pub page_reads: u64,
    /// Nodes of the map read from the device.
    pub node_reads: u64,
    /// Damaged or unreadable blocks of metadata that were rewritten from their copy.
    pub metadata_repaired: u64,
    /// Batches of changes applied.
    pub batches: u64,
    /// Pages written, without those that the cleaner moved.
    pub pages_written: u64,
    /// Those of the written pages that hold deltas.
    pub delta_blocks_written: u64,
    /// Blocks written to the device, whatever they hold.
    pub blocks_written: u64,
    /// Pages written whole in place of their base and deltas. They count as written, too.
    pub pages_folded: u64,
    /// Flushes of the device.
    pub flushes: u64,
    /// Checkpoints made durable.
    pub checkpoints: u64,
    /// Pages that the cleaner moved.
    pub pages_cleaned: u64,
    /// Segments that the cleaner emptied.
    pub segments_cleaned: u64,
    /// Segments trimmed and free again.
    pub segments_freed: u64,
    /// Trims that failed. After the first one, weir trims no more.
    pub trims_failed: u64,
    /// Segments for which the host file system allocated space.
    pub segments_allocated: u64,
}

/// Background work that failed and is tried again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorCountsReport {
    /// Fetches.
    pub fetch: u64,
    /// Write-backs.
    pub write_back: u64,
    /// Steps of the store's maintenance: checkpoints, cleaning, freeing, merging.
    pub checkpoint: u64,
}

/// How full the store is: also the answer of `weir space --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceReport {
    /// All space in segments, without those for which the host file system has no space.
    pub total_bytes: u64,
    /// Space that volumes can use. The rest is for deletions, checkpoints and cleaning.
    pub usable_bytes: u64,
    /// The part of the usable space that is live, with the space that dirty data will probably take.
    pub used_bytes: u64,
    /// Live data and metadata: an upper bound.
    pub live_bytes_bound: u64,
    /// The nodes of the map and their copies, which are live metadata: exact.
    pub map_bytes: u64,
    /// Volumes in the store.
    pub volumes: u64,
    /// Whether space of deleted data is still being freed.
    pub freeing: bool,
    /// Segments that can be written without cleaning.
    pub free_bytes: u64,
    /// Usable space that is not used. Some of it may need cleaning first.
    pub available_bytes: u64,
    /// Bytes left in the host file system, if that has no space for a segment that the store could use; else
    /// null.
    pub full_below_bytes: Option<u64>,
    /// Space reserved for dirty data: the most that it can take.
    pub reserved_bytes: u64,
    /// Log written since the last checkpoint: a start has to read it.
    pub log_bytes_since_checkpoint: u64,
    /// The round of cleaning that is under way; null if there is none. Cleaning starts when free segments are few.
    pub cleaning: Option<CleaningReport>,
    /// Data that some volume refers to, each block counted once. Only with `weir space --exact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Data of deleted files and volumes that no volume refers to and that is still to be freed. Only with
    /// `weir space --exact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dying_bytes: Option<u64>,
    /// The space of each volume. Only with `weir space --exact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_volume: Option<Vec<VolumeSpaceReport>>,
}

/// A round of cleaning, which moves live data out of segments that are mostly dead.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CleaningReport {
    /// Data to move and metadata to look at until the round ends.
    pub left_bytes: u64,
    /// The GC debt: the part of `left_bytes` that is owed for data written since the round began. Writes are slowed down until it
    /// is done.
    pub debt_bytes: u64,
}

/// The space of a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeSpaceReport {
    /// Its name; null if it was deleted meanwhile.
    pub name: Option<String>,
    /// Bytes that only this volume uses: its deletion would free them.
    pub exclusive_bytes: u64,
    /// Bytes that it shares with other volumes.
    pub shared_bytes: u64,
}

/// The read-only copy of the volume that is kept in case the buffer is lost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EpochReport {
    /// Milliseconds between two epochs; null if none is taken.
    pub every_ms: Option<u64>,
    /// The volume that is the newest epoch; null if there is none.
    pub last: Option<String>,
    /// The age of that epoch in milliseconds.
    pub age_ms: Option<u64>,
    /// The age of the oldest change that may be in no epoch, in milliseconds: 0 if the newest epoch has everything; null if none
    /// is taken.
    pub behind_ms: Option<u64>,
    /// Epochs deleted because the store was full.
    pub given_up: u64,
    /// Why there is no epoch, or no newer one.
    pub problem: Option<String>,
}

/// The latencies of one kind of request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyReport {
    /// Requests answered.
    pub count: u64,
    /// Bytes that these requests read or wrote; null for kinds other than reads and writes. Reads that the kernel answers
    /// from its own memory do not reach weir, and are not counted.
    pub bytes: Option<u64>,
    /// Half of the requests took at most so many microseconds.
    pub p50_us: f64,
    /// 99 of 100 requests took at most so many microseconds.
    pub p99_us: f64,
    /// 999 of 1000 requests took at most so many microseconds.
    pub p999_us: f64,
    /// The longest request, in microseconds.
    pub max_us: f64,
    /// Pairs of a latency in microseconds, and the requests that took at most this long and longer than the
    /// pair before. Pairs without requests are left out. Two such lists can be subtracted, quantiles cannot.
    pub buckets_us: Vec<(f64, u64)>,
}

/// The latencies of one kind of request, by class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassLatencyReport {
    /// Of critical requests.
    pub critical: LatencyReport,
    /// Of background requests.
    pub background: LatencyReport,
}

/// The longest calls to each medium, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowestReport {
    /// Calls to the store's file or device.
    pub store: SlowestCallsReport,
    /// Calls to the buffer's file or device.
    pub buffer: SlowestCallsReport,
}

/// The longest calls to a medium, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowestCallsReport {
    /// The longest read.
    pub read: f64,
    /// The longest write.
    pub write: f64,
    /// The longest flush.
    pub flush: f64,
    /// The longest trim.
    pub trim: f64,
}

/// Priority lent to background programs that others wait for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LendingReport {
    /// Looks at what critical programs wait for: while requests of background programs take long.
    pub looks: u64,
    /// Times that a background program could go on at once because a critical one waited for it.
    pub lent: u64,
    /// Requests that wait at this moment with priority that was lent to them.
    pub present: u64,
}

/// The part of the buffer of the requests that a rule decides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleShareReport {
    /// The rule, as its line in the file.
    pub rule: String,
    /// The share in percent of the buffer.
    pub share_percent: u8,
    /// Bytes in the buffer, to a 64th of the buffer.
    pub bytes: u64,
    /// Whether that is more than the share, so that the rule's requests are background.
    pub is_beyond: bool,
}

/// The answer of `weir why --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitsReport {
    /// Requests that wait at this moment, the longest first.
    pub waiting: Vec<WaitReport>,
    /// The last 256 waits of a millisecond and more that have ended, the newest first.
    pub ended: Vec<WaitReport>,
    /// For each `waits_for`, the longest wait since the daemon began that has ended, the longest of all first.
    pub longest: Vec<WaitReport>,
    /// All waits of a millisecond and more that have ended since the daemon began, for each `waits_for`, those with the most time
    /// first. If you asked for a file or a process, only those in `ended`.
    pub totals: Vec<WaitTotalsReport>,
    /// The policy in force; null for `none`. The classes of the waits count only under a `critical` policy.
    pub policy: Option<String>,
}

/// The waits for one thing, counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitTotalsReport {
    /// As in `ended`.
    pub waits_for: String,
    /// How many waits there were.
    pub count: u64,
    /// How long they took together, in milliseconds.
    pub total_ms: f64,
    /// How long the longest took, in milliseconds.
    pub longest_ms: f64,
}

/// A wait of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitReport {
    /// When the wait began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// How long the wait took, or has taken so far, in milliseconds.
    pub waited_ms: f64,
    /// The thread that made the request; null for requests of the kernel and of weir itself.
    pub task: Option<u32>,
    /// The title of that thread's process; null if the thread is gone, or may not be read.
    pub title: Option<String>,
    /// `critical` or `background`.
    pub class: String,
    /// The rule that decided the class; null if none did, or the rules have changed since.
    pub rule: Option<String>,
    /// The kind of the request, as in `latency`.
    pub request: String,
    /// The inode number of the file, or of the directory of the name; null if the request has none.
    pub inode: Option<u64>,
    /// The path of the file; null unless you asked for its waits, or the thread has it open.
    pub path: Option<String>,
    /// What the request waited for: `buffer-space`, `dirty-memory`, `earlier-copies`, `store-space`, `earlier-request`, `stored-page`, `commit`
    /// or `write-back`; `weir why --help` explains them.
    pub waits_for: String,
    /// A critical thread that waited in the kernel for this request, so that the request was lent priority; 0 if
    /// weir may not see which one, null if nothing was lent.
    pub lent_for: Option<u32>,
    /// The title of that thread's process.
    pub lent_for_title: Option<String>,
}

/// Whether processors are kept awake while requests arrive, and what that costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WakeUpReport {
    /// `awake`: processors are kept awake now; `idle`: too few requests arrive; `off`: see `why_off`.
    pub state: String,
    /// Why processors may sleep, at present or for the whole mount; null if they are kept awake when requests
    /// arrive.
    pub why_off: Option<String>,
    /// How long a processor may take to wake, in microseconds; null if weir does not keep them awake.
    pub latency_us: Option<i32>,
    /// Milliseconds during which processors were kept awake.
    pub held_ms: f64,
    /// Processor time spent polling meanwhile, in milliseconds, of all processors together.
    pub polled_ms: f64,
    /// Requests that arrived meanwhile.
    pub requests: u64,
    /// The price: seconds of processor time for a million requests.
    pub processor_seconds_per_million_requests: f64,
}

/// The settings in effect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingsReport {
    /// `--fetch`.
    pub fetch: String,
    /// `--memory`.
    pub memory_bytes_max: u64,
    /// `--dirty`.
    pub dirty_bytes_max: u64,
    /// `--deltas`.
    pub delta_bytes_max: u64,
    /// `--commit-interval`.
    pub commit_interval_ms: u64,
    /// `--dirty-age`, in milliseconds.
    pub dirty_age_max_ms: u64,
    /// `--data`, or what `weir tune --data` set since.
    pub data: String,
    /// `--bypass-after`; 0 if all whole pages bypass the buffer by `--policy`, null if none ever do.
    pub bypass_after_bytes: Option<u64>,
    /// `--policy`, or what `weir tune --policy` set since; null if there is none.
    pub policy: Option<String>,
    /// The rules of `--rules` that are in force, in their order.
    pub rules: Vec<String>,
    /// `--threads`.
    pub threads: u8,
    /// `--wake-up`.
    pub wake_up: String,
    /// `--kernel-cache`.
    pub kernel_cache: String,
}
