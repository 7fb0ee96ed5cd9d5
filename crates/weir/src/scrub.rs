//! `weir scrub`: asks the daemon to scrub a few blocks at a time, and keeps the rate below `--rate`.

use crate::byte_size::ByteSize;
use crate::cli::ScrubArgs;
use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use client::WeirMount;
use device::BLOCK_BYTES;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The time between two progress messages.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The slowest `--rate`: a terabyte takes eleven days.
const RATE_MIN: ByteSize = ByteSize(1 << 20);

pub(crate) fn run(args: &ScrubArgs) -> Result<ExitCode, WeirError> {
    if args.rate < RATE_MIN {
        let why = format!("less than {RATE_MIN} a second");
        return Err(WeirError::Size { option: "--rate", size: args.rate, why });
    }
    let mut client = WeirMount::at(&args.dir)?.connect()?;
    let (begun, mut told) = (Instant::now(), Instant::now());
    let mut findings: Vec<Value> = Vec::new();
    let mut reply = client.request("scrub_begin")?;
    loop {
        findings.extend(reply["findings"].as_array().into_iter().flatten().cloned());
        let bytes = number(&reply, "blocks") * BLOCK_BYTES as u64;
        if reply["done"] == true {
            break;
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            let percent = 100 * number(&reply, "blocks") / number(&reply, "of_blocks").max(1);
            tracing::info!(
                "{} MiB read, about {} %, {} damaged",
                bytes >> 20,
                percent.min(99),
                reply["damaged"]
            );
        }
        let due = Duration::from_secs_f64(bytes as f64 / args.rate.0 as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        reply = client.request("scrub")?;
    }
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
        print(&reply, &findings)
    }
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

fn print(reply: &Value, findings: &[Value]) {
    let mebibytes = (number(reply, "blocks") * BLOCK_BYTES as u64) >> 20;
    findings.iter().for_each(|what| println!("FOUND  {}", what.as_str().unwrap_or_default()));
    println!("{mebibytes} MiB read: {} damaged, {} of them repaired", reply["damaged"], reply["healed"]);
}

fn number(reply: &Value, name: &str) -> u64 {
    reply[name].as_u64().unwrap_or(0)
}
