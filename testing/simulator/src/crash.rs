//! How a life of the stack ends, and how the next one begins: power cuts at any write, kills, clean stops, and power
//! cuts in recovery.

use crate::disk_faults::TAKES_NOTHING;
use crate::event_log::MediumRole;
use crate::oracle::SyncScope;
use crate::power_loss::LifeEnd;
use crate::run_state::{ARMED_OPERATIONS_MAX, CUT_WITHIN, HarnessPhase, SimulationRun};
use crate::stack::RandomPick;
use cache::{BackgroundTask, CacheError};
use device::DeviceOperation;
use std::time::Duration;
use store::StoreError;

/// Or so soon after one of the blocks was written that say what the others are.
const CUT_AFTER_HEADER_WITHIN: u64 = 3;
/// What a cache could not store it leaves alone for a second, and a clone that fails thrice while it starts for four.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Steps of write-back until it has been.
const STEPS_TO_TRY_AGAIN: usize = 4;
/// Recovery itself writes little.
const CUT_RECOVERY_WITHIN: u64 = 10;
/// Cuts in one recovery: each is one deeper.
const RECOVERY_DEPTH_MAX: u32 = 3;

/// Which volume the next life has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextVolume {
    /// That of the last one.
    Same,
    /// That, or another.
    Any,
}

impl SimulationRun {
    /// After each turn: crashes if the power is lost, and arms the end when it is due.
    pub(crate) fn live_or_die(&mut self) -> Result<(), String> {
        if self.media.power.is_lost() {
            let end = self.draw_end();
            return self.die(end);
        }
        let now = self.counts.operations;
        match self.life.armed_until {
            Some(until) if now >= until => self.die_draining(),
            Some(_) => Ok(()),
            None if now < self.life.ends_at => Ok(()),
            None => match self.random.below(20) {
                0 => self.stop_and_compare(),
                1..=2 => self.die(LifeEnd::Kill),
                3 => {
                    let role = self.random.pick(&[MediumRole::Store, MediumRole::Buffer]);
                    self.die(LifeEnd::Loss(role))
                }
                4..=5 => self.die(LifeEnd::PowerCut),
                dice => {
                    let within = self.random.pick(&CUT_WITHIN);
                    let operations = self.random.below(within);
                    match dice {
                        6..=11 => self.media.power.cut_after_header(operations % CUT_AFTER_HEADER_WITHIN),
                        _ => self.media.power.cut_after(operations),
                    }
                    self.life.armed_until = Some(now + ARMED_OPERATIONS_MAX);
                    Ok(())
                }
            },
        }
    }

    /// An armed power cut has hit nothing yet: it hits while everything is written back, or else after that.
    fn die_draining(&mut self) -> Result<(), String> {
        self.phase = HarnessPhase::Drain;
        // Whether it fails, the power tells better.
        let _ = self.stack().cache.drain();
        self.deliver()?;
        self.die(LifeEnd::PowerCut)
    }

    /// The power is lost now, and what is there is compared.
    pub(crate) fn die_now(&mut self) -> Result<(), String> {
        self.die(LifeEnd::PowerCut)
    }

    fn die(&mut self, end: LifeEnd) -> Result<(), String> {
        let phase = self.phase_name();
        let what = match end {
            LifeEnd::PowerCut => phase,
            LifeEnd::Kill => "kill",
            LifeEnd::Loss(_) => "loss of one cache",
        };
        *self.counts.crashes.entry(what).or_default() += 1;
        let words = [LifeEnd::Kill, LifeEnd::PowerCut, LifeEnd::Loss(MediumRole::Store)]
            .map(|other| u64::from(end == other));
        self.media.log.event(|| format!("=== {end:?} in {phase}"), &words);
        self.reopen(end, NextVolume::Any)?;
        self.compare().map_err(|what| format!("after a {end:?} in {phase}: {what}"))?;
        if self.random.once_in(2) {
            // A recovery after which nothing was written changes nothing; and clients meet a cold cache.
            let end = if self.random.once_in(2) { LifeEnd::Kill } else { LifeEnd::PowerCut };
            self.reopen(end, NextVolume::Same)?;
            if self.random.once_in(8) {
                self.compare().map_err(|what| format!("after a second recovery: {what}"))?;
                self.reopen(LifeEnd::PowerCut, NextVolume::Same)?;
            }
        }
        self.new_life();
        self.change_weather();
        Ok(())
    }

