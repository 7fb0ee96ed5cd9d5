//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// Units by their first letter, each 1024 times the one before.
const UNITS: [(&str, u32); 6] = [("B", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

impl FromStr for Size {
    type Err = String;

    /// `4096`, `512K`, `256MiB`, `8g`: units are powers of 1024, whatever their spelling.
    fn from_str(text: &str) -> Result<Size, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number
            .parse()
            .map_err(|_| "write a whole number with a unit, such as 512MiB or 8GiB".to_string())?;
        let unit = unit.trim().to_ascii_uppercase();
        let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = match letter {
            "" => 0,
            letter => UNITS
                .iter()
                .find(|(name, _)| *name == letter)
                .map(|(_, shift)| *shift)
                .ok_or_else(|| format!("{unit} is not a unit; use KiB, MiB, GiB or TiB"))?,
        };
        number
            .checked_mul(1 << shift)
            .map(Size)
            .ok_or_else(|| "more bytes than 64 bits can count".to_string())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = UNITS.iter().rev();
        let (name, shift) = units.into_iter().find(|(_, shift)| self.0 >> shift != 0).unwrap_or(&UNITS[0]);
        let whole = self.0 >> shift;
        match (name, self.0 == whole << shift) {
            (&"B", _) => write!(f, "{} B", self.0),
            (name, true) => write!(f, "{whole} {name}iB"),
            (name, false) => write!(f, "{:.1} {name}iB", self.0 as f64 / (1u64 << shift) as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_spelling_is_understood() {
        let bytes = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("512k"), Ok(512 << 10));
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        assert_eq!(bytes("8 GB"), Ok(8 << 30));
        assert_eq!(bytes("0"), Ok(0));
        for wrong in ["", "GiB", "-1", "1.5G", "8 parsecs", "99999999999G", "16777216T"] {
            assert!(bytes(wrong).is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        let shown =
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8 GiB"), (u64::MAX, "16384.0 PiB")];
        for (bytes, text) in shown {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
