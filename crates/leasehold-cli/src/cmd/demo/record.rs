//! The record of a demo: its events, and each hold from begin to end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::story::{Act, Kind, Part, Place, Role};

/// An event, as its process saw it. Instants are on [`crate::clock`], which all processes share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Happening {
    pub(super) at: Duration,
    pub(super) host: usize,
    /// Which worker of the process; `None` for events of its leases.
    pub(super) part: Option<usize>,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// The process is connected and waits for the start.
    Ready,
    /// A worker asks for the lock.
    Asked,
    /// It has the lock.
    Entered,
    /// It sold a ticket.
    Sold,
    /// It is about to release the lock.
    Left,
    /// It was told that the lock is lost.
    LostIt,
    /// A lease was passed to the next waiter of the process.
    HandedOver,
    /// A lease was renewed.
    Renewed,
    /// A renewal got no answer.
    RenewalFailed,
    /// The process was killed.
    Killed,
    /// The process is done.
    Ended,
    /// Something went wrong.
    Failed(String),
}

/// An act as it was played.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) act: Act,
    pub(super) started: Duration,
    pub(super) happenings: Vec<Happening>,
}

/// From a worker's first moment with the lock to its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) place: Place,
    pub(super) from: Duration,
    /// `None` while it lasts.
    pub(super) to: Option<Duration>,
    pub(super) end: End,
    pub(super) renewals: Vec<Duration>,
    /// Came from another worker of the same process, not from the server.
    pub(super) handed_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Lasts,
    Released,
    Lost,
    Killed,
}

impl Record {
    pub(super) fn new(act: Act, started: Duration) -> Self {
        Record {
            act,
            started,
            happenings: Vec::new(),
        }
    }

    pub(super) fn count(&self, what: &What) -> usize {
        self.of(what).count()
    }

    fn of<'a>(&'a self, what: &'a What) -> impl Iterator<Item = &'a Happening> {
        self.happenings.iter().filter(move |it| it.what == *what)
    }

    /// When a process was killed, and which.
    pub(super) fn killed(&self) -> Option<(Duration, usize)> {
        self.of(&What::Killed).next().map(|it| (it.at, it.host))
    }

    pub(super) fn part(&self, place: Place) -> &Part {
        &self.act.cast[place.host][place.part]
    }

    fn reads(&self, hold: &Hold) -> bool {
        matches!(self.part(hold.place).role, Role::Reader { .. })
    }

    /// Whether a lock of this kind lets these be there at the same time.
    fn may_be_together(&self, holds: &[&Hold]) -> bool {
        match self.act.kind {
            Kind::Mutex => holds.len() == 1,
            Kind::RwLock => holds.len() == 1 || holds.iter().all(|hold| self.reads(hold)),
            Kind::Semaphore(permits) => holds.len() <= permits as usize,
        }
    }

    /// The first hold that began beside others that should have kept it out, behind these.
    pub(super) fn overlap<'a>(&self, holds: &'a [Hold]) -> Option<Vec<&'a Hold>> {
        together(holds).find(|holds| !self.may_be_together(holds))
    }

    /// All holds by their beginning.
    pub(super) fn holds(&self) -> Vec<Hold> {
        let mut holds: Vec<Hold> = Vec::new();
        for it in &self.happenings {
            let end = match it.what {
                What::Left => End::Released,
                What::LostIt => End::Lost,
                What::Killed => End::Killed,
                What::Entered => {
                    holds.extend(it.part.map(|part| begin(it, part)));
                    continue;
                }
                _ => continue,
            };
            let ends = |hold: &&mut Hold| {
                hold.to.is_none()
                    && hold.place.host == it.host
                    && it.part.is_none_or(|part| part == hold.place.part)
            };
            for hold in holds.iter_mut().filter(|hold| ends(hold)) {
                hold.to = Some(it.at);
                hold.end = end;
            }
        }
        holds.sort_by_key(|hold| hold.from);
        for it in self.of(&What::Renewed) {
            let during = |hold: &&mut Hold| {
                hold.place.host == it.host
                    && hold.from <= it.at
                    && hold.to.is_none_or(|to| it.at <= to)
            };
            if let Some(hold) = holds.iter_mut().find(during) {
                hold.renewals.push(it.at);
            }
        }
        for it in self.of(&What::HandedOver) {
            // The lease is passed on first, then the worker wakes up.
            let after = |hold: &&mut Hold| {
                hold.place.host == it.host && hold.from >= it.at && !hold.handed_over
            };
            if let Some(hold) = holds.iter_mut().find(after) {
                hold.handed_over = true;
            }
        }
        holds
    }

    /// From when to when a worker waited for the lock.
    pub(super) fn waits(&self, place: Place, now: Duration) -> Vec<(Duration, Duration)> {
        let mut waits = Vec::new();
        let mut asked = None;
        let mine = |it: &&Happening| {
            it.host == place.host && (it.part == Some(place.part) || it.what == What::Killed)
        };
        for it in self.happenings.iter().filter(mine) {
            match it.what {
                What::Asked => asked = Some(it.at),
                What::Entered | What::Killed | What::Failed(_) => {
                    waits.extend(asked.take().map(|asked| (asked, it.at)));
                }
                _ => {}
            }
        }
        waits.extend(asked.map(|asked| (asked, now)));
        waits
    }

    /// The worker that got the lock after the kill, and how long after it.
    pub(super) fn heir(&self) -> Option<(Place, Duration)> {
        let (killed, host) = self.killed()?;
        let holds = self.holds();
        let heir = holds
            .iter()
            .find(|hold| hold.from >= killed && hold.place.host != host)?;
        Some((heir.place, heir.from.saturating_sub(killed)))
    }
}

