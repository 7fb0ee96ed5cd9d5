//! Service times and order of requests on a modelled device. Pure; time is an argument, in nanoseconds.
//!
//! A device has one or more *lanes*, each a device of its own; several are striped. A lane serves a limited
//! number of requests at once. The others wait: first come, first served, but on a disk the nearest first.

use std::collections::HashMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

const MICROS: u64 = 1000;
const MILLIS: u64 = 1000 * MICROS;
/// Size of a stripe, as in early versions of `mdadm`: files of a few megabytes lie on all lanes.
const STRIPE_BYTES: u64 = 64 << 10;
/// Rate at which bytes move: a disk's below its head, other devices' on their links.
const BYTES_PER_SECOND: u64 = 500 << 20;
/// Rate of all requests together on devices with limited throughput.
const LIMITED_BYTES_PER_SECOND: u64 = 300 << 20;
const CAPPED_BYTES_PER_SECOND: u64 = 12 << 20;
const VOLUME_BYTES_PER_SECOND: u64 = 125 << 20;
/// Time from the end of a request's transfer to its answer on these devices.
const AFTER_TRANSFER: u64 = 100 * MICROS;

/// A device that can be modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DeviceKind {
    /// A slow disk without seeks: 8 ms for each request, one at a time. A flush costs nothing.
    Hdd,
    /// A cloud volume: 1 ms for each request, 64 at a time. A flush costs nothing.
    Cloud,
    /// A solid-state disk: no delay, bound by the processor and the rate of its link.
    Ssd,
    /// A slow solid-state disk: 0.4 ms for each request, flushes too, 8 at a time.
    Flash,
    /// Two `Flash` lanes, striped.
    FlashTwo,
    /// A disk: one request at a time, the nearest first.
    Disk,
    /// Two `Disk` lanes, striped.
    DiskTwo,
    /// A disk of limited throughput: 300 MiB/s for all requests together. Each is answered 0.1 ms after its
    /// bytes have moved. A flush waits for its turn and 0.1 ms. On two busy processors ext4 wrote 250 to 270
    /// MiB/s in writes of 1 MiB. A client that reads 1 MiB at a time waits for each read.
    Limited,
    /// As `Limited`, but 12 MiB/s: a small cloud volume.
    Capped,
    /// A cloud volume with the usual limit of throughput: 125 MiB/s for all requests together. Each is answered 1 ms
    /// after its bytes have moved, a flush, too.
    CloudVolume,
}

/// Timing of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceLane {
    /// Every request takes the same time, and every flush.
    Steady { nanos: u64, flush: u64, at_once: usize },
    /// One request moves at a time. It is answered `after` its bytes have moved, while the next one moves.
    Link { bytes_per_second: u64, after: u64 },
    /// A seek takes `settle` and up to `far` more, by the root of the distance. After a seek half a
    /// revolution passes, the average wait. A request that starts where the last one ended needs neither.
    Disk { settle: u64, far: u64, half_turn: u64 },
}

impl DeviceLane {
    fn bytes_per_second(self) -> u64 {
        match self {
            DeviceLane::Link { bytes_per_second, .. } => bytes_per_second,
            DeviceLane::Steady { .. } | DeviceLane::Disk { .. } => BYTES_PER_SECOND,
        }
    }

    /// Time from the end of a request's transfer to its answer.
    fn after(self) -> u64 {
        match self {
            DeviceLane::Link { after, .. } => after,
            DeviceLane::Steady { .. } | DeviceLane::Disk { .. } => 0,
        }
    }
}

