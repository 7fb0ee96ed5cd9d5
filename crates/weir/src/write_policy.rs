//! Which writes bypass the buffer, and for whom: the store's data mode, and the policy of its mounts.

use crate::assigned_classes::AssignedClasses;
use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use crate::lender::{LenderThread, LendingCounters, LendingMount};
use crate::rules;
use cache::{Cache, RuleShare};
use fs::Fs;
use fuse::{BackgroundRequests, FoundTask, RequestClasses};
use request::{BufferPolicy, ClassRule, LendingLevel, RuleSet};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use store::{DataMode, VolumeId};
use weir_status::{LendingReport, RuleShareReport};

/// A policy, and the user's rules, which only the `critical` policies follow.
#[derive(Debug, Clone, Default)]
pub(crate) struct PolicyChoice {
    pub(crate) policy: BufferPolicy,
    pub(crate) rules: RuleSet,
}

impl PolicyChoice {
    /// The choice that options make, if any. Rules alone mean the policy `critical`.
    pub(crate) fn of_options(
        policy: Option<&BufferPolicy>,
        rules_file: Option<&Path>,
    ) -> Result<Option<PolicyChoice>, WeirError> {
        let policy = match (policy, rules_file) {
            (None, None) => return Ok(None),
            (Some(policy), _) => policy.clone(),
            (None, Some(_)) => BufferPolicy::Critical(LendingLevel::None),
        };
        let rules = match rules_file {
            Some(_) if !matches!(policy, BufferPolicy::Critical(_)) => {
                return Err(WeirError::UnusedRules { policy });
            }
            Some(file) => rules::load(file)?,
            None => RuleSet::default(),
        };
        Ok(Some(PolicyChoice { policy, rules }))
    }

    /// The choice in texts: a policy, and the lines of a file of rules.
    pub(crate) fn parse(policy: &str, rules: &str) -> Result<PolicyChoice, String> {
        let policy = policy.parse()?;
        let rules = RuleSet::parse(rules).map_err(|errors| errors[0].to_string())?;
        Ok(PolicyChoice { policy, rules })
    }
}

/// What mounts do under the policy `none`: only streams bypass the buffer.
pub(crate) struct StreamSettings {
    /// Bytes of sequential writes after which a file bypasses the buffer in data mode `ordered`.
    pub(crate) bypass_after: u64,
    /// The most bypassed bytes that a sync logs.
    pub(crate) sync_log_bytes_max: u64,
}

/// Data mode and policy, which all mounts of the store share, and what follows them.
pub(crate) struct WritePolicy {
    cache: Cache,
    assigned_classes: Arc<AssignedClasses>,
    lending: Arc<LendingCounters>,
    streams: StreamSettings,
    /// Held for a whole change, which may wait for devices. Locked before the others, which are never held
    /// together.
    changing: Mutex<()>,
    /// Held for moments.
    in_force: Mutex<PolicyInForce>,
    /// Held while the names of all files are looked at.
    mounts: Mutex<Vec<MountRules>>,
}

/// The rules in force for one mount: those that hold for its files, and for the programs that use it.
struct MountRules {
    volume: VolumeId,
    fs: Fs,
    /// Where the file system is, or will be, mounted.
    dir: PathBuf,
    classes: Arc<RequestClasses>,
    /// Ends the thread that keeps the rules of tasks and files when it is dropped.
    rule_keeper: Option<Sender<()>>,
    lender: Option<LenderThread>,
}

/// What is in force now.
pub(crate) struct PolicyInForce {
    pub(crate) data: DataMode,
    choice: PolicyChoice,
    rules: Arc<RuleSet>,
    rules_since: Instant,
}

impl PolicyInForce {
    /// The policy.
    pub(crate) fn policy(&self) -> &BufferPolicy {
        &self.choice.policy
    }

    /// The policy as reports show it: nothing for `none`.
    pub(crate) fn shown_policy(&self) -> Option<String> {
        Some(self.policy()).filter(|&policy| *policy != BufferPolicy::Streams).map(ToString::to_string)
    }

    /// The rules of the user's file.
    pub(crate) fn user_rules(&self) -> impl Iterator<Item = &ClassRule> {
        self.choice.rules.rules().iter()
    }

    /// Whether the classes of requests count.
    pub(crate) fn follows_classes(&self) -> bool {
        matches!(self.policy(), BufferPolicy::Critical(_))
    }

    /// The rule that decided about a request `age` ago, if the rules are still the same.
    pub(crate) fn rule_since(&self, rule: u8, age: Duration) -> Option<&ClassRule> {
        let rule = self.rules.rules().get(usize::from(rule))?;
        (self.rules_since.elapsed() > age).then_some(rule)
    }

