//! One run: clients, background work, time and failures, interleaved by one seed on one thread.

use super::Options;
use super::client::{Clients, When};
use super::crash::Life;
use super::oracle::Oracle;
use super::rescued::Rescued;
use super::stack::{Media, Pick, Stack, TASKS};
use super::volumes::{Tally, Volumes};
use super::watchdog::Watchdog;
use super::workload::{Temper, Workload};
use cache::Task;
use device::Random;
use sim::SimDisk;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Mostly enough for requests to meet, and few enough that most histories are short.
const CLIENTS: [usize; 4] = [1, 4, 4, 12];
/// Turns in which every client waits and nobody gets a reply, after which nobody ever will. Each turn does all
/// background work and lets 5 ms pass, so that every interval of the settings passes several times; but less than the
/// longest patience with a store that takes nothing, so that who is answered by its end alone is found.
const TURNS_WITHOUT_REPLY_MAX: u32 = 5000;

/// A request that comes in during background work does so within so many beginnings and ends of device operations.
const INTRUDES_WITHIN: u64 = 24;

/// It waits for that during so many steps, about.
const INTRUDER_WAITS_STEPS: u64 = 16;

/// What happened, for the summary.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    /// Power cuts and kills, by what was going on.
    pub(crate) crashes: BTreeMap<&'static str, u64>,
    pub(crate) clean_stops: u64,
    /// Changes that had completed, were not synced, and were lost.
    pub(crate) changes_lost: u64,
    pub(crate) no_space: u64,
    /// Changes that were admitted and found no space, made up.
    pub(crate) refused: u64,
    /// Volumes that were rescued from buffers that failed.
    pub(crate) rescued: u64,
    /// Buffers that took another one's place.
    pub(crate) replaced: u64,
    /// Errors that a client was told because a disk made one up.
    pub(crate) errors_told: u64,
    pub(crate) errors_made_up: u64,
    pub(crate) volumes: Tally,
}

impl Counts {
    pub(crate) fn crashes(&self) -> u64 {
        self.crashes.values().sum()
    }
}

/// What the harness is calling: where a power cut hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Request,
    Work(Task),
    Drain,
    /// A copy of the mounted volume.
    Copy,
    /// Another volume's.
    Deletion,
    /// Of the buffer, to another volume.
    HandOver,
    /// Of the buffer by another one.
    Replacement,
    Recovery(u32),
}

/// One run. Everything in it is drawn from the seed.
pub(crate) struct Run {
    pub(crate) options: Options,
    pub(crate) random: Random,
    pub(crate) workload: Workload,
    pub(crate) media: Media,
    /// `None` only between a crash and the recovery.
    pub(crate) stack: Option<Stack>,
    pub(crate) oracle: Oracle,
    pub(crate) volumes: Volumes,
    pub(crate) clients: Clients,
    pub(crate) counts: Counts,
    pub(crate) phase: Phase,
    pub(crate) life: Life,
    /// Errors that the disks had made up when the stack was opened: those told later need newer ones.
    pub(crate) errors_at_open: u64,
    /// The store as it was at an earlier start.
    pub(crate) older_store: Option<Arc<SimDisk>>,
    /// What the life before this one may have left.
    pub(crate) rescued: Option<Rescued>,
    weather: Weather,
    turns_without_reply: u32,
    progress: Progress,
}

/// How often each kind of background work gets its turn for a while: rare combinations come from extremes.
struct Weather {
    requests: u64,
    tasks: [u64; TASKS.len()],
    volumes: u64,
    time: u64,
    /// Steps at most that are taken during another.
    crowd: u64,
    /// How long a device operation may take, in nanoseconds.
    slow: u64,
    /// Of so many changes, one finds no space after it was admitted; 0: none.
    refusals: u64,
}

/// Tells a person that the run goes on. Has no part in the run.
struct Progress {
    started: Instant,
    told: Instant,
}