fn begin(it: &Happening, part: usize) -> Hold {
    Hold {
        place: Place {
            host: it.host,
            part,
        },
        from: it.at,
        to: None,
        end: End::Lasts,
        renewals: Vec::new(),
        handed_over: false,
    }
}

/// The holds that had not ended when each hold began, itself the last.
pub(super) fn together(holds: &[Hold]) -> impl Iterator<Item = Vec<&Hold>> {
    holds.iter().enumerate().map(move |(number, hold)| {
        let before = holds[..number].iter();
        let beside = before.filter(|other| other.to.is_none_or(|to| hold.from < to));
        beside.chain([hold]).collect()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cmd::demo::story;

    pub(in super::super) const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A record of the second act (three processes of one worker each) that began at second 100.
    pub(in super::super) fn record(events: &[(u64, usize, What)]) -> Record {
        record_of(2, events)
    }

    /// A record of another act, of the first worker of each process.
    pub(in super::super) fn record_of(number: usize, events: &[(u64, usize, What)]) -> Record {
        let mut acts = story::acts().into_iter();
        let act = acts.find(|act| act.number == number).unwrap();
        let mut record = Record::new(act, ms(100_000));
        for (at, host, what) in events {
            let of_worker = matches!(
                what,
                What::Asked | What::Entered | What::Sold | What::Left | What::LostIt
            );
            record.happenings.push(Happening {
                at: ms(100_000 + at),
                host: *host,
                part: of_worker.then_some(0),
                what: what.clone(),
            });
        }
        record
    }

    #[test]
    fn holds_run_from_entering_to_leaving_and_know_their_renewals() {
        let record = record(&[
            (0, 0, What::Entered),
            (300, 0, What::Renewed),
            (400, 1, What::Renewed),
            (500, 0, What::Left),
            (510, 1, What::Entered),
        ]);
        let holds = record.holds();
        assert_eq!(holds.len(), 2);
        assert_eq!(
            (holds[0].from, holds[0].to),
            (ms(100_000), Some(ms(100_500)))
        );
        assert_eq!(holds[0].renewals, [ms(100_300)]);
        assert_eq!(holds[1].end, End::Lasts);
        assert_eq!(record.overlap(&holds), None);
    }

    #[test]
    fn a_hand_over_belongs_to_the_hold_that_begins_next_in_its_process() {
        let record = record(&[
            (0, 0, What::Entered),
            (100, 0, What::Left),
            (101, 0, What::HandedOver),
            (102, 0, What::Entered),
        ]);
        let handed: Vec<bool> = record.holds().iter().map(|hold| hold.handed_over).collect();
        assert_eq!(handed, [false, true]);
    }

    #[test]
    fn a_hold_that_begins_before_the_last_one_ended_is_an_overlap() {
        let beside = record(&[
            (0, 0, What::Entered),
            (10, 1, What::Entered),
            (20, 0, What::Left),
            (30, 1, What::Left),
        ]);
        assert!(beside.overlap(&beside.holds()).is_some());
        // The long one is compared with all that follow, not only with the first.
        let within = record(&[
            (0, 0, What::Entered),
            (10, 1, What::Entered),
            (20, 1, What::Left),
            (30, 2, What::Entered),
        ]);
        let holds = within.holds();
        assert!(within.overlap(&holds[..1]).is_none());
        assert!(within.overlap(&holds[1..]).is_none());
        let found = [&holds[0], &holds[2]];
        let beside_the_long_one = [holds[0].clone(), holds[2].clone()];
        assert_eq!(within.overlap(&beside_the_long_one).unwrap(), found);
    }

    #[test]
    fn readers_may_be_together_and_a_writer_may_not() {
        let play = |second| {
            let record = record_of(
                4,
                &[
                    (0, 0, What::Entered),
                    (10, second, What::Entered),
                    (20, 0, What::Left),
                    (30, second, What::Left),
                ],
            );
            record.overlap(&record.holds()).is_some()
        };
        assert!(!play(1), "two readers");
        assert!(play(2), "a reader and the writer");
    }

    #[test]
    fn two_permits_let_two_be_together_and_no_third() {
        let mut events = vec![
            (0, 0, What::Entered),
            (10, 1, What::Entered),
            (20, 0, What::Left),
            (20, 2, What::Entered),
        ];
        let within = record_of(5, &events);
        assert_eq!(within.overlap(&within.holds()), None);
        events[2].0 = 21;
        events.sort_by_key(|event| event.0);
        let third = record_of(5, &events);
        assert_eq!(third.overlap(&third.holds()).unwrap().len(), 3);
    }

    #[test]
    fn a_kill_ends_the_hold_and_the_next_one_is_the_heir() {
        let record = record(&[
            (0, 0, What::Entered),
            (0, 1, What::Asked),
            (500, 0, What::Killed),
            (1_200, 1, What::Entered),
        ]);
        assert_eq!(record.holds()[0].end, End::Killed);
        let (heir, after) = record.heir().unwrap();
        assert_eq!((heir.host, after), (1, ms(700)));
        assert_eq!(record.waits(heir, ms(0)), [(ms(100_000), ms(101_200))]);
    }
}