    /// Whether whole pages bypass the buffer wherever they are written.
    fn whole_pages_bypass(&self) -> bool {
        self.policy().whole_pages_bypass_buffer() && !self.logs_everything()
    }

    /// Whether no write bypasses the buffer.
    fn logs_everything(&self) -> bool {
        self.data == DataMode::Journal || *self.policy() == BufferPolicy::All
    }
}

impl WritePolicy {
    /// Puts data mode and policy in force for all mounts of the store.
    pub(crate) fn new(
        cache: Cache,
        streams: StreamSettings,
        data: DataMode,
        choice: PolicyChoice,
    ) -> WritePolicy {
        let in_force = PolicyInForce {
            data,
            choice: PolicyChoice::default(),
            rules: Arc::default(),
            rules_since: Instant::now(),
        };
        let policy = WritePolicy {
            cache,
            assigned_classes: Arc::default(),
            lending: Arc::default(),
            streams,
            changing: Mutex::default(),
            in_force: Mutex::new(in_force),
            mounts: Mutex::default(),
        };
        policy.apply(choice);
        policy
    }

    /// Puts the rules in force for a mount of `volume` that is about to be made on `dir`. Returns them for its
    /// server.
    pub(crate) fn add_mount(&self, volume: VolumeId, fs: Fs, dir: PathBuf) -> Arc<RequestClasses> {
        let _turn = self.begin_change();
        let classes = Arc::<RequestClasses>::default();
        let mut mount =
            MountRules { volume, fs, dir, classes: classes.clone(), rule_keeper: None, lender: None };
        let (rules, level) = {
            let in_force = self.in_force();
            (in_force.rules.clone(), in_force.policy().lending_level())
        };
        self.start_rules(&mut mount, &rules, level);
        self.mounts().push(mount);
        classes
    }

    /// Ends what was begun for the mount of `volume`, which is gone. Another volume may be mounted in its place.
    pub(crate) fn remove_mount(&self, volume: VolumeId) {
        self.mounts().retain(|mount| mount.volume != volume);
    }

    /// The classes of running processes, which outlast a change of the policy.
    pub(crate) fn assigned_classes(&self) -> &AssignedClasses {
        &self.assigned_classes
    }

    /// What was lent.
    pub(crate) fn lending_report(&self) -> LendingReport {
        self.lending.report(&self.cache.waits().waiting)
    }

    /// The policy, and its rules with the threads for which each holds.
    pub(crate) fn rules_in_force(&self) -> Value {
        let counts: Vec<_> = self.mounts().iter().map(|mount| mount.classes.tasks_by_rule()).collect();
        let in_force = self.in_force();
        let beyond_share = in_force.rules.beyond_share();
        let rule = |(index, rule): (usize, &ClassRule)| {
            json!({
                "rule": rule.to_string(),
                "threads": counts.iter().map(|threads| threads[index]).sum::<u64>(),
                "is_beyond_share": beyond_share.contains(index),
            })
        };
        let rules: Vec<Value> = in_force.rules.rules().iter().enumerate().map(rule).collect();
        JsonSchema::RULES.add_to(json!({ "policy": in_force.policy().to_string(), "rules": rules }))
    }

    /// The part `rule_shares` of `weir status`.
    pub(crate) fn share_reports(&self) -> Vec<RuleShareReport> {
        self.cache.rule_shares().into_iter().map(share_report).collect()
    }

    /// The data mode, the policy and the rules in force.
    pub(crate) fn in_force(&self) -> MutexGuard<'_, PolicyInForce> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mounts(&self) -> MutexGuard<'_, Vec<MountRules>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the data mode, the policy, or both. If only the policy changes, and whole pages bypass the buffer from now on,
    /// there is nothing to make durable. After an error of `make_durable` nothing has changed.
    pub(crate) fn change<E>(
        &self,
        data: Option<DataMode>,
        choice: Option<PolicyChoice>,
        make_durable: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let _turn = self.begin_change();
        let data_before = self.in_force().data;
        let choice_before = choice.as_ref().map(|_| self.in_force().choice.clone());
        // First of all: a sync covers all bypassed pages only if no write bypasses the buffer any more. Pages bypass it
        // only once the store has recorded that they may.
        if data == Some(DataMode::Journal) {
            self.apply_data(DataMode::Journal);
        }
        if let Some(choice) = choice {
            self.apply(choice);
        }
        if data.is_none() && self.in_force().whole_pages_bypass() {
            return Ok(());
        }
        let made = make_durable();
        if made.is_ok() {
            self.apply_data(data.unwrap_or(data_before));
        } else {
            if let Some(choice) = choice_before {
                self.apply(choice);
            }
            self.apply_data(data_before);
        }
        made
    }

