//! `weir scrub`: asks the daemon to scrub a few blocks at a time, and keeps the rate below `--rate`.
//!
//! The daemon reads only while it has a request. So it stops as soon as this process ends, in whatever way.

use crate::byte_size::ByteSize;
use crate::cli::ScrubArgs;
use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use client::{ClientError, ControlClient, WeirMount};
use device::BLOCK_BYTES;
use progress::{LongWork, OnInterrupt, WorkAmount, WorkUnit};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The slowest `--rate`: a terabyte takes eleven days.
const RATE_MIN: ByteSize = ByteSize(1 << 20);

/// The result of a scrub so far.
#[derive(Default)]
struct ScrubResult {
    /// The daemon's last reply.
    reply: Value,
    findings: Vec<Value>,
}

impl ScrubResult {
    fn bytes(&self) -> u64 {
        number(&self.reply, "blocks") * BLOCK_BYTES as u64
    }

    fn amount(&self) -> WorkAmount {
        let total = number(&self.reply, "of_blocks") * BLOCK_BYTES as u64;
        WorkAmount {
            unit: WorkUnit::Bytes,
            done: self.bytes(),
            total: Some(total).filter(|&total| total > 0),
        }
    }
}

fn lock(result: &Mutex<ScrubResult>) -> MutexGuard<'_, ScrubResult> {
    result.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn run(args: &ScrubArgs) -> Result<ExitCode, WeirError> {
    if args.rate < RATE_MIN {
        let why = format!("less than {RATE_MIN} a second");
        return Err(WeirError::Size { option: "--rate", size: args.rate, why });
    }
    let mut client = WeirMount::at(&args.dir)?.connect()?;
    let result = Arc::new(Mutex::new(ScrubResult::default()));
    let work = show_progress(args, &result);
    let read = read_everything(args, &mut client, &result);
    drop(work);
    let result = lock(&result);
    if let Err(error) = read {
        if !args.json {
            print_findings(&result.findings);
        }
        return Err(error.into());
    }
    let ScrubResult { reply, findings } = &*result;
    if args.json {
        let read = json!({
            "blocks": reply["blocks"],
            "of_blocks": reply["of_blocks"],
            "damaged": reply["damaged"],
            "healed": reply["healed"],
        });
        let report = json!({ "read": read, "findings": findings });
        println!("{:#}", JsonSchema::SCRUB.add_to(report))
    } else {
        print(reply, findings)
    }
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

/// Scrubs the store, and notes what is found.
fn read_everything(
    args: &ScrubArgs,
    client: &mut ControlClient,
    result: &Mutex<ScrubResult>,
) -> Result<(), ClientError> {
    let begun = Instant::now();
    let mut reply = client.request("scrub_begin")?;
    loop {
        let request = json!({ "operation": "scrub", "scrub": reply["scrub"] });
        let (done, bytes) = {
            let mut result = lock(result);
            result.findings.extend(reply["findings"].as_array().into_iter().flatten().cloned());
            result.reply = reply;
            (result.reply["done"] == true, result.bytes())
        };
        if done {
            return Ok(());
        }
        let due = Duration::from_secs_f64(bytes as f64 / args.rate.0 as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        reply = client.ask(&request)?;
    }
}

/// Shows the progress of a scrub, and answers Ctrl-C: the process may end at any moment.
fn show_progress(args: &ScrubArgs, result: &Arc<Mutex<ScrubResult>>) -> LongWork {
    let of_amount = result.clone();
    let of_interrupt = result.clone();
    let json = args.json;
    let interrupted = move |amount: &WorkAmount| {
        let result = lock(&of_interrupt);
        if !json {
            print_findings(&result.findings);
        }
        let damage = match number(&result.reply, "damaged") {
            0 => "no damage so far; the scrub changed nothing".to_owned(),
            damaged => {
                let healed = number(&result.reply, "healed");
                format!(
                    "{damaged} damaged so far, {healed} of them repaired; the end of a scrub names damaged files"
                )
            }
        };
        format!("{amount} were read, {damage}. Run it again: a scrub begins anew")
    };
    LongWork::start(
        format!("scrubbing {}", args.dir.display()),
        move || lock(&of_amount).amount(),
        OnInterrupt::Exit(Box::new(interrupted)),
    )
}

fn print(reply: &Value, findings: &[Value]) {
    let mebibytes = (number(reply, "blocks") * BLOCK_BYTES as u64) >> 20;
    print_findings(findings);
    println!("{mebibytes} MiB read: {} damaged, {} of them repaired", reply["damaged"], reply["healed"]);
}

fn print_findings(findings: &[Value]) {
    findings.iter().for_each(|what| println!("FOUND  {}", what.as_str().unwrap_or_default()));
}

fn number(reply: &Value, name: &str) -> u64 {
    reply[name].as_u64().unwrap_or(0)
}