impl DeviceKind {
    fn lanes(self) -> (usize, DeviceLane) {
        let steady = |nanos, at_once| (1, DeviceLane::Steady { nanos, flush: 0, at_once });
        let link = |bytes_per_second| (1, DeviceLane::Link { bytes_per_second, after: AFTER_TRANSFER });
        let volume = DeviceLane::Link { bytes_per_second: VOLUME_BYTES_PER_SECOND, after: MILLIS };
        let flash = DeviceLane::Steady { nanos: 400 * MICROS, flush: 400 * MICROS, at_once: 8 };
        let disk = DeviceLane::Disk { settle: 300 * MICROS, far: 4 * MILLIS, half_turn: 500 * MICROS };
        match self {
            DeviceKind::Hdd => steady(8 * MILLIS, 1),
            DeviceKind::Cloud => steady(MILLIS, 64),
            DeviceKind::Ssd => steady(0, 64),
            DeviceKind::Flash => (1, flash),
            DeviceKind::FlashTwo => (2, flash),
            DeviceKind::Disk => (1, disk),
            DeviceKind::DiskTwo => (2, disk),
            DeviceKind::Limited => link(LIMITED_BYTES_PER_SECOND),
            DeviceKind::Capped => link(CAPPED_BYTES_PER_SECOND),
            DeviceKind::CloudVolume => (1, volume),
        }
    }

    /// The name on the command line and in results.
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("every device can be typed").get_name().to_owned()
    }

    /// Describes the device in reports.
    pub(super) fn text(self) -> &'static str {
        match self {
            DeviceKind::Hdd => "8 ms a request, one at a time",
            DeviceKind::Cloud => "1 ms a request, 64 at a time",
            DeviceKind::Ssd => "no delay",
            DeviceKind::Flash => "0.4 ms a request, 8 at a time",
            DeviceKind::FlashTwo => "two of 0.4 ms a request, 8 at a time each, striped by 64 KiB",
            DeviceKind::Disk => {
                "0.3 ms + up to 4 ms of seek + 0.5 ms of turn, one at a time, the nearest first"
            }
            DeviceKind::DiskTwo => "two disks, striped by 64 KiB",
            DeviceKind::Limited => "300 MiB/s in all, 0.1 ms a request",
            DeviceKind::Capped => "12 MiB/s in all, 0.1 ms a request",
            DeviceKind::CloudVolume => "125 MiB/s in all, 1 ms a request",
        }
    }
}

/// A part of a request, on one lane.
#[derive(Debug, Clone, Copy)]
struct RequestPart {
    request: u64,
    at: u64,
    bytes: u64,
}

#[derive(Debug)]
struct LaneState {
    waiting: Vec<(u64, RequestPart)>,
    /// Completion times of the parts in service.
    served: Vec<(u64, RequestPart)>,
    /// For each free place, the time since which it is free.
    free: Vec<u64>,
    /// End of the last request.
    head: u64,
}

/// A device at work.
#[derive(Debug)]
pub(super) struct DeviceModel {
    bytes: u64,
    lane: DeviceLane,
    lanes: Vec<LaneState>,
    /// Unfinished parts of each request.
    parts: HashMap<u64, u32>,
}

impl DeviceModel {
    /// An idle device.
    pub(super) fn new(device: DeviceKind, bytes: u64) -> DeviceModel {
        let (count, lane) = device.lanes();
        let places = match lane {
            DeviceLane::Steady { at_once, .. } => at_once,
            DeviceLane::Link { .. } | DeviceLane::Disk { .. } => 1,
        };
        let state = || LaneState { waiting: Vec::new(), served: Vec::new(), free: vec![0; places], head: 0 };
        DeviceModel { bytes, lane, lanes: (0..count).map(|_| state()).collect(), parts: HashMap::new() }
    }