    fn apply_data(&self, data: DataMode) {
        let mut in_force = self.in_force();
        in_force.data = data;
        self.set_cache(&in_force);
    }

    fn apply(&self, choice: PolicyChoice) {
        let rules = Arc::new(choice.policy.rules_in_force(choice.rules.clone()));
        let lending_level = choice.policy.lending_level();
        // Masks of two rule sets must not meet.
        self.mounts().iter_mut().for_each(MountRules::clear);
        {
            let mut in_force = self.in_force();
            in_force.choice = choice;
            in_force.rules = rules.clone();
            in_force.rules_since = Instant::now();
            self.set_cache(&in_force);
        }
        self.cache.set_rules(rules.clone());
        self.mounts().iter_mut().for_each(|mount| self.start_rules(mount, &rules, lending_level));
    }

    /// Puts rules in force for a mount that has none.
    fn start_rules(&self, mount: &mut MountRules, rules: &Arc<RuleSet>, level: LendingLevel) {
        // Looks at every name if rules are about files.
        mount.fs.set_rules(rules.clone());
        if !rules.rules().is_empty() {
            let background = (level != LendingLevel::None).then(Arc::default);
            mount.rule_keeper = self.keep_rules(mount, rules.clone(), background.clone());
            mount.lender = background.and_then(|requests| self.lend(mount, level, requests));
        }
    }

    /// Puts rules in force, and starts the thread that finds those that hold for tasks and renamed files. It
    /// ends when the result is dropped.
    fn keep_rules(
        &self,
        mount: &MountRules,
        rules: Arc<RuleSet>,
        background: Option<Arc<BackgroundRequests>>,
    ) -> Option<Sender<()>> {
        let mut tasks = mount.classes.set_rules(rules.clone(), background);
        let fs = mount.fs.clone();
        let (keeper, stop) = channel();
        let assigned_classes = self.assigned_classes.clone();
        let mut read_task = move |task| {
            let mut found = host::read_task(task)?;
            if let Some(class) = assigned_classes.class_of(task, &found) {
                found.facts.tag = class.name().into();
            }
            Ok(FoundTask { rules: rules.task_mask(&found.facts), start_ticks: found.start_ticks })
        };
        let keep = move || {
            let mut rest = Duration::ZERO;
            while stop.recv_timeout(rest) == Err(RecvTimeoutError::Timeout) {
                rest = tasks.step(&mut read_task);
                while fs.step_rules() {}
            }
        };
        // Without the thread, rules about tasks hold for no task.
        let started = thread::Builder::new().name("rules".into()).spawn(keep);
        let started = started.inspect_err(|error| tracing::warn!("rules about tasks hold for none: {error}"));
        started.is_ok().then_some(keeper)
    }

    fn lend(
        &self,
        mount: &MountRules,
        level: LendingLevel,
        requests: Arc<BackgroundRequests>,
    ) -> Option<LenderThread> {
        let mount = LendingMount {
            cache: Cache::clone(&self.cache),
            fs: mount.fs.clone(),
            classes: mount.classes.clone(),
            dir: mount.dir.clone(),
        };
        LenderThread::start(mount, level, requests, self.lending.clone())
            .inspect_err(|error| tracing::warn!("nothing is lent to background programs: {error}"))
            .ok()
    }

    fn set_cache(&self, in_force: &PolicyInForce) {
        let follows_classes = in_force.policy().whole_pages_bypass_buffer();
        let bypass_after = match follows_classes {
            _ if in_force.logs_everything() => u64::MAX,
            true => 0,
            false => self.streams.bypass_after,
        };
        self.cache.set_bypass_after(bypass_after);
        self.cache.set_follows_classes(follows_classes);
        self.cache.set_sync_log_bytes_max(if follows_classes {
            u64::MAX
        } else {
            self.streams.sync_log_bytes_max
        });
    }
}

impl MountRules {
    /// Puts no rules in force.
    fn clear(&mut self) {
        self.classes.clear();
        self.lender = None;
        self.rule_keeper = None;
    }
}

fn share_report(share: RuleShare) -> RuleShareReport {
    let RuleShare { rule, share_percent, bytes, is_beyond } = share;
    RuleShareReport { rule: rule.to_string(), share_percent, bytes, is_beyond }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_only_for_requests_since_they_are_in_force() {
        let second = Duration::from_secs(1);
        let in_force = PolicyInForce {
            data: DataMode::Ordered,
            choice: PolicyChoice::default(),
            rules: Arc::new(RuleSet::parse("background").expect("a rule")),
            rules_since: Instant::now() - 60 * second,
        };
        assert!(in_force.rule_since(0, 59 * second).is_some());
        assert!(in_force.rule_since(0, 3600 * second).is_none());
        assert!(in_force.rule_since(1, Duration::ZERO).is_none());
    }
}
