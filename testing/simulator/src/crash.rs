//! Ends a life of the stack and begins the next one. A life ends by a power cut at any write, a kill, or a
//! clean stop. The power may also fail in recovery.

use crate::disk_faults::TAKES_NOTHING;
use crate::event_log::MediumRole;
use crate::power_loss::LifeEnd;
use crate::run_state::{ARMED_OPERATIONS_MAX, CUT_WITHIN, HarnessPhase, SimulationRun};
use crate::stack::RandomPick;
use cache::{BackgroundTask, CacheError};
use crash_oracle::SyncedBytes;
use device::DeviceOperation;
use std::time::Duration;
use store::StoreError;

/// A power cut may also hit this soon after a write of a header block, which describes other blocks.
const CUT_AFTER_HEADER_WITHIN: u64 = 3;
/// Long enough for all retries. A cache retries a failed write-back after one second, and a clone that failed
/// three times during its start-up after four seconds.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Steps of write-back that are enough for the retries.
const STEPS_TO_TRY_AGAIN: usize = 4;
/// Small, because recovery writes little.
const CUT_RECOVERY_WITHIN: u64 = 10;
/// The most power cuts in one recovery. Each is one level deeper.
const RECOVERY_DEPTH_MAX: u32 = 3;

/// The volumes that the next life mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextMounts {
    /// The volumes of the last life.
    Same,
    /// Any volumes, mostly those of the last life.
    Any,
}

impl SimulationRun {
    /// Ends the life if the power is lost, and arms its end when the end is due. Called after each turn.
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

    /// Drains the cache, because an armed power cut has hit nothing yet. The power fails during the drain, or
    /// after it.
    fn die_draining(&mut self) -> Result<(), String> {
        self.phase = HarnessPhase::Drain;
        // The result does not matter: the power supply knows whether the cut hit.
        let drained = self.stack().cache.drain();
        self.deliver()?;
        if drained.is_ok() && self.clients.outstanding().is_empty() {
            let _ = self.stack().cache.note_complete();
        }
        self.die(LifeEnd::PowerCut)
    }

    /// Cuts the power now, and compares the state after recovery.
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
        self.reopen(end, NextMounts::Any)?;
        self.compare().map_err(|what| format!("after a {end:?} in {phase}: {what}"))?;
        if self.random.once_in(2) {
            // A recovery without later writes must change nothing. Clients then meet a cold cache.
            let end = if self.random.once_in(2) { LifeEnd::Kill } else { LifeEnd::PowerCut };
            self.reopen(end, NextMounts::Same)?;
            if self.random.once_in(8) {
                self.compare().map_err(|what| format!("after a second recovery: {what}"))?;
                self.reopen(LifeEnd::PowerCut, NextMounts::Same)?;
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
            (HarnessPhase::Creation, _) => "creation of a volume",
            (HarnessPhase::Mount, _) => "mount of a volume",
            (HarnessPhase::Unmount, _) => "unmount of a volume",
            (HarnessPhase::Renaming, _) => "renaming of a volume",
            (HarnessPhase::Resizing, _) => "resizing of a volume",
            (HarnessPhase::Deletion, _) => "deletion of a volume",
            (HarnessPhase::Replacement, _) => "replacement of the buffer",
            (HarnessPhase::Growth, _) => "growth of the store",
            (HarnessPhase::Recovery(1), _) => "recovery, depth 1",
            (HarnessPhase::Recovery(2), _) => "recovery, depth 2",
            (HarnessPhase::Recovery(_), _) => "recovery, depth 3",
        }
    }

    /// Ends this life of the stack and opens the next one, perhaps with other volumes. Up to three power
    /// cuts may hit the recovery.
    fn reopen(&mut self, end: LifeEnd, mount: NextMounts) -> Result<(), String> {
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
            let volumes = match mount {
                NextMounts::Same => self.volumes.mounted(),
                NextMounts::Any => self.volumes.next_to_mount(self.options.mounts, &mut self.random),
            };
            if depth <= RECOVERY_DEPTH_MAX && self.random.once_in(4) {
                let operations = self.random.below(CUT_RECOVERY_WITHIN);
                if self.random.once_in(2) {
                    self.media.power.cut_after_header(operations % CUT_AFTER_HEADER_WITHIN)
                } else {
                    self.media.power.cut_after(operations)
                }
            }
            let opened = self.media.open(&volumes);
            let faulty = self.media.log.errors_made_up() > errors;
            self.no_faults();
            match opened {
                Ok(stack) if !self.media.power.is_lost() => {
                    // An armed cut that did not hit the recovery is cancelled. It would disturb the
                    // comparison.
                    self.media.power.restore();
                    if faulty {
                        // Readers are told of writes that failed during disk errors, until the cache retries
                        // them.
                        self.media.clock.advance(TRIED_AGAIN_AFTER);
                        // The first steps may only query the store.
                        for _ in 0..STEPS_TO_TRY_AGAIN {
                            stack.cache.step(BackgroundTask::WriteBack);
                        }
                    }
                    self.stack = Some(stack);
                    self.errors_at_open = errors;
                    self.settle_volumes()?;
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

    /// Finds the recovered state of all volumes that the last life had mounted in its history, and goes on with
    /// the volumes that are mounted now. From then on the history has no other state.
    fn compare(&mut self) -> Result<(), String> {
        self.stack().check()?;
        let seen = self.look_at_mounted()?;
        self.counts.volumes.crashes_of_several += u64::from(seen.len() > 1);
        let found = self.oracle.recovered(&seen, &self.clients.outstanding())?;
        self.counts.changes_lost += (found.completed - found.kept) as u64;
        let words = [found.kept as u64, found.completed as u64, self.stack().cache.status().applied.0];
        self.media.log.event(|| format!("=== recovered: {found:?}"), &words);
        self.clients = super::client::SimulatedClients::new(self.clients.len());
        self.adopt_mounts()?;
        let volumes = self.random.below(2) as usize;
        self.look_at_others(volumes)
    }

    /// Stops the stack cleanly. Afterwards every completed change must exist, in the store or in the buffer.
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
                let reserved = cache.store_without_spare().space().now().reserved;
                if reserved > 0 && cache.status().dirty_pages == 0 {
                    return Err(format!("everything is written back, and {reserved} blocks stay reserved"));
                }
                self.deliver()?;
            }
            Err(_) if self.media.log.errors_made_up() > self.errors_at_open => {}
            Err(CacheError::Store(StoreError::Full)) => self.no_space_to_write_back()?,
            Err(error) => return Err(format!("the drain fails: {error}")),
        }
        // It is for after a drain that works, and must see itself that changes are left. Later changes are refused: none may be under
        // way.
        if self.random.once_in(2) && self.clients.outstanding().is_empty() {
            let _ = self.stack().cache.note_complete();
        }
        if self.stack().cache.status().failed.is_none() && !self.media.power.is_lost() {
            // Dirty data that could not be stored is in the buffer.
            self.oracle.synced(moment, SyncedBytes::All);
        }
        self.counts.clean_stops += 1;
        self.media.log.event(|| "=== a clean stop".to_owned(), &[]);
        let end = if self.random.once_in(2) { LifeEnd::Kill } else { LifeEnd::PowerCut };
        self.reopen(end, NextMounts::Any)?;
        self.compare().map_err(|what| format!("after a clean stop: {what}"))?;
        self.new_life();
        self.change_weather();
        Ok(())
    }
}
