//! Prints the reports of `weir status` and `weir space` for people.

use crate::byte_size::ByteSize;
use crate::escape_control_chars;
use crate::pm_qos;
use std::cmp::Reverse;
use weir_status::{
    BufferBytesReport, EpochReport, ExportReport, LatencyReport, LendingReport, RuleShareReport,
    SettingsReport, SlowestCallsReport, SpaceReport, StatusReport,
};

/// Prints the state of a mount, one fact a line.
pub(crate) fn print(report: &StatusReport) {
    println!("{}: {} on {}", report.health, report.store, report.mounted_on);
    println!("  volume     {}", report.volume);
    println!("  buffer     {}", report.buffer);
    if let Some(why) = &report.volatile {
        println!(
            "  VOLATILE   a power failure loses all changes that are not stored, synced or not: the buffer {why}"
        );
    }
    println!("  daemon     pid {}, weir {}", report.pid, report.version);
    if let Some(log) = &report.log {
        println!("  messages   {log}");
    }
    if let Some(why) = &report.failed {
        println!("  READ-ONLY  until you mount it again, because changes cannot be made durable: {why}");
    }
    if let Some(volume) = &report.rescued {
        println!("  RESCUED    everything, synced or not, is in the store as volume {volume}");
    }
    if let Some(why) = &report.not_rescued {
        println!("  AT RISK    the changes in memory could not be saved to the store yet: {why}");
    }
    print_problems(report);
    for ExportReport { volume, at } in &report.exports {
        println!("  export     {volume} at {at}");
    }
    print_policy(&report.settings, &report.lending);
    if report.atomic_writes {
        println!("  atomic     writes of files with the mark user.weir.atomic");
    }
    println!("  LSNs       {} applied, {} durable", report.lsns.applied, report.lsns.durable);
    let dirty = &report.dirty;
    println!(
        "  dirty      {} in {} pages, the oldest {:.1} s old",
        ByteSize(dirty.bytes),
        dirty.pages,
        dirty.age_ms as f64 / 1000.0
    );
    let waiting = &report.in_flight;
    println!(
        "  waiting    {} reads, {} syncs, {} writers; {} pages being fetched",
        waiting.reads, waiting.syncs, waiting.admissions, waiting.fetches
    );
    let space = &report.space;
    let full = space.full_below_bytes.map(|left| format!("; HOST FILE SYSTEM FULL: {} left", ByteSize(left)));
    println!(
        "  space      {} of {}{}",
        ByteSize(space.available_bytes),
        ByteSize(space.usable_bytes),
        full.unwrap_or_default()
    );
    let log = &report.buffer_log;
    println!("  buffer log {} free of {}", ByteSize(log.free_bytes), ByteSize(log.bytes));
    for share in &report.rule_shares {
        print_share(share);
    }
    let counters = &report.counters;
    if let Some((all, parts)) = buffer_bytes(&counters.buffer_bytes_by_cause) {
        println!("  logged     {}: {parts}", ByteSize(all));
    }
    if let Some(damaged) = &report.damaged_state {
        println!("  RESTORED   after its buffer was lost; newer files may be in volume {damaged}");
    }
    print_epoch(&report.epoch);
    let reads = &counters.store_reads;
    println!(
        "  fetched    {} pages for reads, {} by read-ahead, {} for writes, {} for write-back",
        reads.for_reads, reads.ahead, reads.for_writes, reads.for_write_back
    );
    println!("  syncs      waited for {} calls of the store", counters.store_io_for_syncs);
    print_slowest("store", &report.slowest_ms.store);
    print_slowest("buffer", &report.slowest_ms.buffer);
    println!("  wake-up    {}", pm_qos::status_line(&report.wake_up));
    println!(
        "  {:12} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "latency", "count", "p50 us", "p99 us", "p99.9 us", "max us"
    );
    for (kind, latency) in report.latency.iter().filter(|(_, latency)| latency.count > 0) {
        print_latency(kind, latency);
        if let Some(by_class) = report.latency_by_class.get(kind) {
            print_latency("  critical", &by_class.critical);
            print_latency("  background", &by_class.background);
        }
    }
}

/// Prints the data mode, the policy, how many rules it has, and what was lent if it lends.
fn print_policy(SettingsReport { data, policy, rules, .. }: &SettingsReport, lending: &LendingReport) {
    let policy = escape_control_chars(policy.as_deref().unwrap_or("none"));
    let rules = match rules.len() {
        0 => String::new(),
        1 => ", 1 rule".into(),
        count => format!(", {count} rules"),
    };
    println!("  policy     {policy}{rules}; data {data}");
    if policy.starts_with("critical+") {
        let LendingReport { looks, lent, present } = lending;
        println!(
            "  lending    {lent} loans to background programs that critical ones waited for, {present} now; {looks} looks"
        );
    }
}

