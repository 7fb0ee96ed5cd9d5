//! On which processors threads run.

use std::fs;
use std::io;
use std::path::PathBuf;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::super::error::BenchError;
use super::mounted::DOOR_THREADS;

/// The processor for the thread with this number, of those that this process may use.
fn processor_for(number: u8) -> io::Result<CpuSet> {
    // The main thread is never put anywhere, so it knows all of them.
    let all = sched_getaffinity(Pid::from_raw(std::process::id() as i32))?;
    let mut one = CpuSet::new();
    let wanted = usize::from(number) % all.count().max(1) as usize;
    if let Some(at) = (0..CpuSet::MAX_CPU).filter(|&at| all.is_set(at)).nth(wanted) {
        one.set(at);
    }
    Ok(one)
}

/// Puts the calling thread, a client's, on its processor.
pub(super) fn put_this_thread(number: u8) -> io::Result<()> {
    Ok(sched_setaffinity(None, &processor_for(number)?)?)
}

/// Puts the threads that take requests in `process` on theirs.
pub(super) fn put_door(process: u32) -> Result<(), BenchError> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let put = || -> io::Result<()> {
        for task in fs::read_dir(&tasks)? {
            let task = task?;
            let name = fs::read_to_string(task.path().join("comm"))?;
            let number = name.trim_end().strip_prefix(DOOR_THREADS).and_then(|number| number.parse().ok());
            if let Some(number) = number {
                let thread = task.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
                sched_setaffinity(thread, &processor_for(number)?)?;
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
    fn a_thread_is_put_on_one_processor_the_first_and_the_one_after_the_last_on_the_same() {
        let after = |number| {
            put_this_thread(number).expect("a thread may be placed");
            sched_getaffinity(None).expect("it is known")
        };
        let all = sched_getaffinity(Pid::from_raw(std::process::id() as i32)).expect("it is known").count();
        assert_eq!(after(0).count(), 1);
        assert_eq!(after(0), after(all as u8));
    }
}
