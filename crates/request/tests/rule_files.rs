//! The rule files in `rules/`, and the titles, names and paths of the programs that they are for.

use request::RequestClass::{self, Background, Critical};
use request::{RuleSet, TaskFacts};
use std::fs;
use std::path::{Path, PathBuf};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rules")
}

fn load(name: &str) -> RuleSet {
    let text = fs::read_to_string(directory().join(name)).expect("a rule file");
    RuleSet::parse(&text).unwrap_or_else(|errors| panic!("{name}: {errors:?}"))
}

#[track_caller]
fn assert_class(rules: &RuleSet, facts: &TaskFacts, path: &str, class: RequestClass) {
    let decision = rules.decide(rules.task_mask(facts), rules.file_mask(path.as_bytes()));
    assert_eq!(decision.class, class, "{facts:?}, {path}: {decision:?}");
}

fn titled(title: &str) -> TaskFacts {
    TaskFacts { title: title.into(), ..TaskFacts::default() }
}

fn named(thread: &str) -> TaskFacts {
    TaskFacts { thread: thread.into(), ..TaskFacts::default() }
}

#[test]
fn every_rule_of_every_file_can_decide() {
    let files = fs::read_dir(directory()).expect("rules").map(|entry| entry.expect("an entry").file_name());
    let names: Vec<String> = files.map(|name| name.into_string().expect("a name")).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    for name in names {
        assert_eq!(load(&name).covered_rules(), [], "{name}");
    }
}

#[test]
fn postgresql_processes_are_told_apart() {
    let rules = load("postgresql.rules");
    let table = "/data/base/5/16384";
    let background = ["checkpointer", "background writer", "autovacuum worker postgres"];
    let critical = [
        "walwriter",
        "autovacuum launcher",
        "checkpointer app 10.0.0.7(40112) UPDATE",
        "app app 10.0.0.7(40112) UPDATE",
        "app app [local] idle in transaction",
        "walsender replica 10.0.0.8(40113) streaming 0/20000D8",
    ];
    for cluster in ["", "15/main: "] {
        let task = |title: &str| titled(&format!("postgres: {cluster}{title}"));
        background.iter().for_each(|title| assert_class(&rules, &task(title), table, Background));
        critical.iter().for_each(|title| assert_class(&rules, &task(title), table, Critical));
        let wal = "/data/pg_wal/000000010000000000000001";
        assert_class(&rules, &task("checkpointer"), wal, Critical);
        let backup = "walsender replica 10.0.0.8(40113) sending backup \"pg_basebackup base backup\"";
        assert_class(&rules, &task(backup), table, Background);
    }
    assert_class(&rules, &titled("/usr/lib/postgresql/15/bin/postgres -D /data"), table, Critical);
}

#[test]
fn redis_children_are_background() {
    let rules = load("redis.rules");
    let snapshot = "/redis/temp-30236.rdb";
    let rewritten = "/redis/temp-rewriteaof-30236.aof";
    assert_class(&rules, &titled("redis-rdb-bgsave 127.0.0.1:6379"), snapshot, Background);
    assert_class(&rules, &titled("redis-aof-rewrite 127.0.0.1:6379"), rewritten, Background);
    let server = titled("redis-server 127.0.0.1:6379");
    let log = "/redis/appendonlydir/appendonly.aof.1.incr.aof";
    assert_class(&rules, &server, log, Critical);
    assert_class(&rules, &server, "/redis/appendonlydir/appendonly.aof.manifest", Critical);
    let unknown = rules.unknown_task_mask();
    for (path, class) in [(snapshot, Background), (rewritten, Background), (log, Critical)] {
        assert_eq!(rules.decide(unknown, rules.file_mask(path.as_bytes())).class, class, "{path}");
    }
}

#[test]
fn mariadb_files_are_told_apart() {
    let rules = load("mariadb.rules");
    let class = |path, class| assert_class(&rules, &named("mariadbd"), path, class);
    class("/mysql/ib_logfile0", Critical);
    class("/mysql/db-1-bin.000042", Critical);
    class("/mysql/binlog.000001", Critical);
    class("/mysql/mysql-bin.index", Critical);
    class("/mysql/app/orders.frm", Critical);
    class("/mysql/app/orders.ibd", Background);
    class("/mysql/ibdata1", Background);
    class("/mysql/undo001", Background);
    class("/mysql/ibtmp1", Background);
}

#[test]
fn etcd_files_are_told_apart() {
    let rules = load("etcd.rules");
    let class = |path, class| assert_class(&rules, &named("etcd"), path, class);
    class("/default.etcd/member/wal/0000000000000000-0000000000000000.wal", Critical);
    class("/default.etcd/member/snap/db", Background);
    class("/default.etcd/member/snap/0000000000000002-0000000000018a9c.snap", Background);
}

#[test]
fn backups_are_background() {
    let rules = load("backups.rules");
    let names = ["tar", "rsync", "restic", "borg", "mariadb-backup", "gzip"];
    names.iter().for_each(|name| assert_class(&rules, &named(name), "/a", Background));
    assert_class(&rules, &named("targetcli"), "/a", Critical);
    let job = TaskFacts { cgroup: "/system.slice/db-backup.service".into(), ..named("bash") };
    assert_class(&rules, &job, "/a", Background);
    let server = TaskFacts { cgroup: "/system.slice/postgresql@15-main.service".into(), ..named("postgres") };
    assert_class(&rules, &server, "/a", Critical);
    assert_class(&rules, &TaskFacts { nice: 10, ..named("find") }, "/a", Background);
    assert_class(&rules, &TaskFacts { nice: 5, ..named("find") }, "/a", Critical);
}
