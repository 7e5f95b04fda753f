//! Histories that hold, and histories that must not.

use std::process::Command;
use std::time::Duration;

use leasehold_testkit::{Claim, Event, History, Kind, Recorder, Violation, now};

fn event(at: u64, kind: Kind, holder: &str) -> Event {
    Event {
        at,
        kind,
        name: "invoice:42".to_owned(),
        holder: holder.to_owned(),
    }
}

fn acquired() -> Kind {
    Kind::Acquired(Claim::default())
}

fn until(until: u64) -> Kind {
    Kind::Acquired(Claim {
        until: Some(until),
        ..Claim::default()
    })
}

fn violations(events: Vec<Event>) -> Vec<Violation> {
    History::new(events)
        .check()
        .expect_err("this history must fail")
}

#[test]
fn one_after_the_other_is_no_overlap() {
    let summary = History::new(vec![
        event(5, Kind::Requested, "a"),
        event(6, Kind::Requested, "b"),
        event(7, Kind::Requested, "c"),
        event(10, acquired(), "a"),
        event(20, Kind::Released, "a"),
        event(20, acquired(), "b"),
        event(30, Kind::Lost, "b"),
        event(31, acquired(), "a"),
        event(33, Kind::Released, "a"),
    ])
    .check()
    .expect("nobody met");
    assert_eq!(
        (
            summary.names,
            summary.acquisitions,
            summary.changes_of_holder
        ),
        (1, 3, 2)
    );
    assert_eq!(summary.per_holder["a"], 2);
    assert_eq!(summary.per_holder["c"], 0);
    assert!((summary.jain - 9.0 / 15.0).abs() < 1e-9, "{}", summary.jain);
    assert_eq!(summary.longest_wait, Some(Duration::from_nanos(14)));
    assert_eq!(summary.lost, 1);
}

#[test]
fn two_at_once_fail_in_whatever_order_they_are_written() {
    let mut events = vec![
        event(10, acquired(), "a"),
        event(20, Kind::Released, "a"),
        event(19, acquired(), "b"),
        event(40, Kind::Released, "b"),
    ];
    for _ in 0..events.len() {
        events.rotate_left(1);
        let found = violations(events.clone());
        let [Violation::Overlap { holding, came }] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((holding[0].holder.as_str(), holding[0].until), ("a", 20));
        assert_eq!((came.holder.as_str(), came.from), ("b", 19));
        let text = found[0].to_string();
        assert_eq!(
            text,
            "\"invoice:42\" was held by b from 19 to 40, and at the same time by a from 10 to 20"
        );
    }
}

#[test]
fn another_name_is_another_lock() {
    let mut other = event(15, acquired(), "b");
    other.name = "invoice:43".to_owned();
    let events = vec![event(10, acquired(), "a"), other];
    assert_eq!(History::new(events).check().expect("two locks").names, 2);
}

#[test]
fn without_an_end_a_hold_ends_with_its_claim_or_never() {
    let crashed = |claim| vec![event(10, claim, "a"), event(50, acquired(), "b")];
    assert_eq!(violations(crashed(acquired())).len(), 1);
    assert_eq!(violations(crashed(until(51))).len(), 1);
    History::new(crashed(until(50)))
        .check()
        .expect("the claim was over");

    let mut extended = crashed(until(20));
    extended.push(event(15, Kind::Extended { until: 60 }, "a"));
    assert_eq!(violations(extended).len(), 1);
}

#[test]
fn a_hold_of_the_same_holder_nests() {
    let nested = |more: Event| {
        History::new(vec![
            event(10, acquired(), "a"),
            event(11, acquired(), "a"),
            event(12, Kind::Released, "a"),
            event(20, Kind::Released, "a"),
            more,
        ])
    };
    assert_eq!(
        nested(event(20, acquired(), "b"))
            .check()
            .expect("nested")
            .acquisitions,
        3
    );
    nested(event(13, acquired(), "b"))
        .check()
        .expect_err("the outer one still held it");
}