/// What the buffer got: all of it, and the parts of the causes in words, the largest first. `None` if it got nothing.
pub(crate) fn buffer_bytes(bytes: &BufferBytesReport) -> Option<(u64, String)> {
    let mut causes = [
        (bytes.synced_pages, "pages of syncs"),
        (bytes.lent_pages, "pages of lent syncs"),
        (bytes.whole_pages, "other whole pages"),
        (bytes.parts_of_pages, "parts of pages"),
        (bytes.metadata, "metadata"),
        (bytes.relogged, "logged again"),
    ];
    let all: u64 = causes.iter().map(|(bytes, _)| bytes).sum();
    if all == 0 {
        return None;
    }
    causes.sort_by_key(|&(bytes, _)| Reverse(bytes));
    let shown = causes.iter().filter(|&&(bytes, _)| bytes * 200 >= all);
    let parts: Vec<String> =
        shown.map(|(bytes, cause)| format!("{:.0}% {cause}", *bytes as f64 / all as f64 * 100.0)).collect();
    Some((all, parts.join(", ")))
}

fn print_slowest(medium: &str, SlowestCallsReport { read, write, flush, .. }: &SlowestCallsReport) {
    println!(
        "  slowest    of the {medium}'s disk: read {read:.1} ms, write {write:.1} ms, flush {flush:.1} ms"
    );
}

fn print_share(share: &RuleShareReport) {
    let state = if share.is_beyond { "BACKGROUND until some of it is stored: " } else { "" };
    let rule = escape_control_chars(&share.rule);
    println!("  share      {state}{} of {}%: {rule}", ByteSize(share.bytes), share.share_percent);
}

fn print_latency(kind: &str, latency: &LatencyReport) {
    println!(
        "  {kind:12} {:>10} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
        latency.count, latency.p50_us, latency.p99_us, latency.p999_us, latency.max_us
    );
}

fn print_epoch(epoch: &EpochReport) {
    if let Some(last) = &epoch.last {
        let minutes = epoch.age_ms.unwrap_or(0) as f64 / 60_000.0;
        println!("  epoch      {last}, {minutes:.0} min old: the copy that remains if the buffer is lost");
    }
    if let Some(problem) = &epoch.problem {
        let newer = if epoch.last.is_none() { "" } else { "newer than that: " };
        println!("  NO EPOCH   {newer}{problem}");
    }
    if epoch.given_up > 0 && epoch.last.is_none() {
        println!("  NO EPOCH   deleted, because the store was full");
    }
}

fn print_problems(report: &StatusReport) {
    if let Some(stalled) = &report.stalled {
        let patience = cache::CacheSettings::default().store_patience.as_secs();
        println!("  STALLED    {stalled}; after {patience} s of this, a write that finds no space fails");
    }
    if report.stuck.count == 0 {
        return;
    }
    println!(
        "  STUCK      {} changes cannot be written back; they stay in the buffer, durable:",
        report.stuck.count
    );
    for stuck in &report.stuck.some {
        let what = match stuck.page {
            Some(page) => format!("page {page}"),
            None => "a change of many pages (truncation, deletion, clone or move)".into(),
        };
        println!("             object {}, {what}: {}", stuck.object, stuck.why);
    }
}

/// Prints how full a store is.
pub(crate) fn print_space(space: &SpaceReport) {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    println!(
        "usable     {:>10}  of {}: the rest is for cleaning and deletions",
        size(space.usable_bytes),
        size(space.total_bytes)
    );
    println!("used       {:>10}", size(space.used_bytes));
    println!("  live     {:>10}  at most: exact after a round of cleaning", size(space.live_bytes_bound));
    println!("  the map  {:>10}  of that", size(space.map_bytes));
    println!("  reserved {:>10}  for changes that are not written back yet", size(space.reserved_bytes));
    println!("available  {:>10}", size(space.available_bytes));
    println!("volumes    {:>10}", space.volumes);
    if space.freeing {
        println!("           {:>10}  deleted data is being freed", "");
    }
    let Some(volumes) = &space.by_volume else { return };
    println!("data       {:>10}  counted", size(space.data_bytes.unwrap_or(0)));
    println!("{:>12}  {:>12}  VOLUME", "ALONE", "SHARED");
    for volume in volumes {
        let alone = size(volume.exclusive_bytes);
        let shared = size(volume.shared_bytes);
        println!("{alone:>12}  {shared:>12}  {}", volume.name.as_deref().unwrap_or("?"));
    }
}