impl Run {
    pub(crate) fn new(options: &Options) -> Result<Run, String> {
        let mut random = Random::new(options.seed);
        let media = Media::new(random.next_u64(), options);
        media.format()?;
        Run::open(options, random, media, Oracle::new())
    }

    /// Another run that begins with what this one has durable.
    pub(crate) fn fork(&self, seed: u64) -> Result<Run, String> {
        let mut random = Random::new(seed);
        let media = self.media.fork(random.next_u64(), &self.options);
        let volumes = self.volumes.clone();
        Ok(Run { volumes, ..Run::open(&self.options, random, media, self.oracle.clone())? })
    }

    fn open(options: &Options, mut random: Random, media: Media, oracle: Oracle) -> Result<Run, String> {
        let stack = media.open()?;
        let now = Instant::now();
        Ok(Run {
            options: options.clone(),
            workload: Workload::new(random.next_u64(), Temper::of(options.seed)),
            weather: Weather::draw(&mut random),
            life: Life::default(),
            stack: Some(stack),
            oracle,
            volumes: Volumes::new(),
            clients: Clients::new(random.pick(&CLIENTS)),
            counts: Counts::default(),
            phase: Phase::Request,
            errors_at_open: 0,
            older_store: None,
            rescued: None,
            turns_without_reply: 0,
            progress: Progress { started: now, told: now },
            media,
            random,
        })
    }

    /// Runs to the end; says what is wrong.
    pub(crate) fn go(&mut self) -> Result<(), String> {
        let watchdog = Watchdog::new(super::repeat_line(&self.options));
        self.new_life();
        while self.counts.operations < self.options.operations || self.counts.crashes() < self.options.crashes
        {
            watchdog.turn();
            self.turn()?;
            self.tell_progress();
        }
        self.stop_and_compare()?;
        self.look_at_others(usize::MAX)?;
        self.delete_all_copies()?;
        self.counts.errors_made_up = self.media.log.errors_made_up();
        Ok(())
    }

    pub(crate) fn stack(&self) -> &Stack {
        self.stack.as_ref().expect("the stack is open while clients run")
    }

    /// New weather and a new mood, so that no two lives are alike.
    pub(crate) fn change_weather(&mut self) {
        self.weather = Weather::draw(&mut self.random);
        let random = Random::new(self.random.next_u64());
        self.media.meanwhile.slow_down(random, &self.media.clock, self.weather.slow);
        self.workload.change_mood();
        self.turns_without_reply = 0;
    }

    /// One thing happens: a request, a step of background work, or some time passes.
    fn turn(&mut self) -> Result<(), String> {
        let idle = self.clients.idle();
        let mut dice = self.random.below(self.weather.total());
        if idle.is_empty() {
            self.everybody_waits()?;
        } else if dice < self.weather.requests {
            let client = idle[self.random.below(idle.len() as u64) as usize];
            self.phase = Phase::Request;
            if self.weather.refusals > 0 && self.random.once_in(self.weather.refusals) {
                cache::refuse_next_change();
            }
            self.issue(client, When::Now)?;
        } else if dice < self.weather.requests + self.weather.volumes {
            self.change_volumes()?;
        } else {
            dice -= self.weather.requests + self.weather.volumes;
            let task = TASKS.into_iter().zip(self.weather.tasks).find(|&(_, weight)| {
                let chosen = dice < weight;
                dice = dice.saturating_sub(weight);
                chosen
            });
            match task {
                Some((task, _)) => {
                    if self.random.once_in(2) && !self.media.meanwhile.waits() {
                        let client = idle[self.random.below(idle.len() as u64) as usize];
                        let operations = self.random.below(INTRUDES_WITHIN);
                        self.issue(client, When::AfterTurns(operations))?;
                    }
                    self.let_others_step();
                    self.step(task);
                }
                None => self.pass_time(),
            }
        }
        if self.deliver()? > 0 {
            self.turns_without_reply = 0;
        }
        self.faults();
        self.live_or_die()
    }