#[test]
fn readers_share_and_writers_do_not() {
    let reader = Kind::Acquired(Claim::default().shared());
    let readers = [event(10, reader, "a"), event(11, reader, "b")];
    History::new(readers.to_vec()).check().expect("two readers");
    let found = violations([&readers[..], &[event(12, acquired(), "c")]].concat());
    assert!(matches!(&found[..], [Violation::Overlap { holding, .. }] if holding.len() == 2));
}

#[test]
fn permits_bound_how_many_hold() {
    let holders = |count: usize| {
        let events = ["a", "b", "c"][..count].iter().zip(10..);
        History::new(
            events
                .map(|(holder, at)| event(at, acquired(), holder))
                .collect(),
        )
    };
    holders(2).check_permits(2).expect("two permits");
    holders(3)
        .check_permits(2)
        .expect_err("the third came without a permit");
}

#[test]
fn tokens_must_grow() {
    let with = |token| Kind::Acquired(Claim::default().token(token));
    let tokens = |second| {
        History::new(vec![
            event(10, with(7), "a"),
            event(11, Kind::Released, "a"),
            event(12, with(second), "b"),
        ])
    };
    tokens(8).check().expect("8 after 7");
    for second in [7, 6] {
        let found = tokens(second).check().expect_err("the token did not grow");
        assert!(
            matches!(&found[..], [Violation::TokenNotGreater { .. }]),
            "{found:?}"
        );
    }
}

#[test]
fn an_end_without_a_hold_is_a_wrong_recording() {
    let found = violations(vec![event(10, Kind::Released, "a")]);
    assert!(matches!(&found[..], [Violation::NotHeld(_)]), "{found:?}");
    let told_twice = vec![
        event(10, acquired(), "a"),
        event(11, Kind::Lost, "a"),
        event(12, Kind::Released, "a"),
    ];
    History::new(told_twice)
        .check()
        .expect("to release what is lost is no mistake");
}

#[test]
fn a_file_says_what_memory_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("history.tsv");
    let file = Recorder::to_file(&path).expect("a file");
    let memory = Recorder::in_memory();
    memory.requested("invoice:42", "a");
    memory.acquired_as(
        "invoice:42",
        "a",
        Claim::valid_for(Duration::from_secs(30)).token(7).shared(),
    );
    memory.extended("invoice:42", "a", Duration::MAX);
    memory.released("invoice:42", "a");
    memory.lost("invoice:42", "a");
    memory.gave_up("invoice:42", "b");
    let history = memory.history().expect("memory");
    history
        .events()
        .iter()
        .for_each(|event| file.record(event.clone()));
    assert_eq!(History::load(&path).expect("what was written"), history);
    assert_eq!(file.history().expect("what was written"), history);
}

#[test]
fn a_line_that_is_no_event_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("history.tsv");
    std::fs::write(&path, "1\tacquired\tn\th\n2\tforgotten\tn\th\n").expect("written");
    let error = History::load(&path).expect_err("no such event").to_string();
    assert!(
        error.contains("history.tsv:2: \"forgotten\" is no event"),
        "{error}"
    );
}

const RECORD_INTO: &str = "LEASEHOLD_TESTKIT_RECORD_INTO";

/// Run by the next test, in processes of its own.
#[test]
#[ignore = "for the next test only"]
fn child_that_records() {
    let Some(path) = std::env::var_os(RECORD_INTO) else {
        return;
    };
    let recorder = Recorder::to_file(path).expect("a file");
    let holder = std::process::id().to_string();
    for _ in 0..500 {
        recorder.acquired(&format!("name-{holder}"), &holder);
        recorder.released(&format!("name-{holder}"), &holder);
    }
}

#[test]
fn processes_share_a_file_and_a_clock() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("history.tsv");
    let before = now();
    let child = || {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child_that_records", "--ignored"])
            .env(RECORD_INTO, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("this test starts")
    };
    for mut child in [child(), child(), child()] {
        assert!(child.wait().expect("ours").success());
    }
    let history = History::load(&path).expect("whole lines");
    let summary = history.check().expect("three names");
    assert_eq!((summary.names, summary.acquisitions), (3, 1500));
    assert!(
        history
            .events()
            .iter()
            .all(|event| (before..=now()).contains(&event.at))
    );
}
