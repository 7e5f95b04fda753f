//! Where wake-ups for each name are heard: at the node that has its slot, or at the server of a quorum that coordinates it.
//!
//! Each name is written down before the request for its subscription is sent, since a grant may be heard before the answer, and counts only
//! at the place that stands here.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};

use crate::name::LockId;

/// A server that can be listened to.
pub(crate) trait Place: Clone {
    type Number: Copy + PartialEq;

    /// Its number among those of one client.
    fn number(&self) -> Self::Number;
}

/// The names that one client listens for, and where.
pub(crate) struct Listening<P> {
    /// In the same order each time: a simulation must be able to replay it.
    names: Mutex<BTreeMap<LockId, ListenedName<P>>>,
    numbers: AtomicU64,
}

/// A name that is listened for.
pub(crate) struct ListenedName<P> {
    heard: Heard<P>,
    /// Tells this listener from the one before.
    pub(crate) number: u64,
    /// A task looks for the place, and has it moved there. A second would ask the same servers beside it.
    pub(crate) is_followed: bool,
}

enum Heard<P> {
    /// It is not known which server has the name, or the one that had it lets no client listen any more.
    Nowhere,
    /// As `Nowhere`, and it is asked for at the next.
    Opening(P),
    At(P),
    /// Until the next has confirmed, wake-ups count at the one before, where the client is still heard.
    Moving {
        from: P,
        to: P,
    },
}

impl<P> Default for Listening<P> {
    fn default() -> Listening<P> {
        Listening {
            names: Mutex::default(),
            numbers: AtomicU64::default(),
        }
    }
}

impl<P: Place> Listening<P> {
    /// Under this lock a request is sent that must come behind what was written down here.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<LockId, ListenedName<P>>> {
        self.names.lock()
    }

    /// Listens for the name at this place from now on. Returns the number of the listener, and another place that it leaves.
    pub(crate) fn begin(&self, id: &LockId, place: Option<P>) -> (u64, Option<P>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let next = place.as_ref().map(Place::number);
        let listener = ListenedName {
            heard: place.map_or(Heard::Nowhere, Heard::At),
            number,
            is_followed: false,
        };
        let before = self.lock().insert(id.clone(), listener);
        let left = before.and_then(|listener| listener.heard.into_place());
        (number, left.filter(|left| Some(left.number()) != next))
    }

    /// Whether wake-ups for the name count that are heard at this place.
    pub(crate) fn hears(&self, id: &LockId, place: P::Number) -> bool {
        let names = self.lock();
        names.get(id).is_some_and(|listener| listener.is_at(place))
    }

    /// The name is not listened for any more. Returns where it was.
    pub(crate) fn end(&self, id: &LockId) -> Option<P> {
        self.lock().remove(id)?.heard.into_place()
    }

    /// As [`end`](Listening::end), unless another listener has taken its place, or it has ended already.
    pub(crate) fn end_of(&self, id: &LockId, number: u64) -> Option<P> {
        let mut names = self.lock();
        names.get(id).filter(|it| it.number == number)?;
        names.remove(id)?.heard.into_place()
    }
}

impl<P> Heard<P> {
    fn into_place(self) -> Option<P> {
        match self {
            Heard::At(place) | Heard::Moving { from: place, .. } => Some(place),
            Heard::Nowhere | Heard::Opening(_) => None,
        }
    }
}

impl<P: Place> ListenedName<P> {
    fn place(&self) -> Option<&P> {
        match &self.heard {
            Heard::At(place) | Heard::Moving { from: place, .. } => Some(place),
            Heard::Nowhere | Heard::Opening(_) => None,
        }
    }

    pub(crate) fn is_nowhere(&self) -> bool {
        self.place().is_none()
    }

    pub(crate) fn is_at(&self, place: P::Number) -> bool {
        self.place().is_some_and(|at| at.number() == place)
    }

    /// Whether it was asked for there, and that place has not ended it since.
    pub(crate) fn is_asked_at(&self, place: P::Number) -> bool {
        match &self.heard {
            Heard::Opening(to) | Heard::Moving { to, .. } => to.number() == place,
            Heard::Nowhere | Heard::At(_) => false,
        }
    }

