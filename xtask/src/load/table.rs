//! The first quarter of a load beside the last: pure functions of the samples.

use super::sample::{Buckets, Sample};
use std::collections::BTreeMap;

/// What happened in one quarter of the samples.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quarter {
    rss_bytes_median: u64,
    rss_bytes_max: u64,
    descriptors_max: u64,
    latency: BTreeMap<String, Buckets>,
}

/// Fewer requests than this in a quarter have no 99th percentile worth comparing.
const REQUESTS_MIN: u64 = 2000;

/// Growth of the median of resident memory from the first quarter to the last, as a share of what is allowed: a leak
/// that would need more than five times as long to reach the limit.
const RSS_GROWTH_PERCENT_MAX: u64 = 5;

/// A client of the control socket, and what `fetch` has open for a moment.
const DESCRIPTORS_GROWTH_MAX: u64 = 4;

/// The clients share the machine with each other; what grows without end grows by more.
const P50_GROWTH_MAX: f64 = 1.5;
const P99_GROWTH_MAX: f64 = 2.0;

/// Splits the samples in four; `None` if there are too few.
pub(super) fn quarters(samples: &[Sample]) -> Option<[Quarter; 4]> {
    let each = samples.len() / 4;
    if each < 3 {
        return None;
    }
    let quarter = |n: usize| {
        // The sample before a quarter's first is where it begins.
        let begin = if n == 0 { &samples[0] } else { &samples[n * each - 1] };
        Quarter::of(begin, &samples[n * each..(n + 1) * each])
    };
    Some([quarter(0), quarter(1), quarter(2), quarter(3)])
}

impl Quarter {
    fn of(begin: &Sample, samples: &[Sample]) -> Quarter {
        let mut rss: Vec<u64> = samples.iter().map(|sample| sample.rss_bytes).collect();
        rss.sort_unstable();
        let end = &samples[samples.len() - 1];
        let none = Buckets::new();
        let classes = end.latency.iter().map(|(class, after)| {
            (class.clone(), subtract(after, begin.latency.get(class).unwrap_or(&none)))
        });
        Quarter {
            rss_bytes_median: rss[rss.len() / 2],
            rss_bytes_max: rss[rss.len() - 1],
            descriptors_max: samples.iter().map(|sample| sample.descriptors).max().unwrap_or(0),
            latency: classes.collect(),
        }
    }

    fn requests(&self, class: &str) -> u64 {
        self.latency.get(class).map_or(0, |buckets| buckets.values().sum())
    }
}

fn subtract(after: &Buckets, before: &Buckets) -> Buckets {
    let less = |(&end, &count): (&u64, &u64)| (end, count - before.get(&end).unwrap_or(&0));
    after.iter().map(less).filter(|&(_, count)| count > 0).collect()
}

/// The end of the bucket that holds the quantile, in microseconds.
fn quantile_us(buckets: &Buckets, quantile: f64) -> f64 {
    let wanted = (buckets.values().sum::<u64>() as f64 * quantile).ceil() as u64;
    let mut below = 0;
    let found = buckets.iter().find(|&(_, count)| {
        below += count;
        below >= wanted
    });
    found.map_or(0.0, |(&end, _)| end as f64 / 1000.0)
}

