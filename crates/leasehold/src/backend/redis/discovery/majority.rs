//! Which server is the primary, by what several sentinels say.
//!
//! A failover begins a new configuration epoch, and the sentinels tell each other of it: so the word of the highest epoch is the newest, and
//! others are behind it for a second or two. A sentinel that was *set anew* (`SENTINEL REMOVE` and `MONITOR`) begins with the epoch zero, and
//! knows no other until it hears one, from which it takes a higher epoch at once. So a word is behind another of a higher epoch if its sentinel
//! knows the one that says that, or was asked before that was said; else the two epochs have nothing to do with each other, and most sentinels
//! decide.

use std::{fmt, time::Duration};

use super::{
    Address,
    known::{Known, KnownSentinel, Other, Primary, Word},
};

/// After so long without a connection to the primary that is known, the word of a few is believed, too. And a sentinel that has been silent
/// for so long is not counted, unless it was given.
pub(super) const OUTDATED: Duration = Duration::from_secs(15);

/// How many sentinels name another primary than the one that is known.
#[derive(Debug)]
pub(in crate::backend::redis) struct Tally {
    another: usize,
    all: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Tally { another, all }, most) = (self, self.all / 2 + 1);
        write!(
            f,
            "another server is named as the primary by {another} of {all} sentinels, where {most} must; wait for a failover, or have all sentinels \
             watch one server"
        )
    }
}

impl Known {
    /// The primary, if it is another than was known, by what the sentinels say now. The first must have been asked for by all.
    pub(super) fn judged(&mut self) -> Option<Primary> {
        let most = self.voters().count() / 2 + 1;
        let standing: Vec<&Word> = self.standing().collect();
        let of = |address: &Address| {
            let of_address = standing.iter().filter(|word| word.address == *address);
            of_address.map(|word| word.epoch).collect::<Vec<_>>()
        };
        let newest = |of: &dyn Fn(&Word) -> bool| {
            let words = standing.iter().filter(|word| of(word));
            words.max_by_key(|word| word.epoch).copied()
        };
        let agreed = newest(&|word| of(&word.address).len() >= most);
        let Some(known) = &self.primary else {
            // A client that has no primary yet can stay nowhere, so the newest word of any sentinel does.
            let word = agreed.or_else(|| newest(&|_| true))?;
            return Some(Primary::new(word.address.clone(), word.epoch));
        };
        let is_outdated = known
            .failing
            .is_some_and(|since| since.elapsed() > OUTDATED);
        let word = agreed.or_else(|| {
            // Without a majority a higher epoch counts, which only a failover makes; and any other word once the known primary has failed
            // for long (bugs 251, 252).
            newest(&|word| word.epoch > known.epoch || is_outdated && word.address != known.address)
        })?;
        // Never lower: who was left behind is not believed again for its epoch alone.
        let epoch = of(&word.address).into_iter().fold(known.epoch, u64::max);
        // The epoch alone is raised: a word of the failover before is then older than what is known.
        if known.address == word.address {
            if let Some(known) = &mut self.primary {
                known.epoch = epoch;
            }
            return None;
        }
        Some(Primary::new(word.address.clone(), epoch))
    }

    pub(super) fn tally(&self) -> Tally {
        let primary = self.primary.as_ref().map(|primary| &primary.address);
        let another = self
            .standing()
            .filter(|word| Some(&word.address) != primary);
        Tally {
            another: another.count(),
            all: self.voters().count(),
        }
    }

    /// The sentinels of which most decide, each once, however often it is known.
    fn voters(&self) -> impl Iterator<Item = &KnownSentinel> {
        let all = self.sentinels.iter().enumerate();
        let voters = all.filter(|(at, voter)| {
            let is_same = |other: &KnownSentinel| other.id.is_some() && other.id == voter.id;
            voter.counts() && !self.sentinels[..*at].iter().any(is_same)
        });
        voters.map(|(_, voter)| voter)
    }

    /// The present words of the voters, but for words that are behind others.
    fn standing(&self) -> impl Iterator<Item = &Word> {
        // A silent voter counts in the number of all, and adds no word: the others need a majority of all.
        let answering = self.voters().filter(|voter| voter.silent.is_none());
        let words = answering.filter_map(|voter| Some((voter.number, voter.said.as_ref()?)));
        words
            .filter(|(number, word)| !self.is_behind(*number, word))
            .map(|(_, word)| word)
    }

    /// Whether a sentinel has said something newer than this word, the answer to that question.
    pub(super) fn is_behind(&self, number: u64, word: &Word) -> bool {
        let mut others = self.sentinels.iter();
        others.any(|other| other.is_ahead_of(number, word))
    }
}

