//! How a life of the stack ends, and how the next one begins: power cuts at any write, kills, clean stops, and power
//! cuts in recovery.

use super::log::Role;
use super::run::{Phase, Run};
use super::stack::{Pick, draw_settings};
use cache::{CacheError, Task};
use device::Operation;
use sim::Faults;
use store::StoreError;

/// A power cut hits within so many writes and flushes of the moment that it was armed: soon, or deep in what follows.
const CUT_WITHIN: [u64; 3] = [4, 24, 100];
/// Recovery itself writes little.
const CUT_RECOVERY_WITHIN: u64 = 10;
/// A hand-over takes everything home first.
const CUT_HAND_OVER_WITHIN: u64 = 60;
/// An armed cut that hits nothing for so many operations gets something to hit: everything goes home.
const ARMED_OPERATIONS_MAX: u64 = 30;
/// Cuts in one recovery: each is one deeper.
const RECOVERY_DEPTH_MAX: u32 = 3;
/// How long a disk makes errors, in operations.
const FAULTY_OPERATIONS_MAX: u64 = 60;
/// How long the stack goes on after a device failed, in operations.
const OPERATIONS_AFTER_FAILURE_MAX: u64 = 40;

/// The plan for this life of the stack, from one open to the next.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Life {
    /// The operation after which the end begins.
    ends_at: u64,
    /// If the end is an armed power cut, the operation after which it happens anyway.
    armed_until: Option<u64>,
    /// If a disk makes errors, until this operation.
    faulty_until: Option<u64>,
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// What was not flushed is lost in part.
    PowerCut,
    /// The process goes, the media keep what they accepted.
    Kill,
}

/// Which volume the next life has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mount {
    /// That of the last one.
    Same,
    /// That, or another.
    Any,
}

impl Life {
    /// Lets it end after `operations`.
    pub(crate) fn die_soon(&mut self, operations: u64) {
        self.ends_at = self.ends_at.min(operations);
        self.armed_until = self.armed_until.map(|until| until.min(operations));
    }
}

impl Run {
    /// Draws how long the stack lives now, so that the wanted crashes spread over the wanted operations.
    pub(crate) fn new_life(&mut self) {
        let operations = self.options.operations.saturating_sub(self.counts.operations);
        let crashes = self.options.crashes.saturating_sub(self.counts.crashes());
        let length = match crashes {
            0 => u64::MAX / 2,
            _ => self.random.below(2 * operations / crashes + 1),
        };
        self.life = Life { ends_at: self.counts.operations + length, armed_until: None, faulty_until: None };
    }

    /// Some operations on volumes meet a power cut: during the call, or soon after it.
    pub(crate) fn arm_for_volumes(&mut self) {
        if self.random.once_in(4)
            && self.life.armed_until.is_none()
            && self.counts.crashes() < self.options.crashes
        {
            let within = self.random.pick(&CUT_WITHIN);
            self.media.power.cut_after(self.random.below(within));
            self.life.armed_until = Some(self.counts.operations + ARMED_OPERATIONS_MAX);
        }
    }

    /// After each turn: crashes if the power is lost, and arms the end when it is due.
    pub(crate) fn live_or_die(&mut self) -> Result<(), String> {
        if self.media.power.lost() {
            return self.die(End::PowerCut);
        }
        let now = self.counts.operations;
        match self.life.armed_until {
            Some(until) if now >= until => self.die_draining(),
            Some(_) => Ok(()),
            None if now < self.life.ends_at => Ok(()),
            None => match self.random.below(20) {
                0 => self.stop_and_compare(),
                1..=2 => self.die(End::Kill),
                3..=4 => self.die(End::PowerCut),
                _ => {
                    let within = self.random.pick(&CUT_WITHIN);
                    self.media.power.cut_after(self.random.below(within));
                    self.life.armed_until = Some(now + ARMED_OPERATIONS_MAX);
                    Ok(())
                }
            },
        }
    }

