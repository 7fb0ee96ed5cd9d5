#![doc = include_str!("../README.md")]

mod files;
mod ledger;
mod pages;
mod random;
mod replay;
mod stream;

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use files::Files;
use ledger::Ledger;
use pages::Pages;

const USAGE: &str = "usage: weir-soak run CLIENT DIRECTORY LEDGER SEED STOP
       weir-soak verify CLIENT DIRECTORY LEDGER SEED SINCE UNTIL
CLIENT is pages, direct, files or stream; SINCE and UNTIL are in seconds since 1970.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match command(&args) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn command(args: &[String]) -> Result<String, String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["run", client, directory, ledger, seed, stop] => {
            let ledger = Ledger::create(Path::new(ledger), Path::new(stop));
            let mut ledger = ledger.map_err(|error| error.to_string())?;
            run(client, Path::new(directory), &mut ledger, number(seed)?)?;
            Ok(format!("{client}: stopped after step {}", ledger.last()))
        }
        ["verify", client, directory, ledger, seed, since, until] => {
            let at = |time| ledger::acknowledged(Path::new(ledger), time).map_err(|error| error.to_string());
            let Some(first) = at(number(since)?)? else {
                return Ok(format!("{client}: nothing was acknowledged by then"));
            };
            let last = at(number(until)?)?.unwrap_or(first);
            let found = verify(client, Path::new(directory), number(seed)?, first..=last)?;
            Ok(format!("{client}: step {first} was acknowledged, {found} is there"))
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number\n{USAGE}"))
}

fn run(client: &str, directory: &Path, ledger: &mut Ledger, seed: u64) -> Result<(), String> {
    let result = match client {
        "pages" => replay::run(&mut Pages::buffered(seed), directory, ledger),
        "direct" => replay::run(&mut Pages::direct(seed), directory, ledger),
        "files" => replay::run(&mut Files::new(seed), directory, ledger),
        "stream" => stream::run(seed, directory, ledger),
        _ => return Err(USAGE.to_owned()),
    };
    result.map_err(|error| format!("{client}, after step {}: {error}", ledger.last()))
}

fn verify(client: &str, directory: &Path, seed: u64, steps: RangeInclusive<u64>) -> Result<u64, String> {
    let found = match client {
        "pages" => replay::verify(&mut Pages::buffered(seed), directory, steps),
        "direct" => replay::verify(&mut Pages::direct(seed), directory, steps),
        "files" => replay::verify(&mut Files::new(seed), directory, steps),
        "stream" => stream::verify(seed, directory, steps),
        _ => return Err(USAGE.to_owned()),
    };
    found.map_err(|error| format!("{client}: {error}"))
}