impl KnownSentinel {
    fn counts(&self) -> bool {
        let is_gone = self.silent.is_some_and(|since| since.elapsed() > OUTDATED);
        // A sentinel that was given counts in any case: else the few that are left after a cut of the network would be a majority.
        self.is_given || !is_gone && (!self.is_down || self.said.is_some())
    }

    /// Whether it has said something newer than this word, the answer to that question. Also if it is silent by now: the others hear what it has
    /// said before.
    fn is_ahead_of(&self, number: u64, word: &Word) -> bool {
        let Some(said) = &self.said else { return false };
        // A sentinel without an id may be any of those that are known.
        let is_it = |other: &Other| self.is(other) || self.id.is_none();
        said.epoch > word.epoch
            && said.address != word.address
            && self.silent.is_none_or(|since| since.elapsed() <= OUTDATED)
            && (self.number > number
                || (word.others.as_ref()).is_none_or(|others| others.iter().any(is_it)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const OLD: &str = "old";
    const NEW: &str = "new";

    fn address(host: &str) -> Address {
        (host.to_owned(), 1)
    }

    /// Three sentinels, and a client that is at the old primary in epoch 5.
    fn three() -> Known {
        let names = ["a", "b", "c"].map(address);
        let mut known = Known::new(&names);
        for name in &names {
            known.name(name, Some(name.0.clone()));
        }
        known.primary = Some(Primary::new(address(OLD), 5));
        known
    }

    /// A sentinel is asked, says that, and knows these others.
    fn says(known: &mut Known, sentinel: &str, host: &str, epoch: u64, others: &str) {
        let number = known.question();
        answers(known, number, sentinel, (host, epoch, others));
    }

    fn answers(
        known: &mut Known,
        number: u64,
        sentinel: &str,
        (host, epoch, others): (&str, u64, &str),
    ) {
        let other = |host: char| Other {
            address: address(&host.to_string()),
            id: Some(host.to_string()),
            is_down: false,
        };
        let word = Word {
            address: address(host),
            epoch,
            others: Some(others.chars().map(other).collect()),
        };
        known.answered(&address(sentinel), number, Ok(Some(word)));
    }

    fn moves_to(known: &mut Known) -> Option<&'static str> {
        let primary = known.judged()?;
        Some(moves(known, primary))
    }

    /// A sentinel has announced that another server has the place of this one.
    fn announces(known: &mut Known, sentinel: &str, old: &str) -> Option<&'static str> {
        let next = known.successor(&address(sentinel), &address(old))?;
        assert!(next.is_announced);
        Some(moves(known, next))
    }

    fn moves(known: &mut Known, primary: Primary) -> &'static str {
        let host = if primary.address == address(NEW) {
            NEW
        } else {
            OLD
        };
        known.primary = Some(primary);
        host
    }

    #[test]
    fn an_announcement_counts_where_it_begins_at_the_primary_and_its_epoch_is_not_behind() {
        let mut known = three();
        for (sentinel, others) in [("a", "bc"), ("b", "ac"), ("c", "ab")] {
            says(&mut known, sentinel, OLD, 5, others);
        }
        // To the new one, and back, while one sentinel stands still.
        says(&mut known, "a", NEW, 6, "bc");
        assert_eq!(announces(&mut known, "a", OLD), Some(NEW));
        says(&mut known, "b", NEW, 6, "ac");
        assert_eq!(announces(&mut known, "b", OLD), None);
        for (sentinel, others, moves) in [("a", "bc", Some(OLD)), ("b", "ac", None)] {
            says(&mut known, sentinel, OLD, 7, others);
            assert_eq!(announces(&mut known, sentinel, NEW), moves);
        }
        says(&mut known, "c", NEW, 6, "ab");
        assert_eq!(announces(&mut known, "c", OLD), None);
        assert_eq!(moves_to(&mut known), None);
        // It announces, and does not answer.
        let number = known.question();
        known.answered(&address("c"), number, Ok(None));
        known.answered(&address("c"), number + 1, Err(()));
        assert_eq!(announces(&mut known, "c", OLD), None);
        assert_eq!(known.primary.unwrap().epoch, 7);
    }