    /// An armed power cut has hit nothing yet: it hits while everything goes home, or else after that.
    fn die_draining(&mut self) -> Result<(), String> {
        self.phase = Phase::Drain;
        // Whether it fails, the power tells better.
        let _ = self.stack().cache.drain();
        self.deliver()?;
        self.die(End::PowerCut)
    }

    /// The power is lost now, and what is there is compared.
    pub(crate) fn die_now(&mut self) -> Result<(), String> {
        self.die(End::PowerCut)
    }

    fn die(&mut self, end: End) -> Result<(), String> {
        let phase = self.phase_name();
        *self.counts.crashes.entry(if end == End::Kill { "kill" } else { phase }).or_default() += 1;
        self.media.log.event(|| format!("=== {end:?} in {phase}"), &[end as u64]);
        self.reopen(end, Mount::Any)?;
        self.compare().map_err(|what| format!("after a {end:?} in {phase}: {what}"))?;
        if self.random.once_in(2) {
            // A recovery after which nothing was written changes nothing; and clients meet a cold cache.
            let end = if self.random.once_in(2) { End::Kill } else { End::PowerCut };
            self.reopen(end, Mount::Same)?;
            if self.random.once_in(8) {
                self.compare().map_err(|what| format!("after a second recovery: {what}"))?;
                self.reopen(End::PowerCut, Mount::Same)?;
            }
        }
        self.new_life();
        self.change_weather();
        Ok(())
    }

