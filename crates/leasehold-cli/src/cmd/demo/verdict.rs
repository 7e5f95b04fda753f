//! The demo's counts, and whether everything was as it must be.

use std::time::Duration;

use serde::Serialize;

use super::{
    record::{End, Hold, Record, What, overlap},
    story,
};
use crate::output::human;

/// How much later than the lease says the next in line may have it: two busy cores, and a few round trips.
const SLACK: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) acquisitions: usize,
    pub(super) hand_overs: usize,
    pub(super) renewals: usize,
    pub(super) lost: usize,
    pub(super) sold: usize,
}

/// One thing that must hold.
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
        match (record.act.kill_after, record.act.number) {
            (Some(_), _) => checks.push(survived(record)),
            (None, 2) => checks.push(kept(record)),
            _ => {}
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
        .find_map(|(record, holds)| Some((record, overlap(holds)?)));
    let detail = match &found {
        None => format!("{total} holds of {} locks compared", records.len()),
        Some((record, (one, other))) => format!(
            "{} and {} both worked on {:?}",
            name(record, one),
            name(record, other),
            record.act.lock
        ),
    };
    Check {
        what: "nothing overlapped",
        ok: found.is_none(),
        detail,
    }
}

fn name<'a>(record: &'a Record, hold: &Hold) -> &'a str {
    &record.act.cast[hold.place.host][hold.place.part].name
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

/// The third act: the next in line has the name within the lease.
fn survived(record: &Record) -> Check {
    let holds = record.holds();
    let was_held = holds.iter().any(|hold| hold.end == End::Killed);
    let after = record.heir().map(|(_, after)| after);
    Check {
        what: "the crash freed the name",
        ok: was_held && after.is_some_and(|after| after <= story::LEASE + SLACK),
        detail: match after {
            Some(after) => format!(
                "next in line after {} of a lease of {}",
                human(after),
                human(story::LEASE)
            ),
            None => "nobody got it after the kill".to_owned(),
        },
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
    use super::{super::record::tests::record, *};

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
        assert!(check.detail.contains("slow and next"), "{}", check.detail);
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
    fn a_worker_that_failed_or_never_ended_is_trouble() {
        let ended = |host| (9, host, What::Ended);
        assert!(trouble(&record(&[ended(0), ended(1), ended(2)])).is_none());
        assert!(trouble(&record(&[ended(0), ended(1)])).is_some());
        let failed = (1, 2, What::Failed("no server".to_owned()));
        let check = trouble(&record(&[ended(0), ended(1), failed, ended(2)])).unwrap();
        assert_eq!(check.detail, "no server");
    }
}
