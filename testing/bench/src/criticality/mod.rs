//! `weir-bench criticality`: how long a client waits beside others for which nobody waits, under each policy.
//!
//! One store is mounted with one policy after the other, in several rounds.
//!
//! | file | contents |
//! | --- | --- |
//! | `policies` | the policies, and the mounts |
//! | `clients` | threads that repeat a call side by side |
//! | `conflict` | a critical and a background client that need the same lock |

mod clients;
mod conflict;
mod policies;

use clap::{Args, ValueEnum};

use super::cleanup;
use super::device_model::DeviceKind;
use super::error::BenchError;
use super::program::check_machine;
use super::report::{BenchReport, ReportTable};
use super::run_args::RunSize;
use super::slow_device::work_directory;
use super::workload::PAGE_BYTES;
use conflict::ConflictRounds;
use policies::PolicyStore;

/// Options of `weir-bench criticality`.
#[derive(Debug, Args)]
pub(super) struct CriticalityArgs {
    /// Scale: `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    size: RunSize,
    /// What the clients do
    #[arg(long, value_enum, default_value_t = CriticalityLoad::Lock)]
    load: CriticalityLoad,
    /// The modelled device of the store; the buffer is a file below the temporary directory
    #[arg(long, value_enum, default_value_t = DeviceKind::Hdd)]
    model: DeviceKind,
    /// Size of the buffer, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    buffer: u64,
    /// The policies, in the order of their turns; `none` is a mount without one
    #[arg(long, value_delimiter = ',', default_value = policies::POLICIES)]
    policies: Vec<String>,
    /// Seconds of each turn [default: 20, or 1 with `small`]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Turns of each policy [default: 3, or 1 with `small`]
    #[arg(long)]
    rounds: Option<u32>,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// The load of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CriticalityLoad {
    /// One overwrites a file at full speed and fsyncs it, a critical one writes 8 KiB to the file every 2 ms
    Lock,
}

impl CriticalityLoad {
    fn text(self) -> &'static str {
        match self {
            CriticalityLoad::Lock => {
                "a critical client writes 8 KiB at random 2 ms after its last answer, beside one that does so at full speed and \
                 fsyncs after 512 writes, in the same file"
            }
        }
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &CriticalityArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let (seconds, rounds, file_bytes) = match args.size {
        RunSize::Small => (args.seconds.unwrap_or(1), args.rounds.unwrap_or(1), 16 << 20),
        RunSize::Real => (args.seconds.unwrap_or(20), args.rounds.unwrap_or(3), 256 << 20),
    };
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        args.policies.iter().map(String::as_str).partition(|policy| policies::is_known(policy));
    let mut report = BenchReport::new("criticality");
    report.line(args.load.text());
    report.line(format!(
        "store: {} ({}) · buffer {} MiB, a file on this machine's disk · {rounds} rounds of {seconds} s",
        args.model.name(),
        args.model.text(),
        args.buffer
    ));
    for policy in &unknown {
        report.line(format!("left out, because this weir does not know it: --policy {policy}"));
    }
    report.fact("model", args.model);
    report.fact("buffer_mib", args.buffer);
    report.fact("seconds", seconds);
    report.fact("left_out", unknown);

    let (root, _files) = work_directory(None)?;
    let device = (args.model, (8 * file_bytes).max(512 << 20));
    let mut store =
        PolicyStore::set_up(device, args.buffer << 20, file_bytes / PAGE_BYTES, clients::RULES, &root)?;
    let mut figures: Vec<_> = known.iter().map(|policy| (*policy, ConflictRounds::default())).collect();
    for round in 0..rounds {
        for (policy, rounds) in &mut figures {
            eprintln!("round {}: {policy}", round + 1);
            let mounted = store.mount(policy)?;
            match args.load {
                CriticalityLoad::Lock => conflict::write_one_file(&mounted.file, seconds, rounds)?,
            }
        }
    }
    let mut table = ReportTable::default();
    figures.iter().for_each(|(policy, rounds)| rounds.add_row(policy, &mut table));
    report.table("rows", &table);
    report.print(args.json);
    Ok(())
}
