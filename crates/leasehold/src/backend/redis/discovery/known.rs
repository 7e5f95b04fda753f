//! The known state of a group: which sentinels it has, and where its primary is.

use std::time::{Duration, Instant};

use super::Address;

/// An answer counts for the other connections of the client, too, for so long.
const FRESH: Duration = Duration::from_millis(100);

/// So many sentinels are known at most, unless more were given.
const KNOWN_MOST: usize = 32;

pub(super) struct Known {
    /// First those that were given, then those of which they have told.
    pub(super) sentinels: Vec<KnownSentinel>,
    /// When they were asked last with success.
    pub(super) asked: Option<Instant>,
    pub(super) primary: Option<Primary>,
    pub(super) is_shut: bool,
    /// How many questions were asked of sentinels, and unasked words heard.
    questions: u64,
}

pub(super) struct KnownSentinel {
    pub(super) address: Address,
    /// A sentinel that is given by name is told of by number: its id says that they are one.
    pub(super) id: Option<String>,
    pub(super) is_given: bool,
    /// Another says so. It is not asked, but heard: the one that says so may be the one that is cut off.
    pub(super) is_down: bool,
    /// Its last word, of which only the last counts: it may have been set anew.
    pub(super) said: Option<Word>,
    /// The number of the question that it has answered so.
    pub(super) number: u64,
    /// Since when it does not answer.
    pub(super) silent: Option<Instant>,
}

/// A sentinel's word on its group.
#[derive(Clone)]
pub(super) struct Word {
    /// Where the primary is.
    pub(super) address: Address,
    pub(super) epoch: u64,
    /// The other sentinels that it knows. `None`: it does not tell, so it may know all.
    pub(super) others: Option<Vec<Other>>,
}

/// A sentinel's word on another.
#[derive(Clone)]
pub(super) struct Other {
    pub(super) address: Address,
    pub(super) id: Option<String>,
    pub(super) is_down: bool,
}

/// Where the primary is, as was said last.
pub(super) struct Primary {
    pub(super) address: Address,
    /// Its configuration epoch, or that of one before, if that was higher.
    pub(super) epoch: u64,
    /// A sentinel has announced it, and it was not tried in vain since.
    pub(super) is_announced: bool,
    /// Since when no connection to it comes about.
    pub(super) failing: Option<Instant>,
}

impl Known {
    pub(super) fn new(sentinels: &[Address]) -> Known {
        Known {
            sentinels: sentinels.iter().map(KnownSentinel::given).collect(),
            asked: None,
            primary: None,
            is_shut: false,
            questions: 0,
        }
    }

    /// The number of a question that is asked now, or of a word that comes unasked.
    pub(super) fn question(&mut self) -> u64 {
        self.questions += 1;
        self.questions
    }

    /// A sentinel says that, or does not know the primary, or does not answer; but not if it has said something since.
    pub(super) fn answered(
        &mut self,
        sentinel: &Address,
        number: u64,
        said: Result<Option<Word>, ()>,
    ) {
        let mut all = self.sentinels.iter_mut();
        let Some(it) = all.find(|it| it.address == *sentinel && it.number < number) else {
            return;
        };
        match said {
            Ok(said) => (it.said, it.number, it.silent) = (said, number, None),
            // Its last word stays, since others may be behind it: it ends with the time of the silence (`is_ahead_of`).
            Err(()) => _ = it.silent.get_or_insert_with(Instant::now),
        }
    }

    /// A sentinel says the same as before.
    pub(super) fn says_still(&mut self, sentinel: &Address, number: u64) {
        let mut all = self.sentinels.iter();
        let it = all.find(|it| it.address == *sentinel);
        let said = it.and_then(|it| it.said.clone());
        self.answered(sentinel, number, Ok(said));
    }

    /// Where the primary is, if all that are up have said the same: then it is enough to ask for the address.
    pub(super) fn reported_by_all(&self) -> Option<Address> {
        let up = self.sentinels.iter().filter(|it| !it.is_down);
        let mut said = up.map(|it| it.said.as_ref().map(|word| &word.address));
        // A sentinel without a word makes this `None`: then each is asked in full, with its epoch and the others.
        let first = said.next()??;
        said.all(|said| said == Some(first)).then(|| first.clone())
    }

    /// A sentinel has announced the primary, or all were asked a moment ago.
    pub(super) fn is_fresh(&self) -> bool {
        let Some(primary) = &self.primary else {
            return false;
        };
        // An announced primary needs no question, until an attempt to connect there has failed (`Sentinels::tried`).
        let was_asked = self.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        primary.is_announced || was_asked
    }

    /// The primary that follows, where a sentinel has announced that another server has the place of the one at `old`, and has been asked
    /// since. If that is not where the primary is known to be, or its answer is behind another's, it was late, or one was missed.
    pub(super) fn successor(&self, sentinel: &Address, old: &Address) -> Option<Primary> {
        let before = self.primary.as_ref()?;
        let mut all = self.sentinels.iter();
        let it = all.find(|it| it.address == *sentinel)?;
        let word = it.said.as_ref()?;
        let is_next = before.address == *old && word.address != *old;
        (is_next && !self.is_behind(it.number, word)).then(|| Primary {
            is_announced: true,
            // The epoch never goes back: a sentinel that was set anew counts from zero.
            ..Primary::new(word.address.clone(), before.epoch.max(word.epoch))
        })
    }

