//! What is looked at every few seconds.

use super::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Requests of one class since the mount: how many took at most so many nanoseconds, and longer than the bucket before.
pub(super) type Buckets = BTreeMap<u64, u64>;

/// The daemon at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Memory that is resident.
    pub(super) rss_bytes: u64,
    /// Open descriptors.
    pub(super) descriptors: u64,
    /// By class of request.
    pub(super) latency: BTreeMap<String, Buckets>,
}

impl Sample {
    pub(super) fn summary(&self) -> String {
        format!("{} MiB resident, {} descriptors", self.rss_bytes >> 20, self.descriptors)
    }
}

/// Asks the daemon and the kernel; also returns what they said as one line of JSON.
pub(super) fn take(weir: &Path, mount_point: &Path) -> Result<(Sample, String)> {
    let output = Command::new(weir).args(["status", "--json"]).arg(mount_point).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let status: Value = serde_json::from_slice(&output.stdout)?;
    let process = Path::new("/proc").join(status["pid"].to_string());
    let rss_bytes = resident(&fs::read_to_string(process.join("status"))?).ok_or("no VmRSS in /proc")?;
    let descriptors = fs::read_dir(process.join("fd"))?.count() as u64;
    let line = json!({ "rss_bytes": rss_bytes, "descriptors": descriptors, "status": status }).to_string();
    Ok((Sample { rss_bytes, descriptors, latency: latency(&status["latency"]) }, line))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn latency(classes: &Value) -> BTreeMap<String, Buckets> {
    let bucket = |pair: &Value| Some(((pair[0].as_f64()? * 1000.0) as u64, pair[1].as_u64()?));
    let buckets =
        |class: &Value| class["buckets_us"].as_array().into_iter().flatten().filter_map(bucket).collect();
    classes.as_object().into_iter().flatten().map(|(name, class)| (name.clone(), buckets(class))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_and_the_daemons_words_are_understood() {
        assert_eq!(resident("VmHWM:\t 99 kB\nVmRSS:\t  20480 kB\n"), Some(20 << 20));
        assert_eq!(resident("VmHWM:\t 99 kB\n"), None);
        let classes = json!({ "read": { "count": 3, "buckets_us": [[1.5, 2], [7.0, 1]] } });
        assert_eq!(latency(&classes)["read"], Buckets::from([(1500, 2), (7000, 1)]));
    }
}