    /// Lets background work take steps during what comes next, where other threads would take them.
    pub(crate) fn let_others_step(&mut self) {
        if self.weather.crowd == 0 || self.media.meanwhile.has_steps() {
            return;
        }
        let mut task = self.random.pick(&TASKS);
        for number in 0..self.random.below(self.weather.crowd + 1) {
            // The first one comes at any moment, others rather at once.
            let turns = match number > 0 && self.random.below(4) > 0 {
                true => 0,
                false => self.random.below(INTRUDES_WITHIN),
            };
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

    fn step(&mut self, task: Task) {
        self.phase = Phase::Work(task);
        let progress = self.stack().cache.step(task);
        // Most steps have nothing to do; who comes in rather waits for one that has.
        if self.random.once_in(INTRUDER_WAITS_STEPS) {
            self.media.meanwhile.comes_now();
        }
        self.media.log.event(|| format!("  step {task:?}: {progress:?}"), &[task as u64, progress as u64]);
    }

    fn pass_time(&mut self) {
        let nanos = match self.random.below(8) {
            0 => 2_000_000_000,
            _ => 1 + self.random.below(100_000_000),
        };
        self.media.clock.advance(Duration::from_nanos(nanos));
    }

    /// Only background work can help now.
    fn everybody_waits(&mut self) -> Result<(), String> {
        self.media.meanwhile.comes_now();
        let first = self.random.below(TASKS.len() as u64) as usize;
        for turn in 0..TASKS.len() {
            self.let_others_step();
            self.step(TASKS[(first + turn) % TASKS.len()]);
        }
        self.media.clock.advance(Duration::from_millis(5));
        self.turns_without_reply += 1;
        if self.turns_without_reply < TURNS_WITHOUT_REPLY_MAX || self.media.power.lost() {
            return Ok(());
        }
        if self.media.log.errors_made_up() > self.errors_at_open {
            // A failed device may stop everything: it is for the next open to make good.
            self.life.die_soon(self.counts.operations);
            return Ok(());
        }
        let (cache, waiting) = (&self.stack().cache, self.clients.describe_waiting());
        let (status, space) = (cache.status(), cache.store().space());
        Err(format!("nobody is ever answered; they wait for:\n{waiting}  {status:?}\n  {space:?}"))
    }

    /// Does background work until everybody is answered or the power is lost.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        loop {
            self.deliver()?;
            if self.media.power.lost() || self.clients.idle().len() == self.clients.len() {
                self.turns_without_reply = 0;
                return Ok(());
            }
            self.everybody_waits()?;
        }
    }

    fn tell_progress(&mut self) {
        if self.options.quiet || self.progress.told.elapsed() < Duration::from_secs(3) {
            return;
        }
        self.progress.told = Instant::now();
        let seconds = self.progress.started.elapsed().as_secs_f64();
        eprintln!(
            "seed {}: {} operations, {} crashes, {:.0} operations/s",
            self.options.seed,
            self.counts.operations,
            self.counts.crashes(),
            self.counts.operations as f64 / seconds
        );
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.progress.started.elapsed().as_secs_f64()
    }
}

impl Weather {
    fn draw(random: &mut Random) -> Weather {
        let mut weight = || random.pick(&[0, 1, 4, 16]);
        let tasks = [weight(), weight(), weight(), weight() / 2];
        let time = weight() / 4;
        // Each writes everything back, so not often; and not at all in half of the lives.
        let volumes = random.pick(&[0, 0, 1, 2]);
        let (crowd, slow) = (random.pick(&[0, 4, 16]), random.pick(&[0, 0, 100_000, 50_000_000]));
        Weather { requests: 20, tasks, volumes, time, crowd, slow, refusals: random.pick(&[0, 0, 30]) }
    }

    fn total(&self) -> u64 {
        self.requests + self.volumes + self.tasks.iter().sum::<u64>() + self.time
    }
}
