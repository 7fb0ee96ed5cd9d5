//! `weir check`: looks at everything that the formats promise, and changes nothing.

use crate::cli::CheckArgs;
use crate::error::WeirError;
use crate::media::Media;
use buffer::Buffer;
use host::Access;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use store::Store;

/// What was looked at, and what was found.
#[derive(Default)]
struct Findings {
    checked: Vec<String>,
    found: Vec<String>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, WeirError> {
    let findings = check(args).map_err(|error| WeirError::CannotCheck { source: Box::new(error) })?;
    let code = if findings.found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    match args.json {
        true => println!("{:#}", json!({ "checked": findings.checked, "findings": findings.found })),
        false => print(&findings),
    }
    Ok(code)
}

fn print(findings: &Findings) {
    findings.checked.iter().for_each(|what| println!("checked {what}"));
    findings.found.iter().for_each(|what| println!("FOUND   {what}"));
    match findings.found.len() {
        0 => println!("clean"),
        count => {
            println!("{count} finding(s); restore the media from a copy, or copy what can still be read")
        }
    }
}

fn check(args: &CheckArgs) -> Result<Findings, WeirError> {
    let media = Media::find(&args.path, args.buffer.as_deref())?;
    let (store_disk, buffer_disk) = media.open(Access::Read)?;
    let mut findings = Findings::default();
    let store = match Store::open(Arc::new(store_disk)) {
        Ok(store) => store,
        Err(error) => {
            findings.found.push(error.to_string());
            return Ok(findings);
        }
    };
    findings.checked.push("the store's superblock, roots and map".into());
    let (mut transactions, mut records) = (0u64, 0u64);
    let opened = Buffer::open(Arc::new(buffer_disk), store.id(), &mut |replayed| {
        transactions += 1;
        records += replayed.records.len() as u64;
    });
    match opened {
        Ok(_) => findings.checked.push(format!(
            "the buffer: {transactions} transactions with {records} records, all of this store, wait for the next mount"
        )),
        Err(error) => findings.found.push(error.to_string()),
    }
    Ok(findings)
}