    pub(super) fn addresses(&self) -> Vec<Address> {
        let all = self.sentinels.iter();
        all.map(|sentinel| sentinel.address.clone()).collect()
    }

    /// The sentinel at this address has this id. A sentinel of this id elsewhere, of which another has told, is the same, and goes;
    /// whether there was one.
    pub(super) fn name(&mut self, address: &Address, id: Option<String>) -> bool {
        let Some(id) = id else { return false };
        let before = self.sentinels.len();
        self.sentinels
            // A given address stays in any case: it may be a name, which leads to the sentinel also when it has moved.
            .retain(|it| it.is_given || it.address == *address || it.id.as_ref() != Some(&id));
        let named = self.sentinels.iter_mut().find(|it| it.address == *address);
        if let Some(named) = named {
            // It has just answered, so the word of another that it is down counts no more.
            (named.id, named.is_down) = (Some(id), false);
        }
        self.sentinels.len() < before
    }

    /// All that are not said to be down.
    pub(super) fn asked(&self) -> Vec<Address> {
        let up = self.sentinels.iter().filter(|sentinel| !sentinel.is_down);
        up.map(|sentinel| sentinel.address.clone()).collect()
    }

    /// Another sentinel, of which one has told; whether that changes who is known. If it has moved, it is known at its new address.
    pub(super) fn add(&mut self, other: Other) -> bool {
        let there = self.sentinels.iter().position(|it| it.is(&other));
        match there {
            // The address as it was given may be a name, which leads to the sentinel also when it has moved.
            Some(at) if self.sentinels[at].is_given => return false,
            Some(at) if self.sentinels[at].address == other.address => {
                let it = &mut self.sentinels[at];
                (it.id, it.is_down) = (other.id, other.is_down);
                return false;
            }
            // Of two addresses the one that is down is the old one.
            Some(_) if other.is_down => return false,
            Some(at) => self.sentinels[at] = KnownSentinel::told(other),
            None if self.sentinels.len() < KNOWN_MOST => {
                self.sentinels.push(KnownSentinel::told(other));
            }
            None => {
                // In a full list a new sentinel takes the entry of one that is down, but never a given one's.
                let is_over = |it: &KnownSentinel| it.is_down && !it.is_given;
                let Some(at) = self.sentinels.iter().position(is_over) else {
                    return false;
                };
                self.sentinels[at] = KnownSentinel::told(other);
            }
        }
        true
    }
}

impl KnownSentinel {
    pub(super) fn given(address: &Address) -> KnownSentinel {
        KnownSentinel {
            address: address.clone(),
            id: None,
            is_given: true,
            is_down: false,
            said: None,
            number: 0,
            silent: None,
        }
    }

    fn told(
        Other {
            address,
            id,
            is_down,
        }: Other,
    ) -> KnownSentinel {
        KnownSentinel {
            id,
            is_given: false,
            is_down,
            ..KnownSentinel::given(&address)
        }
    }

    /// Whether this is the one that another tells of.
    pub(super) fn is(&self, other: &Other) -> bool {
        self.address == other.address || self.id.is_some() && self.id == other.id
    }
}

impl Primary {
    pub(super) fn new(address: Address, epoch: u64) -> Primary {
        Primary {
            address,
            epoch,
            is_announced: false,
            failing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_is_known_once_by_name_or_number_and_not_asked_when_it_is_down() {
        let address = |host: &str| (host.to_owned(), 26_379);
        let other = |host: &str, id: &str, is_down| Other {
            address: address(host),
            id: Some(id.to_owned()),
            is_down,
        };
        let mut known = Known::new(&[address("one")]);
        let hosts = |known: &Known| {
            let all = known.addresses().into_iter();
            all.map(|(host, _)| host).collect::<Vec<_>>().join(" ")
        };
        assert!(
            known.add(other("10.0.0.1", "a", false)) && known.add(other("10.0.0.2", "b", false))
        );
        assert_eq!(hosts(&known), "one 10.0.0.1 10.0.0.2");
        assert!(known.name(&address("one"), Some("a".to_owned())));
        assert_eq!(hosts(&known), "one 10.0.0.2");
        assert!(!known.name(&address("one"), Some("a".to_owned())));
        assert!(!known.add(other("10.0.0.1", "a", false)));
        // Moved; down, and so heard and not asked; back.
        assert!(known.add(other("10.0.0.3", "b", false)));
        assert_eq!(hosts(&known), "one 10.0.0.3");
        assert!(!known.add(other("10.0.0.3", "b", true)));
        assert_eq!(hosts(&known), "one 10.0.0.3");
        assert_eq!(known.asked().len(), 1);
        assert!(!known.add(other("10.0.0.1", "a", true)));
        assert!(!known.add(other("10.0.0.3", "b", false)));
        assert_eq!(known.asked().len(), 2);
    }
}
