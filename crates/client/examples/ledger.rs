//! A ledger that needs no journal: each payment changes three pages of two files, all of them or none.
//!
//! A program that changes pages in place writes them into a journal first, and repeats or takes back what a crash has cut off.
//! This one sends each payment as one vector, and has nothing to do after a crash but to go on.
//!
//! ```console
//! $ cargo run -p weir-client --example ledger pay /mnt/db 1000
//! $ cargo run -p weir-client --example ledger check /mnt/db
//! ```

use client::{ControlClient, RangeVector, WeirMount};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Accounts, each of which has a page of its own.
const ACCOUNTS: u64 = 64;
const PAGE: u64 = 4096;
/// The balance with which each account begins.
const BEGIN: u64 = 1_000_000;

/// The files of a ledger, and the daemon of their mount.
pub(crate) struct Ledger {
    accounts: File,
    /// The number of the last payment.
    last: File,
    daemon: ControlClient,
}

/// What an account's page says.
struct Account {
    balance: u64,
    /// The payment that changed the balance last.
    payment: u64,
}

impl Ledger {
    /// Opens the ledger in a directory of a mount, and makes it if there is none.
    pub(crate) fn open(dir: &Path) -> Result<Ledger, Box<dyn Error>> {
        let open = |name| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(name))
        };
        let (accounts, last) = (open("accounts")?, open("last")?);
        let daemon = WeirMount::of_file(&last)?.connect()?;
        let ledger = Ledger { accounts, last, daemon };
        if ledger.last.metadata()?.len() == 0 {
            // A vector makes no file larger, so the files are made in the usual way: a ledger without `last` is made anew.
            ledger.accounts.write_all_at(&page(BEGIN, 0).repeat(ACCOUNTS as usize), 0)?;
            ledger.accounts.sync_all()?;
            ledger.last.write_all_at(&0_u64.to_le_bytes(), 0)?;
            ledger.last.sync_all()?;
            File::open(dir)?.sync_all()?;
        }
        Ok(ledger)
    }

    /// Pays from one account to another, and returns the number of the payment, which is durable.
    pub(crate) fn pay(&mut self, from: u64, to: u64, amount: u64) -> Result<u64, Box<dyn Error>> {
        let payment = self.last_payment()? + 1;
        let payer = self.account(from)?;
        let payee = self.account(to)?;
        let rest = payer.balance.checked_sub(amount).ok_or("the account has less")?;
        let mut vector = RangeVector::new();
        vector
            .write(&self.accounts, from * PAGE, &page(rest, payment))
            .write(&self.accounts, to * PAGE, &page(payee.balance + amount, payment))
            .write(&self.last, 0, &payment.to_le_bytes());
        self.daemon.change_ranges(&vector)?;
        Ok(payment)
    }

    /// Checks that no payment was made in part. Returns the number of the last one.
    pub(crate) fn check(&self) -> Result<u64, Box<dyn Error>> {
        let last = self.last_payment()?;
        let (mut sum, mut of_last) = (0, 0);
        for number in 0..ACCOUNTS {
            let Account { balance, payment } = self.account(number)?;
            if payment > last {
                return Err(
                    format!("account {number} has payment {payment}, and the last one is {last}").into()
                );
            }
            sum += balance;
            of_last += u64::from(payment == last);
        }
        if sum != ACCOUNTS * BEGIN {
            return Err(format!("all balances together are {sum}").into());
        }
        if last > 0 && of_last != 2 {
            return Err(format!("payment {last} is in {of_last} accounts").into());
        }
        Ok(last)
    }

    /// Pays between accounts in turn.
    pub(crate) fn pay_next(&mut self) -> Result<u64, Box<dyn Error>> {
        let payment = self.last_payment()?;
        let from = payment * 7 % ACCOUNTS;
        let to = (from + 1 + payment % (ACCOUNTS - 1)) % ACCOUNTS;
        self.pay(from, to, 1 + payment % 10)
    }

    fn last_payment(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.last.read_exact_at(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn account(&self, number: u64) -> io::Result<Account> {
        let mut bytes = [0; 16];
        self.accounts.read_exact_at(&mut bytes, number * PAGE)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Ok(Account { balance: word(0), payment: word(8) })
    }
}

/// The page of an account.
fn page(balance: u64, payment: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    page[..8].copy_from_slice(&balance.to_le_bytes());
    page[8..16].copy_from_slice(&payment.to_le_bytes());
    page
}

#[allow(dead_code, reason = "a test uses the ledger without it")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pay", dir, count] => {
            let mut ledger = Ledger::open(Path::new(dir))?;
            for _ in 0..count.parse()? {
                println!("payment {} is durable", ledger.pay_next()?);
            }
        }
        ["check", dir] => {
            println!("{} payments, none of them in part", Ledger::open(Path::new(dir))?.check()?)
        }
        _ => return Err("ledger pay DIR COUNT, or ledger check DIR".into()),
    }
    Ok(())
}
