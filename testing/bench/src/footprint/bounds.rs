//! Bounds of the operations' footprints.

/// A figure that has a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoundedFigure {
    /// Bytes of the lines of code that were executed, whole lines.
    CodeBytes,
    DataLines,
    Instructions,
    Allocations,
}

impl BoundedFigure {
    pub(super) fn name(self) -> &'static str {
        match self {
            BoundedFigure::CodeBytes => "code B",
            BoundedFigure::DataLines => "data lines",
            BoundedFigure::Instructions => "instructions",
            BoundedFigure::Allocations => "allocations",
        }
    }
}

/// The bounds of one figure of one operation, in a release build.
pub(super) struct FootprintBound {
    pub(super) operation: &'static str,
    pub(super) figure: BoundedFigure,
    /// The figure that it should reach.
    pub(super) target: u64,
    /// The most that it may have: today's figure and a few lines, by which the compiler's layout changes from build to build. Lower it with each change that makes an operation
    /// shorter.
    pub(super) gate: u64,
}

const fn bound(operation: &'static str, figure: BoundedFigure, target: u64, gate: u64) -> FootprintBound {
    FootprintBound { operation, figure, target, gate }
}

/// All bounds: operation, figure, target, gate.
pub(super) const BOUNDS: [FootprintBound; 11] = {
    use BoundedFigure::{Allocations, CodeBytes, DataLines, Instructions};
    [
        bound("fstat", CodeBytes, 2 << 10, 2_560),
        bound("fstat", DataLines, 32, 26),
        bound("look-up", CodeBytes, 3 << 10, 6_144),
        bound("read 512 B", CodeBytes, 3 << 10, 4_032),
        bound("read 4 KiB", CodeBytes, 3 << 10, 4_160),
        bound("overwrite 512 B", CodeBytes, 8 << 10, 11_840),
        bound("overwrite 512 B", DataLines, 100, 131),
        bound("overwrite 512 B", Instructions, 1_500, 2_350),
        bound("create and unlink", CodeBytes, 28 << 10, 57_600),
        bound("create and unlink", Instructions, 15_000, 39_500),
        bound("create and unlink", Allocations, 0, 8),
    ]
};
