#![doc = include_str!("../README.md")]
mod block_request;
mod buffer_replacement;
mod bug_hunt;
mod change;
mod client;
mod crash;
mod damage_probe;
mod disk_faults;
mod event_log;
mod exhaustive;
mod instrumented_disk;
mod interleaving;
mod main_loop;
mod model;
mod model_rights;
mod options;
mod oracle;
mod planted_rules;
mod power_loss;
mod reply_checks;
mod request_call;
mod request_generator;
mod rescued_volumes;
mod run_state;
mod stack;
mod store_growth;
mod swarm_weights;
#[cfg(test)]
mod tests;
mod volumes;
mod watchdog;

use clap::Parser;
use main_loop::{RunFailure, RunSummary, run};
use options::{SimulatorOptions, repeat_line};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(
    name = "weir-simulator",
    about = "Simulates weir: random operations, crashes and recoveries on simulated disks"
)]
struct SimulatorArguments {
    #[command(flatten)]
    options: SimulatorOptions,
}

fn main() -> ExitCode {
    if command(&SimulatorArguments::parse().options) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the simulation that `options` describe and prints its outcome; `false` if a promise was broken.
fn command(options: &SimulatorOptions) -> bool {
    if options.planted {
        return bug_hunt::command(options.plant, options.seed);
    }
    if options.long {
        return long_command(options);
    }
    if let Some(length) = options.exhaust {
        return exhaust_command(options, length);
    }
    if let Some(seeds) = options.seeds {
        return seeds_command(options, seeds);
    }
    let started = Instant::now();
    let mut options = options.clone();
    loop {
        if run_and_print(&options).is_none() {
            return false;
        }
        match options.seconds {
            Some(seconds) if started.elapsed() < Duration::from_secs(seconds) => options.seed += 1,
            _ => return true,
        }
    }
}

/// Does one run and prints its outcome. Returns `None` if a promise was broken.
fn run_and_print(options: &SimulatorOptions) -> Option<RunSummary> {
    match run(options) {
        Ok(summary) => {
            print_summary(options, &summary);
            Some(summary)
        }
        Err(failure) => {
            print_failure(options, &failure);
            None
        }
    }
}

/// Runs several seeds. On odd seeds the disks make errors at times.
fn seeds_command(options: &SimulatorOptions, seeds: u64) -> bool {
    let (mut operations, mut crashes, mut errors, mut block_changes) = (0, 0, 0, 0);
    for seed in options.seed..options.seed + seeds {
        let faults = options.faults || seed % 2 == 1;
        let Some(summary) = run_and_print(&SimulatorOptions { seed, faults, ..options.clone() }) else {
            return false;
        };
        operations += summary.counts.operations;
        crashes += summary.counts.crashes();
        errors += summary.counts.errors_made_up;
        block_changes += summary.counts.block_changes;
    }
    println!(
        "{seeds} seeds: {operations} operations ({block_changes} changes of block volumes), {crashes} crashes, \
         {errors} device errors: no promise broken"
    );
    true
}

/// Runs the sizes of the nightly check.
fn long_command(options: &SimulatorOptions) -> bool {
    const SEEDS: u64 = 50;
    let random =
        SimulatorOptions { operations: 1_000_000 / SEEDS, crashes: 10_000 / SEEDS, ..options.clone() };
    let short = SimulatorOptions { faults: true, programs: 1000, ..options.clone() };
    seeds_command(&random, SEEDS) && exhaust_command(&short, 2) && exhaust_command(&short, 3)
}

fn exhaust_command(options: &SimulatorOptions, length: u8) -> bool {
    let SimulatorOptions { seed, programs, faults, .. } = options;
    let outcome = exhaustive::exhaust(options, usize::from(length), *programs);
    match &outcome {
        Ok(tried) => println!(
            "{} programs of up to {length} operations, {} crashes, {} device errors: no promise broken",
            tried.programs, tried.crashes, tried.errors
        ),
        Err(failure) => {
            println!("FAILED: {}", failure.what);
            let faults = if *faults { " --faults" } else { "" };
            println!("repeat with: cargo sim --exhaust {length} --programs {programs} --seed {seed}{faults}");
        }
    }
    outcome.is_ok()
}

fn print_summary(options: &SimulatorOptions, summary: &RunSummary) {
    let RunSummary { counts, hash, seconds } = summary;
    println!(
        "seed {}: {} operations, {} crashes, {} clean stops, {} looks at complete stores in {seconds:.1} s ({:.0} operations/s); hash {hash:016x}",
        options.seed,
        counts.operations,
        counts.crashes(),
        counts.clean_stops,
        counts.complete,
        counts.operations as f64 / seconds
    );
    let phases: Vec<String> =
        counts.crashes.iter().map(|(phase, times)| format!("{phase}: {times}")).collect();
    println!("  crashes by phase: {}", phases.join("; "));
    let volumes = &counts.volumes;
    println!(
        "  copies of volumes: {}; {} changes meanwhile; volumes created: {}; found after crashes: {}; renamed: {}; \
         deleted: {}; mounted: {}; unmounted: {}; crashes of several mounted ones: {}; looked at: {}; block volumes \
         created: {}, resized: {}; changes of block volumes: {}",
        volumes.copies,
        volumes.meanwhile,
        volumes.creations,
        volumes.found,
        volumes.renamings,
        volumes.deletions,
        volumes.mounts,
        volumes.unmounts,
        volumes.crashes_of_several,
        volumes.looks,
        volumes.block_creations,
        volumes.resizes,
        counts.block_changes
    );
    println!(
        "  in batches: ranges cloned or moved: {}; cloned from another volume: {}; found equal: {}",
        counts.batch_transfers, counts.clones_between, counts.batch_comparisons
    );
    println!(
        "  buffers replaced: {}; stores grown: {}; volumes rescued and looked at: {}; changes refused midway: {}",
        counts.replaced, counts.growths, counts.rescued, counts.refused
    );
    println!(
        "  completed changes lost to crashes, none of them synced: {}; refused for space: {}; device errors: {}, \
         told to clients: {}",
        counts.changes_lost, counts.no_space, counts.errors_made_up, counts.errors_told
    );
}

fn print_failure(options: &SimulatorOptions, failure: &RunFailure) {
    let RunFailure { what, operations, hash } = failure;
    println!("seed {}: FAILED after {operations} operations; hash {hash:016x}", options.seed);
    println!("{what}");
    println!("repeat with: {}", repeat_line(options));
}
