//! Prints the reports of `weir status` and `weir space` for people.

use crate::byte_size::ByteSize;
use crate::pm_qos;
use serde_json::Value;

/// Prints the state of a mount, one fact a line.
pub(crate) fn print(report: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_string();
    let size = |value: &Value| ByteSize(value.as_u64().unwrap_or(0));
    println!("{} on {}", text(&report["store"]), text(&report["mounted_on"]));
    println!("  volume     {}", text(&report["volume"]));
    println!("  buffer     {}", text(&report["buffer"]));
    if let Some(why) = report["volatile"].as_str() {
        println!(
            "  VOLATILE   a power failure loses all changes that are not stored, synced or not: the buffer {why}"
        );
    }
    println!("  daemon     pid {}, weir {}", report["pid"], text(&report["version"]));
    if let Some(log) = report["log"].as_str() {
        println!("  messages   {log}");
    }
    if let Some(failed) = report["failed"].as_str() {
        println!("  READ-ONLY  until you mount it again, because changes cannot be made durable: {failed}");
    }
    if let Some(volume) = report["rescued"].as_str() {
        println!("  RESCUED    everything, synced or not, is in the store as volume {volume}");
    }
    if let Some(why) = report["not_rescued"].as_str() {
        println!("  AT RISK    the changes in memory could not be saved to the store yet: {why}");
    }
    print_problems(report);
    let lsns = &report["lsns"];
    println!("  LSNs       {} applied, {} durable", lsns["applied"], lsns["durable"]);
    let dirty = &report["dirty"];
    let seconds = dirty["age_ms"].as_u64().unwrap_or(0) as f64 / 1000.0;
    println!(
        "  dirty      {} in {} pages, the oldest {seconds:.1} s old",
        size(&dirty["bytes"]),
        dirty["pages"]
    );
    let (waiting, space, log) = (&report["in_flight"], &report["space"], &report["buffer_log"]);
    println!(
        "  waiting    {} reads, {} syncs, {} writers; {} pages being fetched",
        waiting["reads"], waiting["syncs"], waiting["admissions"], waiting["fetches"]
    );
    let below = space["full_below_bytes"]
        .as_u64()
        .map(|left| format!("; HOST FILE SYSTEM FULL: {} left", ByteSize(left)));
    let (free, total) = (size(&space["available_bytes"]), size(&space["usable_bytes"]));
    println!("  space      {free} of {total}{}", below.unwrap_or_default());
    println!("  buffer log {} free of {}", size(&log["free_bytes"]), size(&log["bytes"]));
    print_epoch(&report["epoch"]);
    let reads = &report["counters"]["store_reads"];
    println!(
        "  fetched    {} pages for reads, {} by read-ahead, {} for writes, {} for write-back; store I/O for syncs: {}",
        reads["for_reads"],
        reads["ahead"],
        reads["for_writes"],
        reads["for_write_back"],
        report["counters"]["store_io_for_syncs"]
    );
    for medium in ["store", "buffer"] {
        let ms = |call: &str| report["slowest_ms"][medium][call].as_f64().unwrap_or(0.0);
        let (read, write, flush) = (ms("read"), ms("write"), ms("flush"));
        println!(
            "  slowest    of the {medium}'s disk: read {read:.1} ms, write {write:.1} ms, flush {flush:.1} ms"
        );
    }
    println!("  wake-up    {}", pm_qos::line(&report["wake_up"]));
    print_latency(&report["latency"]);
}

fn print_epoch(epoch: &Value) {
    if let Some(last) = epoch["last"].as_str() {
        let minutes = epoch["age_ms"].as_u64().unwrap_or(0) as f64 / 60_000.0;
        println!("  epoch      {last}, {minutes:.0} min old: the copy that remains if the buffer is lost");
    }
    if let Some(problem) = epoch["problem"].as_str() {
        let newer = if epoch["last"].is_null() { "" } else { "newer than that: " };
        println!("  NO EPOCH   {newer}{problem}");
    }
    if epoch["given_up"].as_u64().unwrap_or(0) > 0 && epoch["last"].is_null() {
        println!("  NO EPOCH   deleted, because the store was full");
    }
}

fn print_problems(report: &Value) {
    if let Some(stalled) = report["stalled"].as_str() {
        let patience = cache::CacheSettings::default().store_patience.as_secs();
        println!("  STALLED    {stalled}; after {patience} s of this, a write that finds no space fails");
    }
    let stuck = &report["stuck"];
    if stuck["count"].as_u64().unwrap_or(0) == 0 {
        return;
    }
    println!(
        "  STUCK      {} changes cannot be written back; they stay in the buffer, durable:",
        stuck["count"]
    );
    for one in stuck["some"].as_array().into_iter().flatten() {
        let page = one["page"]
            .as_u64()
            .map_or("a change of many pages (truncation, deletion, clone or move)".into(), |page| {
                format!("page {page}")
            });
        let text = |field: &str| one[field].as_str().unwrap_or("?").to_owned();
        println!("             object {}, {page}: {}", text("object"), text("why"));
    }
}

/// How full a store is, for people.
pub(crate) fn print_space(space: &Value) {
    let size = |name: &str| ByteSize(space[name].as_u64().unwrap_or(0)).to_string();
    println!(
        "usable     {:>10}  of {}: the rest is for cleaning and deletions",
        size("usable_bytes"),
        size("total_bytes")
    );
    println!("used       {:>10}", size("used_bytes"));
    println!("  live     {:>10}  at most: exact after a round of cleaning", size("live_bytes_bound"));
    println!("  the map  {:>10}  of that", size("map_bytes"));
    println!("  reserved {:>10}  for changes that are not written back yet", size("reserved_bytes"));
    println!("available  {:>10}", size("available_bytes"));
    println!("volumes    {:>10}", space["volumes"]);
    if space["freeing"] == true {
        println!("           {:>10}  deleted data is being freed", "");
    }
    let Some(volumes) = space["by_volume"].as_array() else { return };
    println!("data       {:>10}  counted", size("data_bytes"));
    println!("{:>12}  {:>12}  VOLUME", "ALONE", "SHARED");
    for volume in volumes {
        let size = |name: &str| ByteSize(volume[name].as_u64().unwrap_or(0)).to_string();
        let (alone, shared) = (size("exclusive_bytes"), size("shared_bytes"));
        println!("{alone:>12}  {shared:>12}  {}", volume["name"].as_str().unwrap_or("?"));
    }
}

fn print_latency(latency: &Value) {
    println!(
        "  {:10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "latency", "count", "p50 us", "p99 us", "p99.9 us", "max us"
    );
    for (name, class) in latency.as_object().into_iter().flatten() {
        let micros = |field: &str| class[field].as_f64().unwrap_or(0.0);
        let count = class["count"].as_u64().unwrap_or(0);
        if count > 0 {
            println!(
                "  {name:10} {count:>10} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                micros("p50_us"),
                micros("p99_us"),
                micros("p999_us"),
                micros("max_us")
            );
        }
    }
}
