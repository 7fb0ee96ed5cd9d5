//! The state of one run, steps of background work, and the passing of time.

use crate::client::SimulatedClients;
use crate::options::SimulatorOptions;
use crate::oracle::HistoryOracle;
use crate::request_generator::{RequestGenerator, WorkloadProfile};
use crate::rescued_volumes::ExpectedRescue;
use crate::stack::{RandomPick, SimulatedMedia, SimulatedStack, TASKS};
use crate::swarm_weights::SwarmWeights;
use crate::volumes::{SimulatedVolumes, VolumeCounts};
use cache::{BackgroundTask, StepProgress, TaskLoan};
use device::{Clock, SeededRng};
use sim_disk::SimDisk;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::VolumeId;

/// Enough clients for requests to meet, and few enough that most histories are short.
const CLIENTS: [usize; 4] = [1, 4, 4, 12];
/// The limit of turns in which every client waits and no reply comes. After them the run fails. Each turn
/// does all background work and advances the clock by 5 ms, so most intervals of the settings pass several
/// times. All these turns together are shorter than the longest patience with a store that accepts no writes.
/// So a client whose reply comes only when that patience ends counts as a failure.
pub(crate) const TURNS_WITHOUT_REPLY_MAX: u32 = 5000;

/// The limit of committer steps in a row that all find work while other work steps, too. After them the run
/// fails.
const COMMITS_MAX: u32 = 10_000;

/// A request that arrives during background work does so within this many device turns. A turn is the
/// beginning or the end of a device operation.
pub(crate) const INTRUDES_WITHIN: u64 = 24;

/// A request that should arrive during background work waits for its turn for about this many steps. After
/// them it arrives between two steps.
const INTRUDER_WAITS_STEPS: u64 = 16;

/// A power cut hits within this many writes, flushes and trims after it is armed: soon, or deep in later
/// work.
pub(crate) const CUT_WITHIN: [u64; 3] = [4, 24, 100];
/// After this many operations an armed power cut that has not hit is forced: the run drains the cache.
pub(crate) const ARMED_OPERATIONS_MAX: u64 = 30;

/// Counters for the summary of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunCounts {
    pub(crate) operations: u64,
    /// Power cuts and kills, by the phase that they hit.
    pub(crate) crashes: BTreeMap<&'static str, u64>,
    pub(crate) clean_stops: u64,
    /// Stores that said that they need no buffer, and were looked at without it.
    pub(crate) complete: u64,
    /// Changes that had completed, were not synced, and were lost.
    pub(crate) changes_lost: u64,
    pub(crate) no_space: u64,
    /// Changes that were admitted and then refused for space on purpose.
    pub(crate) refused: u64,
    /// Volumes that were rescued from failed buffers.
    pub(crate) rescued: u64,
    /// Replacements of a buffer by a new one.
    pub(crate) replaced: u64,
    /// Growths of the store or the buffer.
    pub(crate) growths: u64,
    /// Errors reported to clients because a disk made one up.
    pub(crate) errors_told: u64,
    pub(crate) errors_made_up: u64,
    /// Changes of block volumes that took effect.
    pub(crate) block_changes: u64,
    /// Ranges that batches cloned or moved, and ranges that they found equal.
    pub(crate) batch_transfers: u64,
    pub(crate) batch_comparisons: u64,
    /// Ranges that batches cloned from files of other volumes.
    pub(crate) clones_between: u64,
    pub(crate) volumes: VolumeCounts,
}

impl RunCounts {
    pub(crate) fn crashes(&self) -> u64 {
        self.crashes.values().sum()
    }
}

/// The work that the harness is doing: the place where a power cut hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HarnessPhase {
    Request,
    Work(BackgroundTask),
    Drain,
    /// The copy of a volume.
    Copy,
    /// The creation of an empty volume.
    Creation,
    /// The mount of a volume beside others.
    Mount,
    /// The unmount of one of several volumes.
    Unmount,
    /// The renaming of a volume that is not mounted.
    Renaming,
    /// The new size of a block volume that is not mounted.
    Resizing,
    /// The deletion of a volume that is not mounted.
    Deletion,
    /// The replacement of the buffer by a new one.
    Replacement,
    Growth,
    Recovery(u32),
}

/// The plan for this life of the stack, from one open to the next.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LifePlan {
    /// The operation after which the end begins.
    pub(crate) ends_at: u64,
    /// If the end is an armed power cut, the operation after which it happens anyway.
    pub(crate) armed_until: Option<u64>,
    /// If a disk makes errors, the operation at which they stop.
    pub(crate) faulty_until: Option<u64>,
}

impl LifePlan {
    /// Ends this life once the run has made `operations` operations, or earlier if so planned.
    pub(crate) fn die_soon(&mut self, operations: u64) {
        self.ends_at = self.ends_at.min(operations);
        self.armed_until = self.armed_until.map(|until| until.min(operations));
    }
}

