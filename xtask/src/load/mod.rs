//! `cargo xtask load`: eight clients on a mount, and whether memory, descriptors and latency stay flat meanwhile.
//! `scripts/load-clients` is what they do; `table.rs` is what is judged.
mod sample;
mod table;

use sample::Sample;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long, and with what.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How long the clients run, all slices together.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// The clients stop after so many minutes and start again; the mount and the database's server stay.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    slice_minutes: u64,
    /// Starts each slice, its command line appended: `nice`, or something that waits for a machine to be free.
    #[arg(long)]
    through: Option<PathBuf>,
    /// `--memory` of the mount, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    memory: u64,
    /// The daemon that is measured, instead of a release build of this checkout.
    #[arg(long)]
    weir: Option<PathBuf>,
    /// Where all samples go, a line of JSON each.
    #[arg(long)]
    samples: Option<PathBuf>,
}

/// What the daemon may hold beside what it was told to: code, stacks, the metadata of some ten thousand files, buffers
/// of requests, and what the allocator keeps.
const MEMORY_BESIDE_BYTES: u64 = 128 << 20;

/// Between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// How long a mount, or its end with everything written back, may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs the load and prints its table; `false` if something failed or did not stay flat.
pub(crate) fn command(options: &Options) -> bool {
    match run(options) {
        Ok(flat) => flat,
        Err(error) => {
            eprintln!("error: {error}");
            false
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    // On a disk, which /tmp is not everywhere.
    let parent = std::env::var_os("TMPDIR").unwrap_or("/var/tmp".into());
    let work = tempfile::Builder::new().prefix("weir-load-").tempdir_in(parent)?;
    // PostgreSQL's user must get in.
    fs::set_permissions(work.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let weir = options.weir.clone().map_or_else(build, Ok)?;
    let mut load = Load { options, weir, work: work.path(), daemon: None, samples: Vec::new(), stopped };
    load.mount()?;
    let ran = load.clients("prepare", 0).and_then(|()| load.slices());
    let finished = load.clients("finish", 0);
    ran?;
    finished?;
    load.unmount_and_check()?;
    let quarters = table::quarters(&load.samples).ok_or("too few samples for four quarters")?;
    let (lines, findings) = table::judge(&quarters, options.memory << 20, MEMORY_BESIDE_BYTES);
    println!(
        "{} minutes of load, --memory {} MiB, {} samples",
        options.minutes,
        options.memory,
        load.samples.len()
    );
    lines.iter().for_each(|line| println!("{line}"));
    findings.iter().for_each(|finding| println!("NOT FLAT: {finding}"));
    Ok(findings.is_empty())
}

/// Builds what is measured as users run it.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    succeeds(Command::new(cargo).args(["build", "--release", "--package", "weir"]))?;
    // We lie in a profile's directory of the same target directory.
    let profile = std::env::current_exe()?.parent().ok_or("a program lies in a directory")?.to_path_buf();
    Ok(profile.with_file_name("release").join("weir"))
}

struct Load<'a> {
    options: &'a Options,
    weir: PathBuf,
    work: &'a Path,
    daemon: Option<Child>,
    samples: Vec<Sample>,
    stopped: Arc<AtomicBool>,
}

impl Load<'_> {
    fn weir(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.weir);
        command.args(arguments);
        command
    }

    fn mount_point(&self) -> PathBuf {
        self.work.join("mnt")
    }

    fn mount(&mut self) -> Result<()> {
        let media = self.work.join("media");
        fs::create_dir(self.mount_point())?;
        succeeds(self.weir(&["format", "--size", "8GiB", "--buffer-size", "256MiB"]).arg(&media))?;
        let memory = format!("{}MiB", self.options.memory);
        let mut mount = self.weir(&["mount", "--foreground", "--allow-other", "--memory", &memory]);
        let log = fs::File::create(self.work.join("daemon.log"))?;
        self.daemon =
            Some(mount.args([&media, &self.mount_point()]).stdout(Stdio::null()).stderr(log).spawn()?);
        let begin = Instant::now();
        while sample::take(&self.weir, &self.mount_point()).is_err() {
            if begin.elapsed() > PATIENCE {
                return Err("the mount is not ready".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn unmount_and_check(&mut self) -> Result<()> {
        succeeds(self.weir(&["unmount"]).arg(self.mount_point()))?;
        let ended = self.daemon.take().ok_or("it is mounted")?.wait()?;
        if !ended.success() {
            return Err(format!("the daemon ended with {ended}").into());
        }
        succeeds(self.weir(&["check"]).arg(self.work.join("media")))
    }

    fn script(&self, step: &str, seconds: u64) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/load-clients");
        let mut command = match &self.options.through {
            Some(through) if step == "run" => {
                let mut command = Command::new(through);
                command.arg(script);
                command
            }
            _ => Command::new(script),
        };
        command.arg(step).arg(self.work).arg(seconds.to_string());
        command
    }

    fn clients(&self, step: &str, seconds: u64) -> Result<()> {
        succeeds(&mut self.script(step, seconds))
    }

    /// Slice after slice, with a sample every few seconds while the clients run.
    fn slices(&mut self) -> Result<()> {
        let mut left = self.options.minutes;
        while left > 0 {
            let minutes = left.min(self.options.slice_minutes);
            left -= minutes;
            let mut clients = self.script("run", minutes * 60).spawn()?;
            let ended = loop {
                if let Some(ended) = clients.try_wait()? {
                    break ended;
                }
                if self.stopped.load(Ordering::Relaxed) {
                    succeeds(Command::new("kill").arg(clients.id().to_string()))?;
                    clients.wait()?;
                    return Err("stopped".into());
                }
                self.sample()?;
                std::thread::sleep(SAMPLE_EVERY);
            };
            if !ended.success() {
                return Err(format!("the clients ended with {ended}").into());
            }
            eprintln!(
                "{left} minutes left; {}",
                self.samples.last().map(Sample::summary).unwrap_or_default()
            );
        }
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        // Not while the slice waits for its turn.
        if !self.work.join("running").exists() {
            return Ok(());
        }
        let (sample, line) = sample::take(&self.weir, &self.mount_point())?;
        self.samples.push(sample);
        if let Some(path) = &self.options.samples {
            let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
            std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes())?;
        }
        Ok(())
    }
}

impl Drop for Load<'_> {
    /// Only after a failure: who succeeds has unmounted.
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
            let _ = Command::new("umount").arg("-l").arg(self.mount_point()).status();
            // A server that lost its disk ends when it is told to.
            let server =
                fs::read_to_string(self.work.join("postgres/.s.PGSQL.5432.lock")).unwrap_or_default();
            if let Some(pid) = server.lines().next() {
                let _ = Command::new("kill").args(["-QUIT", pid]).status();
            }
        }
    }
}

fn succeeds(command: &mut Command) -> Result<()> {
    let ended = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if ended.success() { Ok(()) } else { Err(format!("{command:?} ended with {ended}").into()) }
}
