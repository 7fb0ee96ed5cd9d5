//! On which processors threads run.

use std::fs;
use std::io;
use std::path::PathBuf;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::super::error::BenchError;
use super::mounted::DOOR_THREADS;

/// Where the client and the door run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On one processor.
    Together,
    /// Where the scheduler puts them.
    Free,
}

impl Place {
    /// Which processors that is, of those that this process may use.
    fn processors(self) -> io::Result<CpuSet> {
        // The main thread is never put anywhere.
        let main = Pid::from_raw(std::process::id() as i32);
        let all = sched_getaffinity(main)?;
        match self {
            Place::Free => Ok(all),
            Place::Together => {
                let mut one = CpuSet::new();
                if let Some(first) = (0..CpuSet::MAX_CPU).find(|&at| all.is_set(at)) {
                    one.set(first);
                }
                Ok(one)
            }
        }
    }
}

/// Puts the calling thread there.
pub(super) fn put_this_thread(place: Place) -> io::Result<()> {
    Ok(sched_setaffinity(None, &place.processors()?)?)
}

/// Puts the threads there that take requests in `process`.
pub(super) fn put_door(process: u32, place: Place) -> Result<(), BenchError> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let put = || -> io::Result<()> {
        let processors = place.processors()?;
        for task in fs::read_dir(&tasks)? {
            let task = task?;
            let thread = task.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            if fs::read_to_string(task.path().join("comm"))?.starts_with(DOOR_THREADS) {
                sched_setaffinity(thread, &processors)?;
            }
        }
        Ok(())
    };
    put().map_err(|error| BenchError::io("cannot place the threads in", &tasks, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_put_on_one_processor_and_freed_again() {
        let count = |place| {
            put_this_thread(place).expect("a thread may be placed");
            sched_getaffinity(None).expect("it is known").count()
        };
        assert_eq!(count(Place::Together), 1);
        assert!(count(Place::Free) >= 1);
    }
}
