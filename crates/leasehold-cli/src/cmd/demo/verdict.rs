//! The demo's counts, and whether everything was as it must be.

use std::time::Duration;

use serde::Serialize;

use super::{
    record::{End, Hold, Record, What, together},
    story::{self, Kind, Place},
};
use crate::output::human;

/// How much later than the lease says a waiter may have it: two busy cores, and a few round trips.
const SLACK: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) acquisitions: usize,
    pub(super) hand_overs: usize,
    pub(super) renewals: usize,
    pub(super) lost: usize,
    pub(super) sold: usize,
}

/// A statement that must hold.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) what: &'static str,
    pub(super) ok: bool,
    pub(super) detail: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) ok: bool,
    pub(super) checks: Vec<Check>,
    pub(super) counts: Counts,
}

/// Looks at everything that was recorded, and at the rest of the stock.
pub(super) fn judge(records: &[Record], stock_left: i64) -> Verdict {
    let sum = |what| records.iter().map(|record| record.count(&what)).sum();
    let counts = Counts {
        acquisitions: sum(What::Entered),
        hand_overs: sum(What::HandedOver),
        renewals: sum(What::Renewed),
        lost: sum(What::LostIt) + sum(What::Killed),
        sold: sum(What::Sold),
    };
    let mut checks = vec![no_overlap(records), not_oversold(counts.sold, stock_left)];
    for record in records {
        match (record.act.kind, record.act.kill_after) {
            (Kind::Mutex, Some(_)) => checks.push(survived(record)),
            (Kind::Mutex, None) if record.act.number == 2 => checks.push(kept(record)),
            (Kind::Mutex, None) => {}
            (Kind::RwLock, _) => checks.push(took_turns(record)),
            (Kind::Semaphore(permits), _) => checks.push(shared(record, permits)),
        }
    }
    checks.extend(records.iter().filter_map(trouble));
    Verdict {
        ok: checks.iter().all(|check| check.ok),
        checks,
        counts,
    }
}

fn no_overlap(records: &[Record]) -> Check {
    let holds: Vec<(&Record, Vec<Hold>)> = records.iter().map(|it| (it, it.holds())).collect();
    let total: usize = holds.iter().map(|(_, holds)| holds.len()).sum();
    let found = holds
        .iter()
        .find_map(|(record, holds)| Some((record, record.overlap(holds)?)));
    let detail = match &found {
        None => format!("{total} holds of {} locks compared", records.len()),
        Some((record, holds)) => {
            let names: Vec<&str> = holds.iter().map(|hold| name(record, hold)).collect();
            format!(
                "{} worked on {:?} at once",
                names.join(" and "),
                record.act.lock
            )
        }
    };
    Check {
        what: "nothing overlapped",
        ok: found.is_none(),
        detail,
    }
}

fn name<'a>(record: &'a Record, hold: &Hold) -> &'a str {
    &record.part(hold.place).name
}

fn not_oversold(sold: usize, left: i64) -> Check {
    let sold = i64::try_from(sold).unwrap_or(i64::MAX);
    Check {
        what: "nothing oversold",
        ok: sold == story::STOCK && left == 0,
        detail: format!("{} tickets, {sold} sold, {left} left", story::STOCK),
    }
}

/// The second act: one hold, several leases long.
fn kept(record: &Record) -> Check {
    let holds = record.holds();
    let long = holds.iter().find(|hold| hold.place.host == 0);
    let held = long.and_then(|hold| Some(hold.to?.saturating_sub(hold.from)));
    let ok = long.is_some_and(|hold| hold.end == End::Released)
        && held.is_some_and(|held| held > 3 * story::LEASE)
        && long.is_some_and(|hold| hold.renewals.len() >= 3);
    Check {
        what: "the slow job kept its lock",
        ok,
        detail: format!(
            "held {} on a lease of {}, {} renewals",
            held.map_or("for nothing".to_owned(), human),
            human(story::LEASE),
            long.map_or(0, |hold| hold.renewals.len())
        ),
    }
}

/// The third act: a waiter has the name when the lease has run out. Which one is no promise: the first that asks.
fn survived(record: &Record) -> Check {
    let holds = record.holds();
    let was_held = holds.iter().any(|hold| hold.end == End::Killed);
    let heir = record.heir();
    Check {
        what: "the crash freed the name",
        ok: was_held && heir.is_some_and(|(_, after)| after <= story::LEASE + SLACK),
        detail: match heir {
            Some((heir, after)) => format!(
                "{} had it after {}; the lease lasts {}",
                record.part(heir).name,
                human(after),
                human(story::LEASE)
            ),
            None => "nobody got it after the kill".to_owned(),
        },
    }
}

/// The fourth act: readers were inside together, and those that asked after the writer came in after it.
fn took_turns(record: &Record) -> Check {
    let holds = record.holds();
    let most = together(&holds).map(|holds| holds.len()).max().unwrap_or(0);
    let writer = Place { host: 2, part: 0 };
    let asked = |place| {
        record
            .waits(place, Duration::MAX)
            .first()
            .map(|wait| wait.0)
    };
    let hold_of = |place| holds.iter().find(|hold| hold.place == place);
    let left = hold_of(writer).and_then(|hold| hold.to);
    let asked_after = |place: &Place| *place != writer && asked(*place) > asked(writer);
    let places = record.act.places().map(|(place, _)| place);
    let late: Vec<Place> = places.filter(asked_after).collect();
    let waited = |place: &Place| {
        let from = hold_of(*place).map(|hold| hold.from);
        left.is_some_and(|left| from.is_some_and(|from| from >= left))
    };
    let did = late.iter().filter(|place| waited(place)).count();
    Check {
        what: "readers shared, by turns",
        ok: most > 1 && left.is_some() && did == late.len(),
        detail: format!(
            "{most} at once; {did} of {} behind the writer waited for it",
            late.len()
        ),
    }
}