/// One run. The seed determines everything in it.
pub(crate) struct SimulationRun {
    pub(crate) options: SimulatorOptions,
    pub(crate) random: SeededRng,
    pub(crate) workload: RequestGenerator,
    pub(crate) media: SimulatedMedia,
    /// `None` only between a crash and the recovery.
    pub(crate) stack: Option<SimulatedStack>,
    pub(crate) oracle: HistoryOracle,
    pub(crate) volumes: SimulatedVolumes,
    pub(crate) clients: SimulatedClients,
    pub(crate) counts: RunCounts,
    pub(crate) phase: HarnessPhase,
    pub(crate) life: LifePlan,
    /// Errors that the disks had made up before this open. An error counts as explained only if there are
    /// newer ones.
    pub(crate) errors_at_open: u64,
    /// The store as it was at an earlier start.
    pub(crate) older_store: Option<Arc<SimDisk>>,
    /// The volumes that the previous life may have rescued from its failed buffer.
    pub(crate) rescued: Vec<ExpectedRescue>,
    pub(crate) weather: SwarmWeights,
    pub(crate) turns_without_reply: u32,
    /// Steps of the committer that found work since one found none.
    commits_at_once: u32,
    started: Instant,
}

impl SimulationRun {
    pub(crate) fn new(options: &SimulatorOptions) -> Result<SimulationRun, String> {
        let mut random = SeededRng::new(options.seed);
        let media = SimulatedMedia::new(random.next_u64(), options);
        media.format()?;
        SimulationRun::open(
            options,
            random,
            media,
            SimulatedVolumes::new(),
            HistoryOracle::new(VolumeId::MAIN),
        )
    }

    /// A run that begins with the durable state of this one.
    pub(crate) fn fork(&self, seed: u64) -> Result<SimulationRun, String> {
        let mut random = SeededRng::new(seed);
        let media = self.media.fork(random.next_u64(), &self.options);
        let volumes = self.volumes.clone();
        SimulationRun::open(&self.options, random, media, volumes, self.oracle.clone())
    }

    fn open(
        options: &SimulatorOptions,
        mut random: SeededRng,
        media: SimulatedMedia,
        volumes: SimulatedVolumes,
        oracle: HistoryOracle,
    ) -> Result<SimulationRun, String> {
        let stack = media.open(&volumes.mounted())?;
        let mut run = SimulationRun {
            options: options.clone(),
            workload: RequestGenerator::new(random.next_u64(), WorkloadProfile::of(options)),
            weather: SwarmWeights::draw(&mut random),
            life: LifePlan::default(),
            stack: Some(stack),
            oracle,
            volumes,
            clients: SimulatedClients::new(random.pick(&CLIENTS)),
            counts: RunCounts::default(),
            phase: HarnessPhase::Request,
            errors_at_open: 0,
            older_store: None,
            rescued: Vec::new(),
            turns_without_reply: 0,
            commits_at_once: 0,
            started: Instant::now(),
            media,
            random,
        };
        run.may_bypass();
        Ok(run)
    }

    /// Lets writes of this life bypass the buffer, if the settings say so.
    fn may_bypass(&mut self) {
        self.oracle.allow_bypassing();
        self.workload.set_bypassing(self.media.bypass_scope());
    }

    /// Switches the journal mode at random. Bypassing is switched on only between requests: the reply to a
    /// request under way would not tell which mode applied to it.
    pub(crate) fn switch_order(&mut self) {
        let Some((after, follows_classes)) = self.media.draw_order() else { return };
        let all_idle = self.clients.idle().len() == self.clients.len() && !self.media.meanwhile.waits();
        if after == u64::MAX || all_idle {
            self.stack().cache.set_bypass_after(after);
            self.stack().cache.set_follows_classes(follows_classes);
            let bypasses = self.stack().bypass_scope();
            self.workload.set_bypassing(bypasses);
            self.media.log.event(|| format!("=== what bypasses the buffer: {bypasses:?}"), &[after]);
        }
    }

    /// Lends to a task at random: now, or inside the next step of background work.
    pub(crate) fn lend(&mut self) {
        let Some((task, level)) = self.media.draw_loan(self.clients.len()) else { return };
        let cache = self.stack().cache.clone();
        let log = self.media.log.clone();
        let lend = move || {
            let was_waiting = cache.lend(TaskLoan { to: task, lent_for: 0 }, level);
            log.event(|| format!("  lent to {task}: {was_waiting}"), &[task.into(), was_waiting.into()]);
        };
        if task % 2 == 0 && !self.media.meanwhile.has_steps() {
            self.media.meanwhile.steps_after(task.into(), Box::new(lend));
        } else {
            lend();
        }
    }

    pub(crate) fn stack(&self) -> &SimulatedStack {
        self.stack.as_ref().expect("the stack is open while clients run")
    }