/// The table's lines, and what did not stay flat.
pub(super) fn judge(quarters: &[Quarter; 4], memory: u64, beside: u64) -> (Vec<String>, Vec<String>) {
    let (first, last) = (&quarters[0], &quarters[3]);
    let mut lines = vec![line("quarter", ["first", "second", "third", "last"].map(String::from))];
    let mut findings = Vec::new();
    let mib =
        |of: fn(&Quarter) -> u64| quarters.each_ref().map(|q| format!("{:.1}", of(q) as f64 / 1048576.0));
    lines.push(line("resident, median, MiB", mib(|q| q.rss_bytes_median)));
    lines.push(line("resident, largest, MiB", mib(|q| q.rss_bytes_max)));
    lines.push(line("descriptors, most", quarters.each_ref().map(|q| q.descriptors_max.to_string())));
    let peak = quarters.iter().map(|quarter| quarter.rss_bytes_max).max().unwrap_or(0);
    if peak > memory + beside {
        findings.push(format!("{} MiB were resident, {} are allowed", peak >> 20, (memory + beside) >> 20));
    }
    let growth = last.rss_bytes_median.saturating_sub(first.rss_bytes_median);
    if growth > (memory + beside) * RSS_GROWTH_PERCENT_MAX / 100 {
        findings.push(format!("resident memory grew by {} MiB", growth >> 20));
    }
    if last.descriptors_max > first.descriptors_max + DESCRIPTORS_GROWTH_MAX {
        findings.push(format!("descriptors grew from {} to {}", first.descriptors_max, last.descriptors_max));
    }
    for class in last.latency.keys() {
        let requests = quarters.each_ref().map(|quarter| quarter.requests(class));
        if requests.iter().any(|&count| count < REQUESTS_MIN) {
            continue;
        }
        lines.push(line(&format!("{class}, requests"), requests.map(|count| count.to_string())));
        for (name, quantile, growth_max) in [("p50", 0.5, P50_GROWTH_MAX), ("p99", 0.99, P99_GROWTH_MAX)] {
            let took = quarters.each_ref().map(|quarter| quantile_us(&quarter.latency[class], quantile));
            lines.push(line(&format!("{class}, {name}, us"), took.map(|us| format!("{us:.1}"))));
            if took[3] > took[0] * growth_max {
                findings.push(format!("{class}: {name} went from {:.1} to {:.1} us", took[0], took[3]));
            }
        }
    }
    (lines, findings)
}

fn line(name: &str, cells: [String; 4]) -> String {
    format!("| {name:24} | {} |", cells.map(|cell| format!("{cell:>10}")).join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Sixteen samples; each adds 2000 reads that take `micros(sample)`.
    fn samples(
        rss: impl Fn(u64) -> u64,
        descriptors: impl Fn(u64) -> u64,
        nanos: impl Fn(u64) -> u64,
    ) -> Vec<Sample> {
        let mut reads = Buckets::new();
        let sample = |n: u64| {
            *reads.entry(nanos(n)).or_default() += 2000;
            let latency = BTreeMap::from([("read".to_string(), reads.clone())]);
            Sample { rss_bytes: rss(n), descriptors: descriptors(n), latency }
        };
        (0..16).map(sample).collect()
    }

    fn findings(samples: &[Sample]) -> Vec<String> {
        judge(&quarters(samples).expect("enough samples"), 100 * MIB, 28 * MIB).1
    }

    #[test]
    fn a_flat_load_is_flat() {
        let flat = samples(|n| (100 + n % 3) * MIB, |n| 12 + n % 2, |n| 1000 + n % 4 * 100);
        assert_eq!(findings(&flat), [""; 0]);
        assert!(quarters(&flat[..11]).is_none(), "too few samples");
    }

    #[test]
    fn each_kind_of_growth_is_found() {
        let small = |_| 50 * MIB;
        let leak = findings(&samples(|n| (50 + n) * MIB, |_| 12, |_| 1000));
        assert_eq!(leak, ["resident memory grew by 12 MiB"]);
        let peak = findings(&samples(|n| if n == 7 { 129 * MIB } else { 50 * MIB }, |_| 12, |_| 1000));
        assert_eq!(peak, ["129 MiB were resident, 128 are allowed"]);
        assert_eq!(findings(&samples(small, |n| 12 + n, |_| 1000)), ["descriptors grew from 15 to 27"]);
        let slower = findings(&samples(small, |_| 12, |n| 1000 + n * 200));
        assert_eq!(slower, ["read: p50 went from 1.4 to 3.6 us", "read: p99 went from 1.6 to 4.0 us"]);
    }

    #[test]
    fn a_quarters_latency_is_that_of_its_own_requests() {
        // Slow in the first quarter only: the last must not remember it.
        let slow_start = samples(|_| MIB, |_| 1, |n| if n < 4 { 1_000_000 } else { 1000 });
        let quarters = quarters(&slow_start).expect("enough samples");
        assert_eq!(quantile_us(&quarters[0].latency["read"], 0.5), 1000.0);
        assert_eq!(quantile_us(&quarters[3].latency["read"], 0.99), 1.0);
    }
}