    #[test]
    fn a_higher_epoch_counts_at_once_and_those_that_are_behind_do_not_move_back() {
        let mut known = three();
        for (sentinel, others) in [("a", "bc"), ("b", "ac")] {
            says(&mut known, sentinel, OLD, 5, others);
        }
        assert_eq!(moves_to(&mut known), None);
        says(&mut known, "c", NEW, 6, "ab");
        assert_eq!(moves_to(&mut known), Some(NEW));
        says(&mut known, "a", OLD, 5, "bc");
        assert_eq!(moves_to(&mut known), None);
        // It is silent: they have not heard it yet.
        let number = known.question();
        known.answered(&address("c"), number, Err(()));
        assert_eq!(moves_to(&mut known), None);
        // It does not tell which others it knows.
        let number = known.question();
        let word = Word {
            address: address(OLD),
            epoch: 5,
            others: None,
        };
        known.answered(&address("b"), number, Ok(Some(word)));
        assert_eq!(moves_to(&mut known), None);
    }

    #[test]
    fn most_that_were_set_anew_are_believed_with_lower_epochs_and_fewer_are_not() {
        for is_dead in [false, true] {
            let mut known = three();
            says(&mut known, "c", OLD, 5, "ab");
            says(&mut known, "a", NEW, 0, "");
            assert_eq!(moves_to(&mut known), None);
            if is_dead {
                let number = known.question();
                known.answered(&address("c"), number, Err(()));
            }
            assert_eq!(moves_to(&mut known), None);
            says(&mut known, "b", NEW, 0, "a");
            assert_eq!(moves_to(&mut known), Some(NEW));
            // The one that was left out, with its old word; then alone.
            says(&mut known, "c", OLD, 5, "ab");
            assert_eq!(moves_to(&mut known), None);
            let number = known.question();
            known.answered(&address("b"), number, Err(()));
            assert_eq!(moves_to(&mut known), None);
        }
    }

    #[test]
    fn a_new_client_finds_what_those_that_were_there_before_have_found() {
        for c_says in [(OLD, 5, "ab"), (OLD, 0, "")] {
            let mut known = three();
            known.primary = None;
            let round = known.question();
            answers(&mut known, round, "a", (NEW, 0, "b"));
            answers(&mut known, round, "b", (NEW, 0, "a"));
            answers(&mut known, round, "c", c_says);
            assert_eq!(moves_to(&mut known), Some(NEW));
        }
        let mut known = three();
        known.primary = None;
        says(&mut known, "a", OLD, 5, "bc");
        says(&mut known, "b", OLD, 5, "ac");
        says(&mut known, "c", NEW, 6, "ab");
        assert_eq!(moves_to(&mut known), Some(NEW));
    }

    /// They were asked when they knew no others yet.
    #[test]
    fn a_failover_after_all_were_set_anew_counts_at_once() {
        let mut known = three();
        for sentinel in ["a", "b", "c"] {
            says(&mut known, sentinel, NEW, 0, "");
        }
        assert_eq!(moves_to(&mut known), Some(NEW));
        says(&mut known, "c", OLD, 1, "ab");
        assert_eq!(announces(&mut known, "c", NEW), Some(OLD));
        assert_eq!(moves_to(&mut known), None);
        says(&mut known, "a", NEW, 0, "bc");
        assert_eq!(moves_to(&mut known), None);
        says(&mut known, "a", OLD, 1, "bc");
        assert_eq!(moves_to(&mut known), None);
    }

    #[test]
    fn an_answer_that_is_late_or_a_sentinel_that_is_known_twice_counts_once() {
        let mut known = three();
        let early = known.question();
        says(&mut known, "a", OLD, 5, "bc");
        let word = Word {
            address: address(NEW),
            epoch: 7,
            others: None,
        };
        known.answered(&address("a"), early, Ok(Some(word)));
        assert_eq!(moves_to(&mut known), None);

        let mut known = three();
        known.name(&address("b"), Some("a".to_owned()));
        says(&mut known, "a", NEW, 0, "");
        says(&mut known, "b", NEW, 0, "");
        assert_eq!(known.voters().count(), 2);
        assert_eq!(moves_to(&mut known), None);
    }

    #[test]
    fn sentinels_that_were_replaced_by_others_are_not_counted_for_ever() {
        let mut known = Known::new(&[address("a")]);
        known.name(&address("a"), Some("a".to_owned()));
        for gone in ["x", "y", "z"] {
            known.add(Other {
                address: address(gone),
                id: Some(gone.to_owned()),
                is_down: false,
            });
        }
        assert_eq!(known.voters().count(), 4);
        for gone in ["x", "y"] {
            let number = known.question();
            known.answered(&address(gone), number, Err(()));
        }
        assert_eq!(known.voters().count(), 4);
        let long_ago = Instant::now().checked_sub(2 * OUTDATED);
        for gone in &mut known.sentinels {
            gone.silent = gone.silent.and(long_ago);
        }
        assert_eq!(known.voters().count(), 2);
    }
}