    fn phase_name(&self) -> &'static str {
        match (self.phase, self.media.log.newest()) {
            (_, Some((MediumRole::Store, DeviceOperation::Trim))) => "cleaning",
            (HarnessPhase::Work(BackgroundTask::Commit), _) => "commit",
            (HarnessPhase::Work(BackgroundTask::Fetch), _) => "fetch",
            (HarnessPhase::Work(BackgroundTask::WriteBack), _) => "write-back",
            (HarnessPhase::Work(BackgroundTask::Checkpoint), _) => "checkpoint",
            (HarnessPhase::Request, _) => "request",
            (HarnessPhase::Drain, _) => "drain",
            (HarnessPhase::Copy, _) => "copy of a volume",
            (HarnessPhase::Deletion, _) => "deletion of a volume",
            (HarnessPhase::Replacement, _) => "replacement of the buffer",
            (HarnessPhase::Growth, _) => "growth of the store",
            (HarnessPhase::Recovery(1), _) => "recovery, depth 1",
            (HarnessPhase::Recovery(2), _) => "recovery, depth 2",
            (HarnessPhase::Recovery(_), _) => "recovery, depth 3",
        }
    }

    /// Ends this life of the stack and opens the next, perhaps another volume, through up to three power cuts in the recovery.
    fn reopen(&mut self, end: LifeEnd, mount: NextVolume) -> Result<(), String> {
        self.expect_rescued();
        self.lose_power(end);
        self.probe()?;
        self.between_lives()?;
        self.media.draw_settings(&mut self.random);
        self.scratch_unused();
        for depth in 1.. {
            self.phase = HarnessPhase::Recovery(depth);
            if self.options.faults && depth == 1 {
                self.faults_for_recovery();
            }
            let errors = self.media.log.errors_made_up();
            let volume = match mount {
                NextVolume::Same => self.volumes.mounted(),
                NextVolume::Any => self.volumes.next_to_mount(&mut self.random),
            };
            if depth <= RECOVERY_DEPTH_MAX && self.random.once_in(4) {
                let operations = self.random.below(CUT_RECOVERY_WITHIN);
                if self.random.once_in(2) {
                    self.media.power.cut_after_header(operations % CUT_AFTER_HEADER_WITHIN)
                } else {
                    self.media.power.cut_after(operations)
                }
            }
            let opened = self.open_volume(volume);
            let faulty = self.media.log.errors_made_up() > errors;
            self.no_faults();
            match opened {
                Ok(stack) if !self.media.power.is_lost() => {
                    // An armed cut that recovery was too short for is put off, or else nobody could look around.
                    self.media.power.restore();
                    if faulty {
                        // What failed while the disks made errors is told to readers until it is tried again.
                        self.media.clock.advance(TRIED_AGAIN_AFTER);
                        // The first ones may ask the store only.
                        for _ in 0..STEPS_TO_TRY_AGAIN {
                            stack.cache.step(BackgroundTask::WriteBack);
                        }
                    }
                    self.stack = Some(stack);
                    self.errors_at_open = errors;
                    self.adopt_volumes()?;
                    return self.look_at_rescued();
                }
                _ if self.media.power.is_lost() => {
                    *self.counts.crashes.entry(self.phase_name()).or_default() += 1;
                    drop(opened);
                    let end = self.draw_end();
                    self.lose_power(end);
                }
                Err(_) if faulty => self.media.power.restore(),
                Err(error) => return Err(format!("the recovery fails: {error}")),
                Ok(_) => unreachable!("the two arms above cover what opened"),
            }
        }
        unreachable!("a recovery without a power cut returns")
    }

    /// Finds what is there in the history; from then on nothing else was ever there.
    fn compare(&mut self) -> Result<(), String> {
        self.stack().check()?;
        let seen = self.stack().look()?;
        let outstanding = self.take_outstanding();
        let found = self.oracle.recovered(&seen, &outstanding)?;
        self.counts.changes_lost += (found.completed - found.kept) as u64;
        let words = [found.kept as u64, found.completed as u64, self.stack().fs.newest_lsn().0];
        self.media.log.event(|| format!("=== recovered: {found:?}"), &words);
        self.clients = super::client::SimulatedClients::new(self.clients.len());
        let volumes = self.random.below(2) as usize;
        self.look_at_others(volumes)
    }

    /// A clean stop: everything that completed is there afterwards, in the store alone or not.
    pub(crate) fn stop_and_compare(&mut self) -> Result<(), String> {
        self.no_faults();
        self.media.power.restore();
        self.media.meanwhile.comes_now();
        self.deliver()?;
        let moment = self.oracle.moment();
        if self.options.faults && self.random.once_in(3) {
            self.media.store.set_faults(TAKES_NOTHING);
        }
        let drained = self.stack().cache.drain();
        self.no_faults();
        match drained {
            Ok(()) => {
                let cache = &self.stack().cache;
                let reserved = cache.store_without_spare().space().reserved;
                if reserved > 0 && cache.status().dirty_pages == 0 {
                    return Err(format!("everything is written back, and {reserved} blocks stay reserved"));
                }
                self.deliver()?;
            }
            Err(_) if self.media.log.errors_made_up() > self.errors_at_open => {}
            Err(CacheError::Store(StoreError::Full)) => self.no_space_to_write_back()?,
            Err(error) => return Err(format!("the drain fails: {error}")),
        }
        if self.stack().cache.status().failed.is_none() && !self.media.power.is_lost() {
            // What could not be stored is in the buffer.
            self.oracle.synced(moment, SyncScope::All);
        }
        self.counts.clean_stops += 1;
        self.media.log.event(|| "=== a clean stop".to_owned(), &[]);
        let end = if self.random.once_in(2) { LifeEnd::Kill } else { LifeEnd::PowerCut };
        self.reopen(end, NextVolume::Any)?;
        self.compare().map_err(|what| format!("after a clean stop: {what}"))?;
        self.new_life();
        self.change_weather();
        Ok(())
    }
}