    fn phase_name(&self) -> &'static str {
        match (self.phase, self.media.log.newest()) {
            (_, Some((Role::Store, Operation::Trim))) => "cleaning",
            (Phase::Work(Task::Commit), _) => "commit",
            (Phase::Work(Task::Fetch), _) => "fetch",
            (Phase::Work(Task::WriteBack), _) => "write-back",
            (Phase::Work(Task::Checkpoint), _) => "checkpoint",
            (Phase::Request, _) => "request",
            (Phase::Drain, _) => "drain",
            (Phase::Copy, _) => "copy of a volume",
            (Phase::Deletion, _) => "deletion of a volume",
            (Phase::HandOver, _) => "hand-over",
            (Phase::Recovery(1), _) => "recovery, depth 1",
            (Phase::Recovery(2), _) => "recovery, depth 2",
            (Phase::Recovery(_), _) => "recovery, depth 3",
        }
    }

    /// Ends this life of the stack and opens the next, through up to three power cuts in the recovery, and in the
    /// hand-over if the next one is another volume's.
    fn reopen(&mut self, end: End, mount: Mount) -> Result<(), String> {
        self.lose_power(end);
        self.media.settings = draw_settings(&mut self.random);
        for depth in 1.. {
            self.phase = Phase::Recovery(depth);
            if self.options.faults && depth == 1 && self.random.once_in(8) {
                let faults = Faults { read_one_in: 10, ..Faults::default() };
                self.media.store.set_faults(faults);
                self.media.buffer.set_faults(faults);
            }
            let errors = self.media.log.errors_made_up();
            let volume = match mount {
                Mount::Same => self.volumes.mounted(),
                Mount::Any => self.volumes.next_to_mount(&mut self.random),
            };
            let (one_in, within) = match volume == self.volumes.mounted() {
                true => (5, CUT_RECOVERY_WITHIN),
                false => (2, CUT_HAND_OVER_WITHIN),
            };
            if depth <= RECOVERY_DEPTH_MAX && self.random.once_in(one_in) {
                self.media.power.cut_after(self.random.below(within));
            }
            let opened = self.open_volume(volume);
            let faulty = self.media.log.errors_made_up() > errors;
            self.no_faults();
            match opened {
                Ok(stack) if !self.media.power.lost() => {
                    // An armed cut that recovery was too short for is put off, or else nobody could look around.
                    self.media.power.restore();
                    self.stack = Some(stack);
                    self.errors_at_open = errors;
                    return self.adopt_volumes();
                }
                _ if self.media.power.lost() => {
                    *self.counts.crashes.entry(self.phase_name()).or_default() += 1;
                    drop(opened);
                    self.lose_power(End::PowerCut);
                }
                Err(_) if faulty => self.media.power.restore(),
                Err(error) => return Err(format!("the recovery fails: {error}")),
                Ok(_) => unreachable!("the two arms above cover what opened"),
            }
        }
        unreachable!("a recovery without a power cut returns")
    }

    fn lose_power(&mut self, end: End) {
        self.no_faults();
        self.media.intruder.never_comes();
        // Nothing that the stack does while it falls apart may reach the media.
        self.media.power.cut();
        if let Some(stack) = self.stack.take() {
            // Requests that are parked in the cache keep it alive.
            stack.cache.stop();
        }
        if end == End::PowerCut {
            self.media.store.crash();
            self.media.buffer.crash();
        }
        self.media.power.restore();
    }

    /// Finds what is there in the history; from then on nothing else was ever there.
    fn compare(&mut self) -> Result<(), String> {
        self.stack().check()?;
        let seen = self.stack().look()?;
        let outstanding = self.take_outstanding();
        let found = self.oracle.recovered(&seen, &outstanding)?;
        self.counts.changes_lost += (found.completed - found.kept) as u64;
        let words = [found.kept as u64, found.completed as u64, self.stack().fs.newest().0];
        self.media.log.event(|| format!("=== recovered: {found:?}"), &words);
        self.clients = super::client::Clients::new(self.clients.len());
        let volumes = self.random.below(2) as usize;
        self.look_at_others(volumes)
    }

    /// A clean stop: everything that completed is there afterwards, in the store alone or not.
    pub(crate) fn stop_and_compare(&mut self) -> Result<(), String> {
        self.no_faults();
        self.media.power.restore();
        self.media.intruder.comes_now();
        self.deliver()?;
        let moment = self.oracle.moment();
        match self.stack().cache.drain() {
            Ok(()) => {
                self.deliver()?;
                self.oracle.synced(moment);
            }
            Err(_) if self.media.log.errors_made_up() > self.errors_at_open => {}
            Err(CacheError::Store(StoreError::Full)) => self.no_room_to_go_home()?,
            Err(error) => return Err(format!("the drain fails: {error}")),
        }
        self.counts.clean_stops += 1;
        self.media.log.event(|| "=== a clean stop".to_owned(), &[]);
        let end = if self.random.once_in(2) { End::Kill } else { End::PowerCut };
        self.reopen(end, Mount::Any)?;
        self.compare().map_err(|what| format!("after a clean stop: {what}"))?;
        self.new_life();
        self.change_weather();
        Ok(())
    }

    /// Lets disks begin and stop to make errors.
    pub(crate) fn faults(&mut self) {
        if !self.options.faults {
            return;
        }
        let now = self.counts.operations;
        match self.life.faulty_until {
            Some(until) if now >= until => {
                self.no_faults();
                self.life.faulty_until = None;
                self.life.die_soon(now + self.random.below(OPERATIONS_AFTER_FAILURE_MAX));
            }
            None if self.random.once_in(200) => {
                let every = [2, 5, 20][self.random.below(3) as usize];
                let mut faults = Faults::default();
                match self.random.below(4) {
                    0 => faults.write_one_in = every,
                    1 => faults.flush_one_in = every,
                    _ => faults.read_one_in = every,
                }
                let disk = if self.random.once_in(3) { &self.media.buffer } else { &self.media.store };
                disk.set_faults(faults);
                self.media.log.event(|| format!("=== faults: {faults:?}"), &[every]);
                self.life.faulty_until = Some(now + 1 + self.random.below(FAULTY_OPERATIONS_MAX));
            }
            _ => {}
        }
    }

    fn no_faults(&self) {
        self.media.store.set_faults(Faults::default());
        self.media.buffer.set_faults(Faults::default());
    }
}