    /// It is asked for at `to`, beside the place where it is heard.
    pub(crate) fn asks_at(&mut self, to: P) {
        self.heard = match self.take() {
            Heard::At(from) | Heard::Moving { from, .. } => Heard::Moving { from, to },
            Heard::Nowhere | Heard::Opening(_) => Heard::Opening(to),
        };
    }

    /// It is asked for elsewhere no more.
    pub(crate) fn asks_no_more(&mut self) {
        self.heard = match self.take() {
            Heard::Moving { from, .. } => Heard::At(from),
            Heard::Opening(_) => Heard::Nowhere,
            as_before => as_before,
        };
    }

    /// It is heard at `place` from now on. Returns another place that it leaves.
    pub(crate) fn moves_to(&mut self, place: P) -> Option<P> {
        let next = place.number();
        let before = std::mem::replace(&mut self.heard, Heard::At(place));
        before.into_place().filter(|left| left.number() != next)
    }

    /// A place lets this client listen no more. Returns it if the name was heard there.
    pub(crate) fn ended_at(&mut self, place: P::Number) -> Option<P> {
        if self.is_asked_at(place) {
            self.asks_no_more();
        }
        if !self.is_at(place) {
            return None;
        }
        let (left, heard) = match self.take() {
            Heard::At(from) => (Some(from), Heard::Nowhere),
            Heard::Moving { from, to } => (Some(from), Heard::Opening(to)),
            as_before => (None, as_before),
        };
        self.heard = heard;
        left
    }

    fn take(&mut self) -> Heard<P> {
        std::mem::replace(&mut self.heard, Heard::Nowhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::LockKind, name::Name};

    impl Place for char {
        type Number = char;

        fn number(&self) -> char {
            *self
        }
    }

    fn id() -> LockId {
        LockId::new(LockKind::Mutex, Name::new("name").unwrap())
    }

    fn at(place: Option<char>) -> ListenedName<char> {
        let names = Listening::default();
        names.begin(&id(), place);
        names.lock().remove(&id()).unwrap()
    }

    /// Both places are listened to while it moves, and a grant that both tell counts once.
    #[test]
    fn wake_ups_count_at_the_old_place_until_the_new_one_has_confirmed() {
        let mut it = at(Some('a'));
        it.asks_at('b');
        assert!(it.is_at('a') && !it.is_at('b') && it.is_asked_at('b'));
        assert_eq!(it.moves_to('b'), Some('a'), "the old one is told");
        assert!(it.is_at('b') && !it.is_asked_at('b'));
        assert_eq!(it.moves_to('b'), None, "it is not told that it is left");
    }

    #[test]
    fn an_end_at_one_place_leaves_the_other_as_it_is() {
        let mut it = at(Some('a'));
        it.asks_at('b');
        assert_eq!(it.ended_at('b'), None, "it is heard at the old one still");
        assert!(it.is_at('a') && !it.is_asked_at('b'));
        it.asks_at('b');
        assert_eq!(it.ended_at('a'), Some('a'));
        assert!(it.is_nowhere() && it.is_asked_at('b'));
        it.asks_no_more();
        assert!(it.is_nowhere() && !it.is_asked_at('b'));
        assert_eq!(it.ended_at('a'), None, "once");
    }

    /// The answer to an older call ends nothing that a newer one has begun (bug 75).
    #[test]
    fn a_listener_ends_by_its_number() {
        let names = Listening::default();
        let (first, left) = names.begin(&id(), Some('a'));
        assert_eq!(left, None);
        let (second, left) = names.begin(&id(), Some('b'));
        assert_eq!(left, Some('a'));
        assert_eq!(names.end_of(&id(), first), None);
        assert!(names.hears(&id(), 'b') && !names.hears(&id(), 'a'));
        let (third, left) = names.begin(&id(), Some('b'));
        assert_eq!((left, second == third), (None, false));
        assert_eq!(names.end(&id()), Some('b'));
        assert_eq!(names.end_of(&id(), third), None);
    }
}