    /// Draws the length of this life, so that the remaining crashes spread over the remaining operations.
    pub(crate) fn new_life(&mut self) {
        self.may_bypass();
        let operations = self.options.operations.saturating_sub(self.counts.operations);
        let crashes = self.options.crashes.saturating_sub(self.counts.crashes());
        let length = match crashes {
            0 => u64::MAX / 2,
            _ => self.random.below(2 * operations / crashes + 1),
        };
        self.life =
            LifePlan { ends_at: self.counts.operations + length, armed_until: None, faulty_until: None };
    }

    /// Arms a power cut for some operations on volumes: it hits during the call, or soon after.
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

    /// Draws new weights of events and a new mood of clients, so that no two lives are alike.
    pub(crate) fn change_weather(&mut self) {
        self.weather = SwarmWeights::draw(&mut self.random);
        let random = SeededRng::new(self.random.next_u64());
        self.media.meanwhile.slow_down(random, &self.media.clock, self.weather.slow);
        self.workload.change_mood();
        self.turns_without_reply = 0;
    }

    /// Schedules steps of background work inside the device calls that follow, where other threads would take
    /// them.
    pub(crate) fn let_others_step(&mut self) {
        if self.weather.crowd == 0 || self.media.meanwhile.has_steps() {
            return;
        }
        let mut task = self.random.pick(&TASKS);
        for number in 0..self.random.below(self.weather.crowd + 1) {
            // The first step comes at any turn. Later steps mostly follow at once.
            let turns =
                if number > 0 && self.random.below(4) > 0 { 0 } else { self.random.below(INTRUDES_WITHIN) };
            if self.random.once_in(2) {
                task = self.random.pick(&TASKS);
            }
            let cache = self.stack().cache.clone();
            let log = self.media.log.clone();
            let step = move || {
                if cache.may_step(task) {
                    log.event(|| format!("  meanwhile a step {task:?}"), &[task as u64]);
                    cache.step(task);
                }
            };
            self.media.meanwhile.steps_after(turns, Box::new(step));
        }
    }

    pub(crate) fn step(&mut self, task: BackgroundTask) {
        self.phase = HarnessPhase::Work(task);
        let begun = self.media.clock.monotonic();
        let progress = self.stack().cache.step(task);
        match (task, progress) {
            (BackgroundTask::Commit, StepProgress::Idle) => {
                self.commits_at_once = 0;
                self.nothing_is_left_to_commit(begun);
            }
            // A committer that always finds work would keep a processor busy. It would also keep the check
            // above from running.
            (BackgroundTask::Commit, StepProgress::Worked) => {
                self.commits_at_once += 1;
                assert!(self.commits_at_once < COMMITS_MAX, "the committer never comes to an end");
            }
            _ => {}
        }
        // Most steps find no work, so a request mostly waits for a step that does.
        if self.random.once_in(INTRUDER_WAITS_STEPS) {
            self.media.meanwhile.comes_now();
        }
        self.media.log.event(|| format!("  step {task:?}: {progress:?}"), &[task as u64, progress as u64]);
    }

    /// Records that changes answered a commit interval before `now` are durable, because the committer found
    /// no work at `now`. This includes bypassed pages, even if the store failed to take them.
    fn nothing_is_left_to_commit(&mut self, now: Duration) {
        let has_worked = !self.media.power.is_lost() && self.stack().cache.status().failed.is_none();
        let until = now.checked_sub(self.media.settings.commit_interval).filter(|_| has_worked);
        until.into_iter().for_each(|until| self.oracle.durable_until(until));
    }

    pub(crate) fn pass_time(&mut self) {
        let nanos = match self.random.below(8) {
            0 => 2_000_000_000,
            _ => 1 + self.random.below(100_000_000),
        };
        self.media.clock.advance(Duration::from_nanos(nanos));
    }

    /// Does all background work, because every client waits for a reply.
    pub(crate) fn everybody_waits(&mut self) -> Result<(), String> {
        self.media.meanwhile.comes_now();
        let first = self.random.below(TASKS.len() as u64) as usize;
        for turn in 0..TASKS.len() {
            self.let_others_step();
            self.step(TASKS[(first + turn) % TASKS.len()]);
        }
        self.media.clock.advance(Duration::from_millis(5));
        self.turns_without_reply += 1;
        if self.turns_without_reply < TURNS_WITHOUT_REPLY_MAX || self.media.power.is_lost() {
            return Ok(());
        }
        if self.media.log.errors_made_up() > self.errors_at_open {
            // A failed device may stop everything. The next open repairs that.
            self.life.die_soon(self.counts.operations);
            return Ok(());
        }
        let (cache, waiting) = (&self.stack().cache, self.clients.describe_waiting());
        let (status, space) = (cache.status(), cache.store().space().now());
        Err(format!("nobody is ever answered; they wait for:\n{waiting}  {status:?}\n  {space:?}"))
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