    /// Adds a read or write of `bytes` at `at`; 0 bytes are a flush, which all lanes serve at their heads'
    /// positions.
    pub(super) fn arrive(&mut self, now: u64, request: u64, at: u64, bytes: u64) {
        let count = self.lanes.len() as u64;
        let mut parts = Vec::new();
        if bytes == 0 {
            let flush = |(lane, state): (usize, &LaneState)| {
                (lane, RequestPart { request, at: state.head, bytes: 0 })
            };
            parts.extend(self.lanes.iter().enumerate().map(flush));
        }
        let (mut at, end) = (at, at + bytes);
        while at < end {
            let (stripe, within) = (at / STRIPE_BYTES, at % STRIPE_BYTES);
            let bytes = if count == 1 { end - at } else { (STRIPE_BYTES - within).min(end - at) };
            let on_lane = if count == 1 { at } else { stripe / count * STRIPE_BYTES + within };
            parts.push(((stripe % count) as usize, RequestPart { request, at: on_lane, bytes }));
            at += bytes;
        }
        self.parts.insert(request, parts.len() as u32);
        for (lane, part) in parts {
            self.lanes[lane].waiting.push((now, part));
            self.serve(lane);
        }
    }

    /// Completion time of the next part.
    pub(super) fn next(&self) -> Option<u64> {
        self.lanes.iter().flat_map(|lane| lane.served.iter().map(|(done, _)| *done)).min()
    }

    /// Removes and returns the requests that are done by now.
    pub(super) fn done(&mut self, now: u64) -> Vec<u64> {
        let mut done = Vec::new();
        for lane in 0..self.lanes.len() {
            while let Some(part) = self.finish(lane, now) {
                let left = self.parts.entry(part.request).or_insert(1);
                *left -= 1;
                if *left == 0 {
                    self.parts.remove(&part.request);
                    done.push(part.request);
                }
            }
        }
        done
    }

    /// Takes the first part that is done, and starts the next part on its place.
    ///
    /// The next part starts at the time at which the place became free, so a late call changes nothing.
    fn finish(&mut self, lane: usize, now: u64) -> Option<RequestPart> {
        let state = &mut self.lanes[lane];
        let due = (0..state.served.len()).filter(|at| state.served[*at].0 <= now);
        let first = due.min_by_key(|at| state.served[*at].0)?;
        let (done, part) = state.served.swap_remove(first);
        state.free.push(done - self.lane.after());
        self.serve(lane);
        Some(part)
    }

    fn serve(&mut self, lane: usize) {
        let (kind, size) = (self.lane, self.bytes / self.lanes.len() as u64);
        let state = &mut self.lanes[lane];
        while !state.waiting.is_empty()
            && let Some(place) = (0..state.free.len()).min_by_key(|at| state.free[*at])
        {
            let free = state.free.swap_remove(place);
            let next = state.choose(kind, free);
            let (came, part) = state.waiting.remove(next);
            let takes = state.takes(kind, part, size);
            state.head = part.at + part.bytes;
            state.served.push((came.max(free) + takes + kind.after(), part));
        }
    }
}

impl LaneState {
    /// Chooses the next waiting part, for a place that became free at `free`.
    fn choose(&self, lane: DeviceLane, free: u64) -> usize {
        match lane {
            DeviceLane::Steady { .. } | DeviceLane::Link { .. } => 0,
            // A disk cannot know requests that arrive later. If all do, the first is served.
            DeviceLane::Disk { .. } => {
                let known = |at: &usize| self.waiting[*at].0 <= free;
                let distance = |at: &usize| self.waiting[*at].1.at.abs_diff(self.head);
                (0..self.waiting.len()).filter(known).min_by_key(distance).unwrap_or(0)
            }
        }
    }