/// The fifth act: all permits were used, and all workers had one.
fn shared(record: &Record, permits: u32) -> Check {
    let holds = record.holds();
    let most = together(&holds).map(|holds| holds.len()).max().unwrap_or(0);
    let released = holds.iter().filter(|hold| hold.end == End::Released);
    let (had, all) = (released.count(), record.act.places().count());
    Check {
        what: "the permits were shared",
        ok: most == permits as usize && had == all,
        detail: format!("{most} at once of {permits}, {had} of {all} had one"),
    }
}

/// Only there if something went wrong.
fn trouble(record: &Record) -> Option<Check> {
    let failed = record.happenings.iter().find_map(|it| match &it.what {
        What::Failed(message) => Some(message.clone()),
        _ => None,
    });
    let ended = record.count(&What::Ended) + record.count(&What::Killed);
    let missing = record.act.cast.len().saturating_sub(ended);
    let detail = match (failed, missing) {
        (Some(message), _) => message,
        (None, 0) => return None,
        (None, n) => format!(
            "{n} processes of act {} did not come to an end",
            record.act.number
        ),
    };
    Some(Check {
        what: "no worker failed",
        ok: false,
        detail,
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::record::tests::{record, record_of},
        *,
    };

    #[test]
    fn two_at_once_fail_the_check() {
        let beside = record(&[
            (0, 0, What::Entered),
            (10, 1, What::Entered),
            (20, 0, What::Left),
            (30, 1, What::Left),
        ]);
        let check = no_overlap(&[beside]);
        assert!(!check.ok);
        assert!(check.detail.contains("slow and gus"), "{}", check.detail);
    }

    #[test]
    fn readers_that_overtake_the_writer_or_never_meet_fail_the_check() {
        let late = |asked, entered| {
            let mut events = vec![
                (0, 0, What::Asked),
                (0, 0, What::Entered),
                (100, 2, What::Asked),
                (asked, 1, What::Asked),
                (entered, 1, What::Entered),
                (600, 0, What::Left),
                (600, 2, What::Entered),
                (900, 2, What::Left),
            ];
            events.sort_by_key(|event| event.0);
            took_turns(&record_of(4, &events))
        };
        assert!(late(50, 50).ok, "it came before the writer");
        assert!(!late(200, 200).ok, "it overtook the writer");
        assert!(!late(200, 900).ok, "no two readers met");
    }

    #[test]
    fn a_permit_that_was_not_used_or_not_had_fails_the_check() {
        let play = |second| {
            let mut events = Vec::new();
            for (host, from) in [(0, 0), (1, second), (2, 1_000)] {
                events.extend([(from, host, What::Entered), (from + 400, host, What::Left)]);
            }
            events.sort_by_key(|event| event.0);
            shared(&record_of(5, &events), 2)
        };
        let check = play(200);
        assert!(!check.ok, "two of the five had none");
        assert_eq!(check.detail, "2 at once of 2, 3 of 5 had one");
        assert!(play(500).detail.starts_with("1 at once"));
    }

    #[test]
    fn a_lost_update_fails_the_check() {
        assert!(not_oversold(20, 0).ok);
        assert!(!not_oversold(21, 0).ok);
        assert!(!not_oversold(20, 1).ok);
    }

    #[test]
    fn a_job_that_lost_its_lock_halfway_fails_the_check() {
        let events = [
            (0, 0, What::Entered),
            (300, 0, What::Renewed),
            (600, 0, What::Renewed),
            (900, 0, What::Renewed),
            (3_500, 0, What::Left),
        ];
        assert!(kept(&record(&events)).ok);
        let mut lost = events;
        lost[4].2 = What::LostIt;
        assert!(!kept(&record(&lost)).ok);
    }

    #[test]
    fn an_heir_who_waits_longer_than_the_lease_fails_the_check() {
        let heir_at = |at| {
            survived(&record(&[
                (0, 0, What::Entered),
                (1_000, 0, What::Killed),
                (at, 1, What::Entered),
            ]))
        };
        assert!(heir_at(1_990).ok);
        assert!(!heir_at(2_500).ok);
        assert!(!survived(&record(&[(0, 1, What::Entered), (1_000, 0, What::Killed)])).ok);
    }

    #[test]
    fn the_check_names_the_waiter_that_has_the_name_after_the_crash_whichever_it_is() {
        for (heir, name) in [(1, "ian"), (2, "joy")] {
            let check = survived(&record_of(
                3,
                &[
                    (0, 0, What::Entered),
                    (200, 1, What::Asked),
                    (400, 2, What::Asked),
                    (1_000, 0, What::Killed),
                    (1_850, heir, What::Entered),
                ],
            ));
            assert!(check.ok);
            let detail = format!("{name} had it after 850 ms; the lease lasts 1 s");
            assert_eq!(check.detail, detail);
        }
    }

    #[test]
    fn a_worker_that_failed_or_never_ended_is_trouble() {
        let ended = |host| (9, host, What::Ended);
        assert!(trouble(&record(&[ended(0), ended(1), ended(2)])).is_none());
        assert!(trouble(&record(&[ended(0), ended(1)])).is_some());
        let failed = (1, 2, What::Failed("no server".to_owned()));
        let check = trouble(&record(&[ended(0), ended(1), failed, ended(2)])).unwrap();
        assert_eq!(check.detail, "no server");
    }
}
