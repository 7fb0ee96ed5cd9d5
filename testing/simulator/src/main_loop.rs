//! One run from its beginning to its end. One seed on one thread interleaves clients, background work, time
//! and failures.

use crate::client::IssueTime;
use crate::options::{SimulatorOptions, repeat_line};
use crate::planted_rules::PlantedRule;
use crate::run_state::{HarnessPhase, INTRUDES_WITHIN, RunCounts, SimulationRun};
use crate::swarm_weights::SwarmEvent;
use crate::watchdog::StuckRunWatchdog;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The outcome of a run that broke no promise.
#[derive(Debug)]
pub(crate) struct RunSummary {
    pub(crate) counts: RunCounts,
    pub(crate) hash: u64,
    pub(crate) seconds: f64,
}

/// A failure, and the number of operations before it.
#[derive(Debug)]
pub(crate) struct RunFailure {
    pub(crate) what: String,
    pub(crate) operations: u64,
    pub(crate) hash: u64,
}

/// Runs one seed.
pub(crate) fn run(options: &SimulatorOptions) -> Result<RunSummary, RunFailure> {
    PlantedRule::for_this_thread(options.plant);
    let mut run = SimulationRun::new(options).map_err(|what| RunFailure { what, operations: 0, hash: 0 })?;
    let outcome = catch_unwind(AssertUnwindSafe(|| run.go()));
    let (operations, hash) = (run.counts.operations, run.media.log.hash());
    match outcome {
        Ok(Ok(())) => Ok(RunSummary { counts: run.counts.clone(), hash, seconds: run.seconds() }),
        Ok(Err(what)) => Err(RunFailure { what, operations, hash }),
        Err(panic) => {
            // After a panic the stack's locks are poisoned: dropping it could panic again.
            std::mem::forget(run);
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
            let what = format!("a panic: {}", words.unwrap_or_default());
            Err(RunFailure { what, operations, hash })
        }
    }
}

impl SimulationRun {
    /// Runs to the end. Returns the first failure as an error.
    fn go(&mut self) -> Result<(), String> {
        let watchdog = StuckRunWatchdog::new(repeat_line(&self.options));
        let mut told = Instant::now();
        self.new_life();
        self.begin_with_block_volume()?;
        self.live_or_die()?;
        while self.counts.operations < self.options.operations || self.counts.crashes() < self.options.crashes
        {
            watchdog.turn();
            self.turn()?;
            self.tell_progress(&mut told);
        }
        self.stop_and_compare()?;
        self.look_at_others(usize::MAX)?;
        self.delete_all_others()?;
        self.counts.errors_made_up = self.media.log.errors_made_up();
        Ok(())
    }

    /// Does one thing: a request, an operation on volumes, a step of background work, or some time passes.
    fn turn(&mut self) -> Result<(), String> {
        let idle = self.clients.idle();
        match self.weather.next(&mut self.random) {
            _ if idle.is_empty() => self.everybody_waits()?,
            SwarmEvent::Request => {
                let client = idle[self.random.below(idle.len() as u64) as usize];
                self.phase = HarnessPhase::Request;
                if self.weather.refusals > 0 && self.random.once_in(self.weather.refusals) {
                    cache::refuse_next_change();
                }
                self.issue(client, IssueTime::Now)?;
            }
            SwarmEvent::Volumes => self.change_volumes()?,
            SwarmEvent::Step(task) => {
                if self.random.once_in(2) && !self.media.meanwhile.waits() {
                    let client = idle[self.random.below(idle.len() as u64) as usize];
                    let operations = self.random.below(INTRUDES_WITHIN);
                    self.issue(client, IssueTime::AfterTurns(operations))?;
                }
                self.let_others_step();
                self.step(task);
            }
            SwarmEvent::Time => self.pass_time(),
        }
        self.lend();
        if self.deliver()? > 0 {
            self.turns_without_reply = 0;
        }
        self.switch_order();
        self.faults();
        self.live_or_die()
    }

    /// Prints the progress every three seconds. Has no effect on the run.
    fn tell_progress(&self, told: &mut Instant) {
        if self.options.quiet || told.elapsed() < Duration::from_secs(3) {
            return;
        }
        *told = Instant::now();
        eprintln!(
            "seed {}: {} operations, {} crashes, {:.0} operations/s",
            self.options.seed,
            self.counts.operations,
            self.counts.crashes(),
            self.counts.operations as f64 / self.seconds()
        );
    }
}