    fn takes(&self, lane: DeviceLane, part: RequestPart, size: u64) -> u64 {
        let moving = part.bytes * 1_000_000_000 / lane.bytes_per_second();
        moving
            + match lane {
                DeviceLane::Link { .. } => 0,
                DeviceLane::Steady { flush, .. } if part.bytes == 0 => flush,
                DeviceLane::Steady { nanos, .. } => nanos,
                DeviceLane::Disk { half_turn, .. } if part.bytes == 0 => half_turn,
                DeviceLane::Disk { .. } if part.at == self.head => 0,
                DeviceLane::Disk { settle, far, half_turn } => {
                    let share = part.at.abs_diff(self.head) as f64 / size.max(1) as f64;
                    settle + half_turn + (far as f64 * share.sqrt()) as u64
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;
    const PAGE: u64 = 4096;
    const MOVING: u64 = PAGE * 1_000_000_000 / BYTES_PER_SECOND;

    /// Requests with their completion times, in that order.
    fn all(model: &mut DeviceModel) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        while let Some(next) = model.next() {
            all.extend(model.done(next).into_iter().map(|request| (request, next)));
        }
        all
    }

    #[test]
    fn a_steady_device_serves_as_many_at_once_as_it_can_and_then_the_next_ones() {
        let mut model = DeviceModel::new(DeviceKind::Flash, SIZE);
        (0..17).for_each(|request| model.arrive(0, request, request * PAGE, PAGE));
        let one = 400 * MICROS + MOVING;
        let mut times: Vec<u64> = all(&mut model).into_iter().map(|(_, at)| at / one).collect();
        times.sort_unstable();
        assert_eq!(times, [[1; 8].as_slice(), &[2; 8], &[3]].concat());
    }

    #[test]
    fn whoever_looks_late_changes_nothing() {
        let mut model = DeviceModel::new(DeviceKind::Disk, SIZE);
        model.arrive(0, 0, SIZE / 2, PAGE);
        model.arrive(1, 1, SIZE / 2, PAGE);
        model.arrive(2, 2, 0, PAGE);
        let mut same = DeviceModel::new(DeviceKind::Disk, SIZE);
        (0..3).for_each(|request| {
            same.arrive(request, request, [SIZE / 2, SIZE / 2, 0][request as usize], PAGE)
        });
        let last = all(&mut model).last().expect("three").1;
        assert_eq!(same.done(last), [0, 1, 2]);
        assert!(same.next().is_none());
    }

    #[test]
    fn a_disk_serves_the_nearest_first_and_goes_on_at_once_where_it_is() {
        let mut model = DeviceModel::new(DeviceKind::Disk, SIZE);
        model.arrive(0, 0, 0, PAGE);
        // Three more requests come while the first is served.
        for (request, at) in [(1, SIZE / 2), (2, SIZE / 4), (3, PAGE)] {
            model.arrive(0, request, at, PAGE);
        }
        let done = all(&mut model);
        assert_eq!(done.iter().map(|(request, _)| *request).collect::<Vec<_>>(), [0, 3, 2, 1]);
        // The first two requests need no seek, only transfer time.
        assert_eq!(done[1].1, 2 * MOVING);
        // A seek over a quarter of the disk takes half of the longest seek.
        let seek = done[2].1 - done[1].1 - MOVING;
        assert!(seek.abs_diff(2 * MILLIS + 800 * MICROS) < 100 * MICROS, "{seek}");
    }

    #[test]
    fn requests_share_a_link_and_are_answered_while_the_next_one_moves() {
        let mut model = DeviceModel::new(DeviceKind::Limited, SIZE);
        (0..3).for_each(|request| model.arrive(0, request, 0, 3 << 20));
        model.arrive(0, 3, 0, 0);
        let moved = [10, 20, 30, 30].map(|millis| millis * MILLIS + 100 * MICROS);
        assert_eq!(all(&mut model), (0..).zip(moved).collect::<Vec<_>>());
    }

    #[test]
    fn a_request_over_two_stripes_is_served_by_both_lanes_and_done_when_both_are() {
        let mut model = DeviceModel::new(DeviceKind::FlashTwo, SIZE);
        model.arrive(0, 7, 0, 2 * STRIPE_BYTES);
        let done = all(&mut model);
        let part = 400 * MICROS + STRIPE_BYTES * 1_000_000_000 / BYTES_PER_SECOND;
        assert_eq!(done, [(7, part)]);
        model.arrive(part, 8, 0, 0);
        assert_eq!(all(&mut model), [(8, part + 400 * MICROS)]);
    }
}
