//! The choices of the user of `weir top`, and the keys that change them.

use super::model::WatchedMounts;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::path::{Path, PathBuf};

/// The keys and what they do, as the help shows them.
pub(crate) const KEYS: [(&str, &str); 5] = [
    ("up, down, k, j", "choose a mount"),
    ("Home, End", "choose the first or the last mount"),
    ("p", "pause: the screen stays, and weir goes on measuring"),
    ("?", "show or hide this help"),
    ("q, Esc, ^C", "quit"),
];

/// The choices of the user.
#[derive(Debug, Clone, Default)]
pub(crate) struct TopView {
    /// The directory of the chosen mount; `None` for the first one.
    chosen: Option<PathBuf>,
    pub(crate) is_helping: bool,
    pub(crate) is_paused: bool,
}

/// The effect of a key on the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOutcome {
    GoOn,
    Quit,
}

impl TopView {
    /// The number of the chosen mount. The first one is chosen if the chosen one is forgotten.
    pub(crate) fn chosen_number(&self, mounts: &WatchedMounts) -> usize {
        let is_chosen = |dir: &Path| Some(dir) == self.chosen.as_deref();
        mounts.dirs().position(is_chosen).unwrap_or(0)
    }

    /// The directory of the chosen mount; `None` if there is none.
    pub(crate) fn chosen_dir<'a>(&self, mounts: &'a WatchedMounts) -> Option<&'a Path> {
        mounts.dirs().nth(self.chosen_number(mounts))
    }

    /// Changes the choices by a key.
    pub(crate) fn press(&mut self, key: KeyEvent, mounts: &WatchedMounts) -> KeyOutcome {
        if key.kind == KeyEventKind::Release {
            return KeyOutcome::GoOn;
        }
        let number = self.chosen_number(mounts);
        let last = mounts.dirs().count().saturating_sub(1);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return KeyOutcome::Quit,
            KeyCode::Esc if self.is_helping => self.is_helping = false,
            KeyCode::Char('q') | KeyCode::Esc => return KeyOutcome::Quit,
            KeyCode::Char('?') => self.is_helping = !self.is_helping,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.choose(number.saturating_sub(1), mounts),
            KeyCode::Down | KeyCode::Char('j') => self.choose(last.min(number + 1), mounts),
            KeyCode::Home => self.choose(0, mounts),
            KeyCode::End => self.choose(last, mounts),
            _ => {}
        }
        KeyOutcome::GoOn
    }

    fn choose(&mut self, number: usize, mounts: &WatchedMounts) {
        self.chosen = mounts.dirs().nth(number).map(Path::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn mounts(dirs: &[&str]) -> WatchedMounts {
        let mut mounts = WatchedMounts::new(Duration::from_secs(1));
        let mounted: BTreeMap<_, _> = dirs.iter().map(|dir| (dir.into(), "/store".into())).collect();
        mounts.begin_round(1, mounted);
        mounts
    }

    #[test]
    fn arrows_stay_within_the_list() {
        let mounts = mounts(&["/a", "/b", "/c"]);
        let mut view = TopView::default();
        let mut chosen_after = |code: KeyCode| {
            assert_eq!(view.press(code.into(), &mounts), KeyOutcome::GoOn);
            view.chosen_dir(&mounts).and_then(Path::to_str).expect("a mount")
        };
        let keys =
            [KeyCode::Up, KeyCode::Down, KeyCode::Char('j'), KeyCode::Down, KeyCode::Home, KeyCode::End];
        assert_eq!(keys.map(&mut chosen_after), ["/a", "/b", "/c", "/c", "/a", "/c"]);
    }

    #[test]
    fn the_chosen_mount_stays_chosen_when_others_come() {
        let mut view = TopView::default();
        view.press(KeyCode::End.into(), &mounts(&["/a", "/b"]));
        assert_eq!(view.chosen_dir(&mounts(&["/a", "/aa", "/b"])), Some(Path::new("/b")));
        assert_eq!(view.chosen_dir(&mounts(&["/a"])), Some(Path::new("/a")));
        assert_eq!(view.chosen_dir(&mounts(&[])), None);
        assert_eq!(view.press(KeyCode::Down.into(), &mounts(&[])), KeyOutcome::GoOn);
    }

    #[test]
    fn help_hides_before_the_program_ends() {
        let mounts = mounts(&[]);
        let mut view = TopView::default();
        view.press(KeyCode::Char('?').into(), &mounts);
        assert!(view.is_helping);
        assert_eq!(view.press(KeyCode::Esc.into(), &mounts), KeyOutcome::GoOn);
        assert!(!view.is_helping);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for key in [KeyCode::Esc.into(), KeyCode::Char('q').into(), interrupt] {
            assert_eq!(view.press(key, &mounts), KeyOutcome::Quit);
        }
        assert_eq!(view.press(KeyCode::Char('c').into(), &mounts), KeyOutcome::GoOn);
    }
}
