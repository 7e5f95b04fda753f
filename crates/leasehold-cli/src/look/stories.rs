//! Who has held each lock since this program began to look.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::SystemTime,
};

use leasehold::Status;

use super::table::{self, Age};
use crate::kinds;

/// A hold, as far as the looks have shown it.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// As the server has it: it may be the secret of another library.
    owner: String,
    /// As it may be shown.
    #[cfg_attr(
        not(feature = "serve"),
        expect(dead_code, reason = "the page shows it")
    )]
    pub(crate) shown: Option<String>,
    /// As the table shows the holder.
    pub(crate) who: String,
    /// Since when at most: its request, where the owner tells; else the first look that showed it.
    pub(crate) since: SystemTime,
    /// The owner does not tell.
    is_seen: bool,
    /// The first look that did not show it; `None`: the last one did.
    pub(crate) until: Option<SystemTime>,
}

/// Of so many ended holds of a name is told.
const ENDED: usize = 50;
/// So many names have a story that are not held now, or twice as many; a program that runs for months forgets others.
const FREE: usize = 2_000;

/// By name, the newest hold of each first.
#[derive(Debug, Default)]
pub(crate) struct Stories {
    of: HashMap<String, VecDeque<Past>>,
    /// How many there were after names were last forgotten.
    kept: usize,
}

impl Stories {
    /// Adds what a look has shown: these are the holders now.
    pub(crate) fn add(&mut self, status: &Status, now: SystemTime) {
        let story = self.of.entry(status.name.clone()).or_default();
        let there: HashSet<&str> = status.holders.iter().map(|it| it.owner.as_str()).collect();
        let mut known = HashSet::new();
        for past in story.iter_mut().filter(|past| past.until.is_none()) {
            if there.contains(past.owner.as_str()) {
                known.insert(past.owner.clone());
            } else {
                past.until = Some(now);
            }
        }
        for holder in status
            .holders
            .iter()
            .filter(|it| !known.contains(&it.owner))
        {
            // A hold that a look has missed, for a moment without an answer.
            let is_it =
                |past: &&mut Past| past.owner == holder.owner && Some(past.since) == holder.since;
            if let Some(past) = story.iter_mut().find(is_it) {
                past.until = None;
                continue;
            }
            story.push_front(Past {
                owner: holder.owner.clone(),
                shown: kinds::owner(status, holder).map(str::to_owned),
                who: table::holder(status, holder),
                since: holder.since.unwrap_or(now),
                is_seen: holder.since.is_none(),
                until: None,
            });
        }
        shorten(story);
    }

    /// The lock is free, or gone.
    pub(crate) fn end(&mut self, name: &str, now: SystemTime) {
        let Some(story) = self.of.get_mut(name) else {
            return;
        };
        for past in story.iter_mut().filter(|past| past.until.is_none()) {
            past.until = Some(now);
        }
        shorten(story);
        if self.of.len() > self.kept + 2 * FREE {
            self.forget();
        }
    }

    /// Forgets the names that have been free for longest.
    fn forget(&mut self) {
        let free_since = |story: &VecDeque<Past>| -> Option<SystemTime> {
            let ends: Option<Vec<_>> = story.iter().map(|past| past.until).collect();
            ends?.into_iter().max()
        };
        let mut ends: Vec<_> = self.of.values().filter_map(free_since).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        if let Some(oldest) = ends.get(FREE) {
            self.of
                .retain(|_, story| free_since(story).is_none_or(|end| end > *oldest));
        }
        self.kept = self.of.len().saturating_sub(FREE);
    }

    /// The newest first.
    pub(crate) fn of(&self, name: &str) -> impl Iterator<Item = &Past> {
        self.of.get(name).into_iter().flatten()
    }

    /// For how long its oldest holder has had it.
    pub(crate) fn held_for(&self, name: &str, now: SystemTime) -> Option<Age> {
        let held = self.of(name).filter(|past| past.until.is_none());
        let oldest = held.min_by_key(|past| past.since)?;
        Some(Age {
            held: now.duration_since(oldest.since).unwrap_or_default(),
            is_least: oldest.is_seen,
        })
    }
}

fn shorten(story: &mut VecDeque<Past>) {
    let mut ended = 0;
    story.retain(|past| {
        ended += usize::from(past.until.is_some());
        past.until.is_none() || ended <= ENDED
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::Client;

    use super::*;

    #[tokio::test]
    async fn holds_begin_with_their_requests_and_end_with_the_look_that_does_not_show_them() {
        let client = Client::connect("memory:").await.unwrap();
        let mut stories = Stories::default();
        let (begun, look) = (SystemTime::now(), Duration::from_secs(10));
        for turn in 0..60 {
            let guard = client.mutex("name").lock().await.unwrap();
            let status = client.status("name").await.unwrap();
            stories.add(&status, begun + turn * look);
            assert!(stories.held_for("name", begun + 61 * look).is_some());
            guard.release().await.unwrap();
            if turn % 2 == 1 {
                stories.end("name", begun + turn * look + look / 2);
                assert_eq!(stories.held_for("name", begun), None);
            }
        }
        let story: Vec<_> = stories.of("name").collect();
        assert_eq!(story.len(), ENDED);
        // The newest was seen to end by itself, the one before by the next holder.
        assert_eq!(story[0].until, Some(begun + 59 * look + look / 2));
        assert_eq!(story[1].until, Some(begun + 59 * look));
    }

    #[tokio::test]
    async fn a_hold_that_a_look_has_missed_goes_on() {
        let client = Client::connect("memory:").await.unwrap();
        let _guard = client.mutex("name").lock().await.unwrap();
        let status = client.status("name").await.unwrap();
        let (mut stories, now) = (Stories::default(), SystemTime::now());
        stories.add(&status, now);
        stories.end("name", now);
        stories.add(&status, now);
        let story: Vec<_> = stories.of("name").collect();
        assert!(story.len() == 1 && story[0].until.is_none(), "{story:?}");
    }

    #[tokio::test]
    async fn names_that_are_free_for_longest_are_forgotten() {
        let client = Client::connect("memory:").await.unwrap();
        let _guard = client.mutex("name").lock().await.unwrap();
        let mut status = client.status("name").await.unwrap();
        let (mut stories, begun) = (Stories::default(), SystemTime::now());
        stories.add(&status, begun);
        for number in 0..2 * FREE {
            let now = begun + Duration::from_secs(number as u64);
            status.name = format!("free:{number}");
            stories.add(&status, now);
            stories.end(&status.name, now);
        }
        let known = |name: &str| stories.of(name).count();
        assert_eq!(stories.of.len(), FREE + 1);
        assert_eq!(
            [known("name"), known("free:0"), known(&status.name)],
            [1, 0, 1]
        );
    }

    #[tokio::test]
    async fn a_holder_that_does_not_tell_is_as_old_as_the_first_look() {
        let client = Client::connect("memory:").await.unwrap();
        let _guard = client.mutex("name").lock().await.unwrap();
        let mut status = client.status("name").await.unwrap();
        status.holders[0].since = None;
        let (mut stories, first) = (Stories::default(), SystemTime::now());
        for ago in [0, 3, 7] {
            stories.add(&status, first + Duration::from_secs(ago));
        }
        let held = stories.held_for("name", first + Duration::from_secs(9));
        let age = Age {
            held: Duration::from_secs(9),
            is_least: true,
        };
        assert_eq!(held, Some(age));
    }
}
