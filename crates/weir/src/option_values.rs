//! The words that options take for values whose types other crates define.

use cache::FetchMode;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use fuse::KernelCachePolicy;
use store::DataMode;

/// A value, its word, and its help.
pub(crate) type OptionValue<T> = (T, &'static str, &'static str);

/// Values of `--fetch`.
pub(crate) const FETCH_MODES: &[OptionValue<FetchMode>] = &[
    (
        FetchMode::Adaptive,
        "adaptive",
        "After the write, in files whose readers lately had to wait for a page that was just written; in other files when a \
         program reads the page",
    ),
    (FetchMode::Lazy, "lazy", "When a program reads the page"),
    (FetchMode::Background, "background", "After the write, which does not wait"),
    (
        FetchMode::Blocking,
        "blocking",
        "Before the write, which waits, as in other file systems: the baseline for comparisons",
    ),
];

/// Values of `--data`, with the words that the store keeps.
pub(crate) const DATA_MODES: &[OptionValue<DataMode>] = &[
    (
        DataMode::Ordered,
        DataMode::Ordered.name(),
        "Large sequential writes bypass the buffer. A crash leaves each of their pages that you did not sync old or new; all \
         other changes keep their order",
    ),
    (
        DataMode::Journal,
        DataMode::Journal.name(),
        "All data goes through the buffer. A crash never reorders anything; large sequential writes are written twice",
    ),
];

/// Values of `--kernel-cache`.
pub(crate) const KERNEL_CACHE_POLICIES: &[OptionValue<KernelCachePolicy>] =
    &[(KernelCachePolicy::Full, "full", ""), (KernelCachePolicy::None, "none", "")];

/// The word for a value.
pub(crate) fn word_of<T: PartialEq>(values: &[OptionValue<T>], value: &T) -> &'static str {
    values.iter().find(|(one, ..)| one == value).expect("every value has a word").1
}

/// Takes one of `values` by its word.
pub(crate) fn one_of<T>(values: &'static [OptionValue<T>]) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    let described = values.iter().map(|(_, word, help)| {
        let value = PossibleValue::new(*word);
        if help.is_empty() { value } else { value.help(*help) }
    });
    let value_of = |word: String| {
        let (value, ..) = values.iter().find(|(_, one, _)| *one == word).expect("clap knows the words");
        value.clone()
    };
    PossibleValuesParser::new(described).map(value_of)
}
