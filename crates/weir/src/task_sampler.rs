//! Samples what the tasks do that have files of a mount open, from /proc alone: the daemon need not answer.

use crate::rule_suggestions::TaskSamples;
use client::DeviceNumber;
use host::{TaskActivity, TaskActivityReader, TaskReadError};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// The shortest pause between two samples of all tasks.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// Samples take at most one part in so many of the time of a processor.
const SAMPLE_PART: u32 = 5;

/// The shortest time between two searches for tasks, which take at most one part in so many of the time.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
const SEARCH_PART: u32 = 10;

/// Threads of a process that are sampled.
const THREADS_MAX: usize = 4096;

/// A task, by its id and its start: ids are used again.
type TaskKey = (u32, u64);

/// Samples tasks of one mount.
pub(crate) struct TaskSampler {
    reader: TaskActivityReader,
    /// Processes that had a file of the mount open.
    processes: BTreeSet<u32>,
    /// The tasks of these processes.
    running: Vec<TaskKey>,
    samples: HashMap<TaskKey, TaskSamples>,
    /// Processes about which this user may not read.
    hidden: BTreeSet<u32>,
}

impl TaskSampler {
    pub(crate) fn new(device: DeviceNumber) -> io::Result<TaskSampler> {
        Ok(TaskSampler {
            reader: TaskActivityReader::new(device)?,
            processes: BTreeSet::new(),
            running: Vec::new(),
            samples: HashMap::new(),
            hidden: BTreeSet::new(),
        })
    }

    /// Samples for this long.
    pub(crate) fn run(&mut self, time: Duration) -> io::Result<()> {
        let begun = Instant::now();
        let mut next_search = begun;
        while begun.elapsed() < time {
            let pass = Instant::now();
            if pass >= next_search {
                self.search()?;
                next_search = pass + SEARCH_EVERY.max(pass.elapsed() * SEARCH_PART);
            }
            let pass = Instant::now();
            self.sample();
            thread::sleep(SAMPLE_EVERY.max(pass.elapsed() * (SAMPLE_PART - 1)));
        }
        Ok(())
    }

    /// The tasks that were seen, and what they did.
    pub(crate) fn samples(&self) -> Vec<TaskSamples> {
        self.samples.values().cloned().collect()
    }

    /// How many processes this user may not read about.
    pub(crate) fn hidden_processes(&self) -> usize {
        self.hidden.len()
    }

    /// Finds the tasks that are there now, and their titles.
    fn search(&mut self) -> io::Result<()> {
        let all: BTreeSet<u32> = host::processes()?.into_iter().collect();
        self.processes.retain(|process| all.contains(process));
        for &process in all.iter().filter(|&&process| process != std::process::id()) {
            if self.processes.contains(&process) {
                continue;
            }
            match self.reader.has_open_file(process) {
                Ok(true) => {
                    self.processes.insert(process);
                }
                Err(TaskReadError::NotPermitted) => {
                    self.hidden.insert(process);
                }
                _ => {}
            }
        }
        self.reader.refresh(self.processes.iter().copied());
        self.running.clear();
        for &process in &self.processes {
            for task in host::process_threads(process, THREADS_MAX) {
                let Ok(found) = host::read_task(task) else { continue };
                let key = (task, found.start_ticks);
                let samples = self.samples.entry(key).or_default();
                samples.process = process;
                samples.facts = found.facts;
                samples.has_terminal = found.has_terminal;
                self.running.push(key);
            }
        }
        Ok(())
    }

    fn sample(&mut self) {
        for key in &self.running {
            let samples = self.samples.get_mut(key).expect("a search enters it");
            match self.reader.read(key.0) {
                Ok(activity) => {
                    samples.counts.add(activity);
                    if activity == TaskActivity::Sync
                        && let Some(inode) = self.reader.synced_inode(key.0)
                    {
                        *samples.synced_inodes.entry(inode).or_default() += 1;
                    }
                }
                Err(TaskReadError::NotPermitted) => {
                    self.hidden.insert(samples.process);
                }
                Err(_) => {}
            }
        }
    }
}
